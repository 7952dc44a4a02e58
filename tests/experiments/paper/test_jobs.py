"""Loads: replayed once, kept in a store, replayed again when anything that they depend on differs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pagesim.errors import PagesimError
from pagesim.experiments.paper import jobs
from pagesim.experiments.paper.jobs import Load, Outcome, carry_out
from pagesim.experiments.sweeps.run_store import RunStore
from pagesim.experiments.sweeps.workers import Workers
from pagesim.setup.scenario import Scenario

SMALL = Scenario(trace="fixed:10,5", num_requests=3, num_blocks=50)


def outcomes(loads: dict[str, Load], folder: Path) -> dict[str, Outcome]:
    with Workers(1) as workers:
        return carry_out(loads, RunStore(folder), workers)


def test_loads_that_are_alike_are_replayed_once_and_then_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[int] = []

    def counted(self: Load) -> Outcome:
        times.append(1)
        return {"done": len(times)}

    monkeypatch.setattr(jobs.Load, "run", counted)
    loads = {"a": Load(SMALL), "b": Load(SMALL), "c": Load(SMALL.model_copy(update={"seed": 1}))}
    first = outcomes(loads, tmp_path)
    assert first == {"a": {"done": 1}, "b": {"done": 1}, "c": {"done": 2}}
    assert outcomes(loads, tmp_path) == first
    assert len(times) == 2
    (tmp_path / "runs" / f"{loads['a'].key}.json").write_text('{"done":')  # as if it were cut off
    assert outcomes({"a": loads["a"]}, tmp_path) == {"a": {"done": 3}}


def test_a_load_is_known_by_all_that_it_depends_on(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("prompt_tokens,output_tokens\n5,5\n")
    of_file = Load(SMALL.model_copy(update={"trace": str(trace)}))
    loads = [
        Load(SMALL),
        Load(SMALL, conversations=True),
        Load(SMALL.model_copy(update={"rate": 2.0})),
        Load(SMALL, (1.0,)),
        Load(SMALL, (1.0, 2.0)),
        Load(SMALL.model_copy(update={"block_size": 32})),
        Load(SMALL.model_copy(update={"preemption": "swap"})),
        Load(SMALL, copies=True),
        of_file,
    ]
    keys = {load.key for load in loads}
    assert len(keys) == len(loads)
    assert replace(of_file).key == of_file.key
    trace.write_text("prompt_tokens,output_tokens\n5,6\n")
    assert of_file.key not in keys


def test_a_replays_outcome_is_its_summary_without_what_the_simulator_says_of_itself(tmp_path: Path) -> None:
    found = outcomes({"a": Load(SMALL)}, tmp_path)["a"]
    assert found["requests"]["finished"] == 3
    assert "sim" not in found


def test_what_a_user_can_mend_is_said_as_it_is(tmp_path: Path) -> None:
    absent = Load(SMALL.model_copy(update={"trace": str(tmp_path / "none.csv")}))
    with pytest.raises(PagesimError, match="there is no such file"):
        outcomes({"a": absent}, tmp_path / "o")
