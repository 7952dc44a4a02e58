"""Cached runs are taken, found and evicted as their blocks would be, with numbers and without."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagesim.allocators import OutOfBlocks
from pagesim.kvcache import NumberedPrefixManager, PrefixManager
from tests.kvcache.block_by_block import BlockByBlock
from tests.kvcache.text import Reader, Text

BLOCKS = 19


class Lives:
    """The same holders, in chunks and then decoding, in both."""

    found = lost = duplicates = back = 0  # over all lives

    def __init__(self, size: int, *, first: bool) -> None:
        self.fast = NumberedPrefixManager(BLOCKS, size, reuses_unhashed_first=first)
        self.counted = PrefixManager(BLOCKS, size, reuses_unhashed_first=first)
        self.twins: dict[Reader, Reader] = {}  # in memory without numbers
        self.gone: list[tuple[Text, Text]] = []  # prompts that are not all of another's, of no request
        self.rule = BlockByBlock(BLOCKS, size, reuses_unhashed_first=first)
        self.cached = 0  # blocks, at the last look
        self.in_chunks: list[Reader] = []
        self.decoding: list[Reader] = []  # in their order
        self.orders = 0

    def change(self, what: str, which: int, much: int) -> None:
        getattr(self, what)(which, much)
        self.compare()

    def both(self, name: str, request: Reader, *tokens: int) -> int | None:
        """Do the same in memory with numbers and without; return the answer, which is the same."""
        answer = getattr(self.fast, name)(request, *tokens)
        assert getattr(self.counted, name)(self.twins[request], *tokens) == answer
        return answer

    def admit(self, which: int, much: int) -> None:
        self.orders += 1
        # A prompt of a few kinds: most begin alike.
        prompt = [which % 2] * (1 + much % 17) + list(map(int, f"{which:04b}"))[: which % 5]
        if self.gone and which % 3 == 0:
            text, twin = self.gone.pop()
        else:
            own = [len(prompt), 0, which % 4][much % 3]
            if own == len(prompt):
                prompt[0] = 100 + self.orders
            elif own:
                prompt += [100 + self.orders] * own
            text, twin = (Text(prompt, self.rule.size) for _ in range(2))
        request, length = Reader(text, self.orders), len(text.prompt)
        hits = self.rule.match_prefix(request, length)
        self.twins[request] = Reader(twin, self.orders)
        Lives.back += hits > 0 and max(text.prompt) >= 100
        assert self.both("match_prefix", request, length) == hits
        tokens = min(length, hits + 1 + much % 11)
        wanted = self.rule.blocks_to_admit(request, tokens)
        assert self.both("blocks_to_admit", request, tokens) == wanted
        if wanted > self.rule.free_blocks:
            assert not self.fast.can_admit(request, tokens)
            with pytest.raises(OutOfBlocks):
                self.fast.admit(request, tokens)
            self.release(which, much)
            return
        self.rule.admit(request, tokens)
        self.both("admit", request, tokens)
        self.in_chunks.append(request)
        Lives.found += hits // self.rule.size

    def chunk(self, which: int, much: int) -> None:
        if not self.in_chunks:
            return
        request = self.in_chunks[which % len(self.in_chunks)]
        tokens = min(len(request.content.prompt) - request.tokens, 1 + much % 11)
        if tokens <= 0:
            self.in_chunks.remove(request)
            self.decoding = sorted([*self.decoding, request], key=lambda each: each.order)
            self.both("start_decoding", request)
        elif self.fast.blocks_to_extend(request, tokens) <= self.rule.free_blocks:
            self.rule.extend(request, tokens)
            self.both("extend", request, tokens)
        else:
            with pytest.raises(OutOfBlocks):
                self.fast.extend(request, tokens)

    def rest(self, which: int, much: int) -> None:
        if self.decoding:
            request = self.decoding.pop(which % len(self.decoding))
            self.both("stop_decoding", request)
            self.in_chunks.append(request)
            if self.fast.blocks_to_extend(request, 1) <= self.rule.free_blocks:
                self.rule.extend(request, 1)
                assert self.both("append", request) == 0

    def allocate_step(self, which: int, much: int) -> None:
        steps = 1 + much % 5
        if self.fast.blocks_needed(steps) > self.rule.free_blocks:
            with pytest.raises(OutOfBlocks):
                self.fast.allocate_step(steps)
            self.release(which, much)
            return
        before = self.rule.free_blocks
        for _ in range(steps):
            self.rule.allocate_step(self.decoding)
        assert before - self.rule.free_blocks == self.fast.blocks_needed(steps)
        assert self.fast.allocate_step(steps) == self.counted.allocate_step(steps) == 0

    def cache(self, which: int, much: int) -> None:
        for request in self.decoding[:1]:
            self.rule.cache_full_blocks(request)
            self.both("cache_full_blocks", request)

    def reserve(self, which: int, much: int) -> None:
        if much % 4 == 0:
            for memory in (self.rule, self.fast, self.counted):
                memory.reserve_free()

    def release(self, which: int, much: int) -> None:
        holders = list(self.rule.tables)
        if holders:
            request = holders[which % len(holders)]
            (self.decoding if request.decodes else self.in_chunks).remove(request)
            self.rule.release(request)
            self.both("release", request)
            if max(request.content.prompt) >= 100:
                self.gone.append((request.content, self.twins[request].content))

    def compare(self) -> None:
        rule, fast = self.rule, self.fast
        fast.check_integrity()
        assert fast.free_blocks_in_order() == [*rule.reserved, *rule.queue]
        assert {request: fast.block_table(request) for request in fast.requests} == rule.tables
        assert {request: fast.length(request) for request in fast.requests} == {
            h: rule.tokens[h] for h in rule.tables
        }
        other = self.counted
        other.check_integrity()
        for each in (fast, other):
            changes = each.take_changes()
            if not rule.reuses_unhashed_first:
                lost = Counter([step for step in rule.evictions if step is not None])
                left = self.cached - np.cumsum(list(lost.values()), dtype=int)
                assert changes == list(zip(lost, left.tolist(), strict=True))
            counts = (each.free_blocks, each.cached_blocks, each.shared_blocks)
            assert counts == (rule.free_blocks, rule.cached_blocks, rule.shared_blocks)
        self.cached = rule.cached_blocks
        assert fast.findable_blocks == other.findable_blocks == len(rule.with_key)
        for request in rule.tables:
            self.both("length", request)
            self.both("held_blocks", request)
        for steps in (1, 7):
            assert other.blocks_needed(steps) == fast.blocks_needed(steps)
            assert other.steps_that_fit(steps, 1) == fast.steps_that_fit(steps, 1)
        Lives.lost += len(rule.evictions)
        rule.evictions.clear()
        Lives.duplicates += sum(len(blocks) > 1 for blocks in rule.with_key.values())


CHANGE = st.tuples(
    st.sampled_from(
        [
            *("admit", "admit", "admit", "chunk", "chunk", "chunk", "allocate_step", "allocate_step"),
            *("rest", "cache", "reserve", "release", "release"),
        ]
    ),
    st.integers(0, 15),
    st.integers(0, 50),
)
# Many short lists: one long one is seldom long.
CHANGES = st.builds(lambda *parts: [*chain(*parts)], *[st.lists(CHANGE)] * 15)


def live(first: bool, examples: int) -> None:
    Lives.found = Lives.lost = Lives.duplicates = Lives.back = 0

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from([1, 2, 3]), CHANGES)
    def run(size: int, changes: list[tuple[str, int, int]]) -> None:
        lives = Lives(size, first=first)
        for change in changes:
            lives.change(*change)

    run()
    seen = Lives.found, Lives.lost, Lives.duplicates, Lives.back
    assert min(seen) > examples, f"that is what these lives are about: {seen}"


@pytest.mark.parametrize("first", [True, False])
def test_runs_are_taken_found_and_evicted_as_their_blocks_would_be(first: bool) -> None:
    live(first, 60)


@pytest.mark.slow
@pytest.mark.parametrize("first", [True, False])
def test_runs_are_as_their_blocks_many_lives_long(first: bool) -> None:
    live(first, 3000)
