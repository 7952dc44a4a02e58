"""Memory of layer types under vllm-v1: it never gives more than it has, and its ledger is what is there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pagesim.accounting.ledger import HYBRID_ENTRIES
from pagesim.kvcache.typed.typed import TypedManager
from tests.sim.hybrid_systems import HybridCase, compare
from tests.sim.slow_ledgers import SlowTypes
from tests.sim.typed_systems import jenga_of, pools_of, random_case


@pytest.mark.parametrize("make", [pools_of, jenga_of])
def test_the_ledger_is_what_a_walk_through_all_pages_finds_and_fast_forward_is_stepping(
    make: Callable[[HybridCase], TypedManager],
) -> None:
    recomputed = 0
    for seed in range(24):
        case = random_case(seed)
        found = compare(case, SlowTypes(), HYBRID_ENTRIES, seed=seed, make=make)
        capacity = make(case).capacity_bytes
        assert set(sum(found.columns[entry] for entry in HYBRID_ENTRIES)) <= {capacity}
        recomputed += found.recomputed
    assert recomputed > 50
