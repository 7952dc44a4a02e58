"""A command that is killed at any moment leaves nothing, or the whole of a result, and never half of one."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from pagesim.experiments.sweeps.store import Store
from pagesim.results.result import load

KILLS = 20

RUN = ("run", "--trace", "sharegpt", "--rate", "5", "--duration", "60", "--steps", "--trace-events")
SWEEP = (
    *(
        "sweep",
        "--grid",
        "policy=orca-max,vllm-sosp",
        "--grid",
        "rate=1,3",
        "--seeds",
        "4",
        "--no-fast-forward",
    ),
    *("--num-requests", "100", "--num-blocks", "500", "--jobs", "2", "--x", "rate", "--y", "ttft.p50"),
)


def check_run(out: Path, whole: Path) -> None:
    """A result's folder is there with everything, or not at all."""
    if out.exists():
        assert contents(out) == contents(whole)
        assert load(out).summary["requests"]["unfinished"] == 0
        assert json.loads((out / "trace-events.json").read_text())["traceEvents"]


def check_sweep(out: Path, whole: Path) -> None:
    """A run is kept whole or not at all, and so is each table; no table comes before the last run."""
    if not (out / "store.json").exists():
        assert not list(out.glob("runs/*"))
        return
    store = Store(out)
    kept = [file.stem for file in (out / "runs").glob("[!.]*")]
    for key in kept:
        ours, theirs = store.run(key), Store(whole).run(key)
        assert {**ours.summary, "sim": 0} == {**theirs.summary, "sim": 0}
    for file in (out / "traces").glob("[!.]*"):
        assert len(store.trace(file.stem).load()) == 100
    for name in ("sweep.toml", "runs.parquet", "means.parquet"):
        if (out / name).exists():
            assert len(kept) == 16
            assert (out / name).read_bytes() == (whole / name).read_bytes()


def check_report(out: Path, whole: Path) -> None:
    """The page is there to its last byte, or not at all."""
    if out.exists():
        assert out.read_bytes() == whole.read_bytes()


@dataclass(frozen=True)
class Killed:
    """A command that is killed, and what must be true of its folder whenever that happens.

    Attributes:
        arguments: without ``--out``; RESULT stands for a folder with a result.
        check: the folder, and that of a run that was not killed.
        is_over: whether nothing is left to do.
    """

    arguments: tuple[str, ...]
    check: Callable[[Path, Path], None]
    is_over: Callable[[Path], bool]


COMMANDS = {
    "report": Killed(("report", "RESULT", "--instants", "40"), check_report, Path.exists),
    "run": Killed(RUN, check_run, Path.exists),
    "sweep": Killed(SWEEP, check_sweep, lambda out: any(out.glob("*.svg"))),
}


def contents(folder: Path) -> set[str]:
    """Every file in a folder; what stands beside a file instead of one."""
    if folder.is_file():
        return {file.name for file in folder.parent.glob(".*")}
    return {str(file.relative_to(folder)) for file in folder.rglob("*")}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_whatever_the_moment_no_half_result_is_taken_for_a_whole_one(name, start, succeeds, tmp_path):
    command = COMMANDS[name]
    rng = random.Random(name)
    succeeds(*RUN, "--out", tmp_path / "result")
    arguments = [str(tmp_path / "result") if each == "RESULT" else each for each in command.arguments]

    def begin(out: Path) -> subprocess.Popen[str]:
        # No pipes: workers may hold their ends for a while after their parent was killed.
        with (tmp_path / "err").open("a") as err:
            return start(*arguments, "--out", out, announced=True, stdout=subprocess.DEVNULL, stderr=err)

    began = time.monotonic()
    assert begin(tmp_path / "whole").wait(timeout=120) == 0
    lasted = time.monotonic() - began
    killed = 0
    out = tmp_path / "killed"
    stored: dict[str, int] = {}
    for _ in range(KILLS):
        process = begin(out)
        # As often before the first file as after the last would say little.
        time.sleep(lasted * rng.uniform(0.25, 1.0))
        process.send_signal(rng.choice((signal.SIGKILL, signal.SIGINT)))
        if process.wait(timeout=60) in (-signal.SIGKILL, 130):
            killed += 1
        else:
            lasted *= 0.9  # the machine has become faster since
        command.check(out, tmp_path / "whole")
        before, stored = stored, {file.name: file.stat().st_mtime_ns for file in out.glob("runs/[!.]*")}
        assert before.items() <= stored.items(), "a run that is stored is not repeated"
        if out.exists() and command.is_over(out):
            shutil.rmtree(out) if out.is_dir() else out.unlink()
            stored = {}
    assert killed > KILLS // 2
    assert begin(out).wait(timeout=120) == 0
    command.check(out, tmp_path / "whole")
    assert command.is_over(out)
    assert "Traceback" not in (tmp_path / "err").read_text()
    drafts = [each for each in contents(out) if Path(each).name.startswith(".")]
    assert len(drafts) <= killed, "a kill may leave a draft behind, and no more than one"


@pytest.mark.slow
def test_a_result_that_was_there_stays_until_the_new_one_takes_its_place(start, succeeds, tmp_path):
    out = tmp_path / "out"
    succeeds(*RUN, "--seed", "7", "--out", out)
    old = (out / "summary.json").read_bytes()
    rng = random.Random(3)
    for _ in range(5):
        process = start(*RUN, "--out", out, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(1.0, 3.0))
        process.kill()
        process.wait(timeout=30)
        result = load(out)
        assert result.scenario.seed in (7, 0)
        assert result.scenario.seed == 0 or (out / "summary.json").read_bytes() == old
