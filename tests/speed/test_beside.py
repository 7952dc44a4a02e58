"""The measure beside other simulators: each gets the same load in its own format; stand-ins play them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

pytestmark = pytest.mark.slow  # whole commands, several times

BESIDE = Path(__file__).with_name("beside.py")
LOAD = ("--trace", "fixed:30,5", "--requests", 8, "--rate", 4, "--num-blocks", 300, "--rounds", 1)
OURS = ("--model", "tiny", "--cost", "affine:0.01,1e-5,1e-7")

VIDUR = """
    import csv, pathlib, sys
    given = dict(zip(sys.argv[1:], sys.argv[2:]))
    rows = list(csv.DictReader(open(given["--trace_request_generator_config_trace_file"])))
    assert {(row["num_prefill_tokens"], row["num_decode_tokens"]) for row in rows} == {("30", "5")}
    assert [float(row["arrived_at"]) for row in rows] == sorted(float(row["arrived_at"]) for row in rows)
    assert given["--vllm_scheduler_config_num_blocks"] == "300"
    assert given["--trace_request_generator_config_max_tokens"] == "35"
    out = pathlib.Path(given["--metrics_config_output_dir"]) / "now"
    out.mkdir(parents=True, exist_ok=True)
    (out / "request_metrics.csv").write_text("Request Id\\n" + "".join(f"{n}\\n" for n in range(len(rows))))
"""

BLIS = """
    import csv, json, sys
    assert sys.argv[1] == "replay"
    given = dict(zip(sys.argv[1:], sys.argv[2:]))
    assert open(given["--trace-header"]).readline() == "trace_version: 2\\n"
    rows = list(csv.DictReader(open(given["--trace-data"])))
    assert {(row["input_tokens"], row["output_tokens"]) for row in rows} == {("30", "5")}
    assert all(row["arrival_time_us"].isdigit() and row["status"] == "ok" for row in rows)
    assert given["--total-kv-blocks"] == "300"
    json.dump([{"request_id": row["request_id"]} for row in rows[1:]], open(given["--results-path"], "w"))
"""


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BESIDE), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture
def vidur(tmp_path: Path) -> Path:
    package = tmp_path / "vidur-checkout" / "vidur"
    package.mkdir(parents=True)
    (package / "main.py").write_text(dedent(VIDUR))
    return package.parent


@pytest.fixture
def blis(tmp_path: Path) -> Path:
    program = tmp_path / "blis-checkout" / "blis"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n{dedent(BLIS)}")
    program.chmod(0o755)
    return program.parent


def test_each_simulator_gets_the_same_load_and_a_row(vidur: Path, blis: Path) -> None:
    done = run(*LOAD, *OURS, "--vidur", vidur, "--blis", blis)
    rows: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    # The stand-in for BLIS loses a request: what a row says is what a simulator wrote.
    finished = {row["simulator"]: row["finished"] for row in rows}
    assert finished == {"pagesim": 8, "vidur": 8, "blis": 7}
    for row in rows:
        assert row["requests_per_s"] == pytest.approx(8 / row["wall_s"])
        assert row["cpu_s"] > 0
        assert row["memory_mb"] > 1


def test_a_simulator_that_fails_is_named_with_what_it_said(blis: Path) -> None:
    (blis / "blis").write_text(f"#!{sys.executable}\nraise SystemExit('no model of that name')\n")
    done = run(*LOAD, *OURS, "--blis", blis)
    assert done.returncode == 1
    assert "blis replay" in done.stderr
    assert "no model of that name" in done.stderr


def test_a_simulator_that_is_not_there_is_said(tmp_path: Path) -> None:
    done = run(*LOAD, *OURS, "--vidur", tmp_path / "nowhere")
    assert "cannot be started in" in done.stderr
    assert "Traceback" not in done.stderr
