"""Every reader of files ends in data or in one sentence, whatever was done to the file.

`make fuzz` tries a thousand and more mutations of each with a seed of its own. A process that does not
survive one is a finding, too: pytest-xdist says in which test it ended.
"""

from __future__ import annotations

import os
import random

import pytest
from mutators import mutate
from targets import targets
from trace_targets import LostRows
from trial import DATA, REFUSED, carry_out, read

import pagesim as ps

SEED = int(os.environ.get("FUZZ_SEED", "20003"))
ROUNDS = int(os.environ.get("FUZZ_ROUNDS", "16"))
"""Mutations of each target."""

TARGETS = {target.name: target for target in targets()}


@pytest.mark.parametrize("name", TARGETS)
def test_a_good_file_is_data(name, tmp_path):
    TARGETS[name].put(tmp_path)
    outcome = read(TARGETS[name], tmp_path)
    assert outcome.kind == DATA, outcome.detail


@pytest.mark.parametrize("name", TARGETS)
def test_a_changed_file_is_data_or_refused_in_a_sentence(name, tmp_path):
    kinds = set()
    for turn in range(ROUNDS):
        outcome = carry_out(SEED, TARGETS[name], turn, tmp_path)
        assert outcome.good, f"carry_out({SEED}, TARGETS[{name!r}], {turn}, folder): {outcome.detail}"
        kinds.add(outcome.kind)
    assert REFUSED in kinds, "no mutation did any harm"


def test_a_trial_can_be_repeated(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for target in TARGETS.values():
        carry_out(1, target, 0, tmp_path / "a")
        carry_out(1, target, 0, tmp_path / "b")
        # What a reader adds to its folder is its own affair.
        for name in target.mutated or target.files:
            assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize("name", ["x.csv", "x.json", "x.toml", "x.parquet", "x.npz"])
def test_mutations_change_files(name):
    rng = random.Random(1)
    data = b"prompt_tokens,output_tokens\n5,6\n7,8\n"
    changed = [mutate(name, data, rng) for _ in range(200)]
    assert len(set(changed)) > 100
    assert sum(each == data for each in changed) < 20


def test_rows_that_are_lost_in_silence_would_be_found(monkeypatch, tmp_path):
    whole = ps.workloads.load
    target = TARGETS["trace: mooncake, longer"]
    target.put(tmp_path)
    monkeypatch.setattr("trace_targets.load", lambda *a, **k: whole(*a, **k).take(slice(0, 39)))
    assert read(target, tmp_path).kind == LostRows.__name__


@pytest.mark.parametrize(
    ("error", "kind"), [(KeyError("x"), "KeyError"), (ps.PagesimError(" "), "empty sentence")]
)
def test_what_is_no_sentence_is_a_finding(error, kind, monkeypatch, tmp_path):
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("trace_targets.load", fails)
    target = TARGETS["trace: pairs"]
    target.put(tmp_path)
    outcome = read(target, tmp_path)
    assert outcome.kind == kind
    assert not outcome.good
