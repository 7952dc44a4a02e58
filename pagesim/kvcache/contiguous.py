"""Contiguous memory: a sequence holds one run of adjacent blocks for its whole life (Orca and earlier)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pagesim.allocators import OutOfBlocks
from pagesim.allocators.allocator import Allocator
from pagesim.allocators.extents import Extent
from pagesim.kvcache.base import BlockManager
from pagesim.kvcache.groups import KVGroup, Reserved
from pagesim.kvcache.pool import Pool
from pagesim.kvcache.reservation import Reservation
from pagesim.kvcache.sequence_group import SequenceGroup


class Runs:
    """What `ContiguousManager` keeps with a request.

    Attributes:
        of: the blocks of each sample.
        reserved: tokens that were reserved for each sample.
    """

    __slots__ = ("of", "reserved")

    def __init__(self, of: list[Sequence[int]], reserved: int) -> None:
        self.of = of
        self.reserved = reserved


class ContiguousManager(BlockManager):
    """A block manager that combines a reservation policy with an allocator; nothing grows or is shared.

    Where a run is placed depends on the addresses of all others, so blocks cannot merely be counted here.

    Args:
        allocator: places the runs; its pool is this manager's memory.
        block_size: token slots per block.
        reservation: how many tokens a sequence reserves.
        cpu_blocks: blocks of the swap space, which is never used.
    """

    names_blocks = True

    def __init__(
        self, allocator: Allocator, block_size: int, reservation: Reservation, cpu_blocks: int = 0
    ) -> None:
        super().__init__(allocator.num_blocks, [KVGroup(block_size, Reserved(reservation))], cpu_blocks)
        self.allocator = allocator
        self.reservation = reservation
        self._requests: dict[SequenceGroup, None] = {}

    def held_blocks(self, request: SequenceGroup) -> int:
        return sum([len(run) for run in request.block_state.of])

    def can_admit(self, request: SequenceGroup, tokens: int, spare: int = 0, length: int = 0) -> bool:
        blocks, samples = self._blocks(request, tokens), request.samples
        taken = self.allocator.rounded(blocks) * samples
        return taken + spare <= self.free_blocks and self.allocator.can_allocate(blocks, samples)

    def could_admit(self, request: SequenceGroup, tokens: int, spare: int = 0) -> bool:
        blocks, samples = self._blocks(request, tokens), request.samples
        if self.allocator.rounded(blocks) * samples + spare > self.num_blocks:
            return False
        return self.free_blocks < self.num_blocks or self.allocator.can_allocate(blocks, samples)

    def blocks_needed(self, steps: int = 1) -> int:
        return 0

    def blocks_to_extend(self, request: SequenceGroup, tokens: int, computed: int | None = None) -> int:
        return 0

    def steps_that_fit(self, steps: int, spare: int) -> int:
        return steps

    def held_and_reserved(self, request: SequenceGroup) -> tuple[int, int]:
        runs: Runs = request.block_state
        return len(runs.of[0]), runs.reserved

    def admit(self, request: SequenceGroup, tokens: int) -> None:
        reserved = self.reservation.tokens(tokens, request.output)
        blocks = -(-reserved // self.block_size)
        if request.samples > 1 and not self.allocator.can_allocate(blocks, request.samples):
            raise OutOfBlocks(f"no {request.samples} runs of {blocks} neighbouring blocks are free")
        request.block_state = Runs(
            [self.allocator.allocate(blocks) for _ in range(request.samples)], reserved
        )
        self.free_blocks -= self.held_blocks(request)
        request.tokens = tokens
        self._requests[request] = None

    def allocate_step(self, steps: int = 1) -> int:
        # The scheduler ensures that no request outgrows its reservation; requests are not checked here.
        self.steps += steps
        return 0

    def release(self, request: SequenceGroup) -> None:
        for run in request.block_state.of:
            self._free(run)
        request.decodes = False
        del self._requests[request]

    def end_samples(self, request: SequenceGroup, samples: Sequence[int]) -> None:
        for place in reversed(samples):
            self._free(request.block_state.of.pop(place))
        request.samples -= len(samples)

    def fork(self, request: SequenceGroup, dropped: int, survivor: int) -> int:
        return len(request.block_state.of[dropped])

    # Addresses

    def block_table(self, request: SequenceGroup, sample: int = 0, group: int = 0) -> list[int]:
        return self.blocks_of(request, sample)[: -(-self.length(request) // self.block_size)]

    def blocks_of(self, request: SequenceGroup, sample: int = 0) -> list[int]:
        return list(request.block_state.of[sample])

    def free_extents(self) -> list[Extent]:
        return self.allocator.free_extents()

    def free_chunks(self) -> list[Extent]:
        return self.allocator.free_chunks()

    def check_integrity(self) -> None:
        self.allocator.check_integrity()
        owners = [0] * self.num_blocks
        free = [range(first, first + blocks) for first, blocks in self.free_extents()]
        for run in [*free, *[run for request in self._requests for run in request.block_state.of]]:
            for block in run:
                owners[block] += 1
        wrong = [block for block, count in enumerate(owners) if count != 1]
        assert not wrong, f"blocks {wrong[:5]} are owned twice or lost"
        assert self.free_blocks == sum(blocks for _, blocks in self.free_extents())
        for request in self._requests:
            runs: Runs = request.block_state
            assert len(runs.of) == request.samples
            slots = -(-runs.reserved // self.block_size) * self.block_size
            assert self.length(request) <= slots <= len(runs.of[0]) * self.block_size, (
                "a reservation was outgrown"
            )

    def _free(self, run: Sequence[int]) -> None:
        self.allocator.free(run)
        self.free_blocks += len(run)

    def _blocks(self, request: SequenceGroup, tokens: int) -> int:
        """Return the blocks that one sample reserves."""
        return -(-self.reservation.tokens(tokens, request.output) // self.block_size)


def contiguous(make: Callable[[int], Allocator]) -> Callable[[Pool], BlockManager]:
    """Return a function that makes a `ContiguousManager` for a pool; ``make`` gets the number of blocks.

    The returned function raises ValueError for a pool without a reservation.
    """

    def of_pool(pool: Pool) -> BlockManager:
        if pool.reservation is None:
            raise ValueError("contiguous memory needs a reservation such as oracle; it cannot grow")
        return ContiguousManager(make(pool.num_blocks), pool.block_size, pool.reservation, pool.cpu_blocks)

    return of_pool
