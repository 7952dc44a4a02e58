"""Conversations made of lengths: each prompt is all that was said before, and a question."""

from __future__ import annotations

import numpy as np
import pytest

from pagesim.errors import PagesimError
from pagesim.workloads import make_trace
from pagesim.workloads.conversations import conversations, parse_conversations
from pagesim.workloads.lengths import parse_lengths


def test_a_prompt_is_all_that_was_said_before_and_a_question():
    trace = conversations(parse_lengths("fixed:100,20"), longest=400, turns=7)
    assert trace.prompt_tokens.tolist() == [100, 220, 340, 100, 220, 340, 100]
    assert trace.session_id.tolist() == [0, 0, 0, 1, 1, 1, 2]
    assert trace.output_tokens.tolist() == [20] * 7


def test_no_prompt_is_longer_than_asked_for_even_if_one_question_is():
    trace = conversations(parse_lengths("fixed:500,20"), longest=400, turns=3)
    assert trace.prompt_tokens.tolist() == [400, 400, 400]
    assert trace.session_id.tolist() == [0, 1, 2]


def test_a_turn_is_sent_after_the_last_is_answered_and_the_client_has_thought():
    trace = make_trace(
        "conversations:4096:sharegpt",
        turns="after-completion",
        think="constant:3",
        num_requests=50,
        rate=1.0,
        seed=3,
    )
    assert len(trace) == 50
    assert set(trace.think_s) == {3.0}
    for session in set(trace.session_id.tolist()):
        rows = trace.session_id == session
        assert len(set(trace.arrival_s[rows])) == 1, "later turns wait for earlier ones"
        grown = np.diff(trace.prompt_tokens[rows])
        assert (grown > trace.output_tokens[rows][:-1]).all()


def test_the_same_seed_gives_the_same_conversations_and_another_gives_others():
    first, again, other = (
        make_trace("conversations:2048:alpaca", num_requests=40, seed=seed) for seed in (1, 1, 2)
    )
    assert (first.prompt_tokens == again.prompt_tokens).all()
    assert (first.prompt_tokens != other.prompt_tokens).any()


@pytest.mark.parametrize(
    "text", ["conversations:", "conversations:0:sharegpt", "conversations:1.5:sharegpt", "conversations:9"]
)
def test_a_text_that_cannot_be_read_says_how_to_write_it(text):
    with pytest.raises(PagesimError, match="write conversations:TOKENS:LENGTHS"):
        parse_conversations(text)


def test_other_texts_are_none():
    assert parse_conversations("sharegpt") is None
    assert parse_conversations("fixed:10,20") is None


def test_what_conversations_cannot_be_made_of_is_refused(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("prompt_tokens,output_tokens\n10,20\n")
    with pytest.raises(PagesimError, match="is a file"):
        make_trace(f"conversations:2048:{file}")
    with pytest.raises(PagesimError, match="conversations are made"):
        make_trace("conversations:2048:sharegpt", arrivals="recorded")
    with pytest.raises(PagesimError, match="turns is all"):
        make_trace("conversations:2048:sharegpt", turns="all")
