"""No hostile input ends in a traceback, a hang or the loss of a file; and what does would be found.

`make hostile` runs 900 of them, with another seed if HOSTILE_SEED is set.
"""

from __future__ import annotations

import os
import signal
from unittest.mock import ANY

import hostile
import pytest
from hostile import MAKERS, Ended, cases, judged, run
from hostile_case import Case, fifo, folder

SEED = int(os.environ.get("HOSTILE_SEED", "1"))
SHARES = {"configs": 500, "lines": 400}
SAMPLES = {"configs": 15, "lines": 12}


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    # What a thread uses of a processor counts.
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "1")


def found(kind, places, tmp_path) -> list[str]:
    made = cases(SEED, kind, places.stop)
    wrong = []
    for place in places:
        case = made[place]
        ended = run(case, tmp_path / f"{place}")
        if said := judged(case, ended):
            again = f"cases({SEED}, {kind!r}, {place + 1})[-1]"
            wrong.append(f"{case.name}: {said}: {again}: {case.argv!r:.300}: {ended.complained[-900:]}")
    return wrong


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_sample_ends_in_sentences(kind, tmp_path):
    assert found(kind, range(SAMPLES[kind]), tmp_path) == []


@pytest.mark.slow
@pytest.mark.takes_minutes
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("kind", SHARES)
def test_all_end_in_sentences(kind, part, tmp_path):
    assert found(kind, range(part * SHARES[kind] // 4, (part + 1) * SHARES[kind] // 4), tmp_path) == []


def test_they_are_the_same_each_time():
    for kind in MAKERS:
        first, again, other = ([case.argv for case in cases(seed, kind, 40)] for seed in (5, 5, 6))
        assert first == again
        if kind == "lines":
            assert first != other


@pytest.mark.parametrize(
    ("ended", "expects", "wrong"),
    [
        (Ended(said="done"), "any", None),
        (Ended(2, complained="pagesim: a sentence"), "refused", None),
        (Ended(2, complained="pagesim: a sentence"), "says:word", None),
        (Ended(2), "any", "exit code 2 without a sentence"),
        (Ended(2, complained="x" * 4000), "any", "an endless sentence"),
        (Ended(1, complained="Traceback (most recent call last):\n"), "any", "traceback"),
        (Ended(-11), "any", "killed by signal 11"),
        (Ended(asleep=True), "any", "hang: more than 200 s"),
        (Ended(resident=3 << 30), "any", "memory: 3072 MiB"),
        (Ended(lost=("kept.txt",)), "any", "lost or changed: 'kept.txt'"),
        (Ended(7), "any", "exit code 7"),
        (Ended(), "refused", "taken as good: exit code 0"),
        (Ended(), "says:word", "taken as good: word is not named"),
        (Ended(said="a word"), "says:word", None),
        (Ended(2, complained="pagesim: a sentence"), "done", "refused without need: exit code 2"),
    ],
)
def test_how_a_command_ended_is_judged(ended, expects, wrong):
    assert judged(Case("kind", "name", (), expects=expects), ended) == wrong


def test_what_a_command_does_to_files_is_seen_and_when_it_hangs(tmp_path, monkeypatch):
    files = {"a.csv": b"a", "b.txt": b"b", "pipe": fifo, "folder": folder}

    def ended(*argv: str, **more) -> Ended:
        return run(Case("kind", "name", argv, files, **more), tmp_path / f"{len(list(tmp_path.iterdir()))}")

    make = ("trace", "make", "fixed:5,5")
    assert ended(*make, "{}/a.csv", "--force").lost == ("a.csv",)
    assert ended(*make, "{}/new.csv") == Ended(resident=ANY, said=ANY, complained=ANY)
    assert ended(*make, "{}/a.csv", "--force", may_change=("a.csv",)).lost == ()
    assert "there is no such file" in ended("trace", "describe", "{}/no/such").complained
    long = ("run", "--trace", "sharegpt", "--rate", "20", "--duration", "500000")
    monkeypatch.setattr(hostile, "ASLEEP_S", 2.0)
    assert ended(*long).asleep
    monkeypatch.setattr(hostile, "ASLEEP_S", 200.0)
    monkeypatch.setattr(hostile, "LONGEST_S", 1)
    assert ended(*long).code == -signal.SIGXCPU
