"""Offload: sets up a system's tiers for its scheduler and its engine, and reports their traffic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pagesim.costs.base import IterationShape
from pagesim.costs.links import host_links
from pagesim.costs.preemption import LoadTime
from pagesim.costs.transfers import ChainLinks, path_to_device, transfer_ticks
from pagesim.errors import PagesimError
from pagesim.hardware import Link, TierSpec, parse_tiers
from pagesim.hardware.gpu_spec import GIB, parse_link
from pagesim.kvcache.tiers import UNLIMITED, ChunkStore, Tier, TierChain, new_eviction
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.offload.offloading import offloading_of
from pagesim.scheduling.options import SchedulerOptions
from pagesim.sim.clock import to_ticks
from pagesim.sim.copies import CopyTime, TierCopies, TierLinks
from pagesim.sizing import BlockPlan, Capacity

if TYPE_CHECKING:
    from pagesim.setup.engine_config import EngineConfig

ALIGNMENT = 4096
"""Alignment in bytes to which vLLM 0.33.0 rounds chunks up (v1/kv_offload/cpu/manager.py)."""

_TIMED = Link(float("inf"), 0.0, "copies take what `copy_times` says")

HOST = TierSpec("host", None, _TIMED, _TIMED)
"""The only tier of vLLM."""


def tier_specs(config: EngineConfig) -> tuple[TierSpec, ...]:
    """Return the chain of tiers that the option ``tiers`` describes.

    Raises:
        PagesimError: a text does not describe a tier, or an engine cannot use such a chain.
    """
    texts: Sequence[str] = config.system.option("tiers")
    link = config.system.kv_offloading_link
    if link is not None:
        raise PagesimError(
            f"kv_offloading_link is {link}, and tiers is {' '.join(texts)}: each tier "
            "says its own link, as host:64GiB:25GB/s:10us; leave kv_offloading_link out"
        )
    profile = getattr(config.cost, "profile", None)
    specs = parse_tiers(texts, host_links(config.gpu, profile, config.model))
    if specs[0].exclusive:
        raise PagesimError(
            f"tiers is {' '.join(texts)}; the first takes what the device evicts, and vLLM's connector "
            "copies what the device computes: leave exclusive out there, or give it to a tier behind; "
            "the paper's swap space is policy vllm-sosp with preemption swap and cpu_blocks"
        )
    return specs


def with_chunks(options: Any, sized: Capacity) -> SchedulerOptions:
    """Return a scheduler's options with the tier's size converted into chunks.

    Args:
        options: options of the scheduler.
        sized: capacity of the device's memory.

    Raises:
        PagesimError: the tier does not hold a single chunk, or its size is given twice.
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


def chunk_bytes(sized: Capacity, blocks: int) -> int:
    """Return the bytes in a tier of a chunk of this many blocks, summed over GPUs with distinct copies."""
    copies = sized.plan.host_copies if isinstance(sized.plan, BlockPlan) else sized.tp
    chunk = sized.block_bytes * copies * blocks
    return chunk + -chunk % ALIGNMENT


def chunk_blocks(options: SchedulerOptions) -> int:
    """Return the number of blocks per chunk in a tier."""
    return int(getattr(options, "kv_offloading_chunk_blocks", None) or 1)


def chain_of(config: EngineConfig) -> TierChain:
    """Return a system's chain of tiers, empty of chunks."""
    threshold = getattr(config.options, "kv_offloading_threshold", None) or 0
    size = chunk_bytes(config.capacity, chunk_blocks(config.options))
    return make_chain(config.tiers, size, threshold=threshold)


def make_chain(tiers: Sequence[TierSpec], chunk_bytes: int, *, threshold: int = 0) -> TierChain:
    """Return a chain of these tiers, empty of chunks.

    Args:
        tiers: tiers in order, starting with the closest to the device.
        chunk_bytes: bytes per chunk in each tier; a tier holds as many whole chunks as fit.
        threshold: number of times the device must offer a chunk before a directly linked tier stores it.

    Raises:
        PagesimError: a tier's capacity is above zero but less than one chunk.
    """
    made = []
    for place, tier in enumerate(tiers):
        capacity = UNLIMITED if tier.capacity_bytes is None else tier.capacity_bytes // chunk_bytes
        if tier.capacity_bytes and not capacity:
            raise PagesimError(
                f"tier {tier.name} has {tier.capacity_bytes} bytes, less than the {chunk_bytes} of a chunk: "
                "raise its capacity, lower kv_offloading_chunk_blocks, or give it 0GiB"
            )
        is_near = place == 0 or tier.direct
        store = ChunkStore(
            capacity, new_eviction(tier.eviction, capacity), threshold=threshold if is_near else 0
        )
        made.append(Tier(tier.name, store, tier.exclusive, tier.direct))
    return TierChain(made)


def copies_of(config: EngineConfig, scheduler: Scheduler) -> TierCopies | None:
    """Return the executor of copies between a scheduler's device and its tiers; None without tiers."""
    connector = offloading_of(scheduler)
    return None if connector is None else TierCopies(connector.backing, links_of(config))


def links_of(config: EngineConfig) -> TierLinks:
    """Return the links of a system's tiers; links that end at the device exist once per GPU."""
    sized, blocks = config.capacity, chunk_blocks(config.options)
    if config.tiers:
        loads = [copy_time(tier.load, sized.block_bytes) for tier in config.tiers]
        stores = [copy_time(tier.store, sized.block_bytes) for tier in config.tiers]
    else:
        load, store = copy_times(config)
        loads, stores = [load], [store]
    queues = ChainLinks(config.tiers or (HOST,))
    return TierLinks(queues, sized.block_bytes, blocks, chunk_bytes(sized, blocks), loads, stores)


def copy_times(config: EngineConfig) -> tuple[CopyTime, CopyTime]:
    """Return functions for the ticks of copying blocks from vLLM's host tier, and to it."""
    cost, link = config.cost, config.system.kv_offloading_link
    if link is not None:
        return (copy_time(parse_link(link), config.capacity.block_bytes),) * 2

    def loads(blocks: int) -> int:
        return cost.iteration(_moving(0, blocks))

    def stores(blocks: int) -> int:
        return cost.iteration(_moving(blocks, 0))

    return loads, stores


def copy_time(link: Link, block_bytes: int) -> CopyTime:
    """Return a function for the ticks of copying blocks over a link."""
    latency, block = to_ticks(link.latency_s), to_ticks(block_bytes / link.bytes_per_s)
    return lambda blocks: latency + block * blocks


def load_time(config: EngineConfig) -> LoadTime:
    """Return a function for the ticks of loading blocks from each tier over all idle links on their way."""
    tiers, links = config.tiers or (HOST,), links_of(config)

    def ticks(blocks_by_tier: Sequence[int]) -> int:
        idle_at, end = [0] * len(tiers), 0
        for place, blocks in enumerate(blocks_by_tier):
            if not blocks:
                continue
            at, size = 0, -(-blocks // links.chunk_blocks) * links.chunk_bytes
            path = path_to_device(tiers, place)
            for each in path:
                is_last = each == path[-1]
                taken = links.load_times[each](blocks) if is_last else transfer_ticks(tiers[each].load, size)
                at = idle_at[each] = max(at, idle_at[each]) + taken
            end = max(end, at)
        return end

    return ticks


def traffic_of(config: EngineConfig, scheduler: Scheduler) -> dict[str, Any]:
    """Return the traffic of each tier of a scheduler, by tier name; empty without tiers.

    For each tier: its ``capacity`` in chunks (null without a limit), bytes per chunk, the chunks and bytes
    stored, loaded, promoted, demoted and evicted, and its ``share`` of all loaded chunks.
    """
    connector = offloading_of(scheduler)
    if connector is None:
        return {}
    backing, size = connector.backing, chunk_bytes(config.capacity, chunk_blocks(config.options))
    loaded = sum([each.loaded for each in backing.chain.traffic])
    found = {}
    for (name, store), traffic in zip(backing.tiers, backing.chain.traffic, strict=True):
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
    """Return the tier traffic summed over several schedulers, by tier name, given each one's `traffic_of`."""
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


def _moving(out: int, into: int) -> IterationShape:
    return IterationShape(0, 0, 0, 0, 0, out, into, 0, 0, 0)
