"""Eviction policies beside plain models of them, on random operations, and by hand."""

from __future__ import annotations

from math import inf

import pytest

from pagesim.eviction import EVICTION_POLICIES, CacheView, EvictionPolicy, FlatCache, PrefixCache
from pagesim.testing import check_eviction_policy
from tests.eviction.plugins import PLUGINS


def a_view(capacity: int, **given: object) -> CacheView:
    """Return what a policy of a cache of that capacity may know; all blocks cost the same."""
    view = CacheView(capacity, [0] * 1000, [1.0] * 1000, leaves_only=bool(given.get("leaves_only", True)))
    for name, value in given.items():
        if name != "leaves_only":
            setattr(view, name, value)
    return view


@pytest.mark.parametrize("name", EVICTION_POLICIES.own())
def test_a_policy_of_the_box_keeps_the_contract(name: str) -> None:
    check_eviction_policy(EVICTION_POLICIES.find(name))


@pytest.mark.parametrize("kind", PLUGINS.values())
def test_a_policy_of_ones_own_keeps_the_contract(kind: type[EvictionPolicy]) -> None:
    check_eviction_policy(kind)


def served(policy: EvictionPolicy, *prompts: list[int]) -> list[list[int]]:
    """Serve prompts, and return which blocks each of them evicted."""
    cache = PrefixCache(policy.cache, policy)
    found = []
    for blocks in prompts:
        cache.serve(blocks)
        found.append(cache.victims)
    return found


def test_a_parent_stays_as_long_as_a_block_behind_it() -> None:
    """The prompt 1 2 3 leaves 3 as its only leaf; then 2 is one."""
    policy = EVICTION_POLICIES.find("fifo")(a_view(3))
    assert served(policy, [1, 2, 3], [4, 5]) == [[], [3, 2]]


def test_blocks_of_the_prompt_under_way_do_not_make_room_for_it() -> None:
    view = a_view(2)
    cache = PrefixCache(view, EVICTION_POLICIES.find("lru")(view))
    assert cache.serve([1, 2, 3, 4]) == 0
    assert (cache.not_cached, cache.evictions, len(cache)) == (2, 0, 2)
    assert cache.serve([1, 2, 3]) == 2


def test_belady_lets_go_what_is_asked_for_last() -> None:
    view = a_view(2, leaves_only=False)
    cache = FlatCache(view, EVICTION_POLICIES.find("belady")(view))
    # 1 2 3 1 2: with room for two, 3 takes the room of 2, which is asked for after 1.
    assert cache.serve([1, 2, 3, 1, 2], [3, 4, inf, inf, inf]) == [False, False, False, True, False]


def test_gdsf_keeps_what_takes_more_to_compute_again() -> None:
    """Block 2 costs three times as much as the others: it stays until they have been used three times."""
    view = CacheView(2, [0] * 9, [1, 1, 3, 1, 1, 1, 1, 1, 1], leaves_only=False)
    cache = FlatCache(view, EVICTION_POLICIES.find("gdsf")(view))
    # 1 has priority 1, 2 has 3. 3 makes 1 go, the clock is 1; 3 has 2, goes for 4; 4 has 3 and was used later
    # than 2, so 2 goes for 5.
    assert cache.serve([1, 2, 3, 4, 2, 5, 2]) == [False, False, False, False, True, False, True]
    view = CacheView(2, [0] * 9, [1, 1, 3, 1, 1, 1, 1, 1, 1], leaves_only=False)
    cache = FlatCache(view, EVICTION_POLICIES.find("gdsf")(view))
    assert cache.serve([1, 2, 3, 4, 5, 2]) == [False, False, False, False, False, False]


def test_a_priority_that_is_over_is_the_default() -> None:
    """Blocks of priority 80 outlive later ones of 35, but not for longer than their duration."""
    view = a_view(2, leaves_only=False, priority=80, duration=10.0)
    cache = FlatCache(view, EVICTION_POLICIES.find("retention")(view))
    cache.serve([1])
    view.priority, view.duration = 35, None
    assert cache.serve([2, 3]) == [False, False]  # 2 goes for 3
    view.now = 9.0
    assert cache.serve([4, 1]) == [False, True]  # 3 goes; 1 is asked for, and has the default from now on
    view.priority, view.duration = 80, 10.0
    cache.serve([1])
    view.priority, view.duration, view.now = 35, None, 18.0
    assert cache.serve([5, 1]) == [False, True]  # its 10 s are not over: 4 goes


def test_a_priority_ends_when_a_block_is_missed() -> None:
    view = a_view(2, leaves_only=False, priority=80, duration=10.0)
    cache = FlatCache(view, EVICTION_POLICIES.find("retention")(view))
    cache.serve([1])
    view.priority, view.duration, view.now = 35, None, 10.0
    # 1 has the default when 2 is missed, before 2 has it, so 1 goes for 3.
    assert cache.serve([2, 3, 1]) == [False, False, False]


def test_a_block_has_the_greatest_priority_of_its_requests() -> None:
    view = a_view(2, leaves_only=False, priority=5)
    cache = FlatCache(view, EVICTION_POLICIES.find("priority")(view))
    cache.serve([1])
    view.priority = 1
    assert cache.serve([2, 1]) == [False, True]  # 1 was asked for last, and keeps 5
    view.priority = 3
    assert cache.serve([3, 1, 4, 1]) == [False, True, False, True]  # 2 goes, then 3


def test_vllms_arc_makes_a_block_frequent_when_the_request_that_found_it_is_over() -> None:
    policy = EVICTION_POLICIES.find("vllm-arc")(a_view(3))
    # 1 is found, so it is frequent. The target is 0: of the recent 2 and 3 that used first goes for 4, and 3
    # for 5. 2 and 3 are ghosts of recent ones: 2 makes the target 1 and 4 goes, as 2 are recent; 3 makes it 2
    # and 5 goes. 6 is no ghost, and 2 goes. 4 is one, the target is 3: a frequent one goes, which is 1.
    asked = [[1], [2], [1], [3], [4], [5], [2], [3], [6], [4]]
    assert served(policy, *asked) == [[], [], [], [], [2], [3], [4], [5], [2], [1]]


def test_vllms_arc_lets_the_end_of_a_prompt_go_first() -> None:
    policy = EVICTION_POLICIES.find("vllm-arc")(a_view(4))
    assert served(policy, [1, 2, 3], [4], [5, 6]) == [[], [], [3, 2]]


@pytest.mark.parametrize(
    ("evict", "said"),
    [
        (lambda policy: None, "it evicts nothing, though"),
        (lambda policy: 10**6, "which is not cached"),
        (lambda policy: max(policy.seen - policy.cache.free, default=None), "in use or has blocks behind it"),
    ],
)
def test_the_conformance_call_finds_what_is_broken(evict: object, said: str) -> None:
    class Broken(EvictionPolicy):
        def __init__(self, cache: CacheView) -> None:
            super().__init__(cache)
            self.seen: set[int] = set()

        def insert(self, block: int) -> None:
            self.seen.add(block)

        def freed(self, block: int) -> None:
            pass

        def evict(self) -> int | None:
            return evict(self)  # type: ignore[operator]

    with pytest.raises(AssertionError, match=said):
        check_eviction_policy(Broken)
