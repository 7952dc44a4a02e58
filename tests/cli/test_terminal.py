"""What is printed depends on who reads: bars and colours are for terminals only."""

from __future__ import annotations

import os
import pty
import threading

import pytest

LONG = ("run", "--trace", "sharegpt", "--rate", "20", "--duration", "2000")
ESCAPE = "\x1b"


def test_where_nobody_watches_there_is_no_bar_and_no_escape_code(in_a_process):
    outcome = in_a_process(*LONG, env={"TERM": "xterm-256color"})
    assert outcome.code == 0
    assert ESCAPE not in outcome.out + outcome.err
    assert "━" not in outcome.err
    assert all(line.startswith("note: ") for line in outcome.err.splitlines())


@pytest.mark.parametrize(
    "arguments",
    [
        ("policies",),
        ("models",),
        ("gpus",),
        ("workloads",),
        ("--help",),
        ("run", "--help"),
        ("run", "--nosuch"),
    ],
)
def test_lists_and_usage_hold_no_escape_code_in_a_pipe(arguments, cli):
    outcome = cli(*arguments)
    assert ESCAPE not in outcome.out + outcome.err


def test_on_a_terminal_a_long_run_shows_a_bar_and_takes_it_away(start):
    theirs, ours = pty.openpty()
    seen = bytearray()

    def read() -> None:
        while True:
            try:
                data = os.read(theirs, 4096)
            except OSError:  # Linux: nobody holds the other end any more
                return
            if not data:
                return
            seen.extend(data)

    reader = threading.Thread(target=read)
    reader.start()
    process = start(*LONG, "--json", stderr=ours, env={"TERM": "xterm-256color", "COLUMNS": "80"})
    os.close(ours)
    out, _ = process.communicate(timeout=60)
    reader.join(timeout=10)
    os.close(theirs)
    assert process.returncode == 0
    shown = seen.decode(errors="replace")
    assert "vllm-sosp" in shown
    assert "━" in shown
    assert " %" in shown
    assert f"{ESCAPE}[2K" in shown, "the bar is wiped at the end"
    assert out.startswith("{"), "standard output is JSON all the same"
    assert ESCAPE not in out
