"""The clock counts picoseconds as far as it says, and no further."""

from __future__ import annotations

import numpy as np
import pytest

import pagesim as ps
from pagesim.errors import PagesimError
from pagesim.scheduling import NEVER
from pagesim.sim.clock import LONGEST_S, to_ticks
from pagesim.workloads.trace import Trace


def sent_at(seconds: float) -> Trace:
    """Return three requests, a second apart, the last of them at that time."""
    return Trace(np.array([seconds - 2, seconds - 1, seconds]), np.array([20, 30, 40]), np.array([9, 8, 7]))


def replay(trace: Trace) -> ps.Result:
    return ps.simulate(trace, "vllm-v1", num_blocks=50, cost="affine:0.25,1e-4,1e-6")


def test_never_is_later_than_any_instant():
    assert to_ticks(LONGEST_S) < NEVER


def test_what_arrives_late_is_served_as_what_arrives_early():
    early, late = replay(sent_at(2.0)), replay(sent_at(LONGEST_S - 100))
    taken = [each.requests["finish_s"] - each.requests["arrival_s"] for each in (early, late)]
    np.testing.assert_allclose(*taken, atol=1e-8)
    # Iterations that decide nothing pass at once, late as early.
    assert late.summary["sim"]["rows"] == early.summary["sim"]["rows"] < early.steps["iterations"].sum()


def test_what_arrives_later_is_refused():
    with pytest.raises(PagesimError, match=r"it must be at most 4\.6e\+06 s, the longest time"):
        replay(sent_at(LONGEST_S + 100))
