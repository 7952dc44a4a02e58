"""Pool: the parameters from which a block manager is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pagesim.kvcache.base import BlockManager
from pagesim.kvcache.groups import Full, KVGroup, Reserved
from pagesim.kvcache.reservation import Reservation

UNBOUNDED = 1 << 62
"""A bound above the tokens of any sequence."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The blocks that a block manager is made for.

    Attributes:
        num_blocks: blocks on the device.
        block_size: token slots per block.
        max_model_len: maximum tokens of a sequence.
        reservation: how many tokens a sequence reserves at admission; None if it allocates blocks on demand.
        cpu_blocks: blocks of the swap space.
        tables: whether blocks must be numbered, because something will read the numbers.
        layer_types: one KV group per layer type, with pages of different sizes; empty if one group serves
            all layers.
        pages: pages in each layer type's own pool, if memory is divided (`LayerTypePages`); ``num_blocks`` is
            then their sum.
        capacity_bytes: bytes of all memory on each GPU, unused ones included; None for those of the blocks.
        in_flight_tokens: tokens of a sequence that can be scheduled but not yet computed.
    """

    num_blocks: int
    block_size: int
    max_model_len: int
    reservation: Reservation | None = None
    cpu_blocks: int = 0
    tables: bool = False
    layer_types: tuple[KVGroup, ...] = ()
    pages: tuple[int, ...] = ()
    capacity_bytes: int | None = None
    in_flight_tokens: int = UNBOUNDED

    @property
    def groups(self) -> tuple[KVGroup, ...]:
        """The KV groups: one per layer type, or a single one for all layers."""
        rule = Full() if self.reservation is None else Reserved(self.reservation)
        return self.layer_types or (KVGroup(self.block_size, rule),)


MakeBlockManager = Callable[[Pool], BlockManager]
"""Makes a block manager with empty memory for a pool."""


@dataclass(frozen=True, slots=True)
class LayerTypePages:
    """An allocator in which each layer type has pages of the size that its own layers need.

    Attributes:
        make: makes a block manager for a pool with ``layer_types``.
        is_divided: whether each layer type has its own pool, in proportion to what the longest request needs;
            otherwise all types share large pages, each of which is split into pages of one type.
    """

    make: MakeBlockManager
    is_divided: bool

    def __call__(self, pool: Pool) -> BlockManager:
        """Return a block manager with empty memory for a pool."""
        return self.make(pool)
