"""Jobs: done once, kept in files, done again when anything that they depend on differs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest

from pagesim.errors import PagesimError
from pagesim.experiments.paper.jobs import Ablated, Curve, Job, Outcome, Replay, carry_out, key_of
from pagesim.setup.scenario import Scenario

SMALL = Scenario(trace="fixed:10,5", num_requests=3, num_blocks=50)


@dataclass(frozen=True)
class Counted:
    """A job that says how often it was done."""

    scenario: Scenario
    times: ClassVar[list[int]] = []

    def run(self) -> Outcome:
        self.times.append(1)
        return {"done": len(self.times)}


def test_jobs_that_are_alike_are_done_once_and_then_read(tmp_path: Path) -> None:
    Counted.times.clear()
    other = Counted(SMALL.model_copy(update={"seed": 1}))
    jobs: dict[str, Job] = {"a": Counted(SMALL), "b": Counted(SMALL), "c": other}
    first = carry_out(jobs, folder=tmp_path, cores=1)
    assert first == {"a": {"done": 1}, "b": {"done": 1}, "c": {"done": 2}}
    assert carry_out(jobs, folder=tmp_path, cores=1) == first
    assert len(Counted.times) == 2


def test_a_file_that_was_cut_off_is_made_again(tmp_path: Path) -> None:
    Counted.times.clear()
    jobs: dict[str, Job] = {"a": Counted(SMALL)}
    carry_out(jobs, folder=tmp_path, cores=1)
    (kept,) = tmp_path.iterdir()
    kept.write_text('{"done":')
    assert carry_out(jobs, folder=tmp_path, cores=1) == {"a": {"done": 2}}


def test_a_job_is_known_by_all_that_it_depends_on(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("prompt_tokens,output_tokens\n5,5\n")
    of_file = Replay(SMALL.model_copy(update={"trace": str(trace)}))
    jobs: list[Job] = [
        Replay(SMALL),
        Replay(SMALL, "conversations"),
        Replay(SMALL.model_copy(update={"rate": 2.0})),
        Curve(SMALL, (1.0,)),
        Curve(SMALL, (1.0, 2.0)),
        Ablated(SMALL, 16),
        Ablated(SMALL, 32),
        Ablated(SMALL, 16, "swap"),
        Ablated(SMALL, 16, "swap", copies=True),
        of_file,
    ]
    assert len({key_of(job) for job in jobs}) == len(jobs)
    assert key_of(replace(of_file)) == key_of(of_file)


def test_a_replays_outcome_is_its_summary_without_what_the_simulator_says_of_itself(tmp_path: Path) -> None:
    found = carry_out({"a": Replay(SMALL)}, folder=tmp_path, cores=1)["a"]
    assert found["requests"]["finished"] == 3
    assert "sim" not in found


def test_what_a_user_can_mend_is_said_as_it_is(tmp_path: Path) -> None:
    absent: dict[str, Job] = {"a": Replay(SMALL.model_copy(update={"trace": str(tmp_path / "none.csv")}))}
    with pytest.raises(PagesimError, match="there is no such file"):
        carry_out(absent, folder=tmp_path / "o", cores=1)
