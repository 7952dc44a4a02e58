"""The split of measured points, and the errors of what has not seen them."""

from __future__ import annotations

import pytest

from pagesim.costs.held_out import TermError, error_of, fifths, held_out
from pagesim.costs.table import Table


def test_each_inner_point_is_in_one_of_five_parts() -> None:
    points = [(size,) for size in range(1, 101)]
    parts = fifths(points, "linear")
    assert sorted(index for part in parts for index in part) == list(range(1, 99))
    assert {len(part) for part in parts} == {19, 20}
    assert held_out(points, "head") != parts[0]


def test_of_four_points_none_is_held_out_and_of_five_one() -> None:
    points = [(size,) for size in range(1, 6)]
    assert held_out(points[:4]) == []
    assert len(held_out(points)) == 1


def test_the_ends_of_a_grid_are_not_held_out() -> None:
    """Of three by three points without the last corner five are ends: three corners, and two beside it."""
    grid = [(a, b) for a in (1, 2, 3) for b in (10, 20, 30) if (a, b) != (3, 30)]
    inner = {grid[index] for part in fifths(grid) for index in part}
    assert inner == {(1, 20), (2, 10), (2, 20)}


def test_of_scattered_points_those_between_others_are_inner() -> None:
    points = [(1, 1), (2, 3), (4, 2), (8, 9), (3, 20)]
    inner = {points[index] for part in fifths(points) for index in part}
    assert inner == {(2, 3), (4, 2)}


def test_repeats_are_held_out_together() -> None:
    points = [(size,) for size in range(1, 51) for _ in range(2)]
    chosen = held_out(points)
    assert chosen
    assert all(index ^ 1 in chosen for index in chosen)


def test_errors_are_of_what_has_not_seen_the_points() -> None:
    """Seconds are 1 but where a point is held out: there they are 2, and the term is half as much."""
    sizes = [(size,) for size in range(1, 51)]
    unseen = held_out(sizes)
    points = [(size, 2.0 if index in unseen else 1.0) for index, size in enumerate(sizes)]
    error = error_of(points, lambda seen: Table.of_points(["tokens"], seen))
    assert error == TermError(mean=0.5, worst=0.5, median=0.5, points=len(unseen))


def test_a_few_errors_by_hand() -> None:
    error = TermError.of([0.1, 0.2, 0.6])
    assert error.mean == pytest.approx(0.3)
    assert (error.median, error.worst, error.points, error.typical) == (0.2, 0.6, 3, 0.2)
    assert TermError.of([]) == TermError(mean=0.0, worst=0.0, points=0)
    assert TermError(mean=0.3, worst=0.6, points=3).typical == 0.3
