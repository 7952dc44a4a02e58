"""Traces of agents and of chats: OpenTelemetry's spans, AIPerf's sessions, messages and instructions."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pagesim.errors import TraceError
from pagesim.workloads import load


def written(folder: Path, *rows: Any) -> Path:
    """Return a file of JSON lines."""
    file = folder / "trace.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def a_span(start_s: float, end_s: float) -> dict[str, Any]:
    """Return a span as OTLP JSON has it: numbers of 64 bits are texts."""
    times = {"startTimeUnixNano": str(int(start_s * 1e9)), "endTimeUnixNano": str(int(end_s * 1e9))}
    return {"traceId": "5b8e", **times, "attributes": []}


def a_call(start_s: float, end_s: float, prompt: int, output: int, **more: Any) -> dict[str, Any]:
    span = a_span(start_s, end_s)
    values = {
        "gen_ai.operation.name": {"stringValue": "chat"},
        "gen_ai.usage.input_tokens": {"intValue": str(prompt)},
        "gen_ai.usage.output_tokens": {"intValue": str(output)},
        **{f"gen_ai.{name}": {"stringValue": value} for name, value in more.items()},
    }
    return {**span, "attributes": [{"key": key, "value": value} for key, value in values.items()]}


def message(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}


def test_spans_of_a_conversation_are_turns_with_the_time_between_them(tmp_path: Path) -> None:
    first = a_call(100.0, 102.0, 50, 8, **{"conversation.id": "a"})
    other = a_call(101.0, 103.0, 30, 4, **{"conversation.id": "b"})
    second = a_call(105.5, 106.0, 70, 9, **{"conversation.id": "a"})
    tool = a_span(102.0, 105.5)
    trace = load(written(tmp_path, message(first, tool), message(second, other)))
    assert trace.prompt_tokens.tolist() == [50, 30, 70]
    assert trace.output_tokens.tolist() == [8, 4, 9]
    assert trace.arrival_s.tolist() == pytest.approx([0.0, 1.0, 5.5])
    assert trace.think_s is not None
    assert trace.think_s.tolist() == pytest.approx([0.0, 0.0, 3.5])  # from 102.0 to 105.5
    assert trace.session_id is not None
    assert trace.session_id.tolist() == ["a", "b", "a"]
    assert any("left out 1 spans that are no call" in note for note in trace.notes)


def test_calls_of_one_trace_are_a_session_where_there_is_no_conversation(tmp_path: Path) -> None:
    trace = load(written(tmp_path, message(a_call(1.0, 2.0, 5, 1), a_call(2.5, 3.0, 7, 1))))
    assert trace.think_s is not None
    assert trace.think_s.tolist() == pytest.approx([0.0, 0.5])


def test_spans_without_a_call_are_refused_with_what_a_call_needs(tmp_path: Path) -> None:
    with pytest.raises(
        TraceError, match=r"no span is a call of a model: gen_ai\.operation\.name must be chat"
    ):
        load(written(tmp_path, message(a_span(0.0, 1.0))))
    with pytest.raises(TraceError, match="no span is a call"):
        load(written(tmp_path, {"resourceSpans": "none"}))


def test_a_session_of_aiperf_waits_for_its_delays(tmp_path: Path) -> None:
    rows = [
        {"session_id": "x", "timestamp": 2000, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]},
        {"session_id": "x", "delay": 1500, "input_length": 700, "output_length": 6, "hash_ids": [1, 3]},
        {"session_id": "y", "timestamp": 0, "input_length": 20, "output_length": 7, "hash_ids": [4]},
    ]
    trace = load(written(tmp_path, *rows))
    assert trace.think_s is not None
    by_session = dict(
        zip(trace.output_tokens.tolist(), zip(trace.arrival_s, trace.think_s, strict=True), strict=True)
    )
    assert by_session == {5: (2.0, 0.0), 6: (2.0, 1.5), 7: (0.0, 0.0)}
    assert trace.hash_ids is not None
    assert set(trace.hash_ids) == {(1, 2), (1, 3), (4,)}


def a_weka_call(sent: float, ids: list[int], **more: Any) -> dict[str, Any]:
    call = {"t": sent, "type": "s", "in": 64 * len(ids), "out": 9, "api_time": 1.0, "hash_ids": ids}
    return {**call, **more}


def a_weka_trace(name: str, *requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": name, "block_size": 64, "hash_id_scope": "local", "requests": list(requests), **more}


@pytest.mark.parametrize(("inner", "scope"), [(2.5, "local"), (0.5, "global")])
def test_an_agent_of_weka_and_its_subagent_are_closed_loops(tmp_path: Path, inner: float, scope: str) -> None:
    """A subagent at 2 s calls half a second later, whether its times count from itself or from the start."""
    sub = {
        "t": 2.0,
        "type": "subagent",
        "requests": [a_weka_call(inner, [1, 8]), a_weka_call(inner + 2, [1])],
    }
    calls = [a_weka_call(0.0, [1, 2]), sub, a_weka_call(4.0, [1, 2, 3], out=0), a_weka_call(9.0, [1, 2, 3])]
    rows = [a_weka_trace(name, *calls, hash_id_scope=scope) for name in "ab"]
    trace = load(written(tmp_path, *rows))
    assert trace.session_id is not None
    assert trace.think_s is not None
    assert trace.hash_ids is not None
    assert trace.hash_block_size == 64
    order = [row for row, name in enumerate(trace.session_id.tolist()) if name.startswith("a ")]
    seen = {name: trace.arrival_s[row] for row, name in enumerate(trace.session_id) if row in order}
    assert seen == {"a agent 0": 0.0, "a agent 1": 2.5}
    assert sorted(zip(trace.prompt_tokens[order], trace.think_s[order], strict=True)) == [
        *((64, 1.0), (128, 0.0), (128, 0.0), (192, 8.0))  # from 3.5 to 4.5 s, and from 1 to 9 s
    ]
    assert len({each for ids in trace.hash_ids for each in ids}) == (4 if scope == "global" else 8)
    assert "nothing waits for the 4 calls of subagents, out of 8" in trace.notes


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"requests": 5}, "a call is 5; it must be an object with t, in, out and hash_ids"),
        ({"requests": [a_weka_call(-1.0, [1])]}, "a call's t is -1.0; t and api_time must be finite"),
        ({"requests": [a_weka_call(0.0, [1], out=0.5)]}, "a call's out is 0.5; it must be from 0 to"),
        ({"requests": [a_weka_call(0.0, [1, 2], **{"in": 64})]}, "must be an id each 64 tokens at most"),
        ({"requests": [a_weka_call(0.0, [1], **{"in": 0})]}, "a call's in is 0; it must be from 1 to"),
        ({"block_size": 16}, "block_size is 16; it must be 64, as the first"),
    ],
)
def test_what_is_wrong_with_a_trace_of_weka_is_said(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    rows = [a_weka_trace("a", a_weka_call(0.0, [1])), a_weka_trace("b", a_weka_call(0.0, [1]), **more)]
    with pytest.raises(TraceError, match=r"row 2 \(line 2\): .*" + re.escape(said)):
        load(written(tmp_path, *rows))


def test_a_custom_dataset_of_vllm_without_lengths_gets_those_of_its_benchmark(tmp_path: Path) -> None:
    trace = load(written(tmp_path, {"prompt": "How are you?"}, {"prompt": "Why?"}))
    assert trace.output_tokens.tolist() == [256, 256]
    assert any("256 tokens each, as vllm bench serve takes by default" in note for note in trace.notes)


TALK = [{"role": "user", "content": "How are you?"}, {"role": "assistant", "content": "Fine."}]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": "system", "content": "Be kind."}, *TALK]},
        {"conversation_id": "1", "model": "m", "conversation": TALK, "turn": 1, "language": "English"},
        {"conversations": [{"from": "human", "value": "How are you?"}, {"from": "gpt", "value": "Fine."}]},
        {"instruction": "How are you?", "context": "", "response": "Fine.", "category": "open_qa"},
    ],
    ids=["messages", "lmsys", "sharegpt", "dolly"],
)
def test_a_question_and_its_answer_are_the_same_in_every_format(tmp_path: Path, row: dict[str, Any]) -> None:
    """GPT-2 reads four tokens in the question and two in the answer; one is added to each."""
    trace = load(written(tmp_path, row), tokenizer="gpt2")
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([5], [3])
