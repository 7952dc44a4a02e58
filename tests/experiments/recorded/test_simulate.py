"""A recorded run is simulated as it was sent, on the server that it was recorded of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import pagesim as ps
from pagesim.errors import PagesimError
from pagesim.experiments.recorded.find import read
from pagesim.experiments.recorded.recording import RecordedRun, Series
from pagesim.experiments.recorded.simulate import simulate_recorded
from pagesim.workloads.naming import named

SERVER = {
    "model": "llama-3.1-8b",
    "gpu": "h100",
    "tensor_parallel_size": 1,
    "vllm_version": "0.19.0",
    "max_num_seqs": 32,
    "max_num_batched_tokens": 2048,
    "num_blocks": 300,
    "frontend": "0",
}
COST = "affine:0.01,1e-4,1e-7"


def recorded(clients: int | None = None, slower: float = 1.0) -> RecordedRun:
    """Return what clients of a simulated server would record, were it so many times as slow."""
    draw = np.random.default_rng(0)
    prompt, output = draw.integers(20, 300, 60), draw.integers(2, 90, 60)
    arrival = np.zeros(60) if clients else np.sort(draw.uniform(0, 5, 60))
    requests = ps.Trace(arrival, prompt, output)
    result = ps.simulate(
        requests, "vllm-v1", steps="iterations", cost=COST, max_concurrency=clients, **SERVER
    )
    columns, steps = result.requests, result.steps
    assert steps is not None
    t = np.arange(0.5, 4.0, 0.25)
    at = np.searchsorted(steps["start"].to_numpy(), t, "right") - 1
    series = Series(
        t,
        steps["num_running"].to_numpy(float)[at],
        steps["num_waiting"].to_numpy(float)[at],
        1 - steps["free_gpu_blocks"].to_numpy(float)[at] / 299,
    )
    sent = columns["arrival_s"].to_numpy()
    return RecordedRun(
        "run",
        sent,
        prompt,
        output,
        slower * (columns["first_token_s"].to_numpy() - sent),
        slower * (columns["finish_s"].to_numpy() - sent),
        max_concurrency=clients,
        series=series,
        server=SERVER,
    )


@pytest.mark.parametrize("clients", [None, 8])
def test_a_run_of_the_simulator_has_no_error(clients: int | None) -> None:
    found = simulate_recorded(recorded(clients), cost=COST)
    for by in found.residuals.values():
        for miss in by.values():
            assert miss.error == pytest.approx(0, abs=1e-9)
    assert found.curve is not None
    for means in found.curve.means().values():
        assert means["absolute"] == pytest.approx(0, abs=1e-9)


def test_a_server_that_was_slower_is_missed_by_as_much() -> None:
    found = simulate_recorded(recorded(slower=1.25), cost=COST)
    for metric in ("ttft", "tpot", "e2e"):
        for name in ("mean", "p50", "p90", "p95", "p99"):
            assert found.residuals[metric][name].error == pytest.approx(-0.2)
    assert found.worst() == pytest.approx(0.2)


def test_a_front_end_is_in_latencies_and_not_in_tpot() -> None:
    plain, found = (simulate_recorded(recorded(), cost=COST, frontend=front) for front in ("0", "0.02"))
    for metric, more in (("ttft", 0.02), ("e2e", 0.02), ("tpot", 0.0)):
        mean = plain.residuals[metric]["mean"].simulated
        assert found.residuals[metric]["mean"].simulated == pytest.approx(mean + more)


def test_gaps_between_tokens_are_compared_where_they_are_known() -> None:
    run = recorded()
    assert "itl" not in simulate_recorded(run, cost=COST).residuals
    gaps = [np.full(tokens - 1, 0.012) for tokens in run.output_tokens]
    found = simulate_recorded(replace(run, itl_s=gaps), cost=COST).residuals["itl"]
    assert found["p50"].measured == pytest.approx(0.012)
    assert 0.01 < found["p50"].simulated < 0.02


def test_prompts_that_begin_alike_find_their_blocks() -> None:
    run = recorded()
    prompts = named([list(range(tokens)) for tokens in run.prompt_tokens.tolist()], 16)
    same = replace(run, hash_ids=prompts, series=None)
    ttft = [
        simulate_recorded(same, cost=COST, enable_prefix_caching=caches).residuals["ttft"]["mean"].simulated
        for caches in (True, False)
    ]
    assert ttft[0] < ttft[1]


def test_what_a_recording_does_not_say_is_asked_for_by_name() -> None:
    run = recorded()
    without = {name: SERVER[name] for name in SERVER if name not in ("gpu", "max_num_seqs")}
    bare = replace(run, server=without)
    with pytest.raises(PagesimError, match="does not say gpu and max_num_seqs of the server; give --gpu and"):
        simulate_recorded(bare, cost=COST)
    assert simulate_recorded(bare, cost=COST, gpu="h100", max_num_seqs=32).worst() < 1e-9
    with pytest.raises(PagesimError, match="does not say enable_prefix_caching"):
        simulate_recorded(replace(run, hash_ids=[()] * len(run)), cost=COST)


def test_means_alone_are_compared_by_means(tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    file.write_text(
        "model,system,dtype,release,isl,osl,concurrency,tp,ep,ttft_ms,tpot_ms,note\n"
        "Qwen/Qwen3-32B,h100_sxm,bf16,0.12.0,1000,50,4,2,1,250,10.4,\n"
    )
    (run,) = read(file)
    found = simulate_recorded(run, cost="affine:0.01,1e-4,0", max_num_batched_tokens=8192)
    assert set(found.residuals) == {"ttft", "tpot"}
    assert set(found.residuals["tpot"]) == {"mean"}
    # A step of 10 ms with four sequences of 0.1 ms, and a little more where prompts came in.
    assert 0.0104 < found.residuals["tpot"]["mean"].simulated < 0.06
    assert "simulated as 0.11.2" in found.notes[0]


def test_experts_are_those_of_the_kernel_that_the_server_ran() -> None:
    run = replace(recorded(8), series=None)
    server = {**SERVER, "model": "minimax-m2.5", "gpu": "b200", "tensor_parallel_size": 4}

    def tpot(cost: str, **backend: str) -> float:
        found = simulate_recorded(replace(run, server={**server, **backend}), cost=cost)
        said = any("not an option of a system: moe_backend deep_gemm" in note for note in found.notes)
        assert said == (backend == {"moe_backend": "deep_gemm"})
        return found.residuals["tpot"]["mean"].simulated

    assert tpot("auto", moe_backend="triton") == tpot("auto:moe_backend=triton") > tpot("auto")
    assert tpot("auto", moe_backend="deep_gemm") == tpot("auto"), "no such kernel was timed"


def test_ranks_of_a_deployment_are_simulated_as_replicas() -> None:
    run = replace(recorded(), series=None)
    ranks = replace(run, server={**SERVER, "data_parallel_size": 2, "vllm_version": "0.33.0"})
    found = simulate_recorded(ranks, cost=COST)
    of_ranks = ps.simulate_cluster(run.trace(), cost=COST, **ranks.server)
    ttft = of_ranks.requests["first_token_s"] - of_ranks.requests["arrival_s"]
    assert found.residuals["ttft"]["mean"].simulated == pytest.approx(ttft.mean())
    assert found.residuals["ttft"]["mean"].error < 0, "two engines wait less than the one of the recording"
    watched = simulate_recorded(replace(ranks, series=recorded().series), cost=COST)
    assert watched.curve is None
    assert any("it had 2 ranks" in note for note in watched.notes)
