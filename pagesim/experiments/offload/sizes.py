"""Size sweep of vLLM's host tier on a trace: which prompt tokens hit, and the effect on latency."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pagesim.api import run
from pagesim.errors import PagesimError
from pagesim.experiments.prompt_blocks import PromptBlocks
from pagesim.setup.system import System
from pagesim.workloads.trace import Trace

GIB = 1 << 30


def serve_sizes(
    system: System, trace: Trace, sizes: Sequence[float], prompts: PromptBlocks, chunk: int
) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    """Yield a row and notes of a trace's replay with each size of the host tier.

    In each row, ``hit_pct`` is the share of prompt tokens that hit on the device or were loaded, at each
    request's first admission. ``tier_pct`` is the share loaded, from each request's last load. ``bound_pct``
    is the upper bound for tier and device together.

    Args:
        system: system under policy ``vllm-v1`` with prefix caching; its own tier is ignored.
        trace: trace to replay with every size.
        sizes: sizes of the tier in GiB; 0 for no tier.
        prompts: chunks of the trace's prompts.
        chunk: bytes of a chunk.

    Raises:
        PagesimError: a size is negative, or an option is invalid.
    """
    future, tokens = prompts.future, int(trace.prompt_tokens.sum())
    for size in sizes:
        if size < 0:
            raise PagesimError(f"sizes is {size:g}; a tier has 0 GiB or more")
        update = {"kv_offloading_size": size or None, "kv_offloading_chunks": None, "tiers": None}
        result = run(system.model_copy(update=update), trace, steps="none")
        requests = result.requests
        served = requests[requests["first_token_s"].notna()]
        asked = max(1, int(served["prompt_tokens"].sum()))
        loaded = served["loaded_tokens"].fillna(0).sum() if "loaded_tokens" in served else 0
        summary = result.summary
        slots = summary["memory"]["num_blocks"] * summary["memory"]["block_size"]
        room = int(size * GIB) // chunk + slots // prompts.tokens
        values = {
            "tier_gib": size,
            "device_gib": slots * chunk / prompts.tokens / GIB,
            "hit_pct": 100 * float(served["cached_tokens"].sum()) / asked,
            "tier_pct": 100 * float(loaded) / asked,
            "bound_pct": 100 * prompts.tokens * future.hits(room) / tokens,
            **{f"ttft_{name}_s": summary["ttft"][name] for name in ("mean", "p50", "p99")},
            "tokens_per_s": summary["throughput"]["tokens_per_s"] or 0.0,
        }
        yield values, result.notes
