"""Tables: every expected number is worked out by hand."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from pagesim.costs.table import Line, Table, constant
from pagesim.errors import PagesimError

ONE = Table(axes={"tokens": (10, 20, 40)}, seconds=(1.0, 2.0, 6.0))
TWO = Table(axes={"sequences": (1, 5), "context": (10, 30)}, seconds=((1.0, 3.0), (5.0, 17.0)))
THREE = Table(
    axes={"m": (1, 3), "n": (10, 20), "k": (100, 200)},
    seconds=(((1.0, 2.0), (3.0, 4.0)), ((5.0, 6.0), (7.0, 16.0))),
)


@pytest.mark.parametrize(
    ("size", "seconds"),
    [(0, 0.0), (1, 1.0), (10, 1.0), (15, 1.5), (20, 2.0), (30, 4.0), (40, 6.0), (50, 8.0), (140, 26.0)],
)
def test_seconds_are_straight_between_knots(size: int, seconds: float) -> None:
    assert ONE(size) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("sequences", "context", "seconds"),
    [
        (1, 10, 1.0),
        (1, 20, 2.0),
        (1, 5, 1.0),
        (1, 40, 4.0),  # 0.1 a token goes on
        (3, 10, 3.0),
        (3, 20, 6.5),  # halfway between 2 and 11
        (5, 30, 17.0),
        (9, 10, 9.0),  # a second a sequence goes on
        (9, 20, 20.0),  # 2 at one sequence, 11 at five
        (0, 20, 0.0),
    ],
)
def test_seconds_are_straight_along_both_axes(sequences: int, context: int, seconds: float) -> None:
    assert TWO(sequences, context) == pytest.approx(seconds)


def test_seconds_are_straight_along_three_axes() -> None:
    assert THREE(1, 10, 150) == pytest.approx(1.5)
    # At m 1: n 10 gives 1.5 and n 20 gives 3.5, so 2.5; at m 3: 5.5 and 11.5, so 8.5.
    assert THREE(2, 15, 150) == pytest.approx(5.5)
    assert THREE(3, 20, 300) == pytest.approx(25.0)


def test_lines_along_the_last_axis() -> None:
    assert ONE.lines() == (Line(1.0, 0.0, 9), Line(0.0, 0.1, 19), Line(-2.0, 0.2, None))
    # Of three sequences: 3 s at 10 tokens, 10 s at 30.
    assert TWO.lines(3) == (Line(3.0, 0.0, 9), Line(pytest.approx(-0.5), pytest.approx(0.35), None))
    assert constant("tokens", 2.0).lines() == (Line(2.0, 0.0, None),)
    half = Table(axes={"keys": (1.5, 2.5)}, seconds=(1.0, 2.0))
    assert [line.until for line in half.lines()] == [1, None]


def test_a_row_is_what_the_knots_of_the_last_axis_take() -> None:
    assert ONE.scaled(0.1).row() == pytest.approx((0.1, 0.2, 0.6))
    assert TWO.scaled(0.1).row(3) == pytest.approx((0.3, 1.0))
    falling = Table(axes={"sequences": (1, 2), "context": (10, 30)}, seconds=((1.0, 2.0), (0.0, 3.0)))
    assert falling.row(3) == (0.0, 4.0)


def test_no_line_falls() -> None:
    # With a sequence more the second knot takes less: at 3 sequences 3 and 1.
    falls = Table(axes={"sequences": (1, 2), "context": (10, 30)}, seconds=((1.0, 5.0), (2.0, 3.0)))
    assert falls.lines(3)[1] == Line(3.0, 0.0, None)
    assert falls(4, 30) == 0.0


def test_a_point_that_was_measured_twice_takes_the_median() -> None:
    points = [((1.0,), 3.0), ((1.0,), 1.0), ((1.0,), 2.0), ((4.0,), 5.0)]
    assert Table.of_points(["tokens"], points) == Table(axes={"tokens": (1, 4)}, seconds=(2.0, 5.0))


def test_what_was_not_measured_goes_on_as_what_was() -> None:
    """A launch of 1 ms, 2 ms a sequence and 3 ms a sequence and token: the missing corner follows."""
    sizes = (1, 3, 7, 15)
    points = [((a, b), 1e-3 * (1 + 2 * a + 3 * a * b)) for a in sizes for b in sizes if a + b < 22]
    table = Table.of_points(["sequences", "context"], points)
    assert table(15, 15) == pytest.approx(0.706, rel=1e-4)
    assert table(15, 7) == pytest.approx(0.346, rel=1e-4)


def test_what_was_not_measured_is_as_far_from_the_formula_as_what_is_near() -> None:
    """Those of the most sequences take 3 s, the others 1 s: so does the one that is missing."""
    points = [
        ((a, b), 3.0 if a == 1000 else 1.0)
        for a in (1, 2, 1000)
        for b in (10, 11, 12)
        if (a, b) != (1000, 11)
    ]
    assert Table.of_points(["sequences", "context"], points)(1000, 11) == pytest.approx(3.0, rel=0.02)


def test_one_point_is_a_constant() -> None:
    assert Table.of_points(["tokens", "keys"], [((8, 3), 0.5)])(100, 100) == 0.5


def test_points_on_a_line_are_a_table_too() -> None:
    table = Table.of_points(["tokens", "keys"], [((1, 1), 1.0), ((4, 4), 2.0)])
    assert (table(1, 1), table(4, 4)) == (1.0, 2.0)
    assert 1.0 <= table(1, 4) <= 2.0
    assert 1.0 <= table(4, 1) <= 2.0


def test_seconds_never_fall_along_an_axis_that_rises() -> None:
    # 4 before 1: both take their geometric mean.
    points = [((1.0,), 1.0), ((2.0,), 4.0), ((3.0,), 1.0), ((4.0,), 8.0)]
    assert Table.of_points(["tokens"], points, rising=["tokens"]).seconds == (1.0, 2.0, 2.0, 8.0)
    assert not Table.of_points(["tokens"], points).rises("tokens")
    # 9 before three of 2 is an outlier: the median of all four is 2.
    late = [((at + 5.0,), each) for at, each in enumerate((1.0, 9.0, 2.0, 2.0, 2.0, 4.0))]
    assert Table.of_points(["tokens"], late, rising=["tokens"]).seconds == (1.0, 2.0, 2.0, 2.0, 2.0, 4.0)
    nothing = Table(axes={"tokens": (1, 2, 3)}, seconds=(0.0, 4.0, 1.0)).rising("tokens")
    assert nothing.seconds == pytest.approx((0.0, 2.0, 2.0), abs=1e-9)


def test_of_many_sizes_some_are_knots_evenly_by_ratio() -> None:
    # Sizes with one more double each time: every second is kept, and what is there once.
    points = [((float(2**power - 1),), 1.0 + power) for power in range(1, 8)]
    assert Table.of_points(["tokens"], points, most=4).axes == {"tokens": (1, 7, 31, 127)}
    assert Table.of_points(["tokens"], points, most=7).knots == ((1, 3, 7, 15, 31, 63, 127),)


@pytest.mark.parametrize(("points", "why"), [([], "nothing was measured"), ([((1.0,), 0.0)], "took no time")])
def test_points_that_make_no_table(points: list[tuple[tuple[float], float]], why: str) -> None:
    with pytest.raises(PagesimError, match=why):
        Table.of_points(["tokens"], points)


def test_a_knot_that_a_line_hits_is_left_out() -> None:
    table = Table.of({"tokens": (1, 2, 3, 4), "keys": (1, 2)}, lambda tokens, keys: tokens * keys)
    assert table.simplified() == Table(
        axes={"tokens": (1, 4), "keys": (1, 2)}, seconds=((1.0, 2.0), (4.0, 8.0))
    )
    bent = Table(axes={"tokens": (1, 2, 3, 4)}, seconds=(1.0, 2.02, 3.0, 5.0))
    assert bent.simplified(0.02).axes == {"tokens": (1, 3, 4)}
    assert bent.simplified(0.005).axes == bent.axes == bent.simplified().axes


def test_a_table_is_scaled_and_rounded() -> None:
    assert TWO.scaled(2.0).seconds == ((2.0, 6.0), (10.0, 34.0))
    assert Table(axes={"m": (1,)}, seconds=(0.0123456,)).rounded(3).seconds == (0.0123,)


def test_a_table_comes_back_from_its_text() -> None:
    assert Table.model_validate_json(THREE.model_dump_json()) == THREE
    half = Table(axes={"keys": (1, 2.5)}, seconds=(1.0, 2.0))
    assert Table.model_validate_json(half.model_dump_json()).axes == {"keys": (1, 2.5)}


@pytest.mark.parametrize(
    ("axes", "seconds", "why"),
    [
        ({}, (), "at least 1"),
        ({"tokens": ()}, (), "at least 1"),
        ({"tokens": (2, 1)}, (1.0, 2.0), "must rise"),
        ({"tokens": (1, 2)}, (1.0,), "sizes"),
        ({"tokens": (1, 2)}, ((1.0,), (2.0, 3.0)), "numbers"),
        ({"tokens": (1,)}, ("1.0",), "must be numbers, not str"),
        ({"tokens": (1,)}, (None,), "must be numbers, not NoneType"),
        ({"tokens": (1,)}, (-1.0,), "from 0"),
        ({"tokens": (1,)}, (1e6,), "from 0"),
        (dict.fromkeys("abcd", (1,)), ((((1.0,),),),), "at most 3"),
        ({"tokens": (1,)}, (float("nan"),), "from 0"),
        ({"tokens": (-1,)}, (1.0,), "greater than"),
    ],
)
def test_a_table_that_is_none(axes: dict[str, tuple[int, ...]], seconds: object, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Table(axes=axes, seconds=seconds)
