"""Reads what ``vllm bench serve --save-result`` and SGLang's bench write by default: means and percentiles.

Lengths of single requests are not in it, only their sum. SGLang's file names the dataset that they are of;
vLLM's does not, and its own default draws all alike. Sources: vLLM 0.19.0, vllm/benchmarks/serve.py; SGLang
0.5.23, benchmark/serving.py and benchmark/datasets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pagesim.errors import PagesimError, brief
from pagesim.experiments.recorded.layout import Amount, Count, Layout, Requests, is_number, parsed, table
from pagesim.experiments.recorded.recording import RecordedRun
from pagesim.experiments.recorded.summarized import scaled, statistics, summarized
from pagesim.experiments.recorded.vllm_bench import model_of
from pagesim.workloads import make_trace

METRICS = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2e", "e2e_latency": "e2e"}
"""Metrics, by how files call them."""


class _Summary(Layout):
    completed: Requests
    total_input_tokens: Count
    total_output_tokens: Count
    duration: Amount | None = None
    max_concurrency: Count | None = None
    request_rate: Any = "inf"
    burstiness: Amount | None = None
    dataset_name: str | None = None
    random_range_ratio: Amount | None = None


def fits(data: object) -> bool:
    """Return whether a file's data may be such a summary."""
    return {"completed", "mean_ttft_ms"} <= table(data).keys()


def read(
    name: str, data: Mapping[str, Any], server: Mapping[str, Any] | None = None
) -> tuple[RecordedRun, ...]:
    """Return the run, with lengths as the bench draws them.

    Args:
        name: of the file.
        data: what it holds.
        server: what it says of the server; the model's name when left out.

    Raises:
        PagesimError: a field is missing or wrong, or requests were sent at times that it does not say.
    """
    found = parsed(_Summary, name, data)
    rate = None if found.request_rate == "inf" else found.request_rate
    if rate is not None and not is_number(rate, 1e6, 1e-6):
        raise PagesimError(
            f"{name}: request_rate is {brief(rate)}, and when requests were sent is not known; keep the "
            "times of single requests (--save-detailed, SGLang: --output-details)"
        )
    size, draw = int(found.completed), np.random.default_rng(0)
    prompt: npt.ArrayLike = np.ones(size)
    output, how = prompt, "all alike"
    if (found.dataset_name or "").startswith("random"):
        low = min(found.random_range_ratio or 0.0, 1.0)
        prompt, output = draw.uniform(low, 1, size), draw.uniform(low, 1, size)
        how = f"evenly between {low:g} and 1 times the longest"
    elif found.dataset_name == "sharegpt":
        texts = make_trace("sharegpt", num_requests=size)
        prompt, output, how = texts.prompt_tokens, texts.output_tokens, "as ShareGPT's"
    means = found.total_input_tokens / found.completed, found.total_output_tokens / found.completed
    known = {"duration": {} if found.duration is None else {"mean": found.duration}}
    for their, metric in METRICS.items():
        known[metric] = known.get(metric, {}) | statistics(name, data, 1e-3, f"{{}}_{their}_ms")
    note = f"lengths of {means[0]:,.4g} and {means[1]:,.4g} tokens in the mean are drawn, {how}"
    run = summarized(
        name,
        known,
        scaled(prompt, means[0]),
        scaled(output, means[1]),
        clients=found.max_concurrency,
        rate=rate,
        burstiness=found.burstiness or 1.0,
        server=model_of(data) if server is None else server,
        notes=(f"{name}: has no single requests: {note}",),
    )
    return (run,)
