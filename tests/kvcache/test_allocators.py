"""Every allocator keeps the contract, and one that breaks it is caught."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import pytest

from pagesim.allocators import Allocator, BestFit, Buddy, Extent, FirstFit
from pagesim.eviction import CacheView
from pagesim.eviction.recency import Lru
from pagesim.kvcache import KVGroup, PagedManager
from pagesim.testing import check_allocator, check_block_manager, check_eviction_policy


def buddy(num_blocks: int) -> Buddy:
    return Buddy(num_blocks, largest=16)


class WorstFit(Allocator):
    """Takes the low end of the longest free run: a third party's allocator, from a set of free blocks."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._free = set(range(num_blocks))

    def can_allocate(self, blocks: int, times: int = 1) -> bool:
        return sum(length // blocks for _, length in self.free_extents()) >= times

    def allocate(self, blocks: int) -> Sequence[int]:
        first, length = max(self.free_extents(), key=lambda run: run[1], default=(0, 0))
        if length < blocks:
            raise self._no_room(blocks)
        taken = range(first, first + blocks)
        self._free -= set(taken)
        return taken

    def free(self, blocks: Sequence[int]) -> None:
        self._free |= set(blocks)

    def free_extents(self) -> list[Extent]:
        starts = [block for block in sorted(self._free) if block - 1 not in self._free]
        ends = [block for block in sorted(self._free) if block + 1 not in self._free]
        return [(first, last + 1 - first) for first, last in zip(starts, ends, strict=True)]


@pytest.mark.parametrize("make", [FirstFit, BestFit, buddy, WorstFit])
def test_an_allocator_is_checked_by_one_call(make: Callable[[int], Allocator]) -> None:
    check_allocator(make)


class NeverMerges(Buddy):
    def free(self, blocks: Sequence[int]) -> None:
        self._free[len(blocks)].append(blocks[0])


class SplitsWithoutKeepingTheRest(Buddy):
    def allocate(self, blocks: int) -> range:
        taken = super().allocate(blocks)
        self._free[len(taken)] = self._free[len(taken)][:-1]
        return taken


class JoinsOnlyUpwards(FirstFit):
    def free(self, blocks: Sequence[int]) -> None:
        self._free = sorted([*self._free, (blocks[0], len(blocks))])


class RoundsUpMoreThanItTakes(FirstFit):
    def rounded(self, blocks: int) -> int:
        return blocks + 1


class PromisesARunTooLong(FirstFit):
    def can_allocate(self, blocks: int, times: int = 1) -> bool:
        return sum(length for _, length in self._free) >= blocks * times


class HandsOutWhatIsHeld(FirstFit):
    def allocate(self, blocks: int) -> range:
        super().allocate(blocks)
        return range(blocks)


class DrawsLots(FirstFit):
    draw = Random(1)

    def _choose(self, blocks: int) -> int | None:
        long_enough = [i for i, (_, length) in enumerate(self._free) if length >= blocks]
        return self.draw.choice(long_enough) if long_enough else None


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (partial(NeverMerges, largest=16), "memory that was emptied takes what empty memory takes"),
        (partial(SplitsWithoutKeepingTheRest, largest=16), "owned twice or lost"),
        (JoinsOnlyUpwards, "overlaps or touches"),
        (RoundsUpMoreThanItTakes, r"took \d+ blocks; rounded\("),
        (PromisesARunTooLong, "refuses what can_allocate promised"),
        (HandsOutWhatIsHeld, "hands out blocks that are held"),
        (DrawsLots, "the same calls gave different blocks"),
    ],
)
def test_a_broken_allocator_is_caught(broken: Callable[[int], Allocator], rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        check_allocator(broken)


@pytest.mark.parametrize(
    ("check", "part"),
    [
        (check_allocator, FirstFit(16)),
        (check_block_manager, PagedManager(16, [KVGroup(16)])),
        (check_eviction_policy, Lru(CacheView(4, [], []))),
    ],
)
def test_a_part_in_place_of_its_class_is_answered_with_what_to_pass(
    check: Callable[[object], None], part: object
) -> None:
    name = type(part).__name__
    with pytest.raises(TypeError, match=f"this is one {name}, .*: pass the class, {name}"):
        check(part)
