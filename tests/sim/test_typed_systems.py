"""Memory of layer types under vllm-v1: it never gives more than it has, and its ledger is what is there."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from pagesim.accounting.ledger import HYBRID_ENTRIES
from tests.sim.hybrid_systems import Outcome
from tests.sim.slow_ledgers import SlowTypes
from tests.sim.typed_systems import Make, jenga_of, pools_of, random_case, replay

MEMORIES = pytest.mark.parametrize("make", [pools_of, jenga_of])
SEEDS = range(24)


@cache
def forwarded(seed: int, make: Make) -> Outcome:
    """Return what comes of a seed's case in fast-forward, which several tests look at."""
    return replay(random_case(seed), make, fast_forward=True)


@MEMORIES
@pytest.mark.parametrize("seed", SEEDS)
def test_fast_forwarding_decides_and_counts_what_stepping_does(seed: int, make: Make) -> None:
    case = random_case(seed)
    forward = forwarded(seed, make)
    stepping = replay(case, make, fast_forward=False)
    for name, column in stepping.columns.items():
        np.testing.assert_array_equal(forward.columns[name], column, err_msg=name)


@MEMORIES
@pytest.mark.parametrize("seed", SEEDS)
def test_the_ledger_is_what_a_walk_through_all_pages_finds(seed: int, make: Make) -> None:
    case, slow = random_case(seed), SlowTypes()
    columns = replay(case, make, fast_forward=False, slow=slow).columns
    assert len(slow.seen) == len(columns["clock"])
    for entry in HYBRID_ENTRIES:
        walked = [seen.get(entry, 0) for seen in slow.seen]
        np.testing.assert_array_equal(columns[entry], walked, err_msg=entry)


@MEMORIES
def test_the_entries_of_every_iteration_are_all_memory(make: Make) -> None:
    for seed in SEEDS:
        columns = forwarded(seed, make).columns
        capacity = make(random_case(seed)).capacity_bytes
        assert set(sum(columns[entry] for entry in HYBRID_ENTRIES)) <= {capacity}


@MEMORIES
def test_requests_that_leave_too_little_room_are_preempted_and_all_are_served(make: Make) -> None:
    assert sum(forwarded(seed, make).recomputed for seed in SEEDS) > 50
