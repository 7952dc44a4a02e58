"""A trace over sizes of vLLM's tier on the host: what is hit, and what that is worth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pagesim.api import run
from pagesim.errors import PagesimError
from pagesim.results.result import Result
from pagesim.setup.system import System
from pagesim.workloads.trace import Trace

__all__ = ["OfSize", "serve_sizes"]


@dataclass(frozen=True, slots=True)
class OfSize:
    """What came of one size.

    Attributes:
        gib: of the tier; 0 for none.
        device_slots: token slots of the device's own cache.
        hit_percent: prompt tokens that were found on the device or loaded, of all; of each request as it was
            admitted first.
        tier_percent: prompt tokens that were loaded, of all; of each request the last time that any were.
        ttft_s: seconds until the first token: mean, median, 99th percentile; None where none came.
        tokens_per_s: that were generated.
        result: of the run.
    """

    gib: float
    device_slots: int
    hit_percent: float
    tier_percent: float
    ttft_s: tuple[float | None, float | None, float | None]
    tokens_per_s: float
    result: Result


def serve_sizes(system: System, trace: Trace, sizes: Sequence[float]) -> Iterator[OfSize]:
    """Replay a trace over sizes of the tier.

    Args:
        system: under policy ``vllm-v1``, with prefix caching; its own tier is left out.
        trace: is replayed each time.
        sizes: GiB; 0 for no tier.

    Raises:
        PagesimError: a size is negative, or an option is off.
    """
    for size in sizes:
        if size < 0:
            raise PagesimError(f"sizes is {size:g}; a tier has 0 GiB or more")
        update = {"kv_offloading_size": size or None, "kv_offloading_chunks": None, "tiers": None}
        result = run(system.model_copy(update=update), trace, steps="none")
        requests = result.requests
        served = requests[requests["first_token_s"].notna()]
        prompts = max(1, int(served["prompt_tokens"].sum()))
        loaded = served["loaded_tokens"].fillna(0).sum() if "loaded_tokens" in served else 0
        ttft, memory = result.summary["ttft"], result.summary["memory"]
        yield OfSize(
            size,
            memory["num_blocks"] * memory["block_size"],
            100 * float(served["cached_tokens"].sum()) / prompts,
            100 * float(loaded) / prompts,
            (ttft["mean"], ttft["p50"], ttft["p99"]),
            result.summary["throughput"]["tokens_per_s"] or 0.0,
            result,
        )
