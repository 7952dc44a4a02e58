"""Reads what SGLang's bench appends with ``--output-details``: a line of JSON a run.

Its lists are those of ``vllm bench serve``; when requests were sent is not among them.
Source: sglang 0.5.23, benchmark/serving.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pagesim.errors import PagesimError
from pagesim.experiments.recorded import fields, vllm_bench
from pagesim.experiments.recorded.recording import RecordedRun


def fits(data: object) -> bool:
    """Return whether a line's data may be such a result."""
    return isinstance(data, Mapping) and "mean_e2e_latency_ms" in data and "backend" in data


def read(name: str, data: Mapping[str, Any]) -> RecordedRun:
    """Return the run.

    Args:
        name: of the file, and of the line if there are several.
        data: what the line holds.

    Raises:
        PagesimError: a field is missing, times contradict one another, or too many requests failed.
    """
    if "itls" not in data:
        raise PagesimError(
            f"{name}: has no itls; run SGLang's bench with --output-details, which keeps the times "
            "of single requests"
        )
    run = vllm_bench.read(name, data)
    info = fields.table(data.get("server_info"))
    said = {
        "model": info.get("model_path"),
        "tensor_parallel_size": info.get("tp_size"),
        "max_num_seqs": info.get("max_running_requests"),
        "max_num_batched_tokens": info.get("chunked_prefill_size"),
    }
    note = f"{name}: SGLang is simulated as vllm-v1 unless --policy says otherwise"
    return replace(
        run,
        server={**run.server, **{key: value for key, value in said.items() if value is not None}},
        notes=(*run.notes, note),
    )
