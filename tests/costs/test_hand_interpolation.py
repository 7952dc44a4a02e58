"""What lies between measured points, beside a calculation by hand.

No share is one half, so that none may be swapped with the other.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from pagesim.costs.operators.attention_rows import summed
from pagesim.costs.operators.experts import curve
from pagesim.costs.operators.gemm import Gemm, beyond
from pagesim.costs.operators.grids import Grid
from pagesim.costs.operators.heads import Stand, stands_for
from pagesim.costs.operators.planes import Plane, line_on
from pagesim.costs.operators.sums import Knots


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


PLANE = Plane(ints(1, 5), ints(10, 20, 40), np.array([[1.0, 2.0, 6.0], [3.0, 10.0, 30.0]]))


@pytest.mark.parametrize(
    ("batch", "length", "seconds"),
    [
        (1, 12, 1.2),  # 1 + 0.2·(2 − 1)
        (5, 12, 4.4),  # 3 + 0.2·(10 − 3)
        (2, 12, 2.0),  # 1.2 + 0.25·(4.4 − 1.2)
        (2, 25, 6.0),  # 3 + 0.25·(15 − 3), where 2 + 0.25·4 = 3 and 10 + 0.25·20 = 15
        (0, 5, 1.0),  # the first of both axes
        (1, 50, 8.0),  # 2 + 1.5·4, along the last two
        (9, 50, 72.0),  # 8 + 2·(40 − 8)
    ],
)
def test_a_plane_lies_between_its_four_corners(batch: int, length: int, seconds: float) -> None:
    assert PLANE(batch, length) == pytest.approx(seconds)
    assert PLANE.scaled(3)(batch, length) == pytest.approx(3 * seconds)


def test_a_plane_over_squares_of_lengths() -> None:
    # (2² − 1²) / (3² − 1²) = 3/8 of the way from 0 to 8.
    assert Plane(ints(1), ints(1, 3), np.array([[0.0, 8.0]]), power=2)(1, 2) == pytest.approx(3.0)


def test_gaps_of_a_row_are_lines_and_its_last_two_go_on() -> None:
    missing = float("nan")
    rows = np.array([[missing, 2.0, missing, 8.0, missing], [5.0, missing, missing, missing, missing]])
    filled = line_on(rows, ints(1, 2, 3, 6, 10))
    assert filled.tolist() == [[2.0, 2.0, 3.5, 8.0, 14.0], [5.0] * 5]


@pytest.mark.parametrize(("size", "seconds"), [(0, 1.0), (2, 1.25), (6, 3.0), (9, 6.0), (11, 8.0)])
def test_knots_are_straight_between_and_go_on_beyond(size: int, seconds: float) -> None:
    assert Knots((1, 5, 9), (1.0, 2.0, 6.0))(size) == pytest.approx(seconds)


def test_a_line_of_a_grid_joins_the_nearest_points_of_the_same_kernel() -> None:
    grid = Grid((ints(1, 2, 4, 8),), np.array([1.0, 9.0, 7.0, 22.0]), ints(0, 0, 0, 0))
    assert grid.line((1,), 0) == pytest.approx(3.0)  # a third of the way from 1 to 7
    assert grid.line((1,), 0, math.log) == pytest.approx(4.0)  # half of the way in logarithms
    assert grid.line((1,), 0, log=True) == pytest.approx(7 ** (1 / 3))
    assert math.isnan(grid.line((0,), 0))
    assert math.isnan(grid.line((3,), 0))
    other = Grid(grid.axes, grid.seconds, ints(0, 0, 1, 0))
    assert other.line((1,), 0) == pytest.approx(4.0)  # a seventh of the way from 1 to 22


@pytest.mark.parametrize(
    ("n", "k", "seconds"),
    [
        (12, 100, 1.8),  # 0.8·1 + 0.2·5
        (10, 250, 1.75),  # 0.25·1 + 0.75·2
        (12, 250, 3.15),  # 0.2·1 + 0.6·2 + 0.05·5 + 0.15·10
        (40, 100, 10.0),  # twice the largest n
        (12, 900, 10.8),  # three times what k of 300 takes: 0.8·2 + 0.2·10 = 3.6
        (5, 50, 1.0),  # the smallest of both
    ],
)
def test_a_product_is_weighted_by_how_near_the_measured_shapes_are(n: int, k: int, seconds: float) -> None:
    grid = Grid(
        (ints(1), ints(10, 20), ints(100, 300)),
        np.array([[[1.0, 2.0], [5.0, 10.0]]]),
        np.zeros((1, 2, 2), int),
    )
    assert Gemm(grid)(1, n, k) == pytest.approx(seconds)


def test_beyond_the_last_size_seconds_go_with_it() -> None:
    assert [beyond(ints(2, 6), np.array([1.0, 3.0]), size) for size in (1, 3, 12)] == pytest.approx(
        [1.0, 1.5, 6.0]
    )


def test_experts_are_straight_in_the_logarithms_of_both() -> None:
    grid = Grid((ints(1, 8),), np.array([1.0, 64.0]), ints(0, 0))
    # A third of the way from 1 to 64 in logarithms is 4; beyond, twice the tokens take twice as long.
    assert curve(grid, ints(1, 2, 8, 16)).tolist() == pytest.approx([1.0, 4.0, 64.0, 128.0])


def test_heads_between_two_that_were_measured_take_of_each_what_is_near() -> None:
    # 28 is three quarters of the way from 16 to 32.
    assert list(stands_for(28, 4, {(16, 4), (32, 4)})) == [Stand(16, 4, 1, 0.25), Stand(32, 4, 1, 0.75)]
    one = Plane(ints(1, 2), ints(10), np.array([[1.0], [2.0]]))
    other = Plane(ints(1, 2), ints(10), np.array([[5.0], [9.0]]))
    both = [(Stand(16, 4, 1, 0.25), one), (Stand(32, 4, 2, 0.75), other)]
    # 0.25·1 + 0.75·9 and 0.25·2 + 0.75·17: two sequences a sequence of the other, which goes on beyond two.
    assert summed(both).tolist() == [[7.0], [13.25]]
