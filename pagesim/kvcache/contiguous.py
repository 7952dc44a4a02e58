"""Contiguous memory: a sequence takes one run of neighbouring blocks for its whole life (Orca and before)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pagesim.kvcache.allocator import Allocator
from pagesim.kvcache.base import BlockManager, OutOfBlocks
from pagesim.kvcache.extents import Extent
from pagesim.kvcache.groups import KVGroup, Reserved
from pagesim.kvcache.holder import Holder
from pagesim.kvcache.pool import Pool
from pagesim.kvcache.reservation import Reservation


class Runs:
    """What `ContiguousManager` keeps with a holder.

    Attributes:
        of: the blocks of each sample.
        reserved: tokens that were reserved for each sample.
    """

    __slots__ = ("of", "reserved")

    def __init__(self, of: list[Sequence[int]], reserved: int) -> None:
        self.of = of
        self.reserved = reserved


class ContiguousManager(BlockManager):
    """A reservation policy times an allocator: nothing grows, nothing is shared.

    Where a run goes depends on the addresses of all others, so there is no counted form of this memory.

    Args:
        allocator: where runs go; its pool is this memory.
        block_size: token slots a block.
        reservation: how many tokens a sequence reserves.
        cpu_blocks: swap space, never used.
    """

    names_blocks = True

    def __init__(
        self, allocator: Allocator, block_size: int, reservation: Reservation, cpu_blocks: int = 0
    ) -> None:
        super().__init__(allocator.num_blocks, [KVGroup(block_size, Reserved(reservation))], cpu_blocks)
        self.allocator = allocator
        self.reservation = reservation
        self._holders: dict[Holder, None] = {}

    def held_blocks(self, holder: Holder) -> int:
        return sum([len(run) for run in holder.kv.of])

    def can_admit(self, holder: Holder, tokens: int, spare: int = 0) -> bool:
        blocks, samples = self._blocks(holder, tokens), holder.samples
        taken = self.allocator.rounded(blocks) * samples
        return taken + spare <= self.free_blocks and self.allocator.can_allocate(blocks, samples)

    def could_admit(self, holder: Holder, tokens: int, spare: int = 0) -> bool:
        blocks, samples = self._blocks(holder, tokens), holder.samples
        if self.allocator.rounded(blocks) * samples + spare > self.num_blocks:
            return False
        return self.free_blocks < self.num_blocks or self.allocator.can_allocate(blocks, samples)

    def fits_elsewhere(self, holder: Holder, tokens: int) -> bool:
        blocks = self._blocks(holder, tokens) * holder.samples
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
        runs: Runs = holder.kv
        return len(runs.of[0]), runs.reserved

    def admit(self, holder: Holder, tokens: int) -> None:
        reserved = self.reservation.tokens(tokens, holder.output)
        blocks = -(-reserved // self.block_size)
        if holder.samples > 1 and not self.allocator.can_allocate(blocks, holder.samples):
            raise OutOfBlocks(f"no {holder.samples} runs of {blocks} neighbouring blocks are free")
        holder.kv = Runs([self.allocator.allocate(blocks) for _ in range(holder.samples)], reserved)
        self.free_blocks -= self.held_blocks(holder)
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

    def release(self, holder: Holder) -> None:
        for run in holder.kv.of:
            self._free(run)
        holder.decodes = False
        del self._holders[holder]

    def end_samples(self, holder: Holder, samples: Sequence[int]) -> None:
        for place in reversed(samples):
            self._free(holder.kv.of.pop(place))
        holder.samples -= len(samples)

    def fork(self, holder: Holder, dropped: int, survivor: int) -> int:
        return len(holder.kv.of[dropped])

    # Addresses

    def extents(self, holder: Holder, sample: int = 0) -> list[Extent]:
        run = holder.kv.of[sample]
        return [(run[0], len(run))]

    def block_table(self, holder: Holder, sample: int = 0, group: int = 0) -> list[int]:
        return self.blocks_of(holder, sample)[: -(-self.length(holder) // self.block_size)]

    def blocks_of(self, holder: Holder, sample: int = 0) -> list[int]:
        """Return all blocks of a sample, reserved ones included."""
        return list(holder.kv.of[sample])

    def free_extents(self) -> list[Extent]:
        return self.allocator.free_extents()

    def free_chunks(self) -> list[Extent]:
        return self.allocator.free_chunks()

    def check_integrity(self) -> None:
        self.allocator.check_integrity()
        owners = [0] * self.num_blocks
        free = [range(first, first + blocks) for first, blocks in self.free_extents()]
        for run in [*free, *[run for holder in self._holders for run in holder.kv.of]]:
            for block in run:
                owners[block] += 1
        wrong = [block for block, count in enumerate(owners) if count != 1]
        assert not wrong, f"blocks {wrong[:5]} are owned twice or lost"
        assert self.free_blocks == sum(blocks for _, blocks in self.free_extents())
        for holder in self._holders:
            runs: Runs = holder.kv
            assert len(runs.of) == holder.samples
            slots = -(-runs.reserved // self.block_size) * self.block_size
            assert self.length(holder) <= slots <= len(runs.of[0]) * self.block_size, (
                "a reservation was outgrown"
            )

    def _free(self, run: Sequence[int]) -> None:
        self.allocator.free(run)
        self.free_blocks += len(run)

    def _blocks(self, holder: Holder, tokens: int) -> int:
        """Return the blocks that one sample reserves."""
        return -(-self.reservation.tokens(tokens, holder.output) // self.block_size)


def contiguous(make: Callable[[int], Allocator]) -> Callable[[Pool], BlockManager]:
    """Return what makes contiguous memory of a pool, with an allocator made from the number of blocks.

    What is returned raises ValueError for a pool without a reservation.
    """

    def of_pool(pool: Pool) -> BlockManager:
        if pool.reservation is None:
            raise ValueError("contiguous memory needs a reservation such as oracle; it cannot grow")
        return ContiguousManager(make(pool.num_blocks), pool.block_size, pool.reservation, pool.cpu_blocks)

    return of_pool
