"""A sweep that is stopped and started again repeats nothing, and ends as one that ran through."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

SWEEP = (
    *(
        "sweep",
        "--grid",
        "policy=orca-max,vllm-sosp",
        "--grid",
        "rate=1,3",
        "--seeds",
        "6",
        "--no-fast-forward",
    ),
    *("--num-requests", "150", "--num-blocks", "500", "--jobs", "2"),
)
RUNS = 2 * 2 * 6


def stamps(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mtime_ns for file in (folder / "runs").glob("*.json")}


@pytest.fixture(scope="module")
def through(start, tmp_path_factory):
    """A sweep that ran through."""
    out = tmp_path_factory.mktemp("through") / "out"
    process = start(*SWEEP, "--out", out)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_a_sweep_that_was_stopped_is_finished_without_repeating_anything(end, through, start, tmp_path):
    out = tmp_path / "out"
    # No pipes: workers may hold their ends for a while after their parent was killed.
    with (tmp_path / "err").open("w+") as err:
        process = start(*SWEEP, "--out", out, announced=True, stdout=subprocess.DEVNULL, stderr=err)
        began = time.monotonic()
        while not out.is_dir() or len(stamps(out)) < 5:
            assert process.poll() is None
            assert time.monotonic() - began < 60
            time.sleep(0.01)
        process.send_signal(end)
        process.wait(timeout=60)
        err.seek(0)
        assert "Traceback" not in err.read()
    before = stamps(out)
    assert 5 <= len(before) < RUNS, "it was stopped in the middle"
    assert not (out / "runs.parquet").exists()
    again = start(*SWEEP, "--out", out)
    _, said = again.communicate(timeout=120)
    assert again.returncode == 0, said
    after = stamps(out)
    assert len(after) == RUNS
    assert {name: after[name] for name in before} == before
    for name in ("runs.parquet", "means.parquet", "sweep.toml"):
        assert (out / name).read_bytes() == (through / name).read_bytes()
