"""Contiguous memory: a sequence takes one run of neighbouring blocks for its whole life (Orca and before)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pagesim.kvcache.base import KVCache, OutOfBlocks
from pagesim.kvcache.extents import Extent
from pagesim.kvcache.groups import KVGroup, Reserved
from pagesim.kvcache.holder import Holder
from pagesim.kvcache.placement import Placement
from pagesim.kvcache.pool import Pool
from pagesim.kvcache.reservation import Reservation


class ContiguousKV(KVCache):
    """A reservation policy times a placement: nothing grows, nothing is shared.

    Where a run goes depends on the addresses of all others, so there is no counted form of this memory.

    Args:
        placement: where runs go; its pool is this memory.
        block_size: token slots a block.
        reservation: how many tokens a sequence reserves.
        cpu_blocks: swap space, never used.
    """

    names_blocks = True

    def __init__(
        self, placement: Placement, block_size: int, reservation: Reservation, cpu_blocks: int = 0
    ) -> None:
        super().__init__(placement.num_blocks, [KVGroup(block_size, Reserved(reservation))], cpu_blocks)
        self.placement = placement
        self.reservation = reservation
        self._holders: dict[Holder, None] = {}

    # `Holder.kv`: (first block of each sample, blocks of a run, tokens reserved)

    def held_blocks(self, holder: Holder) -> int:
        firsts, blocks, _ = holder.kv
        return len(firsts) * self.placement.rounded(blocks)

    def can_admit(self, holder: Holder, tokens: int, spare: int = 0) -> bool:
        blocks = self._run(holder, tokens)
        placement, samples = self.placement, holder.samples
        taken = placement.rounded(blocks) * samples
        return taken + spare <= self.free_blocks and placement.fits(blocks, samples)

    def could_admit(self, holder: Holder, tokens: int, spare: int = 0) -> bool:
        taken = self.placement.rounded(self._run(holder, tokens)) * holder.samples
        if taken + spare > self.num_blocks:
            return False
        return self.free_blocks < self.num_blocks or self.placement.fits(
            self._run(holder, tokens), holder.samples
        )

    def fits_elsewhere(self, holder: Holder, tokens: int) -> bool:
        blocks = self._run(holder, tokens) * holder.samples
        return blocks <= self.free_blocks and not self.can_admit(holder, tokens)

    def blocks_needed(self, steps: int = 1) -> int:
        return 0

    def blocks_needed_by(self, holder: Holder) -> int:
        return 0

    def blocks_to_extend(self, holder: Holder, tokens: int) -> int:
        self._check_extends()
        return 0

    def steps_that_fit(self, steps: int, spare: int) -> int:
        return steps

    def held_and_reserved(self, holder: Holder) -> tuple[int, int]:
        _, blocks, reserved = holder.kv
        return self.placement.rounded(blocks), reserved

    def admit(self, holder: Holder, tokens: int) -> None:
        reserved = self.reservation.tokens(tokens, holder.output)
        blocks = -(-reserved // self.block_size)
        if holder.samples > 1 and not self.placement.fits(blocks, holder.samples):
            raise OutOfBlocks(f"no {holder.samples} runs of {blocks} neighbouring blocks are free")
        firsts = [self.placement.take(blocks) for _ in range(holder.samples)]
        self.free_blocks -= len(firsts) * self.placement.rounded(blocks)
        holder.kv = (firsts, blocks, reserved)
        holder.tokens = tokens
        self._holders[holder] = None

    def extend(self, holder: Holder, tokens: int) -> None:
        self.blocks_to_extend(holder, tokens)

    def append(self, holder: Holder) -> int:
        return self._fill_reserved(holder)

    def start_decoding(self, holder: Holder) -> None:
        holder.base = holder.tokens - holder.growth * self.steps
        holder.decodes = True

    def stop_decoding(self, holder: Holder) -> None:
        holder.tokens = self.length(holder)
        holder.decodes = False

    def grow(self, steps: int = 1) -> int:
        # That none grows past its reservation is the scheduler's care: no holder is looked at here.
        self.steps += steps
        return 0

    def take(self, holder: Holder) -> None:
        return  # everything was taken at admission

    def release(self, holder: Holder) -> None:
        firsts, blocks, _ = holder.kv
        for first in firsts:
            self.placement.give_back(first, blocks)
        self.free_blocks += len(firsts) * self.placement.rounded(blocks)
        holder.decodes = False
        del self._holders[holder]

    def end_samples(self, holder: Holder, samples: Sequence[int]) -> None:
        firsts, blocks, _ = holder.kv
        for place in reversed(samples):
            self.placement.give_back(firsts.pop(place), blocks)
        self.free_blocks += len(samples) * self.placement.rounded(blocks)
        holder.samples -= len(samples)

    def fork(self, holder: Holder, dropped: int, survivor: int) -> int:
        return int(self.placement.rounded(holder.kv[1]))

    # Addresses

    def extents(self, holder: Holder, sample: int = 0) -> list[Extent]:
        firsts, blocks, _ = holder.kv
        return [(firsts[sample], self.placement.rounded(blocks))]

    def block_table(self, holder: Holder, sample: int = 0, group: int = 0) -> list[int]:
        first = holder.kv[0][sample]
        return list(range(first, first - (-self.length(holder) // self.block_size)))

    def blocks_of(self, holder: Holder, sample: int = 0) -> list[int]:
        """Return all blocks of a sample, reserved ones included."""
        ((first, blocks),) = self.extents(holder, sample)
        return list(range(first, first + blocks))

    def free_extents(self) -> list[Extent]:
        return self.placement.free_extents()

    def free_chunks(self) -> list[Extent]:
        return self.placement.free_chunks()

    def check_integrity(self) -> None:
        self.placement.check_integrity()
        owners = [0] * self.num_blocks
        runs = [
            run for h in self._holders for sample in range(len(h.kv[0])) for run in self.extents(h, sample)
        ]
        for first, blocks in runs + self.free_extents():
            for block in range(first, first + blocks):
                owners[block] += 1
        wrong = [block for block, count in enumerate(owners) if count != 1]
        assert not wrong, f"blocks {wrong[:5]} are owned twice or lost"
        assert self.free_blocks == sum(blocks for _, blocks in self.free_extents())
        for holder in self._holders:
            assert len(holder.kv[0]) == holder.samples
            assert self.length(holder) <= holder.kv[1] * self.block_size, "a reservation was outgrown"

    def _run(self, holder: Holder, tokens: int) -> int:
        """Return the blocks of the run that one sample reserves."""
        return -(-self.reservation.tokens(tokens, holder.output) // self.block_size)


def contiguous(place: Callable[[int], Placement]) -> Callable[[Pool], KVCache]:
    """Return what makes contiguous memory of a pool, with a placement made from the number of blocks.

    What is returned raises ValueError for a pool without a reservation.
    """

    def make(pool: Pool) -> KVCache:
        if pool.reservation is None:
            raise ValueError("contiguous memory needs a reservation such as oracle; it cannot grow")
        return ContiguousKV(place(pool.num_blocks), pool.block_size, pool.reservation, pool.cpu_blocks)

    return make
