"""Counted hybrid caches of prefixes beside those with tables, in random systems: every decision and byte."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pagesim.workloads.trace import Trace
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


def check_lazy(seed: int) -> tuple[bool, int]:
    """Replay a seed's system, of requests that share nothing if it is odd, with contents looked up at last.

    Returns:
        Whether any was, and how often requests were preempted.
    """
    case = window_case(seed)
    if seed % 2:
        columns = {} if case.trace.priority is None else {"priority": case.trace.priority}
        trace = case.trace
        case = replace(
            case, trace=Trace(trace.arrival_s, trace.prompt_tokens, trace.output_tokens, **columns)
        )
    tabled = replay(case, fast_forward=True)
    for fast_forward, chunk in ((True, None), (True, 7), (False, None)):
        memory = make_memory(case, lazy=True)
        lazy = replay(case, fast_forward=fast_forward, memory=memory, chunk=chunk)
        for name, column in tabled.columns.items():
            assert np.array_equal(column, lazy.columns[name]), f"seed {seed}: {name} differs"
    return not memory.tells_later, tabled.recomputed


def test_contents_that_are_kept_once_one_is_looked_up_decide_as_tables_do():
    looked_up, preempted = zip(*map(check_lazy, range(9, 25)), strict=True)
    assert 0 < sum(looked_up) < len(looked_up)
    assert sum(preempted) > 0, "no request was preempted"


@pytest.mark.slow
def test_contents_that_are_kept_once_one_is_looked_up_decide_as_tables_do_in_many_systems():
    for seed in (*range(9), *range(25, 400)):
        check_lazy(seed)
