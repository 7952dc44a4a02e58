"""Watched blocks: which of a holder's are taken by others once it is over, without a number for any."""

from __future__ import annotations

from random import Random

import pytest

from pagesim.kvcache import PrefixCachedKV, Watch, WatchedPrefixKV
from tests.kvcache.text import Reader, Text

SIZE = 4


def prompt(*parts: tuple[str, int], order: int = 0) -> Reader:
    """Return a holder whose prompt is made of so many tokens of each text."""
    return Reader(Text([(name, place) for name, tokens in parts for place in range(tokens)], SIZE), order)


def admit(memory: WatchedPrefixKV, *parts: tuple[str, int]) -> Reader:
    """Compute a whole prompt."""
    holder = prompt(*parts)
    tokens = len(holder.content.prompt)
    memory.match_prefix(holder, tokens)
    memory.admit(holder, tokens)
    return holder


def watched(memory: WatchedPrefixKV, holder: Reader) -> Watch:
    """Watch the blocks of a holder, which then gives them back."""
    watch = memory.watch(holder)
    memory.release(holder)
    return watch


def places(watch: Watch) -> set[int]:
    """Return the places of the blocks that were taken."""
    return {place for first, end in watch.taken for place in range(first, end)}


@pytest.fixture
def memory() -> WatchedPrefixKV:
    return WatchedPrefixKV(10, SIZE)


def test_blocks_that_nobody_takes_are_not_taken(memory: WatchedPrefixKV) -> None:
    watch = watched(memory, admit(memory, ("a", 16)))
    admit(memory, ("b", 24))
    assert places(watch) == set()


def test_the_last_blocks_are_taken_first(memory: WatchedPrefixKV) -> None:
    watch = watched(memory, admit(memory, ("a", 16)))
    admit(memory, ("b", 32))
    assert places(watch) == {2, 3}
    assert watch.meets(3, 4)
    assert not watch.meets(0, 2)


def test_a_block_that_is_not_full_goes_before_all_others(memory: WatchedPrefixKV) -> None:
    watch = watched(memory, admit(memory, ("a", 14)))
    admit(memory, ("b", 4))
    assert places(watch) == {3}


def test_what_is_found_is_taken_over_whoever_holds_it(memory: WatchedPrefixKV) -> None:
    admit(memory, ("a", 8))
    watch = watched(memory, admit(memory, ("a", 8), ("b", 8)))
    admit(memory, ("a", 8), ("c", 1))
    assert places(watch) == {0, 1}


def test_a_holder_that_goes_on_takes_over_all_that_it_shares(memory: WatchedPrefixKV) -> None:
    other = admit(memory, ("a", 8))
    watch = watched(memory, admit(memory, ("a", 8), ("b", 8)))
    memory.take_over(other)
    assert places(watch) == {0, 1}


def test_what_was_taken_can_be_taken_over_from_its_new_holder(memory: WatchedPrefixKV) -> None:
    watch = watched(memory, admit(memory, ("a", 16)))
    admit(memory, ("b", 32))
    watch.taken.clear()
    admit(memory, ("b", 28), ("c", 1))
    assert places(watch) == {1, 3}, "one is shared with its new holder, another one taken"


def test_what_is_generated_is_watched_as_soon_as_it_can_be_found(memory: WatchedPrefixKV) -> None:
    holder = admit(memory, ("a", 6))
    memory.start_decoding(holder)
    memory.grow(2)
    watch = memory.watch(holder)
    memory.cache_full_blocks(holder)
    again = Reader(holder.content)
    assert memory.match_prefix(again, 9) == 8
    memory.admit(again, 9)
    assert places(watch) == {0, 1}


def test_nothing_is_noted_once_a_watch_is_over(memory: WatchedPrefixKV) -> None:
    watch = watched(memory, admit(memory, ("a", 16)))
    memory.end_watch(watch)
    admit(memory, ("b", 40))
    assert places(watch) == set()


def test_blocks_can_only_be_watched_where_those_that_hold_nothing_are_taken_first() -> None:
    with pytest.raises(ValueError, match="hold nothing"):
        WatchedPrefixKV(10, SIZE, reuses_unhashed_first=False)


class Pair:
    """The same holders in memory that watches and in memory with numbers."""

    def __init__(self, rnd: Random) -> None:
        self.rnd = rnd
        blocks = rnd.choice((6, 12, 30))
        self.watching, self.numbered = WatchedPrefixKV(blocks, SIZE), PrefixCachedKV(blocks, SIZE)
        self.live: list[tuple[Reader, Reader]] = []
        self.watches: list[tuple[Watch, list[int]]] = []  # each with the numbers of its blocks
        self.lost: set[tuple[Watch, int]] = set()  # places of blocks that cannot be found with a new holder
        self.noted = 0

    def step(self) -> None:
        rnd, act = self.rnd, self.rnd.random()
        if act < 0.45:
            self.admit()
        elif act < 0.6 and self.live:
            self.extend(*rnd.choice(self.live))
        elif act < 0.95 and self.live:
            self.release(*self.live.pop(rnd.randrange(len(self.live))))
        elif self.watches:
            self.watching.end_watch(self.watches.pop(rnd.randrange(len(self.watches)))[0])

    def admit(self) -> None:
        rnd = self.rnd
        parts = [(rnd.choice("ab"), rnd.randint(1, 14)), (rnd.choice("cd"), rnd.randint(1, 14))]
        one, other = prompt(*parts), prompt(*parts)
        tokens = rnd.randint(1, len(one.content.prompt))
        if not self.numbered.can_admit(other, tokens):
            return
        self.watching.match_prefix(one, tokens)
        self.watching.admit(one, tokens)
        self.numbered.match_prefix(other, tokens)
        self.numbered.admit(other, tokens)
        self.live.append((one, other))
        self.compare(other, self.numbered.block_table(other))

    def extend(self, one: Reader, other: Reader) -> None:
        tokens = min(self.rnd.randint(1, 9), len(one.content.prompt) - one.tokens)
        if tokens <= 0 or self.numbered.blocks_to_extend(other, tokens) > self.numbered.free_blocks:
            return
        held = len(self.numbered.block_table(other))
        self.watching.extend(one, tokens)
        self.numbered.extend(other, tokens)
        self.compare(other, self.numbered.block_table(other)[held:])

    def release(self, one: Reader, other: Reader) -> None:
        if self.rnd.random() < 0.6:
            self.watches.append((self.watching.watch(one), self.numbered.block_table(other)))
        self.watching.release(one)
        self.numbered.release(other)

    def compare(self, holder: Reader, taken: list[int]) -> None:
        """Check that the watches say of what a holder has just taken what its numbers say."""
        last = self.numbered.block_table(holder)[-1] if holder.tokens % SIZE else None
        for watch, numbers in self.watches:
            ours = places(watch)
            theirs = {place for place, number in enumerate(numbers) if number in taken}
            known = {place for place in range(len(numbers)) if (watch, place) not in self.lost}
            assert ours & known == theirs & known
            self.noted += len(theirs)
            self.lost |= {(watch, place) for place in theirs if numbers[place] == last}
            watch.taken.clear()


@pytest.mark.parametrize("seed", range(40))
def test_a_watch_says_what_numbers_of_blocks_say(seed: int) -> None:
    pair = Pair(Random(seed))
    for _ in range(300):
        pair.step()
    assert pair.noted > 0
