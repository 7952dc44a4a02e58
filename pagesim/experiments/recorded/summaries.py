"""Reads runs that are known by a summary: the load is drawn again, and what statistics there are is compared.

That is what ``vllm bench serve --save-result`` and SGLang's bench write by default, and what AIPerf and
GenAI-Perf export. Sources: vLLM 0.19.0, vllm/benchmarks/serve.py; SGLang 0.5.23, benchmark/serving.py;
aiperf 0.13.0, docs/reference/json-export-schema.md.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from pagesim.errors import PagesimError, brief
from pagesim.experiments.recorded.bench_server import server_of
from pagesim.experiments.recorded.layout import Amount, Count, Layout, Requests, at, is_number, parsed, table
from pagesim.experiments.recorded.recording import Ints, RecordedRun
from pagesim.sim.clock import LONGEST_S
from pagesim.workloads import make_trace

METRICS = {
    "ttft": ("{}_ttft_ms", "time_to_first_token.{}"),
    "tpot": ("{}_tpot_ms", "inter_token_latency.{}"),
    "itl": ("{}_itl_ms",),
    "e2e": ("{}_e2el_ms", "{}_e2e_latency_ms", "request_latency.{}"),
}
"""Metrics and how files call them; AIPerf's mean gap of a request is what others call TPOT."""

STATISTICS = {
    "mean": ("mean", "avg"),
    "p50": ("median", "p50"),
    **{f"p{p}": (f"p{p}",) for p in (90, 95, 99)},
}
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3}
"""Seconds of a unit; of others it is 1."""


def scaled(lengths: npt.ArrayLike, mean: float) -> Ints:
    """Return lengths, ``[N]``, stretched to a mean, in whole tokens, at least 1 each; ends are summed up."""
    drawn = np.asarray(lengths, np.float64)
    ends = np.rint(np.cumsum(drawn * (mean / drawn.mean())))
    found: Ints = np.maximum(1, np.diff(ends, prepend=0)).astype(np.int64)
    return found


class Load(Layout):
    """With which load a run came about."""

    clients: Count | None = at(
        *("max_concurrency", "input_config.phases.-1.concurrency", "input_config.loadgen.concurrency"),
        default=None,
    )
    rate: Any = at(
        *("request_rate", "input_config.phases.-1.rate", "input_config.loadgen.request_rate"), default=None
    )


class _Bench(Load):
    requests: Requests = at("completed")
    inputs: Count = at("total_input_tokens")
    outputs: Count = at("total_output_tokens")
    burstiness: Amount | None = None
    dataset_name: str | None = None
    random_range_ratio: Amount | None = None

    def lengths(self) -> tuple[Ints, Ints, str]:
        """Return prompts and outputs as the bench draws them, ``[N]`` each, and how that is.

        SGLang's file names its dataset; vLLM's does not, and its default draws all alike.
        """
        size, draw = int(self.requests), np.random.default_rng(0)
        prompt, output, how = np.ones(size), np.ones(size), "all alike"
        if (self.dataset_name or "").startswith("random"):
            low = min(self.random_range_ratio or 0.0, 1.0)
            prompt, output = draw.uniform(low, 1, size), draw.uniform(low, 1, size)
            how = f"evenly between {low:g} and 1 times the longest"
        elif self.dataset_name == "sharegpt":
            texts = make_trace("sharegpt", num_requests=size)
            prompt, output = texts.prompt_tokens.astype(float), texts.output_tokens.astype(float)
            how = "as ShareGPT's"
        return scaled(prompt, self.inputs / size), scaled(output, self.outputs / size), how


class _Lengths(Layout):
    avg: Count
    std: Amount = 0.0
    min: Amount = 1.0
    max: Amount = 1e7


class _Export(Load):
    requests: Requests = at("request_count.avg")
    latency: Amount = at("request_latency.avg")
    prompt: _Lengths = at("input_sequence_length")
    output: _Lengths = at("output_sequence_length")
    throughput: Amount | None = at("request_throughput.avg", default=None)
    burstiness: None = None

    def lengths(self) -> tuple[Ints, Ints, str]:
        """Return prompts and outputs as AIPerf draws them, ``[N]`` each, and how that is."""
        draw = np.random.default_rng(0)
        prompt, output = (
            scaled(np.clip(draw.normal(of.avg, of.std, int(self.requests)), of.min, of.max), of.avg)
            for of in (self.prompt, self.output)
        )
        return prompt, output, "normally"


def fits(data: object) -> bool:
    """Return whether a file's data may be such a summary."""
    return {"completed", "mean_ttft_ms"} <= table(data).keys() or _is_export(data)


def _is_export(data: object) -> bool:
    return isinstance(table(data).get("request_latency"), Mapping)


def of_csv(text: str) -> dict[str, Any]:
    """Return what AIPerf's JSON has, of its CSV of two tables: statistics a row, and single values."""
    found: dict[str, Any] = {}
    names: list[str] = []
    for first, *cells in filter(None, csv.reader(text.splitlines())):
        if first == "Metric":
            names = ["avg" if name == "Value" else name for name in cells]
            continue
        metric, _, unit = first.partition(" (")
        of: dict[str, Any] = {"unit": unit.rstrip(")")}
        found[metric.lower().replace(" ", "_")] = of
        for name, cell in zip(names, cells, strict=False):
            with suppress(ValueError):
                of[name] = float(cell.replace(",", ""))
    return found


def read(name: str, data: Mapping[str, Any]) -> tuple[RecordedRun, ...]:
    """Return the run, with lengths as the benchmark draws them."""
    found: _Bench | _Export = parsed(_Export, name, data) if _is_export(data) else parsed(_Bench, name, data)
    rate = None if found.rate == "inf" else found.rate
    if rate is not None and not is_number(rate, 1e6, 1e-6):
        raise PagesimError(
            f"{name}: request_rate is {brief(rate)}, and when requests were sent is not known; keep the "
            "times of single requests (--save-detailed, SGLang: --output-details)"
        )
    known = {metric: _statistics(name, data, theirs) for metric, theirs in METRICS.items()}
    duration = data.get("duration", table(data.get("benchmark_duration")).get("avg"))
    if is_number(duration, LONGEST_S):
        known["duration"] = {"mean": float(duration)}
    prompt, output, how = found.lengths()
    clients, note = (
        found.clients,
        f"lengths of {prompt.mean():,.4g} and {output.mean():,.4g} tokens in the mean ",
    )
    if isinstance(found, _Export) and clients is None and rate is None and found.throughput is not None:
        clients = max(1.0, round(found.throughput * known["e2e"]["mean"]))
        note = f"its load is not said, by Little's law {clients:.0f} requests at a time; {note}"
    run = RecordedRun.summarized(
        name,
        known,
        prompt,
        output,
        clients=clients,
        rate=rate,
        burstiness=found.burstiness or 1.0,
        server=server_of(name, data),
        notes=(f"{name}: has no single requests: {note}are drawn, {how}",),
    )
    return (run,)


def _statistics(name: str, data: Mapping[str, Any], theirs: tuple[str, ...]) -> dict[str, float]:
    """Return those statistics of a metric that are there, in seconds."""
    known: dict[str, float] = {}
    for statistic, words in STATISTICS.items():
        for field in (each.format(word) for each in theirs for word in words):
            metric, _, of = field.partition(".")
            value = table(data.get(metric)).get(of) if of else data.get(metric)
            if value is None:
                continue
            scale = UNITS.get(str(table(data.get(metric)).get("unit", "ms")), 1.0)
            if not is_number(value, LONGEST_S / scale):
                raise PagesimError(f"{name}: {field} is {brief(value)}; a number from 0 is needed")
            known[statistic] = scale * value
    return known
