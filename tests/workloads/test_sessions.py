"""Formats with sessions: which turns belong together, what they share, and how long clients think."""

import json

import pytest

from pagesim.errors import TraceError
from pagesim.workloads import load, make_trace, save


def written(path, *records):
    path.write_text("\n".join(json.dumps(record) for record in records))
    return path


def chat(chat_id, parent, second=0.0, **more):
    return {
        "chat_id": chat_id,
        "parent_chat_id": parent,
        "timestamp": second,
        "input_length": 40,
        "output_length": 9,
        **more,
    }


def test_a_chat_belongs_to_the_conversation_of_its_parents(tmp_path):
    path = written(
        tmp_path / "b",
        chat(5, -1),
        chat(6, 5, 1),
        chat(7, 6, 2),
        chat(8, -1, 3),
        chat(9, 2, 4),
        chat(10, 2, 5),
        chat(11, None, 6),
    )
    trace = load(path)
    assert trace.session_id is not None
    # 2 precedes the file; both of its children are of its conversation.
    assert trace.session_id.tolist() == [5, 5, 5, 8, 2, 2, 11]


def test_ids_of_qwen_bailian_stand_for_16_tokens(tmp_path):
    trace = load(written(tmp_path / "b", chat(5, -1, hash_ids=[3, 4, 5])))
    assert (trace.hash_ids, trace.hash_block_size) == ([(3, 4, 5)], 16)
    with pytest.raises(TraceError, match="hash_ids has 4 ids of 16 tokens each; a prompt of 40 tokens"):
        load(written(tmp_path / "b", chat(5, -1, hash_ids=[3, 4, 5, 6])))


@pytest.mark.parametrize("parents", [{5: 5}, {5: 6, 6: 5}, {4: -1, 5: 7, 6: 5, 7: 6}])
def test_parents_that_lead_back_to_a_chat_are_refused(parents, tmp_path):
    path = written(tmp_path / "b", *(chat(child, parent) for child, parent in parents.items()))
    with pytest.raises(TraceError, match="parents lead back to chat_id 5; it must be the chat before, or -1"):
        load(path)


def session(*calls, name="s", start=0):
    names = ("input_toks", "output_toks", "tool_duration_ns", "input_tok_ids")
    requests = [dict(zip(names, call, strict=False)) for call in calls]
    return {"session_id": name, "arrival_time_ns": start, "sub_requests": requests}


def test_a_call_of_an_agent_is_sent_when_the_last_one_is_over_and_its_tool_has_answered(tmp_path):
    path = written(
        tmp_path / "a",
        session((100, 10, 500_000_000), (150, 20, 3_000_000_000), (300, 5, 0), start=1_000_000_000),
        session((50, 10), name="t", start=2_000_000_000),
    )
    trace = load(path)
    assert trace.prompt_tokens.tolist() == [100, 150, 300, 50]
    assert trace.session_id is not None
    assert trace.session_id.tolist() == ["s", "s", "s", "t"]
    assert trace.think_s is not None
    assert trace.think_s.tolist() == [0, 0.5, 3.0, 0]
    assert trace.arrival_s.tolist() == [1, 1, 1, 2]
    assert any("each later turn is sent when the last one is over" in note for note in trace.notes)


def test_agents_that_begin_at_a_rate_keep_their_calls(tmp_path):
    path = written(
        tmp_path / "a",
        *(session((100, 10, 5e8), (150, 20, 0), name=f"s{k}", start=k * 10**9) for k in range(4)),
    )
    trace = make_trace(path, rate=2.0)
    assert trace.prompt_tokens.tolist() == [100, 150] * 4
    assert trace.think_s is not None
    assert trace.think_s.tolist() == [0, 0.5] * 4


def test_prompts_share_the_blocks_whose_tokens_are_equal(tmp_path):
    tokens = list(range(64))
    path = written(
        tmp_path / "f",
        {"input_toks": 64, "output_toks": 1, "arrival_time_ns": 0, "input_tok_ids": tokens},
        {"input_toks": 50, "output_toks": 1, "arrival_time_ns": 1, "input_tok_ids": tokens[:40] + [7] * 10},
    )
    trace = load(path)
    assert trace.hash_block_size == 16
    assert trace.hash_ids == [(0, 1, 2, 3), (0, 1, 4)]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (session(), "sub_requests is []; it must be a list of at least one call"),
        (session() | {"sub_requests": 3}, "sub_requests is 3; it must be a list"),
        (session() | {"sub_requests": [4]}, "sub_requests[0] is 4; it must be an object with input_toks"),
        (session((5, 6, 0), (0, 6, 0)), "sub_requests[1].input_toks is 0; it must be a whole number from 1"),
        (session((5, 6, -1)), "sub_requests[0].tool_duration_ns is -1; it must be a time from 0"),
        (session((5, 6, 0, [1, 2, 3, 4, 5, 6])), "input_tok_ids is 6 tokens; it must be at most input_toks"),
        ({"input_toks": 5, "arrival_time_ns": 0}, "output_toks is missing; it must be a whole number from 1"),
    ],
)
def test_a_call_that_is_none_names_its_place_and_its_bound(row, said, tmp_path):
    path = written(tmp_path / "a", session((5, 6, 0), name="good"), row)
    with pytest.raises(TraceError) as caught:
        load(path)
    assert "row 2 (line 2): " in str(caught.value)
    assert said in str(caught.value)
    assert len(load(path, on_bad_row="skip")) == 1


def test_a_session_in_two_rows_is_refused(tmp_path):
    path = written(tmp_path / "a", session((5, 6, 0)), session((7, 8, 0)))
    with pytest.raises(TraceError, match="session_id is 's', as in row 1; each session is one row"):
        load(path)


BURST = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def test_what_a_request_of_burstgpt_did_not_take_its_client_thought(tmp_path):
    path = tmp_path / "burst.csv"
    path.write_text(
        BURST + "1000.0,x,4,GPT-4,90,40,130,Conversation log\n1001.0,y,4,GPT-4,90,0,90,Conversation log\n"
        "1002.0,,1,GPT-4,30,9,39,API log\n1010.0,x,30,GPT-4,160,20,180,Conversation log\n"
        "1020.0,x,1,GPT-4,200,20,220,Conversation log\n"
    )
    trace = load(path, turns="after-completion")
    assert trace.arrival_s.tolist() == [0, 2, 10, 20]
    assert trace.think_s is not None
    assert trace.think_s.tolist() == [0, 0, 6, 0]  # sent while the last one still ran: at once
    recorded = load(path)
    assert recorded.think_s is None
    assert recorded.session_id is not None
    assert recorded.session_id.tolist() == ["x", None, "x", "x"]


def test_a_trace_of_agents_is_saved_and_read_back(tmp_path):
    trace = load(written(tmp_path / "a", session((100, 10, 500_000_000), (150, 20, 0))))
    save(trace, tmp_path / "out.csv")
    again = load(tmp_path / "out.csv", turns="after-completion")
    assert trace.think_s is not None
    assert again.think_s is not None
    assert again.think_s.tolist() == trace.think_s.tolist()
    assert again.prompt_tokens.tolist() == trace.prompt_tokens.tolist()
