"""A random life in memory, beside the tokens that its blocks would hold, so that a lost one shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from itertools import count, pairwise
from random import Random
from typing import Protocol, Self, cast

from pagesim.kvcache.base import Holder, KVCache, KVCacheError, OutOfBlocks
from pagesim.kvcache.extents import Extent


def takes_samples(memory: KVCache) -> bool:
    """Say whether memory takes a holder of several samples; it may refuse them."""
    copy, holder = deepcopy(memory), LivingHolder(1, 1, 2)
    try:
        copy.admit(holder, 1)
    except OutOfBlocks:
        return True
    except KVCacheError:
        return False
    return True


class Named(Protocol):
    """What memory offers in addition whose blocks have numbers.

    In a block table, blocks that were given back are left out, or stand in front as numbers below 0.
    """

    def block_table(self, holder: Holder, sample: int = 0, group: int = 0) -> list[int]: ...

    def extents(self, holder: Holder, sample: int = 0) -> list[Extent]: ...

    def free_extents(self) -> list[Extent]: ...

    def check_integrity(self) -> None: ...


def named(memory: KVCache) -> Named:
    """Return memory whose blocks have numbers as what it is, too."""
    return cast("Named", memory)


class Prompt:
    """What a holder's tokens are, for memory that finds them: see `Segments`. Each token is one of these."""

    lookahead = 0

    def __init__(self, tokens: tuple[int, ...], block_size: int) -> None:
        self.tokens = tokens
        self.block_size = block_size
        places = range(1, len(tokens) + 1)
        self.ends = [*places, 1 << 32]
        self.names = [*[hash(tokens[:place]) for place in places], id(self)]

    def key(self, block: int) -> int:
        return self.key_at((block + 1) * self.block_size)

    def key_at(self, tokens: int) -> int:
        return hash((self.tokens[:tokens], None if tokens <= len(self.tokens) else (id(self), tokens)))

    def common(self, other: Self, most: int) -> int:
        if self is other:
            return most
        pairs = zip(self.tokens, other.tokens, strict=False)
        alike = next((place for place, (a, b) in enumerate(pairs) if a != b), None)
        tokens = min(len(self.tokens), len(other.tokens)) if alike is None else alike
        return min(tokens // self.block_size, most)

    def __deepcopy__(self, memo: object) -> Self:
        return self


class LivingHolder(Holder):
    """A holder, with what its prompt is and how much of that is not computed yet."""

    __slots__ = ("content", "left")

    content: Prompt | None
    left: int

    def __init__(self, tokens: int, output: int = 0, samples: int = 1) -> None:
        super().__init__(tokens, output, samples)
        self.content = None
        self.left = 0


class Tokens:
    """Names tokens: each is another one, but the same after the same ones in two prompts is the same."""

    def __init__(self) -> None:
        self._numbers = count()
        self._found: dict[tuple[int, ...], int] = {}

    def next(self, holder: LivingHolder, place: int) -> int:
        content = holder.content
        if content is None or place >= len(content.tokens):
            return next(self._numbers)
        return self._found.setdefault(content.tokens[: place + 1], next(self._numbers))

    def __deepcopy__(self, memo: object) -> Self:
        return self


_Tables = list[list[list[int]]]
"""Of a holder, ``[samples][groups]``."""


class Life:
    """Memory, its holders, and the tokens that its blocks would hold, slot by slot.

    Every change goes through here. ``verify`` reads each sample back through its block tables, so a token
    that was overwritten, lost or left behind by a copy shows.
    """

    def __init__(self, memory: KVCache) -> None:
        self.memory = memory
        self.holders: list[LivingHolder] = []
        self.swapped: list[LivingHolder] = []
        self.text: dict[LivingHolder, list[list[int]]] = {}  # of each sample
        self.slots: dict[int, list[int]] = {}
        self.tokens = Tokens()
        self.orders = 0
        self.takes_samples = takes_samples(memory)
        self.swaps = self.forks = True  # until the memory says that it cannot

    # Random changes

    def change(self, rng: Random) -> None:
        """Make a change that the contract allows, or one that is refused for want of room."""
        changes = (
            *("admit", "admit", "admit", "grow", "grow", "grow", "start", "start", "stop", "chunk"),
            *("append", "trim", "cache", "aside", "end", "release", "swap", "swap", "fork"),
        )
        getattr(self, f"_{rng.choice(changes)}")(rng)

    def _admit(self, rng: Random) -> None:
        memory = self.memory
        most = memory.num_blocks * memory.block_size // 8
        samples = rng.choice((1, 1, 2, 3)) if self.takes_samples else 1
        holder = self.new(rng.randint(1, most), rng.randint(1, most), samples)
        if memory.caches_prefixes:
            same, rest = rng.randint(1, most), rng.randint(0, memory.block_size)
            prompt = [rng.randint(0, 1)] * same + [rng.randint(0, 1) for _ in range(rest)]
            holder.content = Prompt(tuple(prompt), memory.block_size)
            holder.tokens = holder.prompt = holder.length = len(prompt)
        elif memory.grows:
            holder.growth = rng.choice((1, 1, 1, 3))
        tokens = holder.tokens
        found = memory.match_prefix(holder, tokens)
        assert found % memory.block_size == 0, "whole blocks are found"
        assert found < tokens, "the last token of a prompt is always computed"
        if memory.grows and samples == 1 and rng.random() < 0.5:
            tokens = rng.randint(found + 1, tokens)
        holder.left = holder.tokens - tokens
        if memory.can_admit(holder, tokens):
            self.admit(holder, tokens)
        else:
            self.refused("admission without room", memory.admit, holder, tokens)
            self._release(rng)

    def _chunk(self, rng: Random) -> None:
        memory = self.memory
        for holder in self.holders:
            if holder.left and not holder.decodes:
                tokens = rng.randint(1, holder.left)
                if memory.releases:
                    memory.trim(holder)
                blocks, free = memory.blocks_to_extend(holder, tokens), memory.free_blocks
                if blocks > free:
                    self.refused("a chunk without room", memory.extend, holder, tokens)
                    return
                before, length = self._tables(holder), memory.length(holder)
                memory.extend(holder, tokens)
                holder.left -= tokens
                assert free - memory.free_blocks == blocks, "blocks_to_extend says what a chunk takes"
                self._write(holder, before, length, tokens)
                return

    def _append(self, rng: Random) -> None:
        memory = self.memory
        resting = [holder for holder in self.holders if not holder.decodes and not holder.left]
        if not resting:
            return
        holder = rng.choice(resting)
        if memory.releases:
            memory.trim(holder)
        before, length, free = self._tables(holder), memory.length(holder), memory.free_blocks
        if not memory.grows:
            if not self._room(holder):
                return
            assert memory.append(holder) == 0, "what is reserved is not shared"
            assert memory.free_blocks == free, "a reserved token takes no block"
            self._write(holder, before, length, 1)
            return
        state = self.snapshot()
        try:
            copies = memory.append(holder)
        except OutOfBlocks:
            assert free < holder.samples * len(memory.groups), "append finds the free blocks that there are"
            assert self.snapshot() == state, "an append without room leaves everything as it was"
        else:
            assert self._write(holder, before, length, 1) in (copies, None), "append says what it copies"

    def _start(self, rng: Random) -> None:
        resting = [holder for holder in self.holders if not holder.decodes]
        if resting:
            holder = rng.choice(resting)
            if self.memory.lag:
                holder.in_flight = rng.randint(0, self.memory.length(holder))
            self._keeps("start_decoding", holder, self.memory.start_decoding)
            assert holder.decodes, "start_decoding lets a holder decode"

    def _stop(self, rng: Random) -> None:
        decoding = self.decoding()
        if decoding:
            holder = rng.choice(decoding)
            self._keeps("stop_decoding", holder, self.memory.stop_decoding)
            assert not holder.decodes, "stop_decoding lets a holder rest"

    def _trim(self, rng: Random) -> None:
        memory = self.memory
        if self.holders:
            holder = rng.choice(self.holders)
            groups = range(len(memory.groups)) if memory.names_blocks else ()
            before = [self._gone(holder, 0, number) for number in groups]
            memory.trim(holder)
            for number in groups:
                due = memory.groups[number].released(memory.length(holder) - holder.in_flight)
                assert self._gone(holder, 0, number) == max(before[number], due), (
                    "trim releases the blocks that no later token attends to"
                )

    def _cache(self, rng: Random) -> None:
        for holder in self.decoding()[:1]:
            self._keeps("cache_full_blocks", holder, self.memory.cache_full_blocks)

    def _aside(self, rng: Random) -> None:
        free, blocks = self.memory.free_blocks, rng.randint(0, 3)
        if blocks <= free:
            self.memory.set_aside(blocks)
            assert self.memory.free_blocks == free, "what is set aside is free"

    def _grow(self, rng: Random) -> None:
        memory = self.memory
        for holder in self.decoding():
            if not self._room(holder) // holder.growth:
                self.release(holder)  # its reservation is full: it has all its tokens
        steps = min(rng.randint(0, 6), self.steps_left())
        if memory.blocks_needed(steps) <= memory.free_blocks:
            self.grow(steps)
        elif fit := memory.steps_that_fit(steps, 0):
            self.grow(fit)
        elif memory.blocks_needed(1) <= memory.free_blocks:
            self.grow(1)
        else:
            self.refused("growth without blocks", memory.grow, 1)
            self.release(rng.choice(self.decoding()))

    def _release(self, rng: Random) -> None:
        if self.holders:
            self.release(rng.choice(self.holders))

    def _end(self, rng: Random) -> None:
        several = [holder for holder in self.holders if holder.samples > 1]
        if several:
            holder = rng.choice(several)
            over = sorted(rng.sample(range(holder.samples), rng.randint(1, holder.samples - 1)))
            left = holder.samples - len(over)
            self.memory.end_samples(holder, over)
            assert holder.samples == left, "end_samples lowers the samples of a holder"
            self.text[holder] = [text for place, text in enumerate(self.text[holder]) if place not in over]

    def _swap(self, rng: Random) -> None:
        if self.swapped and rng.random() < 0.6:
            holder = rng.choice(self.swapped)
            if self.memory.held_blocks(holder) <= self.memory.free_blocks:
                self.swap_in(holder)
            elif rng.random() < 0.5:
                self.refused("a swap into full memory", self.memory.swap_in, holder)
            else:
                self.drop(holder)
        elif self.holders:
            self.swap_out(rng.choice(self.holders))

    def _fork(self, rng: Random) -> None:
        memory = self.memory
        several = [holder for holder in self.decoding() if holder.samples > 1]
        if not several or not self.forks:
            return
        holder = rng.choice(several)
        dropped, survivor = rng.sample(range(holder.samples), 2)
        before, state = self._tables(holder), self.snapshot()
        try:
            copies = memory.fork(holder, dropped, survivor)
        except KVCacheError:
            self.forks = False
            assert self.snapshot() == state, "a fork that is refused leaves everything as it was"
            return
        assert bool(copies) != memory.shares, "a fork is shared, or it copies all blocks of a sample"
        if before and not memory.shares:
            for theirs, mine in zip(before[survivor], before[dropped], strict=True):
                for source, target in zip(theirs, mine, strict=True):
                    self.slots[target] = list(self.slots[source])
        self.text[holder][dropped] = list(self.text[holder][survivor])

    # Changes by name

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
        prompt = [self.tokens.next(holder, place) for place in range(tokens)]
        self.text[holder] = [list(prompt) for _ in range(holder.samples)]
        if memory.names_blocks:
            self._fill(holder, found)

    def grow(self, steps: int) -> None:
        """Grow by steps that fit."""
        memory, free = self.memory, self.memory.free_blocks
        needed, decoding = memory.blocks_needed(steps), self.decoding()
        due = sum([memory.copies_due(holder) for holder in decoding]) if steps else 0
        before = [(holder, self._tables(holder), memory.length(holder)) for holder in decoding]
        copies = memory.grow(steps)
        assert copies == due, f"copies_due says what a step copies: {due} foretold, {copies} copied"
        taken = free - memory.free_blocks
        assert taken == needed or (memory.releases and taken < needed), (
            f"blocks_needed says what growth takes: {needed} foretold for {steps} steps, {taken} taken"
        )
        found = [self._write(*each, steps * each[0].growth) for each in before]
        if memory.names_blocks:
            assert sum(filter(None, found)) == copies, "as many blocks are copied as grow says"

    def take_turns(self) -> None:
        """Let every decoding holder take its turn in a step that fits, in their order."""
        memory = self.memory
        decoding = sorted(self.decoding(), key=lambda holder: holder.order)
        before = [(holder, self._tables(holder), memory.length(holder)) for holder in decoding]
        for holder in decoding:
            memory.take(holder)
        memory.close_step()
        for each in before:
            self._write(*each, each[0].growth)

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
        del self.text[holder]

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
            except KVCacheError:
                assert self.snapshot() == state, "a swap without room leaves everything as it was"
                return False
            raise AssertionError("a swap into a full swap space raises OutOfBlocks")
        try:
            moved = memory.swap_out(holder)
        except OutOfBlocks:
            raise
        except KVCacheError:
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
        if memory.names_blocks:
            self._fill(holder, 0)

    def drop(self, holder: LivingHolder) -> None:
        """Give a swapped holder up."""
        memory = self.memory
        free_cpu, held = memory.free_cpu_blocks, memory.held_blocks(holder)
        memory.drop_swapped(holder)
        assert memory.free_cpu_blocks == free_cpu + held, "drop_swapped gives everything back"
        self.swapped.remove(holder)
        del self.text[holder]

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
            (memory.steps, memory.copies_on_write, memory.blocks_taken),
            [memory.blocks_needed(steps) for steps in range(2 * memory.block_size + 1)],
            named(memory).free_extents() if memory.names_blocks else [],
            [
                (
                    *(memory.length(holder), memory.held_blocks(holder), holder.samples, holder.decodes),
                    memory.copies_due(holder) if holder.decodes else 0,
                    memory.held_and_reserved(holder),
                    self._tables(holder),
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
            assert memory.length(holder) == len(self.text[holder][0]), "the length counts every token given"
        for holder in self.holders:
            self._verify_holder(holder)
        if memory.names_blocks:
            named(memory).check_integrity()
            self._verify_blocks()

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

    def _verify_blocks(self) -> None:
        memory, tables = self.memory, named(self.memory)
        owners: dict[int, LivingHolder] = {}
        names = 0
        for holder in self.holders:
            mine: set[int] = set()
            for sample, text in enumerate(self.text[holder]):
                held = list(numbers(tables.extents(holder, sample)))
                names += len(held)
                mine.update(held)
                for number in range(len(memory.groups)):
                    self._verify_table(holder, sample, number, text, held)
            assert memory.held_blocks(holder) == len(mine), "held_blocks counts the distinct blocks"
            for block in mine:
                own = owners.setdefault(block, holder) is holder
                assert own or memory.caches_prefixes, f"block {block} is in the tables of two holders"
        runs = tables.free_extents()
        assert all(sum(run) < after[0] for run, after in pairwise(runs)), (
            "free extents are in order and joined"
        )
        free = list(numbers(runs))
        assert memory.free_blocks == len(free), "free_blocks counts the blocks of the free extents"
        assert sorted([*free, *owners]) == list(range(memory.num_blocks)), (
            "every block is free or held by the holder whose table names it, and none is both"
        )
        assert memory.shared_blocks == names - len(owners), (
            "shared_blocks counts the names of blocks beyond the first"
        )

    def _verify_table(
        self, holder: LivingHolder, sample: int, number: int, text: list[int], held: list[int]
    ) -> None:
        group = self.memory.groups[number]
        table, size = self._table(holder, sample, number), group.block_size
        gone = self._gone(holder, sample, number)
        assert 0 <= gone * size <= group.rule.skipped(len(text)), (
            "a block table has a block for each block_size tokens that a later token attends to"
        )
        assert len(set(table)) == len(table), "a block table names a block once"
        assert set(table) <= set(held), "the extents have the table's blocks"
        found = [token for block in table for token in self.slots[block]]
        assert found[: len(text) - gone * size] == text[gone * size :], (
            "a sample does not read its own tokens through its table"
        )

    def _gone(self, holder: LivingHolder, sample: int, number: int) -> int:
        """Return the leading blocks that a group does not have any more."""
        size = self.memory.groups[number].block_size
        return -(-self.memory.length(holder) // size) - len(self._table(holder, sample, number))

    def _table(self, holder: LivingHolder, sample: int, number: int) -> list[int]:
        """Return the blocks of a sample in a group that it still has."""
        table = named(self.memory).block_table(holder, sample, number)
        gone = sum([block < 0 for block in table])
        assert all(block < 0 for block in table[:gone]), "blocks are given back from the front"
        return table[gone:]

    def _tables(self, holder: LivingHolder) -> _Tables:
        """Return all block tables of a holder; none where blocks have no numbers."""
        if not self.memory.names_blocks:
            return []
        groups = range(len(self.memory.groups))
        return [[self._table(holder, sample, group) for group in groups] for sample in range(holder.samples)]

    def _fill(self, holder: LivingHolder, start: int) -> None:
        """Write the tokens of a holder from a place on into its blocks."""
        for sample, (tables, text) in enumerate(zip(self._tables(holder), self.text[holder], strict=True)):
            for number, table in enumerate(tables):
                size, gone = self.memory.groups[number].block_size, self._gone(holder, sample, number)
                for place in range(max(start, gone * size), len(text)):
                    block = place // size - gone
                    assert block < len(table), "a block table has a block for each block_size tokens"
                    self.slots.setdefault(table[block], [])[place % size :] = [text[place]]

    def _write(self, holder: LivingHolder, before: _Tables, length: int, tokens: int) -> int | None:
        """Follow the copies of a growth, then write its tokens; return the blocks copied, if that shows."""
        for text in self.text[holder]:
            text += [self.tokens.next(holder, place) for place in range(length, length + tokens)]
        assert self.memory.length(holder) == length + tokens, "a holder has the tokens that it was given"
        if not self.memory.names_blocks:
            return None
        copies: list[tuple[int, int]] = []
        for sample, tables in enumerate(self._tables(holder)):
            for number, table in enumerate(tables):
                old = before[sample][number]
                size, gone = self.memory.groups[number].block_size, self._gone(holder, sample, number)
                # The blocks that are gone now, and were not, are no copies.
                there = old[max(0, gone - (-(-length // size) - len(old))) :]
                copies += [pair for pair in zip(there, table, strict=False) if pair[0] != pair[1]]
        contents = [list(self.slots[source]) for source, _ in copies]
        for (_, target), content in zip(copies, contents, strict=True):
            self.slots[target] = content
        self._fill(holder, length)
        return len(copies)


def numbers(extents: Iterable[Extent]) -> Iterator[int]:
    """Yield the blocks of extents one by one."""
    for first, blocks in extents:
        yield from range(first, first + blocks)
