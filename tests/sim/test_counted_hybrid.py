"""Counted hybrid caches of prefixes beside those with tables, in random systems: every decision and byte."""

from __future__ import annotations

import numpy as np
import pytest

from tests.sim.hybrid_systems import make_memory, replay, window_case


def check(seed: int) -> int:
    """Replay a seed's system over both memories; return how often requests were preempted."""
    case = window_case(seed)
    tabled = replay(case, fast_forward=True)
    for fast_forward in (True, False):
        counted = replay(case, fast_forward=fast_forward, memory=make_memory(case, counted=True))
        assert tabled.columns.keys() == counted.columns.keys()
        for name, column in tabled.columns.items():
            assert np.array_equal(column, counted.columns[name]), f"seed {seed}: {name} differs"
    return tabled.recomputed


def test_windows_that_are_counted_decide_as_tables_do():
    assert sum(map(check, range(25))) > 0, "no request was preempted"


@pytest.mark.slow
def test_windows_that_are_counted_decide_as_tables_do_in_many_systems():
    for seed in range(25, 600):
        check(seed)
