"""``pagesim validate --recorded``: recorded runs simulated, a table, JSON, figures and an exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

SERVER = (
    *("--model", "llama-3.1-8b", "--gpu", "h100", "--vllm-version", "0.19.0", "--tensor-parallel-size", "1"),
    *("--max-num-seqs", "32", "--max-num-batched-tokens", "2048", "--no-async-scheduling"),
    *("--frontend-latency", "0"),
    *("--cost", "affine:0.02,0,0"),
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return the log of a client of a server of 20 ms an iteration, one request after the other."""
    data = {
        "model_id": "meta-llama/Llama-3.1-8B",
        "completed": 20,
        "request_rate": "inf",
        "max_concurrency": 1,
        "input_lens": [30] * 20,
        "output_lens": [11] * 20,
        "ttfts": [0.02] * 20,
        "itls": [[0.02] * 10] * 20,
        "errors": [""] * 20,
    }
    file = tmp_path / "run.json"
    file.write_text(json.dumps(data))
    return file


def test_a_run_that_is_as_simulated_is_within_any_bound(cli: Any, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    found = cli("validate", "--recorded", run, *SERVER, "--max-error", "0.1%", "--out", out, "--json")
    assert found.json["passed"]
    errors = found.json["runs"][0]["errors"]
    assert set(errors) == {"ttft", "tpot", "e2e", "itl"}
    assert errors["e2e"]["p99"]["simulated_s"] == pytest.approx(0.22)
    assert {file.name for file in out.iterdir()} == {
        "manifest.json",
        "summary.json",
        "validation.png",
        "validation.svg",
    }


def test_a_run_beyond_the_bound_exits_with_one(cli: Any, run: Path) -> None:
    slow = (*SERVER[:-1], "affine:0.03,0,0")
    found = cli("validate", "--recorded", run, *slow, "--max-error", "49%")
    assert found.code == 1
    assert "the largest error of a mean is 50.0 %; the bound is 49 %" in found.out
    assert "+50.0 %" in found.out


def test_several_runs_make_one_table(cli: Any, run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(run.read_text().replace("Llama-3.1-8B", "no-such-model"))
    server = SERVER[2:]
    found = cli("validate", "--recorded", run, run, other, *server, "--json").json
    assert len(found["runs"]) == 2
    assert "does not say model of the server; give --model" in found["left_out"][str(other)]
    assert found["absolute"]["tpot"] == pytest.approx(0, abs=1e-9)
    assert "1 left out: does not say model" in cli("validate", "--recorded", run, run, other, *server).out


def test_what_is_off_is_a_sentence(refused: Any, run: Path) -> None:
    assert "give --recorded FILE or --live" in refused("validate")
    assert "give --recorded FILE or --live" in refused("validate", "--live", "--recorded", run)
    assert "max_error is '5'; it must be from 0% to 1000%" in refused(
        "validate", "--recorded", run, *SERVER, "--max-error", "5"
    )
    assert "rate is not an option of a system" in refused(
        "validate", "--recorded", run, *SERVER, "--rate", "2"
    )
    assert "a live validation sets it itself" in refused("validate", "--live", "--cost", "roofline")
    assert "does not say gpu and" in refused("validate", "--recorded", run)


@pytest.mark.slow
def test_a_run_that_keeps_memory_full_is_predicted(cli: Any, shared: Path, tmp_path: Path) -> None:
    data = shared / "data" / "seconds"
    run = data / "runs" / "RTX4090-Llama-3.1-8B" / "requests.jsonl"
    tables = data / "perf" / "RTX4090" / "meta-llama" / "Llama-3.1-8B" / "bf16"
    if not run.is_file() or not tables.is_dir():
        pytest.skip("the recorded run is not at hand")
    profile = tmp_path / "rtx-4090.json"
    of = ("--model", "llama-3.1-8b", "--gpu", "rtx-4090")
    cli("profile", "import", "llmservingsim", tables, profile, *of)
    found = cli("validate", "--recorded", run, "--cost", f"profile:{profile}", "--max-error", "5%", "--json")
    assert found.code == 0
    (report,) = found.json["runs"]
    assert report["requests"] == 300
    assert report["preemptions"]["measured"] is None
    assert report["preemptions"]["simulated"] > 100
    for metric in ("ttft", "tpot", "e2e"):
        assert abs(report["errors"][metric]["p95"]["error"]) <= 0.08
    over_time = report["over_time"]["running"]
    assert abs(over_time["simulated"] - over_time["measured"]) <= 2
