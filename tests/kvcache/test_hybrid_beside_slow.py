"""A hybrid block manager with a prefix cache does, block for block, what its slow twin does."""

from __future__ import annotations

from collections.abc import Hashable
from random import Random

import pytest

from pagesim.allocators import OutOfBlocks
from pagesim.kvcache import (
    BlockManager,
    ChunkedLocal,
    Full,
    HybridManager,
    KVGroup,
    SequenceGroup,
    SlidingWindow,
)
from pagesim.scheduling.content import Content
from tests.kvcache.slow_hybrid import SlowHybridPrefixManager

FULL = Full()
LONGEST = 300


class Reader(SequenceGroup):
    """A request that knows what its tokens are."""

    def __init__(self, content: Content | None, prompt: int, order: int) -> None:
        super().__init__(prompt)
        self.content = content
        self.order = order


class Lives:
    """The same requests in both memories, in chunks and then decoding, as a scheduler has them."""

    def __init__(self, rnd: Random) -> None:
        self.rnd = rnd
        size = rnd.choice((1, 2, 3, 4))
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
        self.tabled = HybridManager(blocks, groups, caches=True, **how)
        self.slow = SlowHybridPrefixManager(blocks, groups, **how)
        self.memories: tuple[BlockManager, ...] = (self.tabled, self.slow)
        self.steps_in_flight = rnd.choice((0, 1))
        for memory in self.memories:
            memory.steps_in_flight = self.steps_in_flight
        self.lookahead = rnd.choice((0, 0, 1))
        self.size = size
        self.names: dict[tuple[int, Hashable], int] = {}
        self.over: list[tuple[int, Content]] = []  # contents of conversations, with their tokens
        self.resting: list[tuple[Reader, Reader]] = []
        self.decoding: list[tuple[Reader, Reader]] = []
        self.orders = 0
        self.hits = self.evictions = 0
        self.changes: tuple[tuple[int, ...], ...] = ()

    # What requests say

    def name(self, after: int, source: Hashable) -> int:
        return self.names.setdefault((after, source), len(self.names) + 1)

    def content(self) -> tuple[int, Content]:
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

    def both(self, name: str, pair: tuple[Reader, Reader], *arguments: int) -> object:
        """Call a method of both memories; return the answer, which is the same."""
        answers = []
        for memory, request in zip(self.memories, pair, strict=True):
            try:
                answers.append(getattr(memory, name)(request, *arguments))
            except OutOfBlocks as error:
                answers.append(str(error))
        assert answers[0] == answers[1], name
        return answers[0]

    def settle(self, pair: tuple[Reader, Reader], **values: int) -> None:
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
        self.enter((Reader(known, tokens, self.orders), Reader(known, tokens, self.orders)), tokens)

    def enter(self, pair: tuple[Reader, Reader], tokens: int) -> None:
        rnd = self.rnd
        hit = self.both("match_prefix", pair, tokens)
        assert isinstance(hit, int)
        assert pair[0].junction == pair[1].junction
        if rnd.random() < 0.1:
            return
        first = min(tokens, hit + rnd.choice((tokens, rnd.randint(1, 20))))
        self.both("can_admit", pair, first, rnd.randint(0, 3), tokens)
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
            self.settle(pair, uncommitted_tokens=self.steps_in_flight)
            self.decoding = sorted([*self.decoding, pair], key=lambda each: each[0].order)
            return
        if rnd.random() < 0.2:
            self.settle(pair, inflight_tokens=0)
        tokens = min(left, rnd.randint(1, 20))
        if not isinstance(self.both("extend", pair, tokens), str):
            self.settle(pair, inflight_tokens=tokens * self.steps_in_flight)

    def allocate_step(self) -> None:
        steps = self.rnd.choice((1, 1, 2, 5, 17))
        fit = [memory.steps_that_fit(steps, 0) for memory in self.memories]
        assert fit[0] == fit[1]
        needed = [memory.blocks_needed(steps) for memory in self.memories]
        assert needed[0] == needed[1]
        if needed[0] > self.tabled.free_blocks:
            self.drop()
            return
        before = (self.tabled.cached_blocks, *self.tabled.held_by_groups())
        for memory in self.memories:
            memory.allocate_step(steps)
        changes = [latest(memory, before) for memory in self.memories]
        assert changes[0] == changes[1]
        self.evictions += self.tabled.cached_blocks < before[0]

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

    def rest(self, pair: tuple[Reader, Reader]) -> None:
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

    def leave(self, pair: tuple[Reader, Reader]) -> int:
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

    def compare_counts(self) -> None:
        tabled, slow = self.tabled, self.slow
        for name in ("free_blocks", "cached_blocks", "shared_blocks", "findable_blocks", "steps"):
            assert getattr(tabled, name) == getattr(slow, name), name
        assert tabled.held_by_groups() == slow.held_by_groups()

    def compare(self) -> None:
        self.compare_counts()
        assert self.tabled.free_blocks_in_order() == self.slow.free_blocks_in_order()
        for pair in (*self.decoding, *self.resting):
            for group in range(len(self.tabled.groups)):
                self.both("block_table", pair, 0, group)
            self.both("held_by_group", pair)
            self.both("held_blocks", pair)
            self.both("length", pair)
            self.both("blocks_to_extend", pair, 1 if pair[0].decodes else 7)
            assert pair[0].inflight_tokens == pair[1].inflight_tokens

    def live(self, days: int) -> None:
        acts = [self.admit] * 4 + [self.chunk] * 8 + [self.allocate_step] * 5 + [self.drop] * 2
        acts += [self.one_by_one, self.one_by_one, self.stop, self.cache]
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


def live(seeds: range, days: int) -> None:
    hits = evictions = 0
    for seed in seeds:
        lives = Lives(Random(seed))
        lives.live(days)
        hits += lives.hits
        evictions += lives.evictions
    assert min(hits, evictions) > 2 * len(seeds), f"that is what these lives are about: {hits}, {evictions}"


def test_every_block_is_where_the_slow_twin_has_it() -> None:
    live(range(15), 300)


@pytest.mark.slow
def test_every_block_is_where_the_slow_twin_has_it_many_lives_long() -> None:
    live(range(15, 400), 400)
