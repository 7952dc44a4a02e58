"""What clients' files say about the server that they sent requests to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagesim.experiments.recorded.layout import FileLayout, at, parsed, table

SGLANG = {
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
"""Options of a system by their names in SGLang's ``server_info``."""


class _Model(FileLayout):
    model: str | None = at(
        *(
            "model_id",
            "server_info.model_path",
            "args.model",
            "args.backend.model",
            "args.spec.backend.model",
        ),
        *("input_config.models.items.0.name", "input_config.endpoint.model_names.0"),
        default=None,
    )


def server_of(name: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a client's file says about the server, as options of a system.

    Sources: vLLM 0.19.0, vllm/benchmarks/serve.py; SGLang 0.5.23, benchmark/serving.py; guidellm 0.8.1,
    whose older reports name the model elsewhere; aiperf 0.13.0, whose ``input_config`` had two layouts.
    """
    info = table(data.get("server_info"))
    found = {own: info[name] for name, own in SGLANG.items() if info.get(name) is not None}
    if str(data.get("backend")).startswith("sglang"):
        found["policy"] = "sglang"
    model = parsed(_Model, name, data).model
    return found if model is None else {"model": model, **found}
