"""The buddy allocator of the paper's Orca baselines, move by move."""

from itertools import pairwise

import pytest

from pagesim.allocators import Buddy, OutOfBlocks
from pagesim.kvcache import ContiguousManager, SequenceGroup
from pagesim.kvcache.reservation import reserve_max


def chunks(pool: Buddy) -> list[int]:
    """Take everything as whole chunks, the largest first, and return their sizes."""
    sizes = []
    size = pool.largest
    while size:
        while pool.can_allocate(size):
            pool.allocate(size)
            sizes.append(size)
        size //= 2
    return sizes


def test_983_blocks_are_carved_in_descending_powers_of_two_from_address_0() -> None:
    assert chunks(Buddy(983, 128)) == [128] * 7 + [64, 16, 4, 2, 1]
    assert Buddy(983, 128).free_extents() == [(0, 983)]


def test_a_pool_smaller_than_the_largest_chunk_is_carved_from_the_next_size() -> None:
    assert chunks(Buddy(7, 16)) == [4, 2, 1]


def test_the_chunk_at_the_highest_address_goes_first() -> None:
    pool = Buddy(32, 8)
    assert [pool.allocate(8)[0] for _ in range(4)] == [24, 16, 8, 0]


def test_the_chunk_freed_last_goes_first() -> None:
    pool = Buddy(32, 8)
    taken = [pool.allocate(8)[0] for _ in range(4)]
    for first in (16, 0, 24):
        pool.free(range(first, first + 8))
    assert taken[2] == 8
    assert [pool.allocate(8)[0] for _ in range(3)] == [24, 0, 16]


def test_a_split_keeps_the_low_half_and_leaves_the_high_ones() -> None:
    pool = Buddy(16, 16)
    assert pool.allocate(2)[0] == 0
    assert pool.free_extents() == [(2, 14)]
    assert [pool.allocate(2)[0], pool.allocate(4)[0], pool.allocate(8)[0]] == [2, 4, 8]


def test_the_smallest_chunk_that_is_large_enough_is_split() -> None:
    pool = Buddy(8 + 4, 8)
    assert pool.allocate(2)[0] == 8
    assert pool.allocate(8)[0] == 0


def test_a_run_takes_the_next_power_of_two() -> None:
    pool = Buddy(16, 16)
    assert [pool.rounded(blocks) for blocks in (1, 2, 3, 4, 5, 65, 128)] == [1, 2, 4, 4, 8, 128, 128]
    pool.allocate(5)
    assert pool.free_extents() == [(8, 8)]


def test_a_freed_chunk_merges_with_its_buddies_up_to_the_largest() -> None:
    pool = Buddy(16, 8)
    taken = [pool.allocate(1)[0] for _ in range(16)]
    assert sorted(taken) == list(range(16))
    for first in taken:
        pool.free(range(first, first + 1))
    assert chunks(pool) == [8, 8]


def test_neighbours_that_are_not_buddies_do_not_merge() -> None:
    pool = Buddy(8, 8)
    taken = sorted(pool.allocate(2)[0] for _ in range(4))
    assert taken == [0, 2, 4, 6]
    pool.free(range(2, 4))
    pool.free(range(4, 6))
    assert pool.free_extents() == [(2, 4)]
    assert not pool.can_allocate(4)
    with pytest.raises(OutOfBlocks):
        pool.allocate(4)


def test_a_buddy_that_is_split_does_not_merge() -> None:
    pool = Buddy(8, 8)
    assert [pool.allocate(4)[0], pool.allocate(1)[0]] == [0, 4]
    pool.free(range(0, 4))
    assert not pool.can_allocate(8)
    pool.free(range(4, 5))
    assert pool.can_allocate(8)


def test_two_chunks_of_the_largest_size_never_merge() -> None:
    pool = Buddy(16, 8)
    assert pool.free_extents() == [(0, 16)]
    assert not pool.can_allocate(16)


def test_n_runs_fit_when_the_chunks_hold_as_many_of_that_size() -> None:
    pool = Buddy(983, 128)
    assert pool.can_allocate(128, times=7)
    assert not pool.can_allocate(128, times=8)
    assert pool.can_allocate(64, times=15)
    assert not pool.can_allocate(64, times=16)


@pytest.mark.parametrize("largest", [0, -4, 3, 96])
def test_the_largest_chunk_must_be_a_power_of_two(largest: int) -> None:
    with pytest.raises(ValueError, match=f"largest is {largest}"):
        Buddy(64, largest)


def test_orca_max_holds_7_requests_in_983_blocks_and_87_blocks_stay_unusable() -> None:
    memory = ContiguousManager(Buddy(983, 128), 16, reserve_max(2048))
    requests = [SequenceGroup(10, 10) for _ in range(8)]
    for request in requests[:7]:
        assert memory.can_admit(request, 10)
        memory.admit(request, 10)
    assert not memory.can_admit(requests[7], 10)
    assert memory.could_admit(requests[7], 10)
    assert memory.free_blocks == 87
    assert memory.free_extents() == [(896, 87)]
    starts = [memory.extents(request)[0][0] for request in requests[:7]]
    assert all(before - after == 128 for before, after in pairwise(starts))


def test_free_chunks_are_told_apart_though_they_touch() -> None:
    pool = Buddy(16, 8)
    assert pool.free_chunks() == [(0, 8), (8, 8)]
    first = pool.allocate(2)[0]
    assert first == 8
    assert pool.free_chunks() == [(0, 8), (10, 2), (12, 4)]
    assert pool.free_extents() == [(0, 8), (10, 6)]
    pool.free(range(first, first + 2))
    assert pool.free_chunks() == [(0, 8), (8, 8)]
