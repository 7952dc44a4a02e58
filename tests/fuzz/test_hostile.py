"""No hostile input ends in a traceback, a hang or the loss of a file; and what does would be found."""

from __future__ import annotations

from pathlib import Path

import hostile
import pytest
from hostile import SHARES, Worker, inputs, judged
from hostile_case import Case, fifo, folder

import pagesim

CHECKOUT = Path(pagesim.__file__).parents[1]
GOOD = {"code": 0, "hang": False, "s": 0.1, "resident": 1 << 20, "out": "done", "err": ""}


def found(kinds: tuple[str, ...] = tuple(SHARES), count: int = 2000) -> str:
    findings = hostile.run(1, kinds, count=count, checkout=CHECKOUT, say=lambda _: None)
    return "\n".join(f"{each.case.name}: {each.wrong}: {each.reproducer(1)}" for each in findings)


def test_a_sample_ends_in_sentences():
    assert found(("configs", "lines", "traces"), count=60) == ""


@pytest.mark.slow
@pytest.mark.takes_minutes
def test_two_thousand_end_in_sentences():
    assert found() == ""


def test_there_are_two_thousand_and_the_same_each_time(tmp_path):
    def made(seed: int) -> list[tuple[str, tuple[str, ...]]]:
        return [(case.name, case.argv) for _, case in inputs(seed, ("lines", "environment"), tmp_path)]

    assert sum(SHARES.values()) == 2000
    assert len(made(5)) == SHARES["lines"] + SHARES["environment"]
    assert made(5) == made(5) != made(6)


@pytest.mark.parametrize(
    ("ended", "expects", "wrong"),
    [
        ({}, "any", None),
        ({"code": 2, "err": "pagesim: a sentence"}, "refused", None),
        ({"code": 2, "err": "pagesim: a sentence"}, "says:word", None),
        ({"code": 2}, "any", "exit code 2 without a sentence"),
        ({"code": 1, "err": "Traceback (most recent call last):\n"}, "any", "traceback"),
        ({"code": -11}, "any", "killed by signal 11"),
        ({"code": -9, "hang": True}, "any", "hang: more than 10 s"),
        ({"resident": 3 << 30}, "any", "memory: 3072 MiB"),
        ({"code": 7}, "any", "exit code 7"),
        ({}, "refused", "taken as good: exit code 0"),
        ({}, "says:word", "taken as good: word is not named"),
        ({"out": "a word"}, "says:word", None),
        ({"code": 2, "err": "pagesim: a sentence"}, "done", "refused without need: exit code 2"),
    ],
)
def test_how_a_command_ended_is_judged(ended, expects, wrong):
    assert judged(Case("kind", "name", (), expects=expects), {**GOOD, **ended}, []) == wrong


def test_a_file_that_is_lost_is_wrong():
    assert judged(Case("kind", "name", ()), GOOD, ["kept.txt"]) == "lost or changed: 'kept.txt'"


FAKE = """
import os, pathlib, sys, time
def app():
    pathlib.Path(sys.argv[1]).write_text("mine") if sys.argv[1] != "sleep" else time.sleep(50)
"""


def test_a_worker_sees_what_a_command_does_to_files_and_when_it_hangs(tmp_path, monkeypatch):
    # In place of pagesim stands a module that writes into any file that it is given, or sleeps.
    (tmp_path / "pagesim" / "cli").mkdir(parents=True)
    for name, content in {"__init__": "", "cli/__init__": "", "cli/main": FAKE}.items():
        (tmp_path / "pagesim" / f"{name}.py").write_text(content)
    monkeypatch.setattr(hostile, "LONGEST_S", 1.0)
    worker = Worker(hostile.sys.executable, tmp_path, tmp_path / "work")
    files = {"a.txt": b"a", "b.txt": b"b", "pipe": fifo, "folder": folder}
    assert worker.run(Case("kind", "name", ("{}/a.txt",), files))[1] == ["a.txt"]
    assert worker.run(Case("kind", "name", ("{}/new.txt",), files))[1] == []
    assert worker.run(Case("kind", "name", ("{}/a.txt",), files, may_change=("a.txt",)))[1] == []
    assert worker.run(Case("kind", "name", ("{}/a.txt",), files, fresh=True))[1] == ["a.txt"]
    for fresh in (False, True):
        ended, lost = worker.run(Case("kind", "name", ("sleep",), files, fresh=fresh))
        assert (ended["hang"], ended["code"], lost) == (True, -9, [])
    assert "No such file" in worker.run(Case("kind", "name", ("{}/no/such",), files))[0]["err"]
    worker.close()
