"""Tiers made ready: the chain of stores that descriptions of tiers ask for, and its links."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagesim.costs.links import host_links
from pagesim.costs.preemption import LoadTime
from pagesim.costs.specs import BlockPlan, Capacity, Link, TierSpec, parse_tiers
from pagesim.costs.transfers import ChainLinks, path_to_device, transfer_ticks
from pagesim.errors import PagesimError
from pagesim.kvcache.tiers import EVICTIONS, UNLIMITED, ChunkStore, Tier, TierChain
from pagesim.sim.clock import to_ticks
from pagesim.sim.copies import CopyTime
from pagesim.sim.tier_copies import TierLinks

if TYPE_CHECKING:
    from pagesim.setup.engine_config import EngineConfig

ALIGNMENT = 4096
"""Bytes to a multiple of which vLLM 0.33.0 rounds a chunk up (v1/kv_offload/cpu/manager.py)."""


def chunk_bytes(sized: Capacity, blocks: int) -> int:
    """Return the bytes of a chunk of so many blocks in a tier, those of all GPUs that differ together."""
    copies = sized.plan.host_copies if isinstance(sized.plan, BlockPlan) else sized.tp
    chunk = sized.block_bytes * copies * blocks
    return chunk + -chunk % ALIGNMENT


def tier_specs(config: EngineConfig) -> tuple[TierSpec, ...]:
    """Return the chain that the option ``tiers`` asks for.

    Raises:
        PagesimError: a text is no tier, or a chain of them cannot be driven by an engine.
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


def make_chain(tiers: Sequence[TierSpec], chunk_bytes: int, *, threshold: int = 0) -> TierChain:
    """Return an empty chain of these tiers.

    Args:
        tiers: that next to the device first.
        chunk_bytes: of a chunk in each of them; a tier holds as many whole ones as there is room for.
        threshold: how often the device must offer a chunk before a tier linked to it takes it.

    Raises:
        PagesimError: a tier has room, and not for a single chunk.
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
            capacity, EVICTIONS[tier.eviction](capacity), threshold=threshold if is_near else 0
        )
        made.append(Tier(tier.name, store, tier.exclusive, tier.direct))
    return TierChain(made)


def links_of(tiers: Sequence[TierSpec], sized: Capacity, chunk_blocks: int) -> TierLinks:
    """Return the links of a chain: those that end at the device are each GPU's own, and carry its part."""
    return TierLinks(
        ChainLinks(tiers),
        sized.block_bytes,
        chunk_blocks,
        chunk_bytes(sized, chunk_blocks),
        [copy_time(tier.load, sized.block_bytes) for tier in tiers],
        [copy_time(tier.store, sized.block_bytes) for tier in tiers],
    )


def copy_time(link: Link, block_bytes: int) -> CopyTime:
    """Return what a copy of so many blocks takes over a link."""
    latency, block = to_ticks(link.latency_s), to_ticks(block_bytes / link.bytes_per_s)
    return lambda blocks: latency + block * blocks


def load_time(tiers: Sequence[TierSpec], links: TierLinks) -> LoadTime:
    """Return what a load of so many blocks from each tier takes over idle links, all of those on its way."""

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
