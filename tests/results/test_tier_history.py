"""The ledger of a tier over time: a table of looks, and shares of its time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import pagesim as ps
from pagesim.accounting.tier_history import TierHistory
from pagesim.kvcache.tiers import ENTRIES
from pagesim.scheduling.observer import Observer
from tests.traces import conversations

SYSTEM: dict[str, Any] = {
    "policy": "vllm-v1",
    "model": "llama-3.1-8b",
    "gpu": "h100",
    "cost": "affine:0.010,1e-5,1e-7",
    "num_blocks": 120,
    "max_num_batched_tokens": 256,
    "max_model_len": 4096,
    "kv_offloading_chunks": 150,
    "kv_offloading_link": "0.3GB/s",
}


class EveryIteration(Observer):
    """Adds up the entries of the tier, each iteration until the next one."""

    def begun(self, scheduler: Any) -> None:
        self.connector = scheduler.connector
        self.seen: list[tuple[int, dict[str, int]]] = []

    def planned(self, batch: Any, now: int, start: int, ticks: int) -> None:
        self.seen.append((now, self.connector.tiers()[0].entries()))


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("caching", [True, False])
def test_fast_forward_has_the_history_of_stepping(is_async: bool, caching: bool) -> None:
    options = {**SYSTEM, "async_scheduling": is_async, "enable_prefix_caching": caching}
    forward, stepping = (
        ps.simulate(conversations(), **options, fast_forward=forward) for forward in (True, False)
    )
    assert forward.summary["memory"]["tiers"] == stepping.summary["memory"]["tiers"]
    pd.testing.assert_frame_equal(forward.tiers, stepping.tiers)


def without_a_tier() -> dict[str, Any]:
    return {name: value for name, value in SYSTEM.items() if not name.startswith("kv_")}


CHAINS = (
    ("host:0.3GiB:0.3GB/s", "ssd:1GiB:0.2GB/s"),
    ("host:0.2GiB:0.3GB/s", "ssd:infGiB:0.2GB/s:exclusive"),
)


@pytest.mark.parametrize("chain", CHAINS)
def test_each_tier_of_a_chain_has_a_history(chain: tuple[str, ...]) -> None:
    forward, stepping = (
        ps.simulate(conversations(), **without_a_tier(), tiers=list(chain), fast_forward=forward)
        for forward in (True, False)
    )
    pd.testing.assert_frame_equal(forward.tiers, stepping.tiers)
    shares = forward.summary["memory"]["tiers"]
    assert shares == stepping.summary["memory"]["tiers"]
    assert list(shares) == ["host", "ssd"]
    for tier in shares.values():
        told = [share for share in tier["per_second"].values() if share is not None]
        assert sum(told) == pytest.approx(100)
        assert len(told) == (4 if tier["capacity"] is None else 5)


def test_every_row_sums_to_the_capacity_and_every_entry_occurs() -> None:
    table = ps.simulate(conversations(), **SYSTEM).tiers
    assert table is not None
    assert (table[list(ENTRIES)].sum(axis=1) == 150).all()
    assert (table[list(ENTRIES)].max() > 0).all()
    assert set(table["tier"]) == {"host"}
    assert table["clock"].is_monotonic_increasing


def test_shares_are_those_of_looking_in_every_iteration() -> None:
    watch = EveryIteration()
    result = ps.simulate(conversations(), **SYSTEM, fast_forward=False, observers=[watch])
    shares = result.summary["memory"]["tiers"]["host"]["per_second"]
    assert sum(shares.values()) == pytest.approx(100)
    clocks = np.array([now for now, _ in watch.seen])
    spans = np.diff(clocks)
    for entry in ENTRIES:
        seen = np.array([entries[entry] for _, entries in watch.seen[:-1]])
        mean = 100 * (seen * spans).sum() / (150 * spans.sum())
        # What the device has as well is not looked for at every change.
        assert shares[entry] == pytest.approx(mean, abs=2.0 if entry in ("duplicate", "kept") else 0.5), entry


@pytest.mark.parametrize(("blocks", "most"), [(128, 0.3), (28_000, 0.08)])
def test_the_larger_the_device_the_fewer_looks(
    blocks: int, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    look = TierHistory._look
    monkeypatch.setattr(TierHistory, "_look", lambda self: (looks.append(1), look(self)))
    changes = len(ps.simulate(conversations(8, 12), **{**SYSTEM, "num_blocks": blocks}).tiers)
    assert changes > 50
    assert most / 2 < len(looks) / changes < most


def test_it_is_stored_and_read_again(tmp_path: Any) -> None:
    result = ps.simulate(conversations(), **SYSTEM)
    again = ps.load(result.save(tmp_path / "own"))
    pd.testing.assert_frame_equal(again.tiers, result.tiers)


def test_without_a_tier_there_is_none() -> None:
    result = ps.simulate(conversations(), **without_a_tier())
    assert result.tiers is None
    assert "tiers" not in result.summary["memory"]


def test_the_table_is_made_when_it_is_asked_for_and_saved_as_it_is(tmp_path: Path) -> None:
    result = ps.simulate(conversations(), **SYSTEM, steps="none")
    assert "tiers" not in vars(result)
    result.save(tmp_path / "run")
    assert ps.load(tmp_path / "run").tiers.equals(result.tiers)
    assert len(result.tiers) > 1
    assert ps.simulate(conversations(), **{**SYSTEM, "kv_offloading_chunks": None}).tiers is None
