"""A life in memory, beside the tokens that its blocks would hold, so that a lost one shows."""

from __future__ import annotations

from collections.abc import Callable

from pagesim.kvcache.base import BlockManager, BlockManagerError, OutOfBlocks
from pagesim.kvcache.holder import Holder
from pagesim.testing.holders import LivingHolder, named, takes_samples
from pagesim.testing.written import Written


class Life:
    """Memory, its holders, and the tokens that its blocks would hold.

    Every change goes through here. ``verify`` reads each sample back through its block tables.
    """

    def __init__(self, memory: BlockManager) -> None:
        self.memory = memory
        self.holders: list[LivingHolder] = []
        self.swapped: list[LivingHolder] = []
        self.written = Written(memory)
        self.orders = 0
        self.takes_samples = takes_samples(memory)
        self.swaps = self.forks = True  # until the memory says that it cannot

    # Changes

    def new(self, tokens: int, output: int, samples: int) -> LivingHolder:
        """Return a holder that is not in memory yet."""
        holder = LivingHolder(tokens, output, samples)
        self.orders += 1
        holder.order = self.orders
        return holder

    def admit(self, holder: LivingHolder, tokens: int) -> None:
        """Admit a holder for whom there is room."""
        memory, free = self.memory, self.memory.free_blocks
        found = memory.match_prefix(holder, holder.tokens)
        blocks = memory.blocks_to_admit(holder, tokens)
        memory.admit(holder, tokens)
        taken = free - memory.free_blocks
        assert taken == blocks or (not memory.grows and taken > blocks), (
            f"blocks_to_admit says what admission takes: {blocks} foretold, {taken} taken"
        )
        assert memory.length(holder) == tokens, "a holder rests at the tokens that it was admitted with"
        self.holders.append(holder)
        self.written.admit(holder, found)

    def grow(self, steps: int) -> None:
        """Grow by steps that fit."""
        memory, free = self.memory, self.memory.free_blocks
        needed, decoding = memory.blocks_needed(steps), self.decoding()
        due = sum([memory.copies_due(holder) for holder in decoding]) if steps else 0
        before = [(holder, self.written.tables(holder), memory.length(holder)) for holder in decoding]
        copies = memory.grow(steps)
        assert copies == due, f"copies_due says what a step copies: {due} foretold, {copies} copied"
        taken = free - memory.free_blocks
        assert taken == needed or (memory.releases and taken < needed), (
            f"blocks_needed says what growth takes: {needed} foretold for {steps} steps, {taken} taken"
        )
        found = [self.written.write(*each, steps * each[0].growth) for each in before]
        if memory.names_blocks:
            assert sum(filter(None, found)) == copies, "as many blocks are copied as grow says"

    def release(self, holder: LivingHolder) -> None:
        """Release a holder on the device."""
        memory = self.memory
        free, held = memory.free_blocks, memory.held_blocks(holder)
        memory.release(holder)
        back = memory.free_blocks - free
        assert back == held or (memory.caches_prefixes and back < held), (
            f"release gives everything back: {held} blocks were held, {back} came back"
        )
        self.holders.remove(holder)
        self.written.forget(holder)

    def swap_out(self, holder: LivingHolder) -> bool:
        """Swap a holder out, if the memory can; say whether it did."""
        memory, length = self.memory, self.memory.length(holder)
        free, free_cpu, held = memory.free_blocks, memory.free_cpu_blocks, memory.held_blocks(holder)
        if not self.swaps:
            return False
        if held > free_cpu:
            state = self.snapshot()
            try:
                memory.swap_out(holder)
            except BlockManagerError:
                assert self.snapshot() == state, "a swap without room leaves everything as it was"
                return False
            raise AssertionError("a swap into a full swap space raises OutOfBlocks")
        try:
            moved = memory.swap_out(holder)
        except OutOfBlocks:
            raise
        except BlockManagerError:
            self.swaps = False
            return False
        assert moved == held, "a swap moves each distinct block once"
        assert memory.free_blocks == free + held, "a swap frees what was held on the device"
        assert memory.free_cpu_blocks == free_cpu - held, "a swap takes as many blocks of the swap space"
        assert memory.length(holder) == length, "a swap loses no token"
        assert not holder.decodes, "a swapped holder rests"
        self.holders.remove(holder)
        self.swapped.append(holder)
        return True

    def swap_in(self, holder: LivingHolder) -> None:
        """Bring a holder back for whom there is room."""
        memory, length = self.memory, self.memory.length(holder)
        free, free_cpu, held = memory.free_blocks, memory.free_cpu_blocks, memory.held_blocks(holder)
        assert memory.swap_in(holder) == held, "a swap moves each distinct block once"
        assert memory.free_blocks == free - held, "a swap takes what was held on the device"
        assert memory.free_cpu_blocks == free_cpu + held, "a swap gives the blocks of the swap space back"
        assert memory.length(holder) == length, "a swap loses no token"
        self.swapped.remove(holder)
        self.holders.append(holder)
        self.written.fill(holder, 0)

    def drop(self, holder: LivingHolder) -> None:
        """Give a swapped holder up."""
        memory = self.memory
        free_cpu, held = memory.free_cpu_blocks, memory.held_blocks(holder)
        memory.drop_swapped(holder)
        assert memory.free_cpu_blocks == free_cpu + held, "drop_swapped gives everything back"
        self.swapped.remove(holder)
        self.written.forget(holder)

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

    # Questions

    def decoding(self) -> list[LivingHolder]:
        """Return the decoding holders."""
        return [holder for holder in self.holders if holder.decodes]

    def steps_left(self) -> int:
        """Return for how many steps no decoding holder outgrows its reservation."""
        return min([self._room(holder) // holder.growth for holder in self.decoding()], default=1000)

    def snapshot(self) -> object:
        """Return everything that a memory says, to be compared."""
        memory = self.memory
        return (
            (memory.free_blocks, memory.free_cpu_blocks, memory.shared_blocks, memory.cached_blocks),
            (memory.steps, memory.copies_on_write),
            [memory.blocks_needed(steps) for steps in range(2 * memory.block_size + 1)],
            named(memory).free_extents() if memory.names_blocks else [],
            [
                (
                    *(memory.length(holder), memory.held_blocks(holder), holder.samples, holder.decodes),
                    memory.copies_due(holder) if holder.decodes else 0,
                    memory.held_and_reserved(holder),
                    self.written.tables(holder),
                )
                for holder in self.holders
            ],
            [(memory.length(holder), memory.held_blocks(holder)) for holder in self.swapped],
        )

    def verify(self) -> None:
        """Raise AssertionError unless all answers agree with one another and with the tokens."""
        memory = self.memory
        away = sum([memory.held_blocks(holder) for holder in self.swapped])
        assert memory.free_cpu_blocks + away == memory.cpu_blocks, (
            "every block of the swap space is free or held"
        )
        if not memory.caches_prefixes:
            held = sum([memory.held_blocks(holder) for holder in self.holders])
            assert memory.free_blocks + held == memory.num_blocks, "every block is free or held"
        needed = sum([memory.blocks_needed_by(holder) for holder in self.decoding()])
        assert memory.blocks_needed(1) == needed, "blocks_needed is the sum over the decoding holders"
        assert memory.grows or not needed, "reserved memory never grows"
        for holder in (*self.holders, *self.swapped):
            text = self.written.text[holder]
            assert memory.length(holder) == len(text[0]), "the length counts every token given"
        for holder in self.holders:
            self._verify_holder(holder)
        if memory.names_blocks:
            named(memory).check_integrity()
            self.written.verify(self.holders)

    # Inside

    def _room(self, holder: LivingHolder) -> int:
        """Return the tokens that a holder may gain without outgrowing a reservation."""
        if self.memory.grows:
            return 1000
        _, reserved = self.memory.held_and_reserved(holder) or (0, 0)
        return max(0, reserved - self.memory.length(holder))

    def _keeps(self, what: str, holder: LivingHolder, call: Callable[[Holder], None]) -> None:
        """Make a change that neither takes nor gives."""
        memory = self.memory
        before = memory.length(holder), memory.held_blocks(holder), memory.free_blocks
        call(holder)
        after = memory.length(holder), memory.held_blocks(holder), memory.free_blocks
        assert after == before, f"{what} leaves length and blocks as they were"

    def _verify_holder(self, holder: LivingHolder) -> None:
        memory = self.memory
        held, reserved = memory.held_blocks(holder), memory.held_and_reserved(holder)
        assert (reserved is None) == memory.grows, (
            "held_and_reserved is None where memory grows, and only there"
        )
        if reserved is not None:
            assert reserved[0] * holder.samples == held, "a reservation is held throughout"
            assert reserved[1] >= memory.length(holder), "at least the tokens that are there are reserved"
        elif holder.samples == 1:
            groups = memory.held_by_group(holder)
            assert sum([blocks for _, blocks in groups]) == held, "held_by_group counts all blocks held"
            for group, (tokens, blocks) in zip(memory.groups, groups, strict=True):
                slots = blocks * group.block_size
                assert slots - group.block_size < tokens <= slots, "a group's blocks are those of its tokens"
