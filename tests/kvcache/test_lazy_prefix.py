"""A hybrid cache that looks no content up counts later what one with tables counts at once, until it does."""

from __future__ import annotations

from random import Random

import pytest

from pagesim.kvcache import KVGroup, LazyHybridPrefixKV, SlidingWindow
from pagesim.kvcache.hybrid import turnover
from pagesim.scheduling.content import Content
from tests.kvcache.test_hybrid_by_run import FULL, LONGEST, Lives, Reader


class UnsharedLives(Lives):
    """Holders that have nothing alike, until one comes back that was preempted."""

    def __init__(self, rnd: Random) -> None:
        super().__init__(rnd)
        how = {"longest": LONGEST, "in_flight": 30}
        self.lazy = LazyHybridPrefixKV(self.tabled.num_blocks, self.tabled.groups, **how)
        self.lazy.lag = self.lag
        self.memories = self.tabled, self.lazy
        self.cached: list[int] = []  # blocks of the memory with tables at each row
        self.grown: list[tuple[int, int]] = []  # steps, and blocks cached after each
        self.days = 0

    def content(self) -> tuple[int, Content]:
        tokens = self.rnd.randint(1, 70)
        names = [self.name(0, object()), self.name(0, object())]
        content = Content([tokens, 1 << 32], names, frozenset(), self.size, self.lookahead, unseen=True)
        return tokens, content

    def grow(self) -> None:
        steps = self.rnd.choice((1, 1, 2, 5, 17))
        needed = self.tabled.blocks_needed(steps)
        assert needed == self.lazy.blocks_needed(steps)
        if needed > self.tabled.free_blocks:
            self.finish()
            return
        for _ in range(steps):
            self.tabled.grow(1)
            self.grown.append((self.tabled.steps, self.tabled.cached_blocks))
        self.lazy.grow(steps)
        self.evictions += self.tabled.cached_blocks < (self.cached[-1] if self.cached else 0)

    def compare_counts(self) -> None:
        tabled, lazy = self.tabled, self.lazy
        for name in ("free_blocks", "shared_blocks", "steps"):
            assert getattr(tabled, name) == getattr(lazy, name), name
        if lazy.tells_later:
            lazy.note_row()
            self.cached.append(tabled.cached_blocks)
            if self.rnd.random() < 0.03:
                assert lazy.cached_blocks == tabled.cached_blocks, "asked at once"
        else:
            assert lazy.cached_blocks == tabled.cached_blocks
            assert lazy.findable_blocks == tabled.findable_blocks
            assert lazy.held_by_groups() == tabled.held_by_groups()

    def compare(self) -> None:
        self.compare_counts()
        for pair in (*self.decoding, *self.resting):
            for name in ("held_by_group", "held_blocks", "length", "blocks_needed_by"):
                self.both(name, pair)

    def live(self, days: int) -> None:
        acts = [self.admit] * 4 + [self.chunk] * 8 + [self.grow] * 6 + [self.finish] * 2 + [self.stop]
        for _ in range(days):
            self.rnd.choice(acts)()
            self.days += self.lazy.tells_later
            self.compare()
        self.compare_what_is_told()
        later = [self.drop, self.one_by_one, self.again, self.cache]
        for _ in range(days):
            self.rnd.choice(acts + later)()
            self.compare()

    def finish(self) -> None:
        pairs = [*self.decoding, *self.resting]
        if pairs:
            self.leave(self.rnd.choice(pairs))

    def compare_what_is_told(self) -> None:
        assert self.lazy.take_rows().ravel().tolist() == self.cached
        told = dict(self.lazy.take_changes()[:, :2].tolist())
        for step, blocks in self.grown:
            assert told.get(step, blocks) == blocks, f"after step {step}"


def live(seeds: range, days: int) -> None:
    lazy_days = evictions = handed_over = 0
    for seed in seeds:
        lives = UnsharedLives(Random(seed))
        lives.live(days)
        lazy_days += lives.days
        evictions += lives.evictions
        handed_over += not lives.lazy.tells_later
    assert lazy_days > 0.9 * days * len(seeds), "nothing is looked up in the first half"
    assert handed_over == len(seeds), "and contents are found in the second one"
    assert evictions > 2 * len(seeds)


def test_a_cache_that_looks_nothing_up_counts_later_and_goes_on_as_one_with_tables() -> None:
    live(range(8), 200)


def test_what_is_noted_is_counted_once_it_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turnover, "_MOST_NOTED", 50)
    live(range(120, 124), 200)
    memory = LazyHybridPrefixKV(40, [KVGroup(4), KVGroup(4, SlidingWindow(5))], longest=LONGEST, in_flight=8)
    for order in range(100):
        content = Content([16, 1 << 32], [2 * order, 2 * order + 1], frozenset(), 4, unseen=True)
        reader = Reader(content, 17, order)
        memory.admit(reader, 17)
        memory.release(reader)
        assert len(memory._turnover.log) <= 50
    assert len(memory._turnover.kept) < 100


@pytest.mark.slow
def test_it_does_so_in_many_lives() -> None:
    live(range(8, 120), 300)


def test_the_first_look_up_of_a_content_ends_it() -> None:
    memory = LazyHybridPrefixKV(40, [KVGroup(4), KVGroup(4, SlidingWindow(5))], longest=LONGEST, in_flight=8)
    content = Content([16, 1 << 32], [1, 2], frozenset(), 4, unseen=True)
    first, again = Reader(content, 17, 1), Reader(content, 17, 2)
    assert memory.match_prefix(first, 17) == 0
    memory.admit(first, 17)
    memory.release(first)
    assert memory.tells_later
    assert memory.match_prefix(again, 17) == 16
    assert not memory.tells_later


def test_nothing_is_found_where_full_attention_is_asked_for_more_than_it_kept() -> None:
    memory = LazyHybridPrefixKV(10, [KVGroup(4, FULL)] * 2, longest=LONGEST, in_flight=8)
    first = Reader(Content([16, 1 << 32], [1, 2], frozenset(), 4, unseen=True), 16, 1)
    other = Reader(Content([16, 1 << 32], [3, 4], frozenset(), 4, unseen=True), 12, 2)
    memory.admit(first, 16)
    memory.release(first)
    assert memory.cached_blocks == 8
    memory.admit(other, 12)  # two blocks of ten cannot be found and are taken first, then four that can
    assert memory.cached_blocks == 4
    memory.release(other)
    # Of each group's four the last two, or all of one group, were taken: what comes last goes first.
    assert memory.match_prefix(first, 17) == 0
