"""Prefill apart from decode: no request and no block is lost, and fast-forward changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings

import pagesim as ps
from pagesim.errors import PagesimError
from pagesim.experiments.clusters import ClusterResult, run_pools
from pagesim.experiments.clusters.pool_shares import pool_shares
from pagesim.experiments.clusters.pools import PoolOptions, replay_pools
from pagesim.setup.prepare import prepare
from pagesim.setup.system import System, checked
from tests.experiments.clusters.pool_systems import Case, cases

ENTRIES = [
    "used",
    "reserved",
    "unused_reservation",
    "rounding",
    "held_for_transfer",
    "landing",
    "fenced",
    "external",
    "cached",
    "free",
]


def system_of(options: dict[str, Any]) -> tuple[System, dict[str, Any]]:
    """Return the system of keywords of `simulate_pools`, and the others."""
    names = ("prefill", "decode", "prefill_router", "decode_router", "link", "lease", "handover")
    of_pools = {name: options[name] for name in names if name in options}
    rest = {name: value for name, value in options.items() if name not in names}
    return checked(System, {"policy": "vllm-v1", **rest}), of_pools


@pytest.mark.slow
@settings(max_examples=150)
@given(case=cases())
def test_fast_forwards_change_nothing_and_either_ledger_sums_to_its_capacity(case: Case) -> None:
    system, pools = system_of(case.options)
    forwarding, stepping = (
        run_pools(system.model_copy(update={"fast_forward": fast_forward}), case.trace, **pools, steps=True)
        for fast_forward in (True, False)
    )
    pd.testing.assert_frame_equal(forwarding.requests, stepping.requests, check_exact=True)
    pd.testing.assert_frame_equal(forwarding.replicas, stepping.replicas, check_exact=True)
    for result in (forwarding, stepping):
        del result.summary["sim"]
        ledgers_sum_to_their_capacity(case, result)
    assert forwarding.summary == stepping.summary
    every_request_ends_once(forwarding)


def ledgers_sum_to_their_capacity(case: Case, result: ClusterResult) -> None:
    steps = result.steps
    assert steps is not None
    slots = (case.options["num_blocks"] - 1) * 16
    assert (steps[ENTRIES].fillna(0).sum(axis=1) == slots).all()
    assert (steps[ENTRIES].fillna(0) >= 0).all().all()
    of_prefill = steps["pool"] == "prefill"
    assert not steps.loc[of_prefill, "landing"].fillna(0).any()
    assert not steps.loc[~of_prefill, "held_for_transfer"].fillna(0).any()
    percent = [f"{name}_percent" for name in ENTRIES]
    assert result.replicas.dropna()[percent].sum(axis=1).to_numpy() == pytest.approx(100)
    for _, rows in steps.groupby(["pool", "replica"]):
        assert rows["start"].is_monotonic_increasing


def every_request_ends_once(result: ClusterResult) -> None:
    requests, pulls = result.requests, result.summary["pulls"]
    status = requests["status"]
    assert set(status) <= {"finished", "aborted", "rejected"}
    handed_over = requests["decode_replica"] >= 0
    assert not (handed_over & requests["prefilled_s"].isna()).any()
    assert pulls["pulled"] + pulls["declined"] == handed_over.sum()
    finished = (status == "finished").sum()
    assert finished <= pulls["pulled"] <= finished + (status == "aborted").sum()


@pytest.mark.slow
@settings(max_examples=100)
@given(case=cases())
def test_every_block_comes_back(case: Case) -> None:
    system, pools = system_of(case.options)
    replayed = replay_pools(prepare(system, case.trace), PoolOptions(**pools))
    for server in (*replayed.prefillers, *replayed.decoders):
        memory = server.scheduler.memory
        assert memory.free_blocks == memory.num_blocks
        assert memory.shared_blocks == 0
        assert not any(server.scheduler.held_without_running())


@pytest.mark.slow
@settings(max_examples=100)
@given(case=cases(closed=False))
def test_blocks_are_held_from_the_last_token_of_a_prompt_until_the_pull_is_reported(case: Case) -> None:
    options = {
        **case.options,
        "lease": 30,
        "enable_prefix_caching": False,
        "async_scheduling": False,
        "fast_forward": False,
    }
    system, pools = system_of(options)
    result = run_pools(system, case.trace, **pools, steps=True)
    requests, steps = result.requests, result.steps
    assert steps is not None
    pulled = requests[requests["pull_over_s"].notna() & (requests["status"] == "finished")]
    if len(pulled) < len(requests):
        return  # what others hold, and for how long, is another statement
    blocks = -(-pulled["prompt_tokens"] // 16)
    block_seconds = (steps["held_for_transfer"].fillna(0) * steps["step_s"]).sum() / 16
    held = (blocks * (pulled["pull_over_s"] - pulled["prefilled_s"])).sum()
    # A batch that was launched before reports nothing, the one after it when it is over.
    longest = steps.loc[steps["pool"] == "prefill", "step_s"][steps["num_tokens"] > 0].max()
    last = steps.loc[steps["pool"] == "prefill"].groupby("replica")["start"].max().min()
    early = pulled["pull_over_s"] < last
    assert block_seconds <= held + 2 * longest * blocks.sum() + 1e-9
    assert block_seconds >= (blocks * (pulled["pull_over_s"] - pulled["prefilled_s"]))[early].sum() - 1e-9


def test_a_request_by_hand() -> None:
    # 16 tokens of OPT-13B are 13,107,200 bytes: three blocks take 1.572864 ms at 25 GB/s.
    result = ps.simulate_pools(
        ps.Trace([0.0], [40], [3]),
        prefill=1,
        decode=1,
        link="25GB/s",
        cost="affine:0.02,1e-4,0",
        num_blocks=20,
        async_scheduling=False,
    )
    request = result.requests.iloc[0]
    assert request["prefilled_s"] == 0.024
    assert (request["pull_begun_s"], request["pull_over_s"]) == (0.024, 0.025572864)
    # The decoder has nothing else to do: it polls at 24, 25 and 26 ms; the last answer is there at 27.
    assert request["first_token_s"] == pytest.approx(0.027 + 0.0201, abs=1e-12)
    assert request["finish_s"] == pytest.approx(0.027 + 3 * 0.0201, abs=1e-12)
    pulls = result.summary["pulls"]
    assert (pulls["pulled"], pulls["blocks"], pulls["bytes"]) == (1, 3, 39_321_600)
    assert (pulls["link_bytes_per_s"], pulls["link_latency_s"]) == (25e9, 0.0)


def test_two_batches_in_flight_report_a_pull_a_batch_later() -> None:
    options: dict[str, Any] = {"prefill": 1, "decode": 1, "link": "infinite", "num_blocks": 60}
    trace = ps.Trace([0.0, 0.1], [40, 40], [60, 2])
    first_token = [
        ps.simulate_pools(trace, cost="affine:0.02,0,0", async_scheduling=ahead, **options).requests[
            "first_token_s"
        ][1]
        for ahead in (False, True)
    ]
    # The prompt is there at 0.12 s. In either case the next batch that is launched reports the pull.
    assert first_token[1] > first_token[0] > 0.14


def test_pulls_through_one_port_wait_in_line() -> None:
    trace = ps.Trace([0.0, 0.0], [160, 160], [2, 2])
    options: dict[str, Any] = {"cost": "affine:0.02,0,0", "num_blocks": 60, "link": "131.072MB/s:250ms"}
    apart = ps.simulate_pools(trace, prefill=2, decode=2, **options).requests
    into_one = ps.simulate_pools(trace, prefill=2, decode=1, **options).requests
    out_of_one = ps.simulate_pools(trace, prefill=1, decode=2, **options).requests
    assert (apart["pull_over_s"] - apart["pull_begun_s"]).tolist() == pytest.approx([1.25, 1.25])
    assert (into_one["pull_over_s"] - into_one["pull_begun_s"]).tolist() == pytest.approx([1.25, 2.5])
    assert (out_of_one["pull_over_s"] - out_of_one["pull_begun_s"]).tolist() == pytest.approx([1.25, 2.5])


def test_a_decoder_pulls_only_what_it_has_not_cached() -> None:
    trace = ps.Trace([0.0, 5.0], [100, 100], [5, 5]).with_columns({"prefix_tokens": np.array([64, 64])})
    options: dict[str, Any] = {"prefill": 1, "decode": 1, "cost": "affine:0.02,0,0", "num_blocks": 60}
    cached = ps.simulate_pools(trace, enable_prefix_caching=True, **options)
    assert cached.requests["pulled_blocks"].tolist() == [7, 3]
    alone = ps.simulate_pools(trace, enable_prefix_caching=False, **options)
    assert alone.requests["pulled_blocks"].tolist() == [7, 7]


def test_a_lease_ends_where_the_client_left_on_the_way_to_the_decoder() -> None:
    trace = ps.Trace([0.0, 100.0], [40, 40], [5, 5]).with_columns({"abort_s": np.array([1.0, np.inf])})
    system = checked(System, {"policy": "vllm-v1", "cost": "affine:0.02,0,0", "num_blocks": 20})
    result = run_pools(system, trace, prefill=1, decode=1, handover=2.0, lease=30, steps=True)
    assert result.requests["status"].tolist() == ["aborted", "finished"]
    assert result.requests["finish_s"][0] == 1.0
    assert result.summary["pulls"]["lease_ended"] == 1
    steps = result.steps
    assert steps is not None
    held = steps[(steps["pool"] == "prefill") & (steps["held_for_transfer"] > 0) & (steps["clock"] < 50)]
    assert held["clock"].min() == 0.02
    assert held["step_s"].sum() == pytest.approx(30.0)


def test_heartbeats_keep_a_lease_while_the_request_waits_for_the_decoder() -> None:
    # The decoder holds one request of 288 tokens at a time; the second waits for more than a minute.
    trace = ps.Trace([0.0, 0.0], [16, 200], [272, 10])
    options: dict[str, Any] = {
        "prefill": 1,
        "decode": 1,
        "num_blocks": 20,
        "cost": "affine:0.3,0,0",
        "max_num_seqs": 1,
    }
    renewed = ps.simulate_pools(trace, lease=30, **options)
    assert renewed.requests["pull_begun_s"][1] > 60
    assert renewed.summary["pulls"]["lease_ended"] == renewed.summary["pulls"]["pulled_late"] == 0
    # Two thirds of a second are no whole second: heartbeats do not lengthen such a lease.
    not_renewed = ps.simulate_pools(trace, lease=1, **options)
    assert not_renewed.summary["pulls"]["lease_ended"] == not_renewed.summary["pulls"]["pulled_late"] == 1


def test_a_request_that_is_aborted_while_it_lands_frees_its_blocks_after_the_pull() -> None:
    trace = ps.Trace([0.0, 9.0], [160, 16], [5, 5]).with_columns({"abort_s": np.array([0.5, np.inf])})
    system = checked(
        System,
        {"policy": "vllm-v1", "cost": "affine:0.02,0,0", "num_blocks": 60, "async_scheduling": False},
    )
    result = run_pools(system, trace, prefill=1, decode=1, link="131.072MB/s", steps=True)
    assert result.requests["status"].tolist() == ["aborted", "finished"]
    steps = result.steps
    assert steps is not None
    landed = steps[(steps["landing"] > 0) & (steps["start"] < 5)]
    end = (landed["start"] + landed["step_s"]).max()
    assert 1.02 <= end < 1.03, "the pull is over at 1.02 s, half a second after the abort"
    held = steps[(steps["held_for_transfer"] > 0) & (steps["start"] < 5)]
    assert (held["start"] + held["step_s"]).max() == pytest.approx(1.02)


def saturated(rate: float) -> float:
    """Return the mean share of a prefiller's cache that is held for transfer, in percent."""
    rng = np.random.default_rng(5)
    size = 300
    trace = ps.Trace(
        np.cumsum(rng.exponential(1 / rate, size)), rng.integers(20, 200, size), rng.integers(50, 150, size)
    )
    result = ps.simulate_pools(
        trace, prefill=1, decode=1, num_blocks=400, cost="affine:0.02,2e-5,1e-7", lease=30, max_model_len=512
    )
    return float(result.replicas["held_for_transfer_percent"][0])


@pytest.mark.slow
def test_what_a_prefiller_holds_grows_as_the_decoder_saturates() -> None:
    held = [saturated(rate) for rate in (2.0, 10.0, 20.0, 40.0)]
    assert held == sorted(held)
    assert held[0] < 1 < 20 < held[-1]


def test_shares_of_both_pools_are_whole_from_the_first_to_the_last_iteration() -> None:
    trace = ps.Trace(np.arange(20) / 10, np.full(20, 100), np.full(20, 40))
    system = checked(System, {"policy": "vllm-v1", "cost": "affine:0.02,0,0", "num_blocks": 60})
    result = run_pools(system, trace, prefill=1, decode=2, steps=True)
    clock = np.linspace(0, 3, 31)
    for pool in ("prefill", "decode"):
        shares = pool_shares(result, pool, clock)
        assert np.sum(list(shares.values()), axis=0) == pytest.approx(100)
    assert pool_shares(result, "prefill", np.array([0.01]))["used"] > 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"policy": "vllm-v0"}, "this policy has no connector .* choose policy vllm-v1"),
        ({"vllm_version": "0.19.0"}, "vllm_version is 0.19.0; .* must be 0.33.0"),
        ({"scheduling_policy": "priority"}, "scheduling_policy is priority; .* must be fcfs"),
        ({"model": "gpt-oss-20b", "gpu": "h100"}, "the model has 2 KV groups"),
        ({"kv_offloading_chunks": 8}, "kv_offloading_chunks is 8; .* leave it out"),
        ({"tiers": ["host:1GiB"]}, "tiers is host:1GiB; .* leave it out"),
        ({"prefill": 0}, "prefill is 0; it must be from 1 to 4096"),
        ({"decode": 5000}, "decode is 5000; it must be from 1 to 4096"),
        ({"lease": -1}, "lease is -1; it must be from 0"),
        ({"handover": -0.5}, r"handover is -0\.5; it must be from 0"),
        ({"link": "25 parsecs"}, "link is '25 parsecs': must be BANDWIDTH"),
        ({"link": "25GB/s:soon"}, "link is '25GB/s:soon': must be .* or infinite"),
        ({"prefill_router": "psychic"}, "router is 'psychic'; it must be one of"),
    ],
)
def test_what_the_connector_is_not_modelled_for_is_refused(options: dict[str, Any], sentence: str) -> None:
    trace = ps.Trace([0.0], [40], [3])
    with pytest.raises(PagesimError, match=sentence):
        ps.simulate_pools(trace, **{"prefill": 1, "decode": 1, "num_blocks": 20, **options})


def test_requests_of_several_samples_are_refused() -> None:
    trace = ps.Trace([0.0], [40], [3]).with_columns({"n": np.array([2])})
    with pytest.raises(PagesimError, match=r"a request has 2 samples; .* n must be 1"):
        ps.simulate_pools(trace, prefill=1, decode=1, num_blocks=20)


def test_the_link_is_that_of_the_datasheet_when_left_out_and_a_note_says_so() -> None:
    trace = ps.Trace([0.0], [40], [3])
    result = ps.simulate_pools(trace, prefill=1, decode=1, num_blocks=20, gpu="h100", model="opt-13b")
    assert result.summary["pulls"]["link_bytes_per_s"] == 450e9
    assert any("NVLink 4" in note for note in result.notes)
    assert any("not checked by logs" in note for note in result.notes)
