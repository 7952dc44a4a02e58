"""Pool: what is known about memory when it is made."""

from __future__ import annotations

from dataclasses import dataclass

from pagesim.kvcache.groups import Full, KVGroup, Reserved
from pagesim.kvcache.reservation import Reservation


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
    """

    num_blocks: int
    block_size: int
    max_model_len: int
    reservation: Reservation | None = None
    cpu_blocks: int = 0
    tables: bool = False

    @property
    def groups(self) -> tuple[KVGroup, ...]:
        """The one KV group of a model whose layers are all alike."""
        rule = Full() if self.reservation is None else Reserved(self.reservation)
        return (KVGroup(self.block_size, rule),)
