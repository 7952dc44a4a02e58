"""A calibration that is killed goes on where it was, and repeats nothing."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import pagesim
from pagesim.costs.profiles import load_profile
from pagesim.kernels.bench.rows import SCHEMA

PROGRAM = """
import sys, time
from pathlib import Path
from pagesim.device.calibration import calibrating
from pagesim.device.calibration.points import CalibrationGrid
from pagesim.kernels.bench.session import Session

out, hangs_at = Path(sys.argv[1]), int(sys.argv[2])
calibrating.grid_for = lambda device, quick: CalibrationGrid(
    tokens=(1, 8, 64), sequences=(1, 8), batches=(1, 4), contexts=(16, 64), prompts=((1, 8), (1, 32), (2, 8)),
    chunks=(), blocks=(1, 4), iterations=(1, 4),
)
calibrating.TURNS = 1

seconds = 1e-3 if hangs_at >= 0 else 1e-2
measured = []

def measure(session, point, prepare):
    if len(measured) == hangs_at:
        print("hangs", flush=True)
        time.sleep(600)
    measured.append(point)
    time.sleep(0.03)
    print("measured", point, flush=True)
    row = {"status": "ok", "median_s": seconds, "date": "2026-01-01"}
    return {**row, "decode_context": 16 * point["batch"]} if point.op == "iteration" else row

Session.measure = measure
from pagesim.cli.main import app
sys.argv = ["pagesim", "calibrate", "--device", "cpu", "--model", "tiny", str(out)]
app()
"""


@pytest.fixture
def start():
    """Return a function that starts such a calibration in a process of its own."""
    here = str(Path(pagesim.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": here, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}

    def run(out: Path, hangs_at: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(out), str(hangs_at)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return run


@pytest.mark.slow
def test_a_killed_calibration_goes_on_where_it_was_and_repeats_nothing(start, tmp_path):
    out, journal = tmp_path / "mine.json", tmp_path / "mine.rows" / "rows.jsonl"
    killed = start(out, 9)
    first = []
    while (line := killed.stdout.readline()) and line != "hangs\n":
        first.append(line)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=30)
    assert killed.returncode == -signal.SIGKILL
    assert not out.exists()
    kept = journal.read_text().splitlines()
    assert len(kept) == len(first) == 9
    with journal.open("a") as cut:  # what a kill in the midst of writing leaves behind
        cut.write(kept[0][:40])

    shown, errors = start(out, -1).communicate(timeout=120)
    assert out.exists(), errors
    second = [line for line in shown.splitlines(keepends=True) if line.startswith("measured ")]
    assert second
    assert not set(first) & set(second), "a point is measured once"
    profile = load_profile(out)
    # A point of the first run took 1 ms, in each of two layers at most, and one of the second 10 ms.
    of_first = [sample for sample in profile.samples if sample.seconds < 5e-3 and sample.term != "overhead"]
    assert len(of_first) == 9
    assert "9 were measured before" in shown
    assert not journal.parent.exists(), "the profile holds every measurement"


@pytest.mark.slow
def test_killed_at_any_moment_a_calibration_leaves_no_half_profile_and_repeats_nothing(start, tmp_path):
    out = tmp_path / "mine.json"
    rng = random.Random(1)
    began = time.monotonic()
    shown, errors = start(tmp_path / "whole.json", -1).communicate(timeout=120)
    lasted = time.monotonic() - began
    points = [line for line in shown.splitlines() if line.startswith("measured ")]
    assert points, errors
    measured: list[str] = []
    killed = 0
    for _ in range(6):
        if out.exists():
            assert load_profile(out).samples == load_profile(tmp_path / "whole.json").samples
            assert sorted(measured) == sorted(points)
            out.unlink()
            measured.clear()
        process = start(out, -1)
        # Later where a kill cannot come any later: importing takes most of the time.
        time.sleep(lasted * rng.uniform(0.6, 1.0))
        process.send_signal(signal.SIGKILL)
        shown, _ = process.communicate(timeout=30)
        if process.returncode == -signal.SIGKILL:
            killed += 1
        else:
            lasted *= 0.9  # the machine has become faster since
        now = [line for line in shown.splitlines() if line.startswith("measured ")]
        # The last point's row may have been kept or not when it died.
        assert not set(now) & set(measured[:-1])
        measured = list(dict.fromkeys([*measured, *now]))
    assert killed > 1
    start(out, -1).communicate(timeout=120)
    assert load_profile(out).terms == load_profile(tmp_path / "whole.json").terms


def test_rows_of_another_model_or_machine_are_kept_apart(start, tmp_path):
    out, journal = tmp_path / "mine.json", tmp_path / "mine.rows" / "rows.jsonl"
    journal.parent.mkdir()
    row = {"schema": SCHEMA, "bench": "model", "op": "layers", "tokens": 1, "status": "ok", "median_s": 1e9}
    journal.write_text("".join(json.dumps({**row, "key": f"other{each}"}) + "\n" for each in range(3)))
    shown, errors = start(out, -1).communicate(timeout=120)
    assert out.exists(), errors
    assert "were measured before" not in shown
    assert max(sample.seconds for sample in load_profile(out).samples) < 1
