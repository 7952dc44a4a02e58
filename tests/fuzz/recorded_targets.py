"""Readers of recorded runs, and what they say of servers."""

from __future__ import annotations

import json
from pathlib import Path

from target import Target, of_tests

from pagesim.experiments.recorded.find import read_all


def made() -> list[Target]:
    """Return these."""
    samples = of_tests("experiments/recorded/samples")
    summaries = of_tests("experiments/recorded/test_summaries")
    export = json.dumps(summaries.aiperf())
    sampled = json.dumps(samples.sampled({"vllm:num_requests_running": (3.0, [2.0, 4.0])}))
    series = "t,running,waiting,kv_cache_pct\n1.0,3,1,25\n2.0,2,0,12.5\n"
    client = json.dumps(samples.vllm())
    sglang = "\n".join(json.dumps(samples.sglang(clients)) for clients in (1, 2))
    return [
        _target("SGLang's bench", {"s.jsonl": sglang}),
        _target("GuideLLM", {"g.json": json.dumps(samples.guidellm())}),
        _target("inference-perf", {"i.json": json.dumps(samples.inference_perf())}),
        _target(
            "an engine's series", {"requests.jsonl": samples.llmservingsim()}, {"timeseries.csv": series}
        ),
        _target("a default save of vLLM", {"v.json": json.dumps(summaries.vllm(request_rate=2.0))}),
        _target("a default save of SGLang", {"s.json": json.dumps(summaries.sglang())}),
        _target("AIPerf's statistics", {"a.json": export}),
        _target(
            "AIPerf's records",
            {"profile_export.jsonl": "\n".join(map(json.dumps, summaries.records()))},
            {"profile_export_aiperf.json": export},
        ),
        _target("AIPerf's server", {"c.json": client, "m.json": sampled}, mutated=("m.json",)),
        _target("closed loops", {"c.csv": samples.TABLE}),
        _target("a server's log", {"c.json": client, "server.log": samples.LOG}, mutated=("server.log",)),
        _target("a server's metrics", {"c.json": client, "m.txt": samples.METRICS}, mutated=("m.txt",)),
    ]


def _target(
    name: str, read: dict[str, str], beside: dict[str, str] | None = None, mutated: tuple[str, ...] = ()
) -> Target:
    """Return a target that reads some files, with others beside them."""
    files = {**read, **(beside or {})}

    def runs(folder: Path) -> None:
        for run in read_all([folder / file for file in read]):
            assert len(run.trace())
            assert run.known or len(run.ttft_s) == len(run)

    whole = {file: text.encode() for file, text in files.items()}
    return Target(f"recorded: {name}", whole, mutated or tuple(files), runs)
