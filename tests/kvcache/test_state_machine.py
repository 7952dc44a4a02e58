"""Random lives, chosen by Hypothesis, beside a model that follows every token through copies and swaps."""

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pagesim.kvcache import (
    RESERVATIONS,
    Allocator,
    AllocatorError,
    BestFit,
    Buddy,
    ContiguousAllocator,
    Copy,
    FirstFit,
    Fit,
    OutOfBlocks,
    PagedAllocator,
    Placement,
    PrefixCachingAllocator,
    Reservation,
)
from pagesim.kvcache.mirror import Mirror
from tests.kvcache.text import Text

T = TypeVar("T")

BLOCKS, CPU_BLOCKS = 31, 15
LIVES, CHANGES = 240, 100

CHOICE = st.integers(0, 1 << 16)
SIZES = st.integers(1, 4)
POLICIES = st.sampled_from(sorted(RESERVATIONS))


class AllocatorMachine(RuleBasedStateMachine):
    """What any allocator goes through. A rule picks a sequence by a number, so that every number will do."""

    changes = 0  # over all lives

    mirror: Mirror
    sequences = 0

    @rule(tokens=st.integers(1, 7), output=st.integers(1, 9))
    def allocate(self, tokens: int, output: int) -> None:
        sequence = self.new()
        if self.memory.probe(tokens, output) is Fit.NOW:
            self.mirror.allocate(sequence, tokens, output)
        else:
            with pytest.raises(OutOfBlocks):
                self.memory.allocate(sequence, tokens, output)
            self.make_room(tokens, output, 1)

    @rule(
        tokens=st.integers(1, 7), output=st.integers(1, 9), samples=st.integers(2, 4), steps=st.integers(0, 2)
    )
    def admit(self, tokens: int, output: int, samples: int, steps: int) -> None:
        """Start the samples of one request, as a scheduler does."""
        self.make_room(tokens, output, samples)
        if self.memory.probe(tokens, output, samples) is not Fit.NOW:
            return
        sequences = [self.new() for _ in range(samples)]
        self.mirror.allocate(sequences[0], tokens, output)
        for sequence in sequences[1:]:
            self.mirror.fork(sequences[0], sequence)
        for sequence in sequences:
            self.mirror.start_growing(sequence)
        self.advance(steps)

    @precondition(lambda self: self.mirror.resting)
    @rule(choice=CHOICE, times=st.integers(1, 5))
    def append(self, choice: int, times: int) -> None:
        sequence = pick(self.mirror.resting, choice)
        for _ in range(min(times, self.mirror.room(sequence))):
            due = self.demand_of(sequence)
            if due > self.memory.free_blocks:
                with pytest.raises(OutOfBlocks):
                    self.memory.append(sequence)
                return
            before = self.memory.free_blocks
            copy = self.mirror.append(sequence)
            assert before - self.memory.free_blocks == due
            assert copy is None or due == 1

    @precondition(lambda self: self.mirror.resting or self.mirror.growing)
    @rule(choice=CHOICE)
    def fork(self, choice: int) -> None:
        parent = pick([sequence for sequence, _ in self.mirror.tokens()], choice)
        before, held = self.memory.free_blocks, self.memory.held_blocks(parent)
        try:
            self.mirror.fork(parent, self.new())
        except OutOfBlocks:
            assert not self.memory.shares, "sharing takes no block"
        else:
            assert before - self.memory.free_blocks == (0 if self.memory.shares else held)

    @precondition(lambda self: self.mirror.adoptable())
    @rule(choice=CHOICE)
    def adopt(self, choice: int) -> None:
        self.mirror.adopt(*pick(self.mirror.adoptable(), choice))

    @precondition(lambda self: self.mirror.resting or self.mirror.growing)
    @rule(choice=CHOICE)
    def free(self, choice: int) -> None:
        self.mirror.free(pick([sequence for sequence, _ in self.mirror.tokens()], choice))

    @precondition(lambda self: self.mirror.resting)
    @rule(choice=CHOICE)
    def start_growing(self, choice: int) -> None:
        self.mirror.start_growing(pick(self.mirror.resting, choice))

    @precondition(lambda self: self.mirror.growing)
    @rule(choice=CHOICE)
    def stop_growing(self, choice: int) -> None:
        self.mirror.stop_growing(pick(self.mirror.growing, choice))

    @precondition(lambda self: self.mirror.growing)
    @rule(steps=st.integers(0, 9))
    def grow(self, steps: int) -> None:
        self.advance(steps)

    def advance(self, steps: int) -> None:
        memory = self.memory
        for sequence in [s for s in self.mirror.growing if not self.mirror.room(s)]:
            self.mirror.free(sequence)  # its reservation is full: it has all its tokens
        steps = min(steps, self.mirror.growing_room())
        expected = self.copies_due() if steps else []
        before, demand = memory.free_blocks, memory.demand(steps)
        if demand > before:
            with pytest.raises(OutOfBlocks):
                memory.grow(steps)
            self.mirror.free(next(iter(self.mirror.growing)))
            return
        copies = self.mirror.grow(steps)
        assert [source for source, _ in copies] == expected
        assert before - memory.free_blocks == demand

    @invariant()
    def every_sequence_reads_its_own_tokens_and_no_block_is_lost(self) -> None:
        type(self).changes += 1
        self.mirror.verify()

    def teardown(self) -> None:
        for sequence in [sequence for sequence, _ in self.mirror.tokens()]:
            self.mirror.free(sequence)
        assert self.memory.free_extents() == [(0, BLOCKS)]

    @property
    def memory(self) -> Allocator:
        return self.mirror.memory

    def make_room(self, tokens: int, output: int, samples: int) -> None:
        """Free sequences, so that a life does not end in a full memory where nothing happens any more."""
        for sequence in [sequence for sequence, _ in self.mirror.tokens()]:
            if self.memory.probe(tokens, output, samples) is Fit.NOW:
                return
            self.mirror.free(sequence)

    def new(self) -> int:
        self.sequences += 1
        return self.sequences

    def demand_of(self, sequence: int) -> int:
        """Return the blocks that a resting sequence's next token takes."""
        if not self.memory.grows_on_demand:
            return 0
        tokens = len(self.mirror.resting[sequence])
        if tokens % self.memory.block_size == 0:
            return 1
        return int(self.names()[self.memory.block_table(sequence)[-1]] > 1)

    def copies_due(self) -> list[int]:
        """Return the blocks that the next step copies: in order of start, and the last sharer keeps it."""
        names, copied = self.names(), []
        for sequence, tokens in self.mirror.growing.items():
            tail = self.memory.block_table(sequence)[-1]
            if len(tokens) % self.memory.block_size and names[tail] > 1:
                names[tail] -= 1
                copied.append(tail)
        return copied

    def names(self) -> Counter[int]:
        """Return how many tables name each block."""
        return Counter(
            block for sequence, _ in self.mirror.tokens() for block in self.memory.block_table(sequence)
        )


class PagedMachine(AllocatorMachine):
    """Beside what every allocator does: swaps, of some of the sharers, too."""

    def begin(self, size: int, reservation: Reservation | None, *, shares: bool = True) -> None:
        self.paged = PagedAllocator(BLOCKS, size, CPU_BLOCKS, reservation, shares=shares)
        self.mirror = Mirror(self.paged)
        self.swap_slots: dict[int, list[int]] = {}
        self.swapped: dict[int, list[int]] = {}
        self.swapped_families: dict[int, int] = {}
        self.swapped_together: list[list[int]] = []

    @precondition(lambda self: self.mirror.resting or self.mirror.growing)
    @rule(choices=st.lists(CHOICE, min_size=1, max_size=4))
    def swap_out(self, choices: list[int]) -> None:
        here = [sequence for sequence, _ in self.mirror.tokens()]
        chosen = list(dict.fromkeys(pick(here, choice) for choice in choices))
        self.move_out(chosen)

    @precondition(lambda self: self.mirror.resting or self.mirror.growing)
    @rule(choice=CHOICE)
    def swap_out_a_family(self, choice: int) -> None:
        family = self.mirror.family[pick([sequence for sequence, _ in self.mirror.tokens()], choice)]
        self.move_out(
            [sequence for sequence, _ in self.mirror.tokens() if self.mirror.family[sequence] == family]
        )

    def move_out(self, chosen: list[int]) -> None:
        held = [block for sequence in chosen for block in self.held(sequence)]
        distinct = list(dict.fromkeys(held))
        blocks = self.paged.distinct_blocks(chosen)
        assert blocks == len(distinct)
        before = self.paged.free_cpu_blocks
        if blocks > before:
            with pytest.raises(OutOfBlocks):
                self.paged.swap_out(chosen)
            for sequence in list(self.swapped):
                self.drop(sequence)
            return
        moves = self.paged.swap_out(chosen)
        assert [block for block, _ in moves] == distinct
        assert before - self.paged.free_cpu_blocks == blocks
        move(moves, self.mirror.slots, self.swap_slots)
        for sequence in chosen:
            self.swapped_families[sequence] = self.mirror.family.pop(sequence)
            growing = self.mirror.growing.pop(sequence, None)
            self.swapped[sequence] = self.mirror.resting.pop(sequence) if growing is None else growing
        self.swapped_together.append(chosen)
        with pytest.raises(AllocatorError):
            self.paged.allocate(chosen[0], 1)
        for parent, _ in self.mirror.tokens():
            with pytest.raises(AllocatorError):
                self.paged.fork(parent, chosen[0])

    @precondition(lambda self: self.swapped)
    @rule(choice=CHOICE, all_of_them=st.booleans())
    def swap_in(self, choice: int, all_of_them: bool) -> None:
        if all_of_them:
            together = [list(filter(self.swapped.__contains__, group)) for group in self.swapped_together]
            chosen = pick(list(filter(None, together)), choice)
        else:
            chosen = [pick(self.swapped, choice)]
        blocks, before = self.paged.distinct_blocks(chosen), self.paged.free_blocks
        if blocks > before:
            with pytest.raises(OutOfBlocks):
                self.paged.swap_in(chosen)
            return
        move(self.paged.swap_in(chosen), self.swap_slots, self.mirror.slots)
        assert before - self.paged.free_blocks == blocks, "what was shared is shared again"
        for sequence in chosen:
            self.mirror.resting[sequence] = self.swapped.pop(sequence)
            self.mirror.family[sequence] = self.swapped_families.pop(sequence)

    @precondition(lambda self: self.swapped)
    @rule(choice=CHOICE)
    def drop_swapped(self, choice: int) -> None:
        self.drop(pick(self.swapped, choice))

    def drop(self, sequence: int) -> None:
        self.paged.drop_swapped(sequence)
        del self.swapped[sequence], self.swapped_families[sequence]

    def held(self, sequence: int) -> list[int]:
        return [
            block for first, blocks in self.paged.extents(sequence) for block in range(first, first + blocks)
        ]

    @invariant()
    def a_reference_is_a_table_that_names_the_block(self) -> None:
        for block, tables in self.names().items():
            assert self.paged.references(block) == tables

    @invariant()
    def the_swap_space_is_free_exactly_when_nobody_is_swapped(self) -> None:
        assert (self.paged.free_cpu_blocks == CPU_BLOCKS) == (not self.swapped)

    def teardown(self) -> None:
        for sequence in self.swapped:
            self.paged.drop_swapped(sequence)
        assert self.paged.free_cpu_blocks == CPU_BLOCKS
        super().teardown()


class PagedOnDemand(PagedMachine):
    @initialize(size=SIZES)
    def make(self, size: int) -> None:
        self.begin(size, None)


class PagedUnshared(PagedMachine):
    @initialize(size=SIZES)
    def make(self, size: int) -> None:
        self.begin(size, None, shares=False)

    @invariant()
    def nobody_shares(self) -> None:
        assert set(self.names().values()) <= {1}
        assert not self.memory.sharing_tails


class PagedReserved(PagedMachine):
    @initialize(size=SIZES, policy=POLICIES)
    def make(self, size: int, policy: str) -> None:
        self.begin(size, reservation(policy, size))


class CachingMirror(Mirror):
    """A mirror in which the same tokens after the same tokens are one token: what is found must be equal."""

    CACHED = -2  # the family of whoever may share what was found

    def __init__(self, memory: PrefixCachingAllocator) -> None:
        super().__init__(memory)
        self.cache = memory
        self.prompts: dict[int, list[int]] = {}
        self.contents: dict[int, Text] = {}
        self._texts: dict[tuple[object, ...], int] = {}

    def key(self, sequence: int, prompt: list[int], tokens: int) -> int:
        """Name the first tokens of a sequence: of its prompt, and then its own."""
        own = [(sequence, place) for place in range(len(prompt), tokens)]
        return self._texts.setdefault((*prompt[:tokens], *own), len(self._texts) + 10**6)

    def next_token(self, sequence: int, place: int) -> int:
        prompt = self.prompts.get(sequence)
        return (
            super().next_token(sequence, place) if prompt is None else self.key(sequence, prompt, place + 1)
        )

    def allocate_cached(self, sequence: int, prompt: list[int], hits: int, tokens: int) -> None:
        self.contents[sequence] = self.text(prompt)
        self.cache.allocate_cached(sequence, self.contents[sequence], hits, tokens)
        self.prompts[sequence] = prompt
        self.family[sequence] = self.CACHED
        found = hits * self.cache.block_size
        self.resting[sequence] = [self.next_token(sequence, place) for place in range(found)]
        self.write(sequence, tokens - found)

    def extend(self, sequence: int, tokens: int) -> None:
        self.cache.extend(sequence, tokens)
        self.write(sequence, tokens)

    def write(self, sequence: int, tokens: int) -> None:
        for _ in range(tokens):
            self._write(sequence, self.resting[sequence])

    def text(self, prompt: list[int]) -> Text:
        return Text(prompt, self.cache.block_size)

    def adoptable(self) -> list[tuple[int, int]]:
        return [pair for pair in super().adoptable() if pair[0] not in self.prompts]


class PrefixMachine(AllocatorMachine):
    """Beside what every allocator does: prompts that begin alike, in chunks, found and evicted."""

    found = 0  # over all lives
    lost = 0

    @initialize(size=st.integers(1, 3), reuses_unfilled_first=st.booleans())
    def make(self, size: int, reuses_unfilled_first: bool) -> None:
        self.cache = PrefixCachingAllocator(BLOCKS, size, reuses_unfilled_first=reuses_unfilled_first)
        self.caching = CachingMirror(self.cache)
        self.mirror = self.caching

    @rule(
        prompt=st.builds(
            lambda first, same, rest: [first] * same + rest,
            st.integers(0, 1),
            st.integers(1, 10),
            st.lists(st.integers(0, 1), max_size=4),
        ),
        chunk=st.integers(1, 14),
        steps=st.integers(0, 9),
    )
    def admit_cached(self, prompt: list[int], chunk: int, steps: int) -> None:
        sequence, size = self.new(), self.cache.block_size
        text = self.caching.text(prompt)
        hits = self.cache.hits(text, len(prompt))
        assert hits * size < len(prompt), "the last token of a prompt is always computed"
        tokens = min(hits * size + chunk, len(prompt))
        wanted, before = self.cache.blocks_wanted(text, hits, len(prompt)), self.cache.free_blocks
        if wanted > before:
            with pytest.raises(OutOfBlocks):
                self.cache.allocate_cached(sequence, text, hits, len(prompt))
            self.make_room(len(prompt), 1, 1)
            return
        type(self).found += hits
        self.caching.allocate_cached(sequence, prompt, hits, tokens)
        self.mirror.verify()
        while tokens < len(prompt):
            chunk = min(chunk, len(prompt) - tokens)
            self.caching.extend(sequence, chunk)
            tokens += chunk
        assert before - self.cache.free_blocks == wanted
        again = self.cache.hits(text, len(prompt) + 1)
        assert again == len(prompt) // size, "full blocks are found as soon as room for them was made"
        self.mirror.start_growing(sequence)
        self.advance(steps)

    @precondition(lambda self: self.mirror.growing)
    @rule(choice=CHOICE)
    def publish(self, choice: int) -> None:
        sequence = pick(self.mirror.growing, choice)
        self.cache.publish(sequence)
        if sequence in self.caching.prompts:
            tokens = len(self.mirror.growing[sequence])
            hits = self.cache.hits(self.caching.contents[sequence], tokens + 1)
            assert hits == tokens // self.cache.block_size, "a sequence finds its own blocks"

    @invariant()
    def what_can_be_found_is_free_or_held_and_counted(self) -> None:
        assert 0 <= self.cache.cached_blocks <= self.cache.free_blocks
        evictions = [(first, first + blocks) for first, blocks in self.cache.take_evictions()]
        ends = list(chain.from_iterable(evictions))
        assert ends == sorted(ends), "a block is taken once at a time"
        type(self).lost += sum(end - first for first, end in evictions)

    def names(self) -> Counter[int]:
        """Return how many tables name each block: its reference count."""
        names = super().names()
        for block, tables in names.items():
            assert self.cache.references(block) == tables
        return names

    def make_room(self, tokens: int, output: int, samples: int) -> None:
        self.names()
        super().make_room(tokens, output, samples)


class ContiguousMachine(AllocatorMachine):
    place: Callable[[int], Placement]

    @initialize(size=SIZES, policy=POLICIES)
    def make(self, size: int, policy: str) -> None:
        self.mirror = Mirror(ContiguousAllocator(type(self).place(BLOCKS), size, reservation(policy, size)))


class ContiguousFirstFit(ContiguousMachine):
    place = FirstFit


class ContiguousBestFit(ContiguousMachine):
    place = BestFit


class ContiguousBuddy(ContiguousMachine):
    place = staticmethod(lambda num_blocks: Buddy(num_blocks, largest=8))


def reservation(policy: str, size: int) -> Reservation:
    return RESERVATIONS[policy](max_model_len=6 * size)


def pick(choices: Iterable[T], choice: int) -> T:
    listed = list(choices)
    return listed[choice % len(listed)]


def move(moves: list[Copy], origin: dict[int, list[int]], target: dict[int, list[int]]) -> None:
    for source, destination in moves:
        if source in origin:  # a reserved block may hold no token yet
            target[destination] = list(origin[source])


@pytest.mark.parametrize(
    "machine",
    [
        PagedOnDemand,
        PagedUnshared,
        PagedReserved,
        PrefixMachine,
        ContiguousFirstFit,
        ContiguousBestFit,
        ContiguousBuddy,
    ],
)
def test_ten_thousand_random_changes_lose_no_token_and_no_block(machine: type[AllocatorMachine]) -> None:
    machine.changes = 0
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=LIVES,
            stateful_step_count=CHANGES,
            derandomize=True,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    if issubclass(machine, PrefixMachine):
        assert machine.found > 1000, "hits are what this life is about"
        assert machine.lost > 1000, "and so are evictions"
    assert machine.changes >= 10_000, "Hypothesis cut the lives short: raise LIVES"
