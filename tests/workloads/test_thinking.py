"""Turns after completion: when conversations begin, how long clients think, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pagesim as ps
from pagesim.errors import PagesimError
from pagesim.workloads import load, make_trace, save

TALKS = 30
TURNS = "after-completion"


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    """Conversations of one to four turns."""
    talks = [
        {
            "conversations": [
                {"from": who, "value": "word " * (3 + talk + turn)}
                for turn in range(1 + talk % 4)
                for who in ("human", "gpt")
            ]
        }
        for talk in range(TALKS)
    ]
    file = tmp_path / "chats.json"
    file.write_text(json.dumps(talks))
    return file


@pytest.fixture
def turns(tmp_path: Path) -> Path:
    file = tmp_path / "turns.csv"
    file.write_text(
        "request_id,arrival_s,prompt_tokens,output_tokens,session_id,think_s\n"
        "a,0,10,5,1,\nb,1,8,3,2,0\nc,2,20,5,1,1.5\nd,9,30,5,1,0.25\ne,9,9,1,,\n"
    )
    return file


def test_conversations_of_a_file_are_sent_turn_by_turn(chats: Path) -> None:
    trace = make_trace(chats, turns=TURNS)
    everything = make_trace(chats, turns="all")
    assert trace.think_s is not None
    assert trace.think_s.tolist() == [0.0] * len(everything)
    assert trace.prompt_tokens.tolist() == everything.prompt_tokens.tolist()
    assert everything.think_s is None


def test_times_of_thought_of_a_file_are_used_where_turns_follow_completion_and_else_noted(
    turns: Path,
) -> None:
    trace = load(turns, turns=TURNS)
    assert trace.think_s is not None
    assert trace.think_s.tolist() == [0.0, 0.0, 1.5, 0.25, 0.0]
    recorded = load(turns)
    assert recorded.think_s is None
    assert (
        "column think_s is not used: turns arrive as recorded (turns after-completion uses it)"
        in recorded.notes
    )


@pytest.mark.parametrize(
    ("rows", "thought"),
    [
        ("0,5,5,a,0\n0,9,5,a,2.5\n3,5,5,b,0\n", [0, 2.5, 0]),  # the later turn stands at its first one's time
        ("0,5,5,a,0\n4,9,5,a,2.5\n3,5,5,b,0\n", None),  # each turn has a time of its own
        ("0,5,5,a,1\n3,5,5,b,2\n", None),  # no session has a later turn
        ("0,5,5,,1\n0,5,5,,2\n", None),  # nor is there any session
    ],
)
def test_turns_of_a_file_without_times_of_their_own_follow_completion(
    tmp_path: Path, rows: str, thought: list[float] | None
) -> None:
    file = tmp_path / "t.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens,session_id,think_s\n" + rows)
    found = load(file).think_s
    assert (None if found is None else found.tolist()) == thought


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_trace_with_times_of_thought_is_saved_and_loaded(turns: Path, tmp_path: Path, suffix: str) -> None:
    trace = load(turns, turns=TURNS)
    save(trace, tmp_path / f"t.{suffix}")
    again = load(tmp_path / f"t.{suffix}", turns=TURNS)
    assert again.think_s is not None
    assert again.think_s.tolist() == trace.think_s.tolist()  # type: ignore[union-attr]


def test_a_rate_is_that_of_sessions_whose_turns_stand_at_their_beginning(chats: Path) -> None:
    trace = make_trace(chats, turns=TURNS, rate=2.0, seed=5)
    poisson = ps.make_trace("fixed:1,1", rate=2.0, num_requests=TALKS, seed=5)
    assert trace.session_id is not None
    begun, first = np.unique(trace.session_id, return_index=True)
    assert len(begun) == TALKS
    assert trace.arrival_s[first].tolist() == poisson.arrival_s.tolist()
    for session in begun:
        assert len(set(trace.arrival_s[trace.session_id == session])) == 1


def test_a_trace_that_is_too_short_is_repeated_with_new_sessions(chats: Path) -> None:
    whole = len(make_trace(chats, turns=TURNS))
    trace = make_trace(chats, turns=TURNS, rate=2.0, num_requests=whole + 2)
    assert len(trace) == whole + 2
    assert trace.session_id is not None
    assert len(set(trace.session_id)) == TALKS + 2, "of one turn, and of the first of two"
    assert len(make_trace(chats, turns=TURNS, rate=2.0, duration=100.0)) > whole


def test_recorded_beginnings_are_those_of_first_turns(turns: Path) -> None:
    trace = make_trace(turns, turns=TURNS)
    assert trace.request_id.tolist() == ["a", "c", "d", "b", "e"]
    assert trace.arrival_s.tolist() == [0.0, 0.0, 0.0, 1.0, 9.0]
    faster = make_trace(turns, turns=TURNS, arrivals="replay", rate=1.0)
    assert faster.arrival_s[-1] == pytest.approx(2.0)


def test_times_of_thought_are_drawn_with_the_seed_and_change_neither_lengths_nor_beginnings(
    chats: Path,
) -> None:
    drawn = [
        make_trace(chats, turns=TURNS, rate=2.0, num_requests=4000, seed=seed, think="exponential:5")
        for seed in (1, 1, 2)
    ]
    one, same, other = (trace.think_s for trace in drawn)
    assert one is not None
    assert same is not None
    assert other is not None
    assert one.tolist() == same.tolist() != other.tolist()
    assert one.mean() == pytest.approx(5.0, rel=0.06)
    plain = make_trace(chats, turns=TURNS, rate=2.0, num_requests=4000, seed=1)
    assert plain.arrival_s.tolist() == drawn[0].arrival_s.tolist()
    constant = make_trace(chats, turns=TURNS, think="2.5").think_s
    assert constant is not None
    assert set(constant) == {2.5}


def test_an_infinite_rate_sends_everything_at_once(chats: Path) -> None:
    trace = make_trace(chats, rate=float("inf"))
    assert trace.arrival_s.tolist() == [0.0] * TALKS


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"think": "5"}, "think is '5'; it is for turns after-completion, not first"),
        ({"think": "5", "turns": "all"}, "think is '5'; it is for turns after-completion, not all"),
        ({"think": "-1", "turns": TURNS}, "think is '-1': must be SECONDS, constant:SECONDS"),
        ({"think": "gamma:5", "turns": TURNS}, "think is 'gamma:5': must be SECONDS"),
        ({"think": "exponential:nan", "turns": TURNS}, "think is 'exponential:nan': must be SECONDS"),
        ({"think": "2e6", "turns": TURNS}, "a number from 0 to 1e[+]06"),
        (
            {"turns": TURNS, "arrivals": "sosp", "rate": 1.0, "duration": 5.0},
            "arrivals sosp shuffle requests",
        ),
        ({"rate": float("inf"), "arrivals": "poisson"}, "rate is inf: all requests arrive at 0 s"),
        ({"rate": float("inf"), "cv": 2.0}, "rate is inf: all requests arrive at 0 s"),
        ({"rate": float("inf"), "duration": 2.0}, "arrivals all-at-once take no duration"),
    ],
)
def test_what_does_not_go_together_is_refused(chats: Path, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PagesimError, match=sentence):
        make_trace(chats, **options)


def test_turns_after_completion_need_sessions(tmp_path: Path) -> None:
    file = tmp_path / "single.csv"
    file.write_text("prompt_tokens,output_tokens\n5,5\n")
    with pytest.raises(
        PagesimError, match="turns after-completion need sessions: the file has no session_id"
    ):
        make_trace(file, turns=TURNS)
    with pytest.raises(PagesimError, match="sharegpt is a model of single requests"):
        make_trace("sharegpt", turns=TURNS)


@pytest.mark.parametrize(
    ("think", "sentence"),
    [
        ([0.0, -1.0], "row 1: think_s is -1.0; it must be a time from 0 to 1e"),
        ([0.0, np.nan], "row 1: think_s is nan; it must be a time from 0"),
        ([0.0, np.inf], "row 1: think_s is inf; it must be a time from 0"),
        ([0.0], "column think_s has 1 values, prompt_tokens has 2"),
    ],
)
def test_a_time_of_thought_is_a_number_of_seconds(think: list[float], sentence: str) -> None:
    ones = np.ones(2, np.int64)
    with pytest.raises(PagesimError, match=sentence):
        ps.Trace(np.zeros(2), ones, ones, session_id=ones, think_s=np.array(think))
    with pytest.raises(PagesimError, match="think_s needs sessions"):
        ps.Trace(np.zeros(2), ones, ones, think_s=np.zeros(2))


def test_a_bad_time_of_thought_in_a_file_is_named_with_its_row(tmp_path: Path) -> None:
    file = tmp_path / "bad.csv"
    file.write_text("prompt_tokens,output_tokens,session_id,think_s\n5,5,1,\n5,5,1,soon\n")
    with pytest.raises(PagesimError, match=r"row 2 \(line 3\): think_s is 'soon'; it must be a time from 0"):
        load(file, turns=TURNS)
