"""A life: a block manager driven together with a record of its blocks' tokens, to detect lost ones."""

from __future__ import annotations

from collections.abc import Callable

from pagesim.allocators import OutOfBlocks
from pagesim.kvcache.base import BlockManager, BlockManagerError
from pagesim.kvcache.sequence_group import SequenceGroup
from pagesim.testing.requests import LivingRequest, takes_samples
from pagesim.testing.written import Written


class Life:
    """A block manager, its requests, and the tokens that its blocks would hold.

    Every change is made through this class. ``verify`` reads each sample back through its block tables.
    """

    def __init__(self, memory: BlockManager) -> None:
        self.memory = memory
        self.requests: list[LivingRequest] = []
        self.swapped: list[LivingRequest] = []
        self.written = Written(memory)
        self.orders = 0
        self.takes_samples = takes_samples(memory)
        self.swaps = self.forks = True  # until the block manager refuses

    # Changes

    def new(self, tokens: int, output: int, samples: int) -> LivingRequest:
        """Return a request that has not been admitted yet."""
        request = LivingRequest(tokens, output, samples)
        self.orders += 1
        request.order = self.orders
        return request

    def admit(self, request: LivingRequest, tokens: int) -> None:
        """Admit a request for which there is room."""
        memory, free = self.memory, self.memory.free_blocks
        found = memory.match_prefix(request, request.tokens)
        blocks = memory.blocks_to_admit(request, tokens)
        memory.admit(request, tokens)
        taken = free - memory.free_blocks
        assert taken == blocks or (not memory.grows and taken > blocks), (
            f"blocks_to_admit says what admission takes: {blocks} foretold, {taken} taken"
        )
        assert memory.length(request) == tokens, "a request rests at the tokens that it was admitted with"
        self.requests.append(request)
        self.written.admit(request, found)

    def allocate_step(self, steps: int) -> None:
        """Allocate decode steps that fit."""
        memory, free = self.memory, self.memory.free_blocks
        needed, decoding = memory.blocks_needed(steps), self.decoding()
        due = sum([memory.copies_due(request) for request in decoding]) if steps else 0
        before = [(request, self.written.tables(request), memory.length(request)) for request in decoding]
        copies = memory.allocate_step(steps)
        assert copies == due, f"copies_due says what a step copies: {due} foretold, {copies} copied"
        taken = free - memory.free_blocks
        assert taken == needed or (memory.releases and taken < needed), (
            f"blocks_needed says what decode steps take: {needed} foretold for {steps} steps, {taken} taken"
        )
        found = [self.written.write(*each, steps) for each in before]
        if memory.names_blocks:
            assert sum(filter(None, found)) == copies, "as many blocks are copied as allocate_step says"

    def release(self, request: LivingRequest) -> None:
        """Release a request on the device."""
        memory = self.memory
        free, held = memory.free_blocks, memory.held_blocks(request)
        memory.release(request)
        back = memory.free_blocks - free
        assert back == held or (memory.caches_prefixes and back < held), (
            f"release gives everything back: {held} blocks were held, {back} came back"
        )
        self.requests.remove(request)
        self.written.forget(request)

    def swap_out(self, request: LivingRequest) -> bool:
        """Swap a request out if the block manager can; return whether it did."""
        memory, length = self.memory, self.memory.length(request)
        free, free_cpu, held = memory.free_blocks, memory.free_cpu_blocks, memory.held_blocks(request)
        if not self.swaps:
            return False
        state = self.snapshot()
        try:
            moved = memory.swap_out(request)
        except (BlockManagerError, OutOfBlocks) as error:
            self.swaps = isinstance(error, OutOfBlocks)
            assert held > free_cpu or not self.swaps, "a swap that the swap space has room for succeeds"
            assert self.snapshot() == state, "a swap that is refused leaves everything as it was"
            return False
        assert held <= free_cpu, "a swap into a full swap space raises OutOfBlocks"
        assert moved == held, "a swap moves each distinct block once"
        assert memory.free_blocks == free + held, "a swap frees what was held on the device"
        assert memory.free_cpu_blocks == free_cpu - held, "a swap takes as many blocks of the swap space"
        assert memory.length(request) == length, "a swap loses no token"
        assert not request.decodes, "a swapped request rests"
        self.requests.remove(request)
        self.swapped.append(request)
        return True

    def swap_in(self, request: LivingRequest) -> None:
        """Swap in a request for which there is room."""
        memory, length = self.memory, self.memory.length(request)
        free, free_cpu, held = memory.free_blocks, memory.free_cpu_blocks, memory.held_blocks(request)
        assert memory.swap_in(request) == held, "a swap moves each distinct block once"
        assert memory.free_blocks == free - held, "a swap takes what was held on the device"
        assert memory.free_cpu_blocks == free_cpu + held, "a swap gives the blocks of the swap space back"
        assert memory.length(request) == length, "a swap loses no token"
        self.swapped.remove(request)
        self.requests.append(request)
        self.written.fill(request, 0)

    def drop(self, request: LivingRequest) -> None:
        """Drop a swapped-out request."""
        memory = self.memory
        free_cpu, held = memory.free_cpu_blocks, memory.held_blocks(request)
        memory.drop_swapped(request)
        assert memory.free_cpu_blocks == free_cpu + held, "drop_swapped gives everything back"
        self.swapped.remove(request)
        self.written.forget(request)

    def refused(self, what: str, call: Callable[..., object], *arguments: object) -> None:
        """Check that a call raises OutOfBlocks and changes nothing."""
        before = self.snapshot()
        try:
            call(*arguments)
        except OutOfBlocks:
            pass
        except Exception as other:
            raise AssertionError(f"{what} raises OutOfBlocks, not {type(other).__name__}") from other
        else:
            raise AssertionError(f"{what} raises OutOfBlocks")
        assert self.snapshot() == before, f"{what} leaves everything as it was"

    # Queries

    def decoding(self) -> list[LivingRequest]:
        """Return the decoding requests."""
        return [request for request in self.requests if request.decodes]

    def steps_left(self) -> int:
        """Return the number of steps before any decoding request outgrows its reservation."""
        return min(map(self._room, self.decoding()), default=1000)

    def snapshot(self) -> object:
        """Return the block manager's observable state, for comparison."""
        memory = self.memory
        return (
            (memory.free_blocks, memory.free_cpu_blocks, memory.shared_blocks, memory.cached_blocks),
            memory.steps,
            [memory.blocks_needed(steps) for steps in range(2 * memory.block_size + 1)],
            memory.free_extents() if memory.names_blocks else [],
            [
                (
                    *(memory.length(request), memory.held_blocks(request), request.samples, request.decodes),
                    memory.copies_due(request) if request.decodes else 0,
                    memory.held_and_reserved(request),
                    self.written.tables(request),
                )
                for request in self.requests
            ],
            [(memory.length(request), memory.held_blocks(request)) for request in self.swapped],
        )

    def verify(self) -> None:
        """Raise AssertionError unless all answers are consistent with one another and with the tokens."""
        memory = self.memory
        away = sum([memory.held_blocks(request) for request in self.swapped])
        assert memory.free_cpu_blocks + away == memory.cpu_blocks, (
            "every block of the swap space is free or held"
        )
        if not memory.caches_prefixes:
            held = sum([memory.held_blocks(request) for request in self.requests])
            assert memory.free_blocks + held == memory.num_blocks, "every block is free or held"
        needed = sum([memory.blocks_to_extend(request, 1) for request in self.decoding()])
        assert memory.blocks_needed(1) == needed, "blocks_needed is the sum over the decoding requests"
        assert memory.grows or not needed, "reserved memory never grows"
        for request in (*self.requests, *self.swapped):
            text = self.written.text[request]
            assert memory.length(request) == len(text[0]), "the length counts every token given"
        for request in self.requests:
            self._verify_request(request)
        if memory.names_blocks:
            memory.check_integrity()
            self.written.verify(self.requests)

    # Internals

    def _room(self, request: LivingRequest) -> int:
        """Return the tokens that a request may gain without outgrowing a reservation."""
        if self.memory.grows:
            return 1000
        _, reserved = self.memory.held_and_reserved(request) or (0, 0)
        return max(0, reserved - self.memory.length(request))

    def _keeps(self, what: str, request: LivingRequest, call: Callable[[SequenceGroup], None]) -> None:
        """Make a change that must neither allocate nor free blocks, nor change the length."""
        memory = self.memory
        before = memory.length(request), memory.held_blocks(request), memory.free_blocks
        call(request)
        after = memory.length(request), memory.held_blocks(request), memory.free_blocks
        assert after == before, f"{what} leaves length and blocks as they were"

    def _verify_request(self, request: LivingRequest) -> None:
        memory = self.memory
        held, reserved = memory.held_blocks(request), memory.held_and_reserved(request)
        assert (reserved is None) == memory.grows, (
            "held_and_reserved is None where memory grows, and only there"
        )
        if reserved is not None:
            assert reserved[0] * request.samples == held, "a reservation is held throughout"
            assert reserved[1] >= memory.length(request), "at least the tokens that are there are reserved"
        elif request.samples == 1:
            groups = memory.held_by_group(request)
            assert sum([blocks for _, blocks in groups]) == held, "held_by_group counts all blocks held"
            for group, (tokens, blocks) in zip(memory.groups, groups, strict=True):
                slots = blocks * group.block_size
                assert slots - group.block_size < tokens <= slots, "a group's blocks are those of its tokens"
