"""Pool: what is known about memory when it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pagesim.kvcache.base import BlockManager
from pagesim.kvcache.groups import Full, KVGroup, Reserved
from pagesim.kvcache.reservation import Reservation

UNBOUNDED = 1 << 62
"""More tokens than a sequence has."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The blocks that a memory is made for.

    Attributes:
        num_blocks: on the device.
        block_size: token slots of a block.
        max_model_len: tokens; no sequence is longer.
        reservation: how many tokens a sequence takes at admission; None where it takes blocks as it grows.
        cpu_blocks: of swap space.
        tables: whether blocks must have numbers, because something is going to look at them.
        layer_types: a KV group for each layer type, whose pages differ in bytes; none where one serves all.
        pages: of each layer type's own pool, where memory is divided (`LayerTypePages`); ``num_blocks`` are
            then these, all together.
        capacity_bytes: of all memory on each GPU, with what no page takes; None for that of the blocks.
        in_flight_tokens: tokens of a sequence that can be scheduled and not be computed yet.
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
        """The KV groups: one for each layer type, or one of all layers."""
        rule = Full() if self.reservation is None else Reserved(self.reservation)
        return self.layer_types or (KVGroup(self.block_size, rule),)


MakeBlockManager = Callable[[Pool], BlockManager]
"""Makes empty memory of a pool."""


@dataclass(frozen=True, slots=True)
class LayerTypePages:
    """An allocator in which each layer type takes pages as large as its own layers need.

    Attributes:
        make: makes empty memory of a pool with ``layer_types``.
        is_divided: whether each layer type has a pool of its own, as large as its part of what a longest
            request takes; else all types share large pages, each of which is cut into one type's.
    """

    make: MakeBlockManager
    is_divided: bool

    def __call__(self, pool: Pool) -> BlockManager:
        """Return empty memory of a pool."""
        return self.make(pool)
