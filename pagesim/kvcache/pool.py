"""Pool: the blocks that an allocator is made for."""

from __future__ import annotations

from dataclasses import dataclass

from pagesim.kvcache.reservation import Reservation


@dataclass(frozen=True, slots=True)
class Pool:
    """What is known about memory when an allocator is made.

    Attributes:
        num_blocks: on the device.
        block_size: token slots of a block.
        max_model_len: tokens; no sequence is longer.
        reservation: how many tokens a sequence takes at admission; None where it takes blocks as it grows.
        cpu_blocks: of swap space.
    """

    num_blocks: int
    block_size: int
    max_model_len: int
    reservation: Reservation | None = None
    cpu_blocks: int = 0
