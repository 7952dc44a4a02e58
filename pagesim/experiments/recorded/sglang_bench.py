"""Reads what SGLang's bench appends: a line of JSON a run, of single requests with ``--output-details``.

Its lists are those of ``vllm bench serve``; when requests were sent is not among them.
Source: sglang 0.5.23, benchmark/serving.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagesim.experiments.recorded import bench_summary, vllm_bench
from pagesim.experiments.recorded.layout import table
from pagesim.experiments.recorded.recording import RecordedRun

OPTIONS = {
    "model_path": "model",
    "tp_size": "tensor_parallel_size",
    "max_total_num_tokens": "max_total_tokens",
    **{
        name: name
        for name in (
            *("schedule_policy", "schedule_conservativeness", "chunked_prefill_size", "max_prefill_tokens"),
            *("max_running_requests", "mem_fraction_static", "page_size", "enable_mixed_chunk"),
            *(
                "disable_overlap_schedule",
                "disable_radix_cache",
                "disable_cuda_graph",
                "swa_full_tokens_ratio",
            ),
        )
    },
}
"""Options of a system, by how ``server_info`` calls them."""


def fits(data: object) -> bool:
    """Return whether a line's data may be such a result."""
    return isinstance(data, Mapping) and "mean_e2e_latency_ms" in data and "backend" in data


def read(name: str, data: Mapping[str, Any]) -> tuple[RecordedRun, ...]:
    """Return the run."""
    info = table(data.get("server_info"))
    server = {own: info[name] for name, own in OPTIONS.items() if info.get(name) is not None}
    if str(data["backend"]).startswith("sglang"):
        server["policy"] = "sglang"
    if vllm_bench.fits(data):
        hint = "run SGLang's bench with --output-details, which keeps the times of single requests"
        return vllm_bench.read(name, data, hint, server=server)
    return bench_summary.read(name, data, server=server)
