"""The ledger of a hybrid cache: every byte in one entry, in every group, in every iteration."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from pagesim.accounting.group_ledger import expand_groups
from pagesim.accounting.ledger import LedgerError
from pagesim.kvcache import KVGroup, SlidingWindow
from tests.sim.hybrid_systems import compare, entries_of, random_case, window_case
from tests.sim.slow_ledgers import SlowLedger


def check(seed: int, *, windows: bool = False) -> Counter[str]:
    """Replay a seed's system beside a slow ledger, and with fast-forward; return what it had in it."""
    case, slow = window_case(seed) if windows else random_case(seed), SlowLedger()
    stepped = compare(case, slow, entries_of(case), seed=seed).columns
    return Counter(
        {
            "cases": 1,
            "with preemptions": int(stepped["recomputes"].any()),
            "with two batches in flight": int(bool(case.options.async_scheduling)),
            "with shared blocks": int((stepped["logical"] > stepped["blocks"]).any()),
            "with slots that only some need": int(slow.disputed > 0),
            "with states": int(stepped["state"].any()),
            "with cached blocks": int(stepped["cached"].any()),
        }
    )


def test_every_byte_of_random_hybrid_caches_is_classified_in_every_iteration():
    had = sum(map(check, range(25)), Counter())
    assert len(had) == 7, f"some kind of system was not among them: {had}"


def test_every_byte_of_windows_with_a_prefix_cache_is_classified():
    had = sum((check(seed, windows=True) for seed in range(16, 26)), Counter())
    assert had["with slots that only some need"]
    assert had["with preemptions"]


@pytest.mark.slow
def test_every_byte_of_many_random_hybrid_caches_is_classified():
    for seed in range(25, 250):
        check(seed)
    for seed in range(26, 100):
        check(seed, windows=True)


def test_intervals_that_overfill_a_hybrid_cache_are_noticed():
    with pytest.raises(LedgerError, match="negative"):
        expand_groups(
            np.array([[0, 0, 30, 40, 1, 1]]),
            np.empty((0, 7), np.int64),
            np.zeros(1, np.int64),
            groups=[KVGroup(4, SlidingWindow(50))],
            page_bytes=4,
            group_bytes=[4],
            capacity=7 * 4,
        )
