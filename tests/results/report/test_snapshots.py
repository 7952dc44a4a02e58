"""A snapshot shows what the ledger counts, and looking changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import pagesim as ps
from pagesim.accounting.metrics import STRICT_ENTRIES
from pagesim.api import run, trace_of
from pagesim.results.replay import NotReplayed
from pagesim.results.report.cells import CACHED, FREE, blank
from pagesim.results.report.snapshots import Snapshot, Snapshots, snapshots_of
from pagesim.results.result import Result
from pagesim.setup.scenario import Scenario
from pagesim.sim.clock import to_ticks

COST = "affine:0.02,1e-4,1e-6"

SYSTEMS: dict[str, dict[str, Any]] = {
    "static": {"policy": "static", "num_blocks": 400, "max_batch": 5},
    "contiguous-max": {"policy": "contiguous-max", "num_blocks": 400},
    "best fit": {"policy": "orca-oracle", "allocator": "best-fit", "num_blocks": 200},
    "buddy": {"policy": "orca-pow2", "num_blocks": 400},
    "paged, reserved": {"policy": "orca-pow2", "allocator": "paged", "num_blocks": 400},
    "recomputing": {"policy": "vllm-sosp", "num_blocks": 90},
    "swapping": {"policy": "vllm-sosp", "num_blocks": 120, "n": 3},
    "choosing": {"policy": "vllm-sosp", "num_blocks": 90, "preemption": "auto"},
    "beams": {"policy": "vllm-sosp", "num_blocks": 300, "beam_width": 4},
    "vllm-v0": {"policy": "vllm-v0", "num_blocks": 120, "n": 2},
    "vllm-v1": {
        "policy": "vllm-v1",
        "num_blocks": 120,
        "max_num_batched_tokens": 128,
        "enable_prefix_caching": False,
        "async_scheduling": False,
    },
    "prefix caching": {
        "policy": "vllm-v1",
        "num_blocks": 150,
        "enable_prefix_caching": True,
        "shared_prefix": "100:0.7",
    },
    "tier": {
        "policy": "vllm-v1",
        "num_blocks": 120,
        "kv_offloading_chunks": 400,
        "kv_offloading_link": "0.3GB/s",
        "shared_prefix": "300:0.9",
        "client_timeout": 8.0,
    },
    "tier, windows": {
        "policy": "vllm-v1",
        "model": "gpt-oss-20b",
        "gpu": "h100",
        "num_blocks": 120,
        "kv_offloading_chunks": 600,
        "kv_offloading_link": "0.2GB/s",
        "shared_prefix": "300:0.9",
    },
    "windows": {"policy": "vllm-v1", "model": "gpt-oss-20b", "gpu": "h100", "num_blocks": 120},
    "windows, cached": {
        "policy": "vllm-v1",
        "model": "gpt-oss-20b",
        "gpu": "h100",
        "num_blocks": 140,
        "max_num_batched_tokens": 256,
        "shared_prefix": "300:0.7",
    },
    "states": {
        "policy": "vllm-v1",
        "model": "jamba-1.5-mini",
        "gpu": "h200",
        "tensor_parallel_size": 2,
        "num_blocks": 150,
        "shared_prefix": "600:0.7",
    },
    "tokens": {"policy": "token-granular", "num_blocks": 1500},
    "pages": {"policy": "virtual-contiguous", "num_blocks": 30},
    "impatient": {"policy": "vllm-sosp", "num_blocks": 90, "client_timeout": 5.0},
    "cut off": {"policy": "vllm-sosp", "num_blocks": 90, "until": 10.0},
}
"""Systems that are mostly too small for the load."""


def scenario(name: str, **options: Any) -> Scenario:
    fixed = {"trace": "sharegpt", "rate": 3.0, "num_requests": 40, "cost": COST, "max_model_len": 1024}
    return Scenario(**{**fixed, **SYSTEMS[name], **options})


def replayed(chosen: Scenario, instants: int = 60) -> tuple[Result, Snapshots]:
    result = run(chosen, trace_of(chosen), steps="iterations")
    assert result.steps is not None
    end = to_ticks(float(result.steps["clock"].iloc[-1] + result.steps["step_s"].iloc[-1]))
    return result, snapshots_of(result, np.linspace(0, end, instants).astype(np.int64).tolist())


def unwound(taken: Snapshots) -> Iterator[tuple[Snapshot, Any, Any]]:
    """Yield each snapshot with owner, place and references of every block, and of the swap space."""
    memory = taken.scheduler.memory
    pools = blank(memory.num_blocks), blank(memory.cpu_blocks)
    for snapshot in taken.taken:
        for pool, changed in zip(pools, (snapshot.cells, snapshot.swapped), strict=True):
            pool[:, changed[0]] = changed[1:]
        yield snapshot, pools[0].copy(), pools[1].copy()


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_snapshot_shows_what_the_ledger_counts_in_that_iteration(name: str) -> None:
    result, taken = replayed(scenario(name))
    assert result.steps is not None
    running = [each for each in unwound(taken) if each[0].iteration >= 0]
    assert len(running) > 30
    for snapshot, cells, swapped in running:
        row = result.steps.iloc[snapshot.iteration]
        assert snapshot.ledger.tolist() == [row[entry] for entry in STRICT_ENTRIES if entry in row]
        assert snapshot.counts == (row["num_running"], row["num_waiting"], row["num_swapped"])
        assert snapshot.clock == to_ticks(row["clock"])
        assert snapshot.external == (row["external"] > 0)
        assert (cells[2] > 0).sum() == row["num_physical_blocks"]
        assert (swapped[2] > 0).sum() == swapped.shape[1] - row["free_cpu_blocks"]


@pytest.mark.parametrize("name", SYSTEMS)
def test_blocks_are_where_they_would_be_if_every_iteration_were_planned(name: str) -> None:
    _, forwarded = replayed(scenario(name))
    _, stepping = replayed(scenario(name, fast_forward=False))
    assert forwarded.shown == stepping.shown
    np.testing.assert_array_equal(forwarded.stays, stepping.stays)
    assert forwarded.absences == stepping.absences
    for a, b in zip(forwarded.taken, stepping.taken, strict=True):
        assert a.clock == b.clock
        np.testing.assert_array_equal(a.cells, b.cells)
        np.testing.assert_array_equal(a.swapped, b.swapped)
        np.testing.assert_array_equal(a.lengths, b.lengths)


@pytest.mark.slow_but("swapping", "prefix caching")
@pytest.mark.parametrize("name", ["recomputing", "swapping", "beams", "prefix caching", "vllm-v1"])
def test_how_often_one_looks_moves_no_block(name: str) -> None:
    _, seldom = replayed(scenario(name), 41)
    _, often = replayed(scenario(name), 2001)
    assert len(often.taken) > 20 * len(seldom.taken)
    cells = {snapshot.clock: (each, away) for snapshot, each, away in unwound(often)}
    for snapshot, each, away in unwound(seldom):
        # Stays are numbered as they are first seen.
        for ours, theirs in zip((each, away), cells[snapshot.clock], strict=True):
            np.testing.assert_array_equal(ours[1:], theirs[1:])
            rows = [np.where(c[0] < 0, c[0], f.stays[c[0], 0]) for c, f in ((ours, seldom), (theirs, often))]
            np.testing.assert_array_equal(*rows)


@pytest.mark.parametrize("name", SYSTEMS)
def test_what_is_on_a_snapshot_runs_at_that_time(name: str) -> None:
    result, taken = replayed(scenario(name))
    requests = result.requests
    assert any(len(snapshot.stays) for snapshot in taken.taken)
    for snapshot in taken.taken:
        for stay in snapshot.stays.tolist():
            row = requests.iloc[taken.stays[stay][0]]
            if taken.stays[stay][5]:
                continue  # it holds blocks and does not run: see below
            assert to_ticks(row["first_scheduled_s"]) <= snapshot.clock
            assert not to_ticks(np.nan_to_num(row["finish_s"], nan=1e6)) <= snapshot.clock


def test_every_preemption_is_an_absence() -> None:
    for name, kind in (("recomputing", "recompute"), ("swapping", "swap"), ("vllm-v1", "recompute")):
        result, taken = replayed(scenario(name))
        assert result.summary["preemptions"][kind] > 3
        assert len(taken.absences) == sum(result.summary["preemptions"].values())
        assert all(absence.swapped == (kind == "swap") for absence in taken.absences)
        finished = result.requests["status"] == "finished"
        assert all(a.end > a.start or (a.end == -1 and not finished[a.row]) for a in taken.absences)
        if kind == "swap":
            assert sum(a.blocks for a in taken.absences) == result.summary["swapped_blocks"]["out"]
        else:
            # Beyond the prompts that are computed anyway, minus the token that each prompt yields.
            back = [a for a in taken.absences if a.end > 0]
            again = sum(a.tokens for a in back)
            requests = result.requests[result.requests["status"] == "finished"]
            assert result.steps is not None
            once = (requests["prompt_tokens"] + requests["output_tokens"] - 1).sum()
            assert result.steps["num_tokens"].sum() == once + again - len(back)


def test_what_lies_in_the_swap_space_is_of_requests_that_are_away() -> None:
    _, taken = replayed(scenario("swapping"))
    seen = 0
    for snapshot, _, swapped in unwound(taken):
        owners = np.unique(swapped[0][swapped[2] > 0])
        away = {
            a.row for a in taken.absences if a.start <= snapshot.clock and not -1 < a.end <= snapshot.clock
        }
        rows = {taken.stays[owner][0] for owner in owners.tolist()}
        assert rows <= away
        assert len(rows) == snapshot.counts[2]
        seen += len(owners)
    assert seen > 20


def test_each_kind_of_thing_is_seen() -> None:
    def cells(name: str) -> list[Any]:
        return [cells for _, cells, _ in unwound(replayed(scenario(name))[1])]

    assert any((each[2] > 1).any() for each in cells("swapping")), "samples share their prompt's blocks"
    assert any((each[2] > 1).any() for each in cells("beams"))
    assert any((each[0] == CACHED).any() for each in cells("prefix caching"))
    halves = [((each[0] == FREE) & (each[1] == 0)).sum() for each in cells("buddy")]
    assert max(halves) > 3, "a buddy's free chunks are told apart"


def test_what_requests_hold_that_do_not_run_is_on_the_snapshots() -> None:
    result, taken = replayed(scenario("tier"), 400)
    assert taken.scheduler.parks == ("loading", "fenced")
    assert set(taken.stays[:, 5].tolist()) == {0, 1, 2}
    for snapshot in taken.taken:
        for stay in snapshot.stays.tolist():
            row, _, _, _, _, park = taken.stays[stay].tolist()
            request = result.requests.iloc[row]
            if park == 1:
                ran = to_ticks(np.nan_to_num(request["first_scheduled_s"], nan=1e6)) < snapshot.clock
                assert not ran or request["recomputes"], "one that was preempted may be loaded, too"
            if park == 2:
                assert request["status"] == "aborted"


def test_a_window_is_looked_at_iteration_by_iteration() -> None:
    chosen = scenario("recomputing")
    result = run(chosen, trace_of(chosen), steps="iterations")
    assert result.steps is not None
    inside = result.steps[result.steps["clock"].between(3.0, 4.0)]
    taken = snapshots_of(result, np.linspace(to_ticks(3.0), to_ticks(4.0), 1000).astype(np.int64).tolist())
    seen = [snapshot.iteration for snapshot in taken.taken]
    assert set(inside["step"]) <= set(seen)
    assert seen == sorted(set(seen))


def test_an_idle_pool_is_a_snapshot(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    pd.DataFrame({"arrival_s": [5.0, 20.0], "prompt_tokens": 50, "output_tokens": 10}).to_csv(file)
    chosen = Scenario(policy="vllm-sosp", trace=str(file), num_blocks=20, cost=COST)
    taken = snapshots_of(run(chosen, trace_of(chosen)), [to_ticks(s) for s in (1, 2, 5, 12, 13, 20, 30)])
    assert [taken.taken[at].iteration for at in taken.shown] == [-1, -1, 0, -1, -1, 10, -1]
    assert len(taken.taken) == 5


def test_what_cannot_be_replayed_says_why(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    table = pd.DataFrame({"arrival_s": [0.0, 1.0], "prompt_tokens": [50, 60], "output_tokens": [10, 20]})
    table.to_csv(file)
    chosen = Scenario(trace=str(file), num_blocks=50, cost=COST)
    run(chosen, trace_of(chosen)).save(tmp_path / "result")
    stored = ps.load(tmp_path / "result")
    assert snapshots_of(stored, [0, 1]).taken

    table.assign(output_tokens=[11, 20]).to_csv(file)
    with pytest.raises(NotReplayed, match="another output_tokens than is stored"):
        snapshots_of(stored, [0, 1])
    file.unlink()
    with pytest.raises(NotReplayed, match=r"cannot be replayed: .*trace\.csv"):
        snapshots_of(stored, [0, 1])
    ps.simulate(ps.make_trace("fixed:10,10", num_requests=3), "vllm-sosp").save(tmp_path / "own")
    with pytest.raises(NotReplayed, match="trace was given as an object"):
        snapshots_of(ps.load(tmp_path / "own"), [0, 1])
    live = Result(chosen, {**stored.summary, "clock": "measured"}, stored.request_columns)
    with pytest.raises(NotReplayed, match="carried out live"):
        snapshots_of(live, [0, 1])
