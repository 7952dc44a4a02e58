"""The check finds what it is for: a table, a copy, a swap, a position or a write that is not right."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import pagesim as ps
from pagesim.device.live import block_tables, cached_attention, executor, pools
from pagesim.kernels import paged_attention
from pagesim.kvcache import NumberedPrefixManager


@pytest.fixture
def check_of(live, cases, make_trace):
    """Return a function that runs a case and returns what its check found."""

    def run(case):
        options, columns, _ = cases[case]
        return live(make_trace(**columns), options).summary["live"]["check"]

    return run


def test_two_blocks_of_a_table_that_change_places(check_of, monkeypatch):
    right = block_tables.BlockTables.row
    done = []

    def row(self, request, number, place, length):
        found = right(self, request, number, place, length)
        if not done and length > 3 * self.memory.block_size and self._blocks[found] == 4:
            done.append(request)
            self.array[found, [0, 1]] = self.array[found, [1, 0]]
        return found

    monkeypatch.setattr(block_tables.BlockTables, "row", row)
    # Token by token a sequence keeps its row while it decodes: the blocks change places under its feet.
    check = check_of("sosp, swap")
    assert done
    assert not check["passed"]
    assert "off by" in check["first_failure"]
    errors = check["max_relative_error"].values()
    assert any(error is None or error > check["bound"] for error in errors), "the worst is told"


def test_a_table_that_is_not_read_anew_after_a_copy(check_of, monkeypatch):
    monkeypatch.setattr(block_tables.BlockTables, "all_exchanged", lambda self: None)
    with pytest.raises(ps.PagesimError, match="slot_mapping holds a number twice"):
        check_of("sosp, two samples")  # two samples would write into one block


@pytest.mark.slow_but("v0, two samples")
@pytest.mark.parametrize("case", ["sosp, two samples", "v0, two samples", "sosp, beams", "contiguous, beams"])
def test_a_copy_on_write_that_is_skipped(case, check_of, monkeypatch):
    monkeypatch.setattr(pools.KvPools, "copy", lambda self, copies: None)
    assert not check_of(case)["passed"]


@pytest.mark.slow_but("sosp, swap-swap_out", "v0-swap_in")
@pytest.mark.parametrize("direction", ["swap_out", "swap_in"])
@pytest.mark.parametrize("case", ["sosp, swap", "v0"])
def test_a_swap_that_is_skipped(case, direction, check_of, monkeypatch):
    monkeypatch.setattr(pools.KvPools, direction, lambda self, copies: None)
    assert not check_of(case)["passed"]


def test_a_block_that_comes_back_to_the_wrong_place(check_of, monkeypatch):
    right = pools.KvPools.swap_in

    def swap_in(self, copies):
        places = [place for _, place in copies]
        right(self, [(block, place) for (block, _), place in zip(copies, places[::-1], strict=True)])

    monkeypatch.setattr(pools.KvPools, "swap_in", swap_in)
    assert not check_of("sosp, swap")["passed"]


def test_a_token_that_is_written_next_to_its_slot(check_of, monkeypatch):
    right = executor.MeasuredExecutor._columns

    def columns(self, pieces):
        made = right(self, pieces)
        slots = made.slots.copy()
        if len(slots) > 1:
            slots[[0, -1]] = slots[[-1, 0]]
        return made._replace(slots=slots)

    monkeypatch.setattr(executor.MeasuredExecutor, "_columns", columns)
    assert not check_of("v1, chunks")["passed"]


def test_a_token_that_stands_at_the_wrong_position(check_of, monkeypatch):
    right = executor.MeasuredExecutor._columns

    def columns(self, pieces):
        made = right(self, pieces)
        return made._replace(positions=np.maximum(made.positions - 1, 0))

    monkeypatch.setattr(executor.MeasuredExecutor, "_columns", columns)
    assert not check_of("v1, chunks")["passed"]


def test_attention_that_leaves_out_the_newest_token(check_of, monkeypatch):
    def short(q, cache, table, lengths, *starts, **options):
        if starts:
            return paged_attention(q, cache, table, lengths, *starts, **options)
        return paged_attention(q, cache, table, (lengths - 1).clamp(min=1), **options)

    monkeypatch.setattr(cached_attention, "paged_attention", short)
    check = check_of("sosp, recompute")
    assert not check["passed"]
    assert "attention are off" in check["first_failure"] or "logits are off" in check["first_failure"]


def test_a_prefix_that_was_found_but_is_another(check_of, monkeypatch):
    right = NumberedPrefixManager.admit
    done = []

    def admit(self, request, tokens):
        found = self.match_prefix(request, tokens)
        right(self, request, tokens)
        if found > self.block_size:
            table = request.block_state.table
            table[0], table[1] = table[1], table[0]
            done.append(request)

    monkeypatch.setattr(NumberedPrefixManager, "admit", admit)
    assert not check_of("v1, prefixes")["passed"]
    assert done
