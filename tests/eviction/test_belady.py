"""Belady's bound: what no choice of what to keep can exceed, and what one of them reaches."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from pagesim.eviction import Future

REQUESTS = st.lists(st.lists(st.integers(0, 4), unique=True, max_size=4), min_size=1, max_size=7)


def most_hits_of_all_choices(requests, capacity):
    """Return the most hits over every way of keeping chunks: of those kept and those asked for, any."""
    best = {frozenset(): 0}
    for keys in requests:
        after: dict[frozenset[int], int] = {}
        for kept, hits in best.items():
            found, there = hits + len(kept & set(keys)), kept | set(keys)
            for size in range(min(capacity, len(there)) + 1):
                for chosen in combinations(sorted(there), size):
                    keep = frozenset(chosen)
                    after[keep] = max(after.get(keep, 0), found)
        best = after
    return max(best.values())


@given(REQUESTS, st.integers(0, 4))
def test_no_choice_has_more_hits_and_one_has_as_many(requests, capacity):
    assert Future(requests).hits(capacity) == most_hits_of_all_choices(requests, capacity)


@given(REQUESTS)
def test_the_working_set_is_the_smallest_tier_with_every_hit(requests):
    future = Future(requests)
    assert future.possible_hits == sum(map(len, requests)) - future.distinct
    assert future.hits(future.working_set) == future.possible_hits
    if future.working_set:
        assert future.hits(future.working_set - 1) < future.possible_hits
