"""Offload: the tiers of a system made ready for its scheduler, and what copies to and from them take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pagesim.costs.base import IterationShape
from pagesim.costs.preemption import LoadTime
from pagesim.costs.specs import Capacity
from pagesim.costs.specs.gpu_spec import GIB, parse_link
from pagesim.errors import PagesimError
from pagesim.kvcache.tiers import UNLIMITED, ChainBacking, TierChain
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.offload.offloading import offloading_of
from pagesim.scheduling.options import SchedulerOptions
from pagesim.setup.tiers import chunk_bytes, copy_time, links_of, load_time, make_chain
from pagesim.sim.copies import CopyEngine, CopyTime
from pagesim.sim.tier_copies import TierCopies

if TYPE_CHECKING:
    from pagesim.setup.engine_config import EngineConfig


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
    chunk = chunk_bytes(sized, options.kv_offloading_chunk_blocks)
    chunks = int(gib * GIB) // chunk
    if not chunks:
        raise PagesimError(
            f"kv_offloading_size is {gib:g} GiB, less than a chunk of {chunk / GIB:.3g} GiB: raise it, or "
            "lower kv_offloading_chunk_blocks"
        )
    return options.model_copy(update={"kv_offloading_chunks": chunks})  # type: ignore[no-any-return]


def copy_times(config: EngineConfig) -> tuple[CopyTime, CopyTime]:
    """Return what a copy of so many blocks takes from vLLM's tier on the host, and to it."""
    cost, link = config.cost, config.system.kv_offloading_link
    if link is not None:
        return (copy_time(parse_link(link), config.capacity.block_bytes),) * 2

    def loads(blocks: int) -> int:
        return cost.iteration(_moving(0, blocks))

    def stores(blocks: int) -> int:
        return cost.iteration(_moving(blocks, 0))

    return loads, stores


def loads_in(config: EngineConfig) -> LoadTime:
    """Return what a load of so many blocks from each tier takes."""
    if config.tiers:
        return load_time(config.tiers, links_of(config.tiers, config.capacity, chunk_blocks(config.options)))
    load = copy_times(config)[0]
    return lambda blocks: load(blocks[0])


def chain_of(config: EngineConfig) -> TierChain:
    """Return the empty chain of tiers that a system asks for."""
    threshold = getattr(config.options, "kv_offloading_threshold", None) or 0
    size = chunk_bytes(config.capacity, chunk_blocks(config.options))
    return make_chain(config.tiers, size, threshold=threshold)


def copies_of(config: EngineConfig, scheduler: Scheduler) -> CopyEngine | TierCopies:
    """Return what carries out the copies between a scheduler's device and its tiers."""
    if not config.tiers:
        return CopyEngine(*copy_times(config))
    connector = offloading_of(scheduler)
    assert connector is not None
    backing = connector.backing
    assert isinstance(backing, ChainBacking)
    return TierCopies(backing, links_of(config.tiers, config.capacity, chunk_blocks(config.options)))


def traffic_of(scheduler: Scheduler, sized: Capacity, options: SchedulerOptions) -> dict[str, Any]:
    """Return what each tier of a scheduler did, by name; nothing where it has none.

    Of each tier: its ``capacity`` in chunks (null without a limit), the bytes of a chunk, chunks and bytes
    that were stored, loaded, promoted, demoted and evicted, and its ``share`` of what was loaded.
    """
    connector = offloading_of(scheduler)
    if connector is None:
        return {}
    backing, size = connector.backing, chunk_bytes(sized, chunk_blocks(options))
    loaded = sum([each.loaded for each in backing.traffic])
    found = {}
    for (name, store), traffic in zip(backing.tiers, backing.traffic, strict=True):
        chunks = {**traffic.chunks(), "evicted": store.evicted}
        found[name] = {
            "capacity": None if store.capacity == UNLIMITED else store.capacity,
            "chunk_bytes": size,
            "chunks": chunks,
            "bytes": {what: count * size for what, count in chunks.items()},
            "share": traffic.loaded / loaded if loaded else None,
        }
    return found


def total_traffic(replicas: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what the tiers of several schedulers did together, as `traffic_of`; each has its own."""
    total: dict[str, Any] = {}
    for name, first in next(iter(replicas), {}).items():
        own = [each[name] for each in replicas]
        total[name] = {
            "capacity": None if first["capacity"] is None else sum(each["capacity"] for each in own),
            "chunk_bytes": first["chunk_bytes"],
            **{
                kind: {what: sum(each[kind][what] for each in own) for what in first[kind]}
                for kind in ("chunks", "bytes")
            },
        }
    loaded = sum(each["chunks"]["loaded"] for each in total.values())
    for each in total.values():
        each["share"] = each["chunks"]["loaded"] / loaded if loaded else None
    return total


def chunk_blocks(options: SchedulerOptions) -> int:
    """Return the blocks of a chunk in a tier."""
    return int(getattr(options, "kv_offloading_chunk_blocks", None) or 1)


def _moving(out: int, into: int) -> IterationShape:
    return IterationShape(0, 0, 0, 0, 0, out, into, 0, 0, 0)
