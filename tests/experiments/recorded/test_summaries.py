"""Runs that are known by a summary alone: the load is drawn again, and means and percentiles are compared.

The server takes 20 ms an iteration and has one client, so a request of 11 tokens takes 220 ms: 20 ms to its
first token, 20 ms for each of ten others.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagesim.errors import PagesimError
from pagesim.experiments.recorded.find import read
from pagesim.experiments.recorded.recording import RecordedRun
from pagesim.experiments.recorded.simulate import simulate_recorded

SERVER = {
    "gpu": "h100",
    "vllm_version": "0.19.0",
    "tensor_parallel_size": 1,
    "max_num_seqs": 32,
    "max_num_batched_tokens": 2048,
    "async_scheduling": False,
    "cost": "affine:0.02,0,0",
    "frontend": "0",
}
MODEL = "meta-llama/Llama-3.1-8B"


def vllm(**fields: Any) -> dict[str, Any]:
    """Return what ``vllm bench serve --save-result`` writes without ``--save-detailed``."""
    return {
        "model_id": MODEL,
        "num_prompts": 20,
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": 1,
        "duration": 5.5,
        "completed": 20,
        "total_input_tokens": 600,
        "total_output_tokens": 220,
        "mean_ttft_ms": 25.0,
        "median_ttft_ms": 20.0,
        "p99_ttft_ms": 40.0,
        "mean_tpot_ms": 16.0,
        "mean_itl_ms": 20.0,
        **fields,
    }


def sglang(**fields: Any) -> dict[str, Any]:
    """Return what SGLang's bench appends without ``--output-details``."""
    info = {"model_path": MODEL, "tp_size": 1, "max_running_requests": 64, "max_total_num_tokens": 40_000}
    plain = {name: value for name, value in vllm().items() if name not in ("model_id", "num_prompts")}
    return {
        **plain,
        "backend": "sglang",
        "dataset_name": "random",
        "random_range_ratio": 0.5,
        "server_info": info,
        "mean_e2e_latency_ms": 220.0,
        **fields,
    }


def aiperf(**fields: Any) -> dict[str, Any]:
    """Return what AIPerf exports of a run."""
    return {
        "input_config": {
            "models": {"items": [{"name": MODEL}]},
            "phases": [
                {"name": "warmup", "concurrency": 7},
                {"name": "profiling", "type": "concurrency", "concurrency": 1},
            ],
        },
        "request_count": {"unit": "requests", "avg": 20.0},
        "request_throughput": {"unit": "requests/sec", "avg": 4.0},
        "input_sequence_length": {"unit": "tokens", "avg": 30.0, "std": 0.0, "min": 30, "max": 30},
        "output_sequence_length": {"unit": "tokens", "avg": 11.0, "std": 0.0, "min": 11, "max": 11},
        "time_to_first_token": {"unit": "ms", "avg": 25.0, "p50": 20.0},
        "inter_token_latency": {"unit": "ms", "avg": 16.0},
        "request_latency": {"unit": "ms", "avg": 200.0, "p99": 220.0},
        "benchmark_duration": {"unit": "sec", "avg": 5.5},
        **fields,
    }


def records() -> list[dict[str, Any]]:
    """Return a request of a warm-up, twenty of half a second each, twice a second, and one that failed."""
    rows: list[dict[str, Any]] = [
        {
            "metadata": {
                "request_start_ns": 1_759_813_207_000_000_000 + 500_000_000 * row,
                "benchmark_phase": phase,
            },
            "metrics": {
                "time_to_first_token": {"value": 100.0 + row, "unit": "ms"},
                "request_latency": {"value": 0.5, "unit": "sec"},
                "input_sequence_length": {"value": 30 + row, "unit": "tokens"},
                "output_sequence_length": {"value": 5, "unit": "tokens"},
            },
            "error": None,
        }
        for row, phase in enumerate(["warmup", *["profiling"] * 20])
    ]  # fmt: skip
    rows.append(
        {
            "metadata": rows[0]["metadata"] | {"benchmark_phase": "profiling"},
            "metrics": {},
            "error": {"code": 499},
        }
    )
    return rows


def one(folder: Path, data: Any, name: str = "run.json") -> RecordedRun:
    """Return the only run of a file."""
    file = folder / name
    file.write_text(data if isinstance(data, str) else json.dumps(data))
    (run,) = read(file)
    return run


def errors(run: RecordedRun, **system: Any) -> dict[str, dict[str, float | None]]:
    """Return the errors of the simulated run by metric and statistic."""
    found = simulate_recorded(run, **{**SERVER, **system}).residuals
    return {metric: {name: each.error for name, each in by.items()} for metric, by in found.items()}


def test_a_default_save_of_vllm_is_compared_by_what_it_says(tmp_path: Path) -> None:
    run = one(tmp_path, vllm())
    assert (run.prompt_tokens.tolist(), run.output_tokens.tolist()) == ([30] * 20, [11] * 20)
    found = errors(run)
    assert found["ttft"] == pytest.approx({"mean": -0.2, "p50": 0.0, "p99": -0.5})
    assert found["tpot"] == pytest.approx({"mean": 0.25})
    assert found["itl"] == pytest.approx({"mean": 0.0})
    # 20 requests of 220 ms, one after the other.
    assert found["duration"] == pytest.approx({"mean": 4.4 / 5.5 - 1})
    assert "lengths of 30 and 11 tokens in the mean are drawn, all alike" in run.notes[0]


def test_lengths_that_are_alike_keep_their_sum(tmp_path: Path) -> None:
    run = one(tmp_path, vllm(total_input_tokens=607))
    assert run.prompt_tokens.sum() == 607
    assert set(run.prompt_tokens.tolist()) == {30, 31}


def test_requests_at_a_rate_are_due_at_it_and_wait_for_a_client(tmp_path: Path) -> None:
    run = one(tmp_path, vllm(request_rate=2.0, max_concurrency=3))
    assert run.arrival_s[[0, -1]].tolist() == [0.0, pytest.approx(19 / 2.0)]
    assert np.diff(run.arrival_s).std() > 0.1
    trace = run.trace()
    assert trace.arrival_s.tolist() == run.arrival_s.tolist()
    even = one(tmp_path, vllm(request_rate=2.0, burstiness=1e6))
    assert np.diff(even.arrival_s) == pytest.approx(np.full(19, 0.5), rel=0.01)


def test_a_default_save_of_sglang_is_simulated_by_its_policy(tmp_path: Path) -> None:
    run = one(tmp_path, sglang())
    assert run.server == {
        "model": "llama-3.1-8b",
        "tensor_parallel_size": 1,
        "max_running_requests": 64,
        "max_total_tokens": 40_000,
        "policy": "sglang",
    }
    assert run.prompt_tokens.sum() == 600
    # Between half of the longest and the longest, 3 : 4 of which is the mean.
    assert 19 <= run.prompt_tokens.min() < 25 < 35 < run.prompt_tokens.max() <= 42
    assert "evenly between 0.5 and 1 times the longest" in run.notes[0]
    found = simulate_recorded(run, gpu="h100", cost="affine:0.02,0,0")
    assert found.system.policy == "sglang"
    assert found.residuals["e2e"]["mean"].measured == pytest.approx(0.22)


def test_another_policy_is_asked_for_its_own_options(tmp_path: Path) -> None:
    run = one(tmp_path, sglang())
    with pytest.raises(PagesimError, match="does not say vllm_version and max_num_seqs"):
        simulate_recorded(run, gpu="h100", policy="vllm-v1")
    assert errors(run, policy="vllm-v1")["tpot"] == pytest.approx({"mean": 0.25})


def test_sharegpts_lengths_are_spread_and_scaled_to_the_mean(tmp_path: Path) -> None:
    run = one(tmp_path, sglang(dataset_name="sharegpt", completed=400, total_input_tokens=12_000))
    assert run.prompt_tokens.sum() == pytest.approx(12_000, rel=0.01)
    assert run.prompt_tokens.std() > 10


@pytest.mark.parametrize("name", ["profile_export_aiperf.json", "profile_export_genai_perf.json"])
def test_an_export_of_aiperf_is_compared_by_its_statistics(tmp_path: Path, name: str) -> None:
    run = one(tmp_path, aiperf(), name)
    assert (run.max_concurrency, run.server) == (1, {"model": "llama-3.1-8b"})
    found = errors(run)
    assert found["ttft"] == pytest.approx({"mean": -0.2, "p50": 0.0})
    assert found["tpot"] == pytest.approx({"mean": 0.25})
    assert found["e2e"] == pytest.approx({"mean": 0.1, "p99": 0.0})
    assert found["duration"] == pytest.approx({"mean": -0.2})


def test_an_older_export_names_its_load_elsewhere(tmp_path: Path) -> None:
    config = {"endpoint": {"model_names": [MODEL]}, "loadgen": {"concurrency": 3, "request_rate": 5.0}}
    run = one(tmp_path, aiperf(input_config=config))
    assert (run.max_concurrency, run.server["model"]) == (3, "llama-3.1-8b")
    assert run.arrival_s[-1] == pytest.approx(19 / 5.0)


def test_records_of_aiperf_are_requests(tmp_path: Path) -> None:
    rows = records()
    (tmp_path / "profile_export_aiperf.json").write_text(json.dumps(aiperf()))
    run = one(tmp_path, "\n".join(map(json.dumps, rows)), "profile_export.jsonl")
    assert run.arrival_s == pytest.approx(np.arange(20) / 2, abs=1e-6)
    assert run.ttft_s == pytest.approx(0.1 + np.arange(1, 21) / 1e3, abs=1e-6)
    assert run.e2e_s == pytest.approx(np.full(20, 0.5), abs=1e-6)
    assert run.prompt_tokens.tolist() == list(range(31, 51))
    assert run.max_concurrency == 1
    assert "1 of 21 requests failed and are left out" in run.notes[0]
    del rows[3]["metrics"]["time_to_first_token"]
    with pytest.raises(
        PagesimError, match="request 3: has no time_to_first_token; run aiperf profile with --streaming"
    ):
        one(tmp_path, "\n".join(map(json.dumps, rows)), "profile_export.jsonl")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (vllm(completed=0), "completed is 0; a whole number from 1 to 1000000 is needed"),
        (vllm(mean_ttft_ms="soon"), "mean_ttft_ms is 'soon'; a number from 0 is needed"),
        (vllm(total_input_tokens=None), "total_input_tokens is None; a whole number from 1"),
        (vllm(request_rate="trace"), "request_rate is 'trace', and when requests were sent is not known"),
        ({"completed": 3, "mean_ttft_ms": 2.0}, "has no total_input_tokens"),
        (aiperf(request_count={"avg": -1}), "request_count is -1; a whole number from 1"),
        (aiperf(input_sequence_length=7), "input_sequence_length is 7; a table is needed"),
        ({"request_latency": {"avg": 3.0}}, "has no request_count"),
    ],
)
def test_a_summary_that_is_off_is_a_sentence(tmp_path: Path, data: Any, sentence: str) -> None:
    with pytest.raises(PagesimError, match=sentence):
        one(tmp_path, data)


def test_nothing_is_fitted_to_a_summary(tmp_path: Path) -> None:
    from pagesim.experiments.fit.iterations import check

    with pytest.raises(PagesimError, match="a fit needs the times of single requests"):
        check(one(tmp_path, vllm()))
