"""No hostile input ends in a traceback, a hang or without a sentence; and what does would be found.

Commands run in this process, each with ten seconds of its processor and a gigabyte. `make hostile` runs 740
of them, with another seed if HOSTILE_SEED is set.
"""

from __future__ import annotations

import os
import random

import hostile_configs
import hostile_lines
import pytest
from hostile_case import Case
from trial import LONGEST_SENTENCE, Hang, limited

from tests.commands import Cli, Outcome

MAKERS = {"configs": hostile_configs.MAKERS, "lines": hostile_lines.MAKERS}
SEED = int(os.environ.get("HOSTILE_SEED", "1"))
ALL = {"configs": 340, "lines": 400}
SAMPLES = {"configs": 17, "lines": 20}


def cases(seed: int, kind: str, count: int) -> list[Case]:
    """Return so many inputs of a kind: the first of them are the same, however many there are."""
    rng = random.Random(f"{seed} {kind}")
    return [MAKERS[kind][place % len(MAKERS[kind])](rng) for place in range(count)]


def judged(case: Case, ended: Outcome) -> str | None:
    """Return what is wrong with how a command ended; None if nothing is."""
    code, said = ended.code, ended.out + ended.err
    if code not in (0, 1, 2):
        return f"exit code {code}"
    if code and not ended.err.strip():
        return f"exit code {code} without a sentence"
    if code == 2 and len(ended.err) > LONGEST_SENTENCE and "note:" not in ended.err:
        return "an endless sentence"
    if case.expects == "refused" and code != 2:
        return f"taken as good: exit code {code}"
    if case.expects == "done" and code != 0:
        return f"refused without need: exit code {code}"
    if case.expects.startswith("says:") and code != 2 and case.expects[5:] not in said:
        return f"taken as good: {case.expects[5:]} is not named"
    return None


@pytest.mark.parametrize("count", [SAMPLES, pytest.param(ALL, marks=pytest.mark.slow)], ids=["some", "all"])
@pytest.mark.parametrize("kind", MAKERS)
def test_hostile_input_ends_in_a_sentence(kind, count, cli: Cli, tmp_path, monkeypatch):
    for place, case in enumerate(cases(SEED, kind, count[kind])):
        inside = tmp_path / f"{place}"
        inside.mkdir()
        case.put(inside)
        monkeypatch.chdir(inside)
        again = f"cases({SEED}, {kind!r}, {place + 1})[-1]: {case.name}: {case.argv!r:.300}"
        try:
            with limited():
                ended = cli(*case.arguments(inside))
        except (Exception, Hang) as error:
            raise AssertionError(again) from error
        wrong = judged(case, ended)
        assert wrong is None, f"{wrong}: {again}: {ended.err[-900:]}"


def test_they_are_the_same_each_time():
    for kind in MAKERS:
        first, again, other = ([case.argv for case in cases(seed, kind, 40)] for seed in (5, 5, 6))
        assert first == again
        if kind == "lines":
            assert first != other


@pytest.mark.parametrize(
    ("ended", "expects", "wrong"),
    [
        (Outcome(0, "done", ""), "any", None),
        (Outcome(2, "", "pagesim: a sentence"), "refused", None),
        (Outcome(2, "", "pagesim: a sentence"), "says:word", None),
        (Outcome(2, "", ""), "any", "exit code 2 without a sentence"),
        (Outcome(2, "", "x" * 4000), "any", "an endless sentence"),
        (Outcome(7, "", ""), "any", "exit code 7"),
        (Outcome(0, "", ""), "refused", "taken as good: exit code 0"),
        (Outcome(0, "", ""), "says:word", "taken as good: word is not named"),
        (Outcome(0, "a word", ""), "says:word", None),
        (Outcome(2, "", "pagesim: a sentence"), "done", "refused without need: exit code 2"),
    ],
)
def test_how_a_command_ended_is_judged(ended, expects, wrong):
    assert judged(Case("name", (), expects=expects), ended) == wrong


def test_a_command_that_hangs_is_found(cli, monkeypatch):
    monkeypatch.setattr("trial.LONGEST_S", 0.5)
    with pytest.raises(Hang), limited():
        cli("run", "--trace", "sharegpt", "--rate", "20", "--duration", "500000")
