"""Offload: the chunks of a tier on the host, and what copies to and from it take."""

from __future__ import annotations

from typing import Any

from pagesim.costs import CostModel
from pagesim.costs.base import IterationShape
from pagesim.costs.specs import Capacity
from pagesim.costs.specs.gpu_spec import GIB, Link
from pagesim.errors import PagesimError
from pagesim.scheduling.options import SchedulerOptions
from pagesim.setup.scenario import System
from pagesim.sim.clock import to_ticks
from pagesim.sim.copies import CopyTime

ALIGNMENT = 4096
"""Bytes to a multiple of which vLLM 0.33.0 rounds a chunk up (v1/kv_offload/cpu/manager.py)."""


def with_chunks(options: Any, sized: Capacity) -> SchedulerOptions:
    """Return a scheduler's options with the tier's chunks in place of its size.

    Args:
        options: of the scheduler.
        sized: the device's memory.

    Raises:
        PagesimError: the tier does not hold a single chunk.
    """
    gib = getattr(options, "kv_offloading_size", None)
    if gib is None:
        return options  # type: ignore[no-any-return]
    if options.kv_offloading_chunks is not None:
        raise PagesimError("kv_offloading_size and kv_offloading_chunks say the same; give one of them")
    chunk = sized.block_bytes * sized.tp * options.kv_offloading_chunk_blocks
    chunk += -chunk % ALIGNMENT
    chunks = int(gib * GIB) // chunk
    if not chunks:
        raise PagesimError(
            f"kv_offloading_size is {gib:g} GiB, less than a chunk of {chunk / GIB:.3g} GiB: raise it, or "
            "lower kv_offloading_chunk_blocks"
        )
    return options.model_copy(update={"kv_offloading_chunks": chunks})  # type: ignore[no-any-return]


def copy_times(system: System, sized: Capacity, cost: CostModel) -> tuple[CopyTime, CopyTime]:
    """Return what a copy of so many blocks takes from the host, and to it."""
    link = system.host_link
    if link is not None:
        return (_over(link, sized.block_bytes),) * 2

    def loads(blocks: int) -> int:
        return cost.iteration(_moving(0, blocks))

    def stores(blocks: int) -> int:
        return cost.iteration(_moving(blocks, 0))

    return loads, stores


def _over(link: Link, block_bytes: int) -> CopyTime:
    latency, block = to_ticks(link.latency_s), to_ticks(block_bytes / link.bytes_per_s)
    return lambda blocks: latency + block * blocks


def _moving(out: int, into: int) -> IterationShape:
    return IterationShape(0, 0, 0, 0, 0, out, into, 0, 0, 0)
