"""Block managers with a prefix cache do, block for block, what their slow twin does."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from random import Random
from typing import Any

import numpy as np
import pytest

from pagesim.allocators import OutOfBlocks
from pagesim.kvcache import (
    BlockManager,
    ChunkedLocal,
    Full,
    HybridManager,
    KVGroup,
    NumberedPrefixManager,
    PrefixManager,
    SequenceGroup,
    SlidingWindow,
    State,
)
from pagesim.scheduling.content import Content
from tests.kvcache.slow_hybrid import SlowHybridPrefixManager

FULL = Full()
LONGEST, ENDLESS = 300, 10_000
"""Tokens of a request where a prefix is cached, and where none is."""


class Reader(SequenceGroup):
    """A request that knows what its tokens are."""

    def __init__(self, content: Content | None, prompt: int, order: int) -> None:
        super().__init__(prompt)
        self.content = content
        self.order = order


Twins = tuple[Reader, ...]
"""The same request in each of the memories."""


class Lives:
    """The same requests in all memories, in chunks and then decoding, as a scheduler has them."""

    def __init__(self, rnd: Random) -> None:
        self.rnd = rnd
        self.size = rnd.choice((1, 2, 3, 4))
        self.memories = self.make()
        self.tabled, self.slow = self.memories[0], self.memories[-1]
        self.steps_in_flight = self.slow.steps_in_flight
        self.lookahead = rnd.choice((0, 0, 1))
        self.names: dict[tuple[int, Hashable], int] = {}
        self.over: list[tuple[int, Content]] = []  # contents of conversations, with their tokens
        self.resting: list[Twins] = []
        self.decoding: list[Twins] = []
        self.orders = 0
        self.hits = self.evictions = self.duplicates = 0

    def make(self) -> tuple[Any, ...]:
        """Return the memories: one whose blocks have numbers, maybe others, and the slow one."""
        rnd, size = self.rnd, self.size
        windows = [SlidingWindow(rnd.choice((1, 2, 5, 9, 12, 30))) for _ in range(2)]
        first, second = windows
        rules = rnd.choice(
            (
                [FULL, first],
                [FULL, first, first],
                [first, first],
                [first, FULL, first],
                [FULL, first, second],
                [first, second],
                [FULL, first, first, second, second],
                [first, first, FULL, FULL, second],
                [FULL, ChunkedLocal(4 * size), ChunkedLocal(4 * size)],
                [ChunkedLocal(6 * size), FULL, first],
            )
        )
        larger = rnd.choice((1, 1, 2))
        groups = [KVGroup(size * (larger if rule == FULL else 1), rule) for rule in rules]
        blocks = rnd.choice((20, 40, 80)) * len(groups)
        how = {"longest": LONGEST, "in_flight": 30}
        slow = SlowHybridPrefixManager(blocks, groups, **how)
        memories = HybridManager(blocks, groups, caches=True, **how), slow
        steps_in_flight = rnd.choice((0, 1))
        for memory in memories:
            memory.steps_in_flight = steps_in_flight
        return memories

    # What requests say

    def name(self, after: int, source: Hashable) -> int:
        return self.names.setdefault((after, source), len(self.names) + 1)

    def content(self) -> tuple[int, Content | None]:
        """Return the tokens of a prompt, and what it says: much as others, or as goes on from another."""
        rnd = self.rnd
        ends: list[int] = []
        names: list[int] = []
        tokens = 0
        if self.over and rnd.random() < 0.4:
            tokens, before = rnd.choice(self.over[-5:])
            ends, names = [*before.ends[:-1], tokens], list(before.names)
        else:
            document = rnd.randint(0, 1)
            step = (3, 8)[document]
            for _ in range(rnd.randint(0, 60) // step):
                source = document if rnd.random() < 0.95 else 2
                tokens += step
                ends.append(tokens)
                names.append(self.name(names[-1] if names else 0, source))
        own = not ends
        if own or rnd.random() < 0.7:
            tokens += rnd.randint(1, 12)
            ends.append(tokens)
            names.append(self.name(0, object()))
        names.append(self.name(0, object()))
        return tokens, Content([*ends, 1 << 32], names, frozenset(), self.size, self.lookahead)

    # What happens

    def both(self, name: str, pair: Twins, *arguments: int) -> object:
        """Call a method of all memories; return the answer, which is the same."""
        answers = []
        for memory, request in zip(self.memories, pair, strict=True):
            try:
                answers.append(getattr(memory, name)(request, *arguments))
            except OutOfBlocks as error:
                answers.append(str(error))
        assert all(answer == answers[0] for answer in answers), name
        return answers[0]

    def alike(self, name: str, *arguments: int) -> Any:
        """Ask all memories; return the answer, which is the same."""
        answers = [getattr(memory, name)(*arguments) for memory in self.memories]
        assert all(answer == answers[0] for answer in answers), name
        return answers[0]

    def settle(self, pair: Twins, **values: int) -> None:
        for request in pair:
            for name, value in values.items():
                setattr(request, name, value)

    def admit(self) -> None:
        rnd = self.rnd
        tokens, content = self.content()
        if tokens > LONGEST // 2:
            return
        known = content if rnd.random() < 0.95 else None
        self.orders += 1
        self.enter(tuple([Reader(known, tokens, self.orders) for _ in self.memories]), tokens)

    def enter(self, pair: Twins, tokens: int) -> None:
        rnd = self.rnd
        hit = self.both("match_prefix", pair, tokens)
        assert isinstance(hit, int)
        assert pair[0].junction == pair[1].junction or not self.tabled.releases
        if rnd.random() < 0.1:
            return
        first = min(tokens, hit + rnd.choice((tokens, rnd.randint(1, 20))))
        self.both("can_admit", pair, first, rnd.randint(0, 3), tokens)
        if not self.tabled.caches_prefixes:  # else the slow one counts what is found as there
            self.both("could_admit", pair, first, rnd.randint(0, 3))
        needed = self.both("blocks_to_admit", pair, first)
        assert isinstance(needed, int)
        free = self.tabled.free_blocks
        if needed > free:
            self.both("admit", pair, first)
            return
        self.both("admit", pair, first)
        self.settle(pair, inflight_tokens=(first - hit) * self.steps_in_flight, length=tokens)
        self.hits += hit > 0
        self.resting.append(pair)

    def chunk(self) -> None:
        rnd = self.rnd
        if not self.resting:
            return
        pair = rnd.choice(self.resting)
        left = max(pair[0].length, pair[0].prompt) - pair[0].tokens
        if left <= 0:
            self.resting.remove(pair)
            self.both("start_decoding", pair)
            self.settle(pair, uncommitted_tokens=self.uncommitted())
            self.decoding = sorted([*self.decoding, pair], key=lambda each: each[0].order)
            return
        if rnd.random() < 0.2:
            self.settle(pair, inflight_tokens=0)
        tokens = min(left, rnd.randint(1, 20))
        if not isinstance(self.both("extend", pair, tokens), str):
            self.settle(pair, inflight_tokens=tokens * self.steps_in_flight)

    def allocate_step(self) -> None:
        steps = self.rnd.choice((1, 1, 2, 5, 17))
        self.alike("steps_that_fit", steps, 0)
        if self.alike("blocks_needed", steps) > self.tabled.free_blocks:
            self.drop()
            return
        before = (self.slow.cached_blocks, *self.slow.held_by_groups())
        self.alike("allocate_step", steps)
        self.compare_changes(before)
        self.evictions += self.tabled.cached_blocks < before[0]

    def compare_changes(self, before: tuple[int, ...]) -> None:
        """Compare what a growth changed after which step."""
        changes = [latest(memory, before) for memory in self.memories]
        assert all(each == changes[0] for each in changes)

    def one_by_one(self) -> None:
        """A step in which each request is extended in turn, and the last are preempted or get no token."""
        order, served = list(self.decoding), []
        for pair in order:
            self.both("stop_decoding", pair)
        while order:
            pair = order.pop(0)
            if self.rnd.random() < 0.1:
                self.decoding.remove(pair)
                self.settle(pair, uncommitted_tokens=0, inflight_tokens=0, length=pair[0].tokens)
                self.resting.append(pair)
                continue
            self.both("free_skipped_blocks", pair)
            self.compare_counts()
            needed = self.both("blocks_to_extend", pair, 1)
            assert isinstance(needed, int)
            while needed > self.tabled.free_blocks and order:
                self.leave(order.pop())
            if needed > self.tabled.free_blocks:
                self.leave(pair)
                break
            self.both("extend", pair, 1)
            self.settle(pair, inflight_tokens=self.steps_in_flight)
            served.append(pair)
        for memory in self.memories:
            memory.allocate_step(1)  # none decodes: this only counts the step
            memory.take_changes()
        for pair in served:
            self.both("start_decoding", pair)

    def rest(self, pair: Twins) -> None:
        self.decoding.remove(pair)
        self.both("stop_decoding", pair)
        self.settle(pair, uncommitted_tokens=0, inflight_tokens=0, length=pair[0].tokens)
        self.resting.append(pair)

    def stop(self) -> None:
        if self.decoding:
            self.rest(self.rnd.choice(self.decoding))

    def cache(self) -> None:
        if self.decoding:
            self.both("cache_full_blocks", self.rnd.choice(self.decoding))

    def leave(self, pair: Twins) -> int:
        length = self.both("length", pair)
        assert isinstance(length, int)
        self.both("release", pair)
        (self.decoding if pair in self.decoding else self.resting).remove(pair)
        return length

    def drop(self) -> None:
        pairs = [*self.decoding, *self.resting]
        if not pairs:
            return
        pair = self.rnd.choice(pairs)
        length = self.leave(pair)
        content = pair[0].content
        if content is None or length < pair[0].prompt:
            return
        if self.rnd.random() < 0.3 and length < LONGEST // 2:  # it was preempted
            self.settle(pair, uncommitted_tokens=0, inflight_tokens=0, length=length + 1)
            self.enter(pair, length + 1)
        elif length > pair[0].prompt:
            self.over.append((length, content))

    def uncommitted(self) -> int:
        """Return the tokens of a decoding request that are not known yet."""
        return self.steps_in_flight

    def more_acts(self) -> list[Callable[[], object]]:
        return []

    def compare_counts(self) -> None:
        for memory in self.memories[:-1]:
            for name in ("free_blocks", "cached_blocks", "shared_blocks", "findable_blocks", "steps"):
                assert getattr(memory, name) == getattr(self.slow, name), name
            assert memory.held_by_groups() in (None, self.slow.held_by_groups())

    def compare(self) -> None:
        self.compare_counts()
        for memory in self.memories[:-1]:
            memory.check_integrity()
        assert self.tabled.free_blocks_in_order() == self.slow.free_blocks_in_order()
        for pair in (*self.decoding, *self.resting):
            for group in range(len(self.tabled.groups)):
                tables = [self.memories[at].block_table(pair[at], 0, group) for at in (0, -1)]
                assert tables[0] == tables[1]
            self.both("held_by_group", pair)
            self.both("held_blocks", pair)
            self.both("length", pair)
            self.both("blocks_to_extend", pair, 1 if pair[0].decodes else 7)
            assert pair[0].inflight_tokens == pair[-1].inflight_tokens
        some = self.decoding
        for place, memory in enumerate(self.memories[:-1]):
            told = memory.exclusive_blocks([pair[place] for pair in some])
            assert told == self.slow.exclusive_blocks([pair[-1] for pair in some])
        self.duplicates += any(len(blocks) > 1 for blocks in self.slow.cache.values())

    def live(self, days: int) -> None:
        acts = [self.admit] * 4 + [self.chunk] * 8 + [self.allocate_step] * 5 + [self.drop] * 2
        acts += [self.one_by_one, self.one_by_one, self.stop, self.cache, *self.more_acts()]
        for _ in range(days):
            self.rnd.choice(acts)()
            self.compare()


def latest(memory: BlockManager, before: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return what growth changed, without what it left as it was."""
    changes: list[tuple[int, ...]] = []
    for step, *counts in memory.take_changes():
        if before != tuple(counts):
            before = tuple(counts)
            changes.append((step, *counts))
    return changes


class OneGroup(Lives):
    """Lives in memory of one group of full attention, whose runs of blocks have numbers, or none."""

    def make(self) -> tuple[Any, ...]:
        blocks, first = self.rnd.choice((8, 19, 40)), self.rnd.random() < 0.5
        made = [
            kind(blocks, self.size, reuses_unhashed_first=first)
            for kind in (NumberedPrefixManager, PrefixManager)
        ]
        how = {"longest": LONGEST, "in_flight": 30, "reuses_unhashed_first": first}
        return (*made, SlowHybridPrefixManager(blocks, [KVGroup(self.size)], **how))

    def uncommitted(self) -> int:
        return self.size % 2

    def more_acts(self) -> list[Callable[[], object]]:
        return [self.reserve]

    def reserve(self) -> None:
        if self.rnd.random() < 0.2:
            self.alike("reserve_free")

    def compare_changes(self, before: tuple[int, ...]) -> None:
        expected = [(step, cached) for step, cached, _ in latest(self.slow, before)]
        cached = before[0]
        for step, left in expected.copy():
            if left == cached:
                expected.remove((step, left))
            cached = left
        for memory in self.memories[:-1]:
            told = latest(memory, before[:1])
            assert told == ([] if memory.reuses_unhashed_first else expected)


class Uncached(Lives):
    """Lives in memory of several groups in which nothing is found again; their blocks may be of any sizes."""

    def make(self) -> tuple[Any, ...]:
        rnd = self.rnd
        rules = rnd.choices(
            (FULL, SlidingWindow(rnd.randint(1, 40)), ChunkedLocal(rnd.randint(1, 40)), State()),
            k=rnd.randint(1, 4),
        )
        groups = [
            KVGroup(ENDLESS if isinstance(rule, State) else rnd.choice((1, 2, 3, 4, 6, 16, 32)), rule)
            for rule in rules
        ]
        blocks, how = rnd.choice((20, 40, 80)), {"longest": ENDLESS, "in_flight": 30}
        memories = HybridManager(blocks, groups, **how), SlowHybridPrefixManager(blocks, groups, **how)
        steps_in_flight = rnd.choice((0, 1))
        for memory in memories:
            memory.steps_in_flight = steps_in_flight
        return memories

    def content(self) -> tuple[int, Content | None]:
        return super().content()[0], None


@pytest.mark.parametrize("kind", [Lives, OneGroup, Uncached])
@pytest.mark.parametrize(
    ("seeds", "days"), [(range(15), 300), pytest.param(range(15, 120), 400, marks=pytest.mark.slow)]
)
def test_every_block_is_where_the_slow_twin_has_it(kind: type[Lives], seeds: range, days: int) -> None:
    seen = np.zeros(3, int)
    for seed in seeds:
        lives = kind(Random(seed))
        lives.live(days)
        seen += lives.hits, lives.evictions, lives.duplicates
    assert min(seen) > 2 * len(seeds) or kind is Uncached, f"that is what these lives are about: {seen}"
