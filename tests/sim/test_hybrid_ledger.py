"""The ledger of a hybrid cache: every byte in one entry, in every group, in every iteration."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from pagesim.accounting.group_ledger import Held, expand_groups
from pagesim.accounting.ledger import GROUP_ENTRIES, HYBRID_ENTRIES, LedgerError
from pagesim.kvcache import ChunkedLocal, Full, KVGroup, SlidingWindow, State
from pagesim.scheduling.vllm_v1 import VllmV1Options
from pagesim.workloads.trace import Trace
from tests.sim.hybrid_systems import HybridCase, random_case, replay, window_case
from tests.sim.slow_ledgers import SlowLedger


def check(seed: int, *, windows: bool = False) -> Counter[str]:
    """Replay a seed's system beside a slow ledger, and with fast-forward; return what it had in it."""
    case, slow = window_case(seed) if windows else random_case(seed), SlowLedger()
    stepped = replay(case, fast_forward=False, slow=slow).columns
    # Where the records are cut into chunks changes nothing either.
    other = replay(case, fast_forward=True, chunk=1 + seed % 50).columns
    for name, column in stepped.items():
        assert np.array_equal(column, other[name]), f"seed {seed}: {name} differs with fast-forward"
    assert len(slow.seen) == len(stepped["clock"])
    for name in (*HYBRID_ENTRIES, *(f"{e}_{g}" for g in range(len(case.groups)) for e in GROUP_ENTRIES)):
        seen = np.array([each.get(name, 0) for each in slow.seen])
        assert np.array_equal(stepped[name], seen), f"seed {seed}: {name} differs from the slow ledger"
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
    for seed in range(25, 600):
        check(seed)
    for seed in range(26, 200):
        check(seed, windows=True)


PAGE = 1000


def one_request(rule, *, tokens: int, final: int, steps_in_flight: int = 0) -> dict[str, int]:
    """Return the entries of a decoding request of so many tokens, of 240 bytes, in blocks of 4."""
    ledger = expand_groups(
        np.array([[0, 0, tokens, final, 1, 1]]),
        np.empty((0, 7), np.int64),
        np.zeros(1, np.int64),
        groups=[KVGroup(4, rule, page_bytes=PAGE, filled_bytes=960)],
        page_bytes=PAGE,
        group_bytes=[PAGE],
        capacity=10 * PAGE,
        steps_in_flight=steps_in_flight,
    )
    assert sum(int(column[0]) for column in ledger.entries.values()) == 10 * PAGE
    return {name: int(column[0]) for name, column in ledger.entries.items() if column[0]}


def test_a_full_group_pads_its_blocks_and_loses_only_the_end_of_the_last_one():
    # Three blocks for 10 tokens; the last one is going to hold 11 of 12.
    assert one_request(Full(), tokens=10, final=11) == {
        "used": 2400, "reserved": 240, "rounding": 240, "padding": 120, "free": 7000
    }  # fmt: skip


def test_a_window_holds_tokens_that_nothing_attends_to_until_their_block_is_behind_it():
    # Token 10, the step's, attends to tokens 6 to 10: 4 and 5 stand in the first block that is held, 0 to 3
    # were given back.
    assert one_request(SlidingWindow(5), tokens=11, final=100) == {
        "used": 5 * 240, "reserved": 240, "out_of_window": 480, "padding": 80, "free": 8000
    }  # fmt: skip


def test_what_a_step_in_flight_attends_to_is_not_given_back_yet():
    # Token 11 attends to 8 to 11, but token 10 is in flight and attends to token 7.
    window = SlidingWindow(4)
    assert one_request(window, tokens=12, final=100)["free"] == 9000
    assert one_request(window, tokens=12, final=100, steps_in_flight=1) == {
        "used": 4 * 240, "out_of_window": 4 * 240, "padding": 80, "free": 8000
    }  # fmt: skip


def test_a_chunk_is_given_back_whole_when_the_next_one_begins():
    chunk = ChunkedLocal(8)
    assert one_request(chunk, tokens=16, final=100) == {"used": 8 * 240, "padding": 80, "free": 8000}
    assert one_request(chunk, tokens=17, final=100)["used"] == 240
    assert one_request(chunk, tokens=17, final=100, steps_in_flight=1)["out_of_window"] == 8 * 240


def test_groups_of_one_window_differ_where_memory_counts_them_apart():
    ledger = expand_groups(
        np.array([[0, 1, 30, 100, 1, 1], [0, 1, 30, 100, 1, 1]]),
        np.empty((0, 11), np.int64),
        np.arange(2),
        groups=[KVGroup(4, SlidingWindow(50), page_bytes=PAGE)] * 3,
        page_bytes=PAGE,
        group_bytes=[PAGE] * 3,
        capacity=60 * PAGE,
        held=Held(np.array([[16, 16, 13], [16, 16, 13]]), np.zeros(2, np.int64), None),
    )
    assert [part.blocks.tolist() for part in ledger.groups] == [[16, 16], [16, 16], [13, 13]]
    assert ledger.physical_blocks.tolist() == [45, 45]
    assert ledger.logical_blocks.tolist() == [48, 48]
    assert ledger.groups[0].entries["used"].tolist() != ledger.groups[2].entries["used"].tolist()


def test_a_state_fills_its_block_or_leaves_padding_however_long_the_request_is():
    ledger = expand_groups(
        np.array([[0, 1, 30, 100, 1, 1]]),
        np.empty((0, 7), np.int64),
        np.arange(2),
        groups=[KVGroup(400, State(), page_bytes=PAGE, filled_bytes=700)],
        page_bytes=PAGE,
        group_bytes=[PAGE],
        capacity=3 * PAGE,
    )
    assert ledger.entries["state"].tolist() == [700, 700]
    assert ledger.entries["padding"].tolist() == [300, 300]
    assert ledger.entries["free"].tolist() == [2000, 2000]
    assert not any(ledger.entries[name].any() for name in ("used", "reserved", "rounding", "out_of_window"))


def test_a_slot_that_one_request_needs_and_another_does_not_is_used():
    # Two prompts of 65 tokens, 64 of them in common. When the second one is admitted the first holds 70.
    case = HybridCase(
        groups=[KVGroup(4, Full(), page_bytes=8), KVGroup(4, SlidingWindow(12), page_bytes=8)],
        blocks=200,
        caches=True,
        retention=0,
        options=VllmV1Options(async_scheduling=False, max_num_batched_tokens=100, max_num_seqs=2),
        trace=Trace(
            np.array([0.0, 0.05]), np.array([65, 65]), np.array([60, 60]), prefix_tokens=np.array([64, 64])
        ),
    )
    columns = replay(case, fast_forward=True).columns
    now = {name: int(column[5]) for name, column in columns.items() if name.endswith(("_0", "_1"))}
    # Full attention: 64 tokens in common, 6 of the first request's own, 1 of the second's.
    assert (now["used_0"], now["reserved_0"]) == (2 * 71, 2 * 5)
    # The first attends to tokens 58 to 69, the second to 53 to 64: of those in common 53 to 63 are used.
    # The block of 52 to 55 was found; the first had given it back. Its slot 52 is behind both windows.
    assert (now["used_1"], now["out_of_window_1"], now["reserved_1"]) == (2 * (11 + 6 + 1), 2, 2 * 5)


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
