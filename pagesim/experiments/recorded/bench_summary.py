"""Reads the default output of ``vllm bench serve --save-result`` and SGLang's bench: means and percentiles.

The file holds only the sum of the requests' lengths. SGLang's names the dataset that they were drawn from;
vLLM's does not, and its default dataset has equal lengths. Sources: vLLM 0.19.0, vllm/benchmarks/serve.py;
SGLang 0.5.23, benchmark/serving.py and benchmark/datasets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pagesim.experiments.recorded.bench_server import server_of
from pagesim.experiments.recorded.layout import Amount, Count, Requests, parsed, table
from pagesim.experiments.recorded.recording import Floats, RecordedRun
from pagesim.experiments.recorded.summaries import BenchLoad, scaled, statistics
from pagesim.workloads import make_trace

METRICS = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2e", "e2e_latency": "e2e"}
"""Metrics by their names in the files."""


class _Summary(BenchLoad):
    completed: Requests
    total_input_tokens: Count
    total_output_tokens: Count
    duration: Amount | None = None
    burstiness: Amount | None = None
    dataset_name: str | None = None
    random_range_ratio: Amount | None = None

    def shapes(self) -> tuple[Floats, Floats, str]:
        """Return relative lengths of prompts and outputs, ``[N]`` each, and how they were drawn."""
        size, draw = int(self.completed), np.random.default_rng(0)
        if (self.dataset_name or "").startswith("random"):
            low = min(self.random_range_ratio or 0.0, 1.0)
            how = f"evenly between {low:g} and 1 times the longest"
            return draw.uniform(low, 1, size), draw.uniform(low, 1, size), how
        if self.dataset_name == "sharegpt":
            texts = make_trace("sharegpt", num_requests=size)
            return texts.prompt_tokens.astype(float), texts.output_tokens.astype(float), "as ShareGPT's"
        return np.ones(size), np.ones(size), "all alike"


def fits(data: object) -> bool:
    """Return whether a file's data looks like such a summary."""
    return {"completed", "mean_ttft_ms"} <= table(data).keys()


def read(name: str, data: Mapping[str, Any]) -> tuple[RecordedRun, ...]:
    """Return the run, with lengths drawn as the bench draws them."""
    found = parsed(_Summary, name, data)
    known = {"duration": {} if found.duration is None else {"mean": found.duration}}
    for their, metric in METRICS.items():
        known[metric] = known.get(metric, {}) | statistics(name, data, 1e-3, f"{{}}_{their}_ms")
    prompt, output, how = found.shapes()
    means = found.total_input_tokens / found.completed, found.total_output_tokens / found.completed
    note = f"lengths of {means[0]:,.4g} and {means[1]:,.4g} tokens in the mean are drawn, {how}"
    run = RecordedRun.summarized(
        name,
        known,
        scaled(prompt, means[0]),
        scaled(output, means[1]),
        clients=found.clients,
        rate=found.a_second(name),
        burstiness=found.burstiness or 1.0,
        server=server_of(name, data),
        notes=(f"{name}: has no single requests: {note}",),
    )
    return (run,)
