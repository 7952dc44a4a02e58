"""What is printed depends on the output: bars and colours are for terminals only."""

from __future__ import annotations

import os
import pty
import re
import threading

import pytest

from tests.commands import HANGS_AFTER_S

LONG = ("run", "--trace", "sharegpt", "--rate", "20", "--duration", "2000")
ESCAPE = "\x1b"


@pytest.mark.slow
def test_where_nobody_watches_there_is_no_bar_and_no_escape_code(in_a_process):
    outcome = in_a_process(*LONG, env={"TERM": "xterm-256color"})
    assert outcome.code == 0
    assert ESCAPE not in outcome.out + outcome.err
    assert "━" not in outcome.err
    assert all(line.startswith("note: ") for line in outcome.err.splitlines())


@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "policies"),
        ("list", "models"),
        ("list", "gpus"),
        ("list", "workloads"),
        ("--help",),
        ("run", "--help"),
        ("run", "--nosuch"),
    ],
)
def test_lists_and_usage_hold_no_escape_code_in_a_pipe(arguments, cli):
    outcome = cli(*arguments)
    assert ESCAPE not in outcome.out + outcome.err


def watched(start, *arguments: str) -> tuple[str, str]:
    """Run a command whose standard error is a terminal; return what it showed there, and its output."""
    theirs, ours = pty.openpty()
    seen = bytearray()

    def read() -> None:
        while True:
            try:
                data = os.read(theirs, 4096)
            except OSError:  # Linux: the other end is closed
                return
            if not data:
                return
            seen.extend(data)

    reader = threading.Thread(target=read)
    reader.start()
    process = start(*arguments, stderr=ours, env={"TERM": "xterm-256color", "COLUMNS": "80"})
    os.close(ours)
    out, _ = process.communicate(timeout=HANGS_AFTER_S)
    reader.join(timeout=HANGS_AFTER_S)
    os.close(theirs)
    assert process.returncode == 0
    return seen.decode(errors="replace"), out


def test_on_a_terminal_a_long_run_shows_a_bar_and_takes_it_away(start):
    shown, out = watched(start, *LONG, "--json")
    assert "vllm-v1" in shown
    assert "━" in shown
    assert " %" in shown
    assert f"{ESCAPE}[2K" in shown, "the bar is wiped at the end"
    assert out.startswith("{"), "standard output is JSON all the same"
    assert ESCAPE not in out


@pytest.mark.slow
def test_on_a_terminal_a_sweep_shows_how_many_runs_are_over_and_the_time_left(start):
    flags = ("--num-requests", "200", "--no-fast-forward", "--jobs", "1")
    shown, out = watched(start, "sweep", "--grid", "rate=1,2,3", "--seeds", "4", *flags)
    assert "sweep" in shown
    assert "/12" in shown
    assert re.search(r"\d:\d\d:\d\d", shown), "the time left"
    assert f"{ESCAPE}[2K" in shown
    assert "12 of 12 runs done" in out
    assert ESCAPE not in out


@pytest.mark.slow
def test_on_a_terminal_an_ablation_shows_how_many_runs_are_over_and_the_time_left(start):
    flags = ("--trace", "sharegpt", "--rate", "2", "--duration", "30", "--block-sizes", "16,128")
    shown, out = watched(start, "ablate", "preemption", "--profile", "analytic-h200", *flags)
    assert "/6" in shown
    assert re.search(r"\d:\d\d:\d\d", shown), "the time left"
    assert "End to end" in out
    assert ESCAPE not in out
