"""Contiguous memory: a sequence takes one run of neighbouring blocks for its whole life (Orca and before)."""

from __future__ import annotations

from collections.abc import Callable

from pagesim.kvcache.base import Allocator, Copy, Extent, Fit, OutOfBlocks
from pagesim.kvcache.placement import Placement
from pagesim.kvcache.pool import Pool
from pagesim.kvcache.reservation import Reservation


class ContiguousAllocator(Allocator):
    """A reservation policy times a placement: nothing grows, nothing is shared.

    Args:
        placement: where runs go; its pool is this memory.
        block_size: token slots a block.
        reservation: how many tokens a sequence reserves.
        cpu_blocks: swap space, never used.
    """

    def __init__(
        self, placement: Placement, block_size: int, reservation: Reservation, cpu_blocks: int = 0
    ) -> None:
        super().__init__(placement.num_blocks, block_size, cpu_blocks)
        self.placement = placement
        self.reservation = reservation
        self._free_blocks = placement.num_blocks
        # sequence → (first block, blocks asked for, tokens reserved)
        self._held: dict[int, tuple[int, int, int]] = {}

    @property
    def free_blocks(self) -> int:
        return self._free_blocks

    def reserved_tokens(self, sequence: int) -> int:
        return self._holding(sequence)[2]

    def held_blocks(self, sequence: int) -> int:
        return self.placement.rounded(self._holding(sequence)[1])

    def blocks_for(self, tokens: int, output_tokens: int) -> int:
        return -(-self.reservation.tokens(tokens, output_tokens) // self.block_size)

    def probe(self, tokens: int, output_tokens: int, sequences: int = 1, spare: int = 0) -> Fit:
        blocks = self.blocks_for(tokens, output_tokens)
        taken = self.placement.rounded(blocks) * sequences
        if taken + spare <= self._free_blocks and self.placement.fits(blocks, sequences):
            return Fit.NOW
        if self._free_blocks == self.num_blocks or taken + spare > self.num_blocks:
            return Fit.NEVER
        return Fit.LATER

    def allocate(self, sequence: int, tokens: int, output_tokens: int = 0) -> None:
        self._check_new(sequence, tokens)
        reserved = self.reservation.tokens(tokens, output_tokens)
        self._take(sequence, reserved, tokens)

    def append(self, sequence: int) -> Copy | None:
        length = self._pop_resting(sequence)
        room = self._held[sequence][1] * self.block_size
        self._lengths[sequence] = min(length + 1, room)
        if length == room:
            raise OutOfBlocks(f"sequence {sequence} has filled its reservation of {room} tokens")
        return None

    def fork(self, parent: int, child: int) -> None:
        tokens = self.length(parent)
        self._check_new(child, tokens)
        self._take(child, self._held[parent][2], tokens)

    def free(self, sequence: int) -> None:
        if self._lengths.pop(sequence, None) is None and self._bases.pop(sequence, None) is None:
            raise self._unknown(sequence)
        first, blocks, _ = self._held.pop(sequence)
        self.placement.give_back(first, blocks)
        self._free_blocks += self.placement.rounded(blocks)

    def extents(self, sequence: int) -> list[Extent]:
        return [(self._holding(sequence)[0], self.held_blocks(sequence))]

    def block_table(self, sequence: int) -> list[int]:
        blocks = -(-self.length(sequence) // self.block_size)
        first = self._held[sequence][0]
        return list(range(first, first + blocks))

    def free_extents(self) -> list[Extent]:
        return self.placement.free_extents()

    def free_chunks(self) -> list[Extent]:
        return self.placement.free_chunks()

    def check_integrity(self) -> None:
        self.placement.check_integrity()
        owner = [0] * self.num_blocks
        extents = [run for sequence in self._held for run in self.extents(sequence)]
        for first, blocks in extents + self.free_extents():
            for block in range(first, first + blocks):
                owner[block] += 1
        wrong = [block for block, owners in enumerate(owner) if owners != 1]
        assert not wrong, f"blocks {wrong[:5]} are owned twice or lost"
        assert self._free_blocks == sum(blocks for _, blocks in self.free_extents())
        assert set(self._held) == set(self.sequences())
        for sequence, (_, blocks, _) in self._held.items():
            assert self.length(sequence) <= blocks * self.block_size, (
                f"{sequence} has outgrown its reservation"
            )

    def _holding(self, sequence: int) -> tuple[int, int, int]:
        try:
            return self._held[sequence]
        except KeyError:
            raise self._unknown(sequence) from None

    def _take(self, sequence: int, reserved: int, tokens: int) -> None:
        blocks = -(-reserved // self.block_size)
        first = self.placement.take(blocks)
        self._held[sequence] = (first, blocks, reserved)
        self._free_blocks -= self.placement.rounded(blocks)
        self._lengths[sequence] = tokens


def contiguous(place: Callable[[int], Placement]) -> Callable[[Pool], Allocator]:
    """Return what makes contiguous memory of a pool, with a placement made from the number of blocks.

    What is returned raises ValueError for a pool without a reservation.
    """

    def make(pool: Pool) -> Allocator:
        if pool.reservation is None:
            raise ValueError("contiguous memory needs a reservation such as oracle; it cannot grow")
        return ContiguousAllocator(place(pool.num_blocks), pool.block_size, pool.reservation, pool.cpu_blocks)

    return make
