"""Curves and knees: where latency passes 1 s/token, and which rates are replayed to find it."""

from __future__ import annotations

import pytest

from pagesim.experiments.paper.jobs import NARROW, Load, around_knee, knee
from pagesim.setup.scenario import Scenario

# One server of 0.1 s a request: it keeps up with 10 requests/s.
SERVER = Scenario(
    trace="fixed:10,1",
    arrivals="constant",
    num_requests=400,
    policy="contiguous-max",
    max_num_seqs=1,
    cost="affine:0.1,0,0",
)


def test_a_knee_lies_on_the_straight_line_between_its_neighbours() -> None:
    assert knee([(4.0, 9.0, 0.0), (1.0, 0.2, 0.0), (2.0, 0.6, 0.0), (3.0, 1.4, 0.0)]) == pytest.approx(2.5)


@pytest.mark.parametrize("latency", [0.1, 5.0])
def test_a_curve_that_stays_on_one_side_has_no_knee(latency: float) -> None:
    points = [(1.0, latency, 0.0), (2.0, latency, 0.0)]
    assert around_knee(points) is None
    assert knee(points) is None


@pytest.mark.parametrize("rates", [(1.0, 2.0), (40.0, 80.0), (9.0, 12.0)])
def test_a_curve_looks_for_its_knee_wherever_it_begins(rates: tuple[float, float]) -> None:
    points = Load(SERVER, rates).run()["points"]
    assert set(rates) <= {rate for rate, *_ in points}
    assert [rate for rate, *_ in points] == sorted({rate for rate, *_ in points})
    below, above = around_knee(points) or pytest.fail("it was not found")
    assert above[0] <= NARROW * below[0]
    # 400 requests at r/s wait (0.1 − 1/r)·i, 20 s at most: 1 s on average is a little beyond 10/s.
    found = knee(points)
    assert found is not None
    expected = 1 / (0.1 - 0.9 / 199.5)
    assert found == pytest.approx(expected, rel=NARROW - 1)
