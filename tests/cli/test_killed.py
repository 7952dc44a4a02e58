"""A command that is killed at any moment leaves nothing, or the whole of a result, and never half of one.

What is on the disk changes only where a folder is made, where a file is opened to be written, renamed or
removed, and while it is written. So commands are ended before each of these, and in the middle of a file.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from pagesim.experiments.sweeps.run_store import RunStore
from pagesim.results.result import load
from tests.commands import HANGS_AFTER_S

pytestmark = pytest.mark.slow

RUN = ("run", "--trace", "sharegpt", "--rate", "5", "--duration", "10", "--steps")
SWEEP = (
    *("sweep", "--grid", "policy=orca-max,vllm-sosp", "--grid", "rate=1,3", "--seeds", "2"),
    *("--num-requests", "30", "--num-blocks", "500", "--x", "rate", "--y", "ttft.p50"),
)

FORKS = """
import json, os, resource, signal, sys
from pagesim.cli.main import app

def end_before(change, number, folder):
    def count(event, arguments):
        nonlocal change
        if event == "open":
            changes = isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        else:
            changes = event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir")
        if changes and str(arguments[0]).startswith(folder):
            change -= 1
            if not change and number == signal.SIGXFSZ:  # in the middle of what is written from here on
                signal.signal(number, signal.SIG_DFL)
                resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
            elif not change:
                signal.raise_signal(number)
    sys.addaudithook(count)

def run(arguments, change, number, size, folder):
    sys.argv = ["pagesim", *arguments]
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.alarm(300)
    if size:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    end_before(change, number, folder)
    try:
        app()
    except SystemExit as end:
        os._exit(end.code or 0)
    os._exit(0)

for line in sys.stdin:
    child = os.fork()
    if not child:
        run(**json.loads(line))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""A process that has started Python, but no library's threads, and runs each command in a copy of itself."""

Ended = Callable[..., int]


@pytest.fixture(scope="module")
def ended(environment, tmp_path_factory) -> Iterator[Ended]:
    """Return a function that runs a command, ends it before one of its changes, and returns its exit code."""
    folder = tmp_path_factory.mktemp("killed")
    errors = (folder / "err").open("w+")
    process = subprocess.Popen(
        [sys.executable, "-c", FORKS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env=environment,
    )

    def run(*arguments: object, change: int = 0, number: int = 0, size: int = 0, folder: Path) -> int:
        asked = {"arguments": [*map(str, arguments)], "change": change, "number": number, "size": size}
        process.stdin.write(json.dumps({**asked, "folder": str(folder)}) + "\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    yield run
    process.communicate(timeout=HANGS_AFTER_S)
    errors.seek(0)
    assert "Traceback" not in errors.read()


def contents(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*")}


KILLED, INTERRUPTED = -signal.SIGKILL, 130


@pytest.mark.parametrize("older", [False, True], ids=["nothing there", "an older result"])
def test_a_result_is_there_with_everything_or_not_at_all(older, ended, succeeds, tmp_path):
    succeeds(*RUN, "--out", tmp_path / "whole")
    succeeds(*RUN, "--seed", "7", "--out", tmp_path / "old")
    out = tmp_path / "here" / "out"
    for change in count(1):
        shutil.rmtree(out.parent, ignore_errors=True)
        if older:
            shutil.copytree(tmp_path / "old", out)
        number = (signal.SIGKILL, signal.SIGINT)[change % 2]
        code = ended(*RUN, "--out", out, change=change, number=number, folder=out.parent)
        if out.exists():
            seed = load(out).scenario.seed
            assert seed == 0 or (older and seed == 7)
            assert contents(out) == contents(tmp_path / "whole")
            assert load(out).summary["requests"]["unfinished"] == 0
        else:
            assert not older
        if not code:
            break
        assert code == (KILLED if number == signal.SIGKILL else INTERRUPTED)
        if code == INTERRUPTED and out.parent.exists() and not (out.exists() and seed == 0):
            assert {path.name for path in out.parent.iterdir()} <= {"out"}, "no draft is left"
    assert change > 8
    assert seed == 0


def test_a_result_whose_file_ends_in_the_middle_is_not_there(ended, tmp_path):
    for size in (1, 5_000, 50_000):
        code = ended(*RUN, "--out", tmp_path / "out", size=size, folder=tmp_path)
        assert code == -signal.SIGXFSZ
        assert not (tmp_path / "out").exists()


def check_sweep(out: Path, whole: Path) -> None:
    """A run is kept whole or not at all, and so is each table; no table comes before the last run."""
    if not (out / "store.json").exists():
        assert not list(out.glob("runs/*"))
        return
    store = RunStore(out)
    kept = [file.stem for file in (out / "runs").glob("[!.]*")]
    for key in kept:
        ours, theirs = store.run(key), RunStore(whole).run(key)
        assert {**ours.summary, "sim": 0} == {**theirs.summary, "sim": 0}
    for name in ("sweep.toml", "runs.parquet", "means.parquet"):
        if (out / name).exists():
            assert len(kept) == 8
            assert (out / name).read_bytes() == (whole / name).read_bytes()


def test_a_sweep_goes_on_where_it_was_ended(ended, succeeds, tmp_path):
    out, whole = tmp_path / "out", tmp_path / "whole"
    succeeds(*SWEEP, "--jobs", "1", "--out", whole)
    stored: dict[str, int] = {}
    code, ends, change = KILLED, 0, 9
    while code:
        number = (signal.SIGKILL, signal.SIGINT)[ends % 2]
        jobs = 2 if not ends else 1
        code = ended(*SWEEP, "--jobs", jobs, "--out", out, change=change, number=number, folder=out)
        check_sweep(out, whole)
        before, stored = stored, {file.name: file.stat().st_mtime_ns for file in out.glob("runs/[!.]*")}
        assert before.items() <= stored.items(), "a run that is stored is not repeated"
        assert code in (KILLED, INTERRUPTED, 0)
        ends += 1
        change += stored == before  # further where the last end left nothing new
    assert ends > 10
    assert any(out.glob("*.svg"))
    drafts = [name for name in contents(out) if Path(name).name.startswith(".")]
    assert len(drafts) <= ends, "a kill may leave a draft behind, and no more than one"


def test_a_page_is_there_to_its_last_byte_or_not_at_all(ended, succeeds, tmp_path):
    succeeds(*RUN, "--out", tmp_path / "result")
    report = ("report", tmp_path / "result", "--instants", "40", "--out")
    succeeds(*report, tmp_path / "whole.html")
    page = tmp_path / "here" / "page.html"
    page.parent.mkdir()
    for number in (signal.SIGKILL, signal.SIGXFSZ):
        for change in count(1):
            code = ended(*report, page, change=change, number=number, folder=page.parent)
            if page.exists():
                assert page.read_bytes() == (tmp_path / "whole.html").read_bytes()
                page.unlink()
            if not code:
                break
            assert code == -number
        assert change > 1
    assert ended(*report, page, size=100_000, folder=page.parent) == -signal.SIGXFSZ
    assert not page.exists()
