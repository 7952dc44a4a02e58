"""Belady's bound and the curve of LRU, beside small cases by hand and beside the caches themselves."""

from __future__ import annotations

from math import inf
from random import Random

from pagesim.eviction import EVICTION_POLICIES, CacheView, Future, PrefixCache, lru_hits


def test_what_is_asked_for_again_is_known() -> None:
    future = Future([["a", "b"], ["a"], ["b", "a"]])
    assert future.blocks == [[0, 1], [0], [1, 0]]
    assert future.following == [[1, 2], [2], [inf, inf]]
    assert (future.possible_hits, future.working_set, future.distinct) == (3, 2, 2)


def test_the_bound_keeps_what_is_asked_for_soonest() -> None:
    """With one block a, then b is kept: the second a is a hit, and b's is; with two all three are."""
    future = Future([["a", "b"], ["a"], ["b", "a"]])
    assert [future.hits(capacity) for capacity in range(4)] == [0, 2, 3, 3]


def prompts(seed: int) -> list[list[int]]:
    """Return random prompts that share prefixes."""
    rng, found = Random(seed), []
    for each in range(300):
        begun = rng.choice(found)[: rng.randint(0, 6)] if found else []
        found.append([*begun, *range(each * 10, each * 10 + rng.randint(1, 4))])
    return found


def test_the_curve_of_lru_is_lru_at_each_capacity_and_below_the_bound() -> None:
    future = Future(prompts(1))
    curve = lru_hits(future.blocks)
    longest = max(map(len, future.blocks))
    for capacity in range(longest, future.distinct, 7):
        view = CacheView(capacity, [0] * future.distinct, [1.0] * future.distinct)
        cache = PrefixCache(view, EVICTION_POLICIES.find("lru")(view))
        hits = sum(map(cache.serve, future.blocks))
        assert curve[min(capacity, len(curve) - 1)] == hits <= future.hits(capacity)
    assert curve[-1] == future.possible_hits


def test_by_hand_a_distance_counts_what_was_used_since() -> None:
    """a is found with two blocks, as b was used since; b with three, as a and c were."""
    assert lru_hits([[1], [2], [1], [3], [2]]) == [0, 0, 1, 2]
