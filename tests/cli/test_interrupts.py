"""A command that is interrupted in the middle leaves no result, or the older one; see also test_killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from tests.commands import HANGS_AFTER_S

LONG = ("--trace", "sharegpt", "--rate", "20", "--duration", "20000")


@pytest.mark.slow_but("0.1")
@pytest.mark.parametrize("moment", [0.1, 1.0])
def test_an_interrupt_ends_a_run_without_a_traceback_or_a_trace_of_it(moment, start, tmp_path):
    process = start("run", *LONG, "--out", tmp_path / "a" / "out", announced=True)
    assert process.stderr.readline() == "ready\n"
    time.sleep(moment)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=HANGS_AFTER_S)
    assert process.returncode not in (0, 2)
    assert "Traceback" not in out + err
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_while_a_result_is_stored_leaves_the_older_one(succeeds, cli, tmp_path, monkeypatch):
    succeeds("run", "--trace", "fixed:10,10", "--out", tmp_path / "out")
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pagesim.results.plots.save_run_figures", interrupted)
    outcome = cli("run", "--trace", "fixed:20,20", "--out", tmp_path / "out")
    assert outcome.code == 130
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_an_interrupt_that_falls_into_a_callback_is_not_lost() -> None:
    program = """
import signal, sys, weakref
from pagesim.cli import main

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it

class Figure: pass

def interrupted(_):
    raise KeyboardInterrupt

sys.unraisablehook = main._not_raised
figure = Figure()
kept = weakref.ref(figure, interrupted)
try:
    del figure
    while True: pass
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=HANGS_AFTER_S
    )
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


@pytest.mark.parametrize("error", ["ValueError", "SystemExit", "BaseException", "PagesimError"])
def test_an_interrupt_that_a_library_turns_into_an_error_of_its_own_is_an_interrupt(error):
    program = f"""
import signal
from pagesim.cli import main
from pagesim.errors import PagesimError

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it

def run():
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise {error}("Error building validator: KeyboardInterrupt")

main._run = run
main.app()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=HANGS_AFTER_S
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
