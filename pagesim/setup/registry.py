"""The registry: the allocators and the schedulers that a policy names."""

from __future__ import annotations

from typing import cast

from pagesim.allocators import Allocator, BestFit, Buddy, FirstFit
from pagesim.kvcache import (
    BlockManager,
    JengaManager,
    LayerTypePages,
    MakeBlockManager,
    PagedManager,
    Pool,
    PooledManager,
    contiguous,
)
from pagesim.scheduling.continuous import Orca, VllmSosp
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.lightllm import Lightllm
from pagesim.scheduling.sglang import Sglang
from pagesim.scheduling.static import StaticBatching
from pagesim.scheduling.trtllm import GuaranteedNoEvict
from pagesim.scheduling.vllm_v0 import VllmV0
from pagesim.scheduling.vllm_v1 import VllmV1
from pagesim.setup.plugins import Plugins

__all__ = ["ALLOCATORS", "SCHEDULERS", "memory_of"]


def _paged(pool: Pool, *, shares: bool = True) -> BlockManager:
    return PagedManager(pool.num_blocks, pool.groups, pool.cpu_blocks, shares=shares, tables=pool.tables)


def _virtual(pool: Pool) -> BlockManager:
    # A block stands for the pages behind a stretch of a sequence's own range of virtual addresses.
    return _paged(pool, shares=False)


def _buddy(pool: Pool) -> BlockManager:
    longest = -(-pool.max_model_len // pool.block_size)
    return contiguous(lambda num_blocks: Buddy(num_blocks, 1 << (longest - 1).bit_length()))(pool)


def _two_level(pool: Pool) -> BlockManager:
    return JengaManager(
        pool.num_blocks, pool.groups, longest=pool.max_model_len, in_flight=pool.in_flight_tokens
    )


def _pools(pool: Pool) -> BlockManager:
    return PooledManager(
        pool.pages or [pool.num_blocks],
        pool.groups,
        longest=pool.max_model_len,
        in_flight=pool.in_flight_tokens,
        capacity_bytes=pool.capacity_bytes,
    )


def memory_of(part: type[Allocator] | MakeBlockManager, pool: Pool) -> BlockManager:
    """Return the empty memory of a pool that an entry of ``ALLOCATORS`` stands for."""
    if isinstance(part, type) and issubclass(part, Allocator):
        return contiguous(part)(pool)
    return cast(MakeBlockManager, part)(pool)


ALLOCATORS: Plugins[type[Allocator] | MakeBlockManager] = Plugins(
    "allocator",
    "pagesim.allocators",
    {
        "first-fit": FirstFit,
        "best-fit": BestFit,
        "buddy": _buddy,
        "paged": _paged,
        "virtual": _virtual,
        "two-level": LayerTypePages(_two_level, is_divided=False),
        "pools": LayerTypePages(_pools, is_divided=True),
    },
    sentences={
        "first-fit": "contiguous: the first free run by address that is long enough",
        "best-fit": "contiguous: the shortest free run that is long enough",
        "buddy": "contiguous: rounded up to a power of two, halved and merged again",
        "paged": "blocks on demand, anywhere; samples share those of their prompt",
        "virtual": "pages on demand behind contiguous virtual addresses; none is shared (vAttention)",
        "two-level": "large pages, each cut into the smaller ones of one layer type (Jenga)",
        "pools": "a pool for each layer type, sized beforehand",
    },
)
"""Where memory is taken, by name: an allocator of neighbouring blocks, or what makes memory of a pool."""

SCHEDULERS: Plugins[type[Scheduler]] = Plugins(
    "scheduler",
    "pagesim.schedulers",
    {
        "static": StaticBatching,
        "orca": Orca,
        "vllm-sosp": VllmSosp,
        "vllm-v0": VllmV0,
        "vllm-v1": VllmV1,
        "sglang": Sglang,
        "trtllm": GuaranteedNoEvict,
        "lightllm": Lightllm,
    },
    base=Scheduler,
)
"""Which requests run next, by name."""
