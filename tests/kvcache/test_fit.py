"""First fit and best fit: which hole a run goes to."""

import pytest

from pagesim.allocators import Allocator, BestFit, FirstFit, OutOfBlocks

EITHER = pytest.mark.parametrize("place", [FirstFit, BestFit])


def with_holes(pool: Allocator) -> Allocator:
    """Leave holes of 4, 2, 3 and 2 blocks, at 0, 5, 8 and 12, in a pool of 14."""
    for blocks in (4, 1, 2, 1, 3, 1, 2):
        pool.allocate(blocks)
    for first, blocks in ((0, 4), (5, 2), (8, 3), (12, 2)):
        pool.free(range(first, first + blocks))
    assert pool.free_extents() == [(0, 4), (5, 2), (8, 3), (12, 2)]
    return pool


def test_first_fit_takes_the_lowest_hole_that_is_long_enough() -> None:
    pool = with_holes(FirstFit(14))
    assert [pool.allocate(blocks)[0] for blocks in (3, 3, 2)] == [0, 8, 5]


def test_best_fit_takes_the_shortest_hole_that_is_long_enough() -> None:
    pool = with_holes(BestFit(14))
    assert [pool.allocate(blocks)[0] for blocks in (3, 3)] == [8, 0]


def test_best_fit_takes_the_lowest_of_equal_holes() -> None:
    pool = with_holes(BestFit(14))
    assert [pool.allocate(2)[0] for _ in range(3)] == [5, 12, 8]


@EITHER
def test_a_run_takes_the_low_end_of_its_hole(place: type[Allocator]) -> None:
    pool = place(10)
    assert [pool.allocate(3)[0], pool.allocate(3)[0]] == [0, 3]
    assert pool.free_extents() == [(6, 4)]


@EITHER
def test_no_hole_is_long_enough_though_enough_blocks_are_free(place: type[Allocator]) -> None:
    pool = with_holes(place(14))
    assert not pool.can_allocate(5)
    with pytest.raises(OutOfBlocks, match="no run of 5 neighbouring blocks is free"):
        pool.allocate(5)
    assert pool.free_extents() == [(0, 4), (5, 2), (8, 3), (12, 2)]


@EITHER
def test_n_runs_fit_when_the_holes_hold_as_many(place: type[Allocator]) -> None:
    pool = with_holes(place(14))
    assert pool.can_allocate(2, times=5)
    assert not pool.can_allocate(2, times=6)
    assert pool.can_allocate(3, times=2)
    assert not pool.can_allocate(3, times=3)


@EITHER
@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_freed_runs_are_joined_with_both_neighbours(place: type[Allocator], order: tuple[int, ...]) -> None:
    pool = place(9)
    runs = [pool.allocate(blocks) for blocks in (2, 3, 4)]
    assert pool.free_extents() == []
    for index in order:
        pool.free(runs[index])
        pool.check_integrity()
    assert pool.free_extents() == [(0, 9)]
