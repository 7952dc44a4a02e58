"""What lies between measured points, beside a calculation by hand.

No share is one half, so that none may be swapped with the other.
"""

from __future__ import annotations

import numpy as np
import pytest

from pagesim.costs.operators.attention import Stand, stands_for
from pagesim.costs.operators.gemm import shape_seconds
from pagesim.costs.operators.planes import Plane, gapless
from pagesim.costs.operators.tables import OperatorTable
from pagesim.costs.table import line


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
    assert PLANE.at(ints(batch), ints(length)) == pytest.approx(seconds)
    assert PLANE.scaled(3).at(ints(batch), ints(length)) == pytest.approx(3 * seconds)
    assert PLANE.plus(PLANE).at(ints(batch), ints(length)) == pytest.approx(2 * seconds)


def test_a_plane_over_squares_of_lengths() -> None:
    # (2² − 1²) / (3² − 1²) = 3/8 of the way from 0 to 8.
    plane = Plane(ints(1), ints(1, 3), np.array([[0.0, 8.0]]), power=2)
    assert plane.at(ints(1), ints(2)) == pytest.approx(3.0)


def test_gaps_of_a_row_are_lines_and_its_last_two_go_on() -> None:
    missing = float("nan")
    rows = np.array([[missing, 2.0, missing, 8.0, missing], [5.0, missing, missing, missing, missing]])
    sizes = ints(1, 2, 3, 6, 10)
    assert gapless(sizes, rows).tolist() == [[2.0, 2.0, 3.5, 8.0, 14.0], [5.0] * 5]
    share = gapless(sizes, rows, in_proportion=True)
    assert share[0] == pytest.approx([2.0, 2.0, 3.5, 8.0, 80 / 6])
    assert share[1] == pytest.approx([5.0, 10.0, 15.0, 30.0, 50.0])


@pytest.mark.parametrize(("size", "seconds"), [(0, 1.0), (2, 1.25), (6, 3.0), (9, 6.0), (11, 8.0)])
def test_a_line_is_straight_between_sizes_and_goes_on_beyond(size: int, seconds: float) -> None:
    assert line([1, 5, 9], np.array([1.0, 2.0, 6.0]), [size]) == pytest.approx([seconds])


def test_a_line_beyond_the_last_size_does_not_fall() -> None:
    assert line([1, 5], np.array([2.0, 1.0]), [3, 9]).tolist() == [1.5, 1.0]


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
    axes, seconds_of = (ints(10, 20), ints(100, 300), ints(1)), [[[[1.0], [2.0]], [[5.0], [10.0]]]]
    table = OperatorTable(("gemm", "bfloat16"), "x", ints().reshape(1, 0), axes, np.array(seconds_of))
    assert shape_seconds(table, n, k) == pytest.approx([seconds])


def test_experts_are_straight_in_the_logarithms_of_both() -> None:
    # A third of the way from 1 to 64 in logarithms is 4; beyond, twice the tokens take four times as long.
    assert line([1, 8], np.array([1.0, 64.0]), [1, 2, 8, 16], log=True) == pytest.approx([1, 4, 64, 256])


def test_heads_between_two_that_were_measured_take_of_each_what_is_near() -> None:
    # 28 is three quarters of the way from 16 to 32.
    assert list(stands_for(28, 4, {(16, 4), (32, 4)})) == [Stand(16, 4, 1, 0.25), Stand(32, 4, 1, 0.75)]


PROMPTS = Plane(ints(1, 5), ints(10, 30), np.array([[1.0, 4.0], [3.0, 8.0]]))


@pytest.mark.parametrize(
    ("tokens", "keys", "seconds"),
    [
        (20, 5.5, 1.5),  # two prompts of ten: 1 + 0.25·2
        (30, 5.5, 2.0),  # three prompts of ten
        (30, 15.5, 4.0),  # one of thirty
        (30, 8.0, 2.5),  # a quarter of the way in the length, from 2 to 4
        (5, 5.5, 1.0),  # no less than the shortest prompt
        (10, 15.5, 4 / 3),  # a third of a prompt of thirty, which is more than one of ten
        (90, 5.5, 5.0),  # nine prompts of ten: 1 + 2·2, beyond the last number
    ],
)
def test_prompts_are_a_table_of_tokens_and_of_what_they_attend_to(
    tokens: int, keys: float, seconds: float
) -> None:
    assert PROMPTS.prefill_table()(tokens, keys) == pytest.approx(seconds, rel=1e-3)
