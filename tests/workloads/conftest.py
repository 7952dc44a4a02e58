"""A small file of each format, and the folder of published traces where there is one."""

import io
import json
from dataclasses import dataclass, fields

import numpy as np
import pandas as pd
import pytest

from pagesim.workloads.trace import Trace


@dataclass(frozen=True)
class Sample:
    """A file of one format, and the lengths and times that are in it."""

    name: str
    data: bytes
    prompts: list[int]
    outputs: list[int]
    arrivals: list[float] | None


def _parquet(**columns: list[object]) -> bytes:
    sink = io.BytesIO()
    pd.DataFrame(columns).to_parquet(sink, index=False)
    return sink.getvalue()


def _lines(*records: object) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


SAMPLES = [
    Sample(
        "azure",
        b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n"
        b"2023-11-16 18:15:50.9951690,396,109\r\n2023-11-16 18:15:51.2224671,879,55",
        [374, 396, 879],
        [44, 109, 55],
        [0.0, 4.314579, 4.5418771],
    ),
    Sample(
        "azure-2024",
        b"TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n"
        b"2024-05-10 00:00:01+00:00,2399,6\n",
        [2162, 2399],
        [5, 6],
        [0.0, 0.99007],
    ),
    Sample(
        "burstgpt",
        b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        b"5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,230,1317,API log\n",
        [472, 1087],
        [18, 230],
        [0.0, 40.0],
    ),
    Sample(
        "burstgpt-sessions",
        b"Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        b"1000.0,ab-1,4,GPT-4,900,40,940,Conversation log\n1002.0,,1,GPT-4,30,9,39,API log\n"
        b"1010.0,ab-1,3,GPT-4,960,20,980,Conversation log\n",
        [900, 30, 960],
        [40, 9, 20],
        [0.0, 2.0, 10.0],
    ),
    Sample(
        "qwen-bailian",
        _lines(
            {"chat_id": 7, "parent_chat_id": -1, "timestamp": 1.5, "input_length": 40, "output_length": 9}
            | {"type": "text", "turn": 1, "hash_ids": [1, 2, 3]},
            {"chat_id": 9, "parent_chat_id": 7, "timestamp": 61.25, "input_length": 66, "output_length": 5}
            | {"type": "text", "turn": 2, "hash_ids": [1, 2, 4, 5, 6]},
        ),
        [40, 66],
        [9, 5],
        [1.5, 61.25],
    ),
    Sample(
        "llmservingsim",
        _lines(
            {"input_toks": 40, "output_toks": 9, "arrival_time_ns": 0, "input_tok_ids": [*range(40)]},
            {"input_toks": 20, "output_toks": 5, "arrival_time_ns": 1_500_000_000},
        ),
        [40, 20],
        [9, 5],
        [0.0, 1.5],
    ),
    Sample(
        "llmservingsim-agentic",
        _lines(
            {
                "session_id": "task-0",
                "arrival_time_ns": 2_000_000_000,
                "sub_requests": [
                    {"input_toks": 100, "output_toks": 10, "tool_duration_ns": 250_000_000},
                    {"input_toks": 140, "output_toks": 12, "tool_duration_ns": 0},
                ],
            },
            {"input_toks": 20, "output_toks": 5, "arrival_time_ns": 2_500_000_000},
        ),
        [100, 140, 20],
        [10, 12, 5],
        [2.0, 2.0, 2.5],
    ),
    Sample(
        "mooncake",
        _lines(
            {"timestamp": 0, "input_length": 900, "output_length": 500, "hash_ids": [0, 1]},
            {"timestamp": 3052, "input_length": 400, "output_length": 26, "hash_ids": [0]},
        ),
        [900, 400],
        [500, 26],
        [0.0, 3.052],
    ),
    Sample(
        "vidur",
        b"arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n4.314579,396,109\n",
        [374, 396],
        [44, 109],
        [0.0, 4.314579],
    ),
    Sample(
        "splitwise",
        b"request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
        b"0,2,0,0.0,1,374,44\n1,2,0,4.5,1,396,109\n",
        [374, 396],
        [44, 109],
        [0.0, 4.5],
    ),
    Sample(
        "sharegpt",
        json.dumps(
            [
                {
                    "id": "a_0",
                    "conversations": [
                        {"from": "human", "value": "one two three"},
                        {"from": "gpt", "value": "four five"},
                    ],
                }
            ]
        ).encode(),
        [4],
        [3],
        None,
    ),
    Sample(
        "alpaca",
        json.dumps([{"instruction": "one two", "input": "", "output": "three four five"}]).encode(),
        [3],
        [4],
        None,
    ),
    Sample(
        "lmbenchmark", json.dumps([{"input": "one two", "output_length": 250}]).encode(), [3], [250], None
    ),
    Sample("prompts", _lines({"prompt": "one two three", "output_tokens": 128}), [4], [128], None),
    Sample("lengths-jsonl", _lines({"prompt_len": 7, "output_len": 9}), [7], [9], None),
    Sample("pairs", b"[[21, 518], [8, 66], [19, 936]]", [21, 8, 19], [518, 66, 936], None),
    Sample(
        "pagesim-csv",
        b"arrival_s,prompt_tokens,output_tokens,n,use_beam_search\n0.012024,75,426,1,0\n0.5,103,142,4,1\n",
        [75, 103],
        [426, 142],
        [0.012024, 0.5],
    ),
    Sample(
        "pagesim-parquet",
        _parquet(prompt_tokens=[21, 8], output_tokens=[518, 66], arrival_s=[0.25, 1.5]),
        [21, 8],
        [518, 66],
        [0.25, 1.5],
    ),
    Sample("lengths-parquet", _parquet(prompt_tokens=[3], output_tokens=[4]), [3], [4], None),
]


def assert_same(one: Trace, other: Trace) -> None:
    """Assert that two traces hold the same requests."""
    for field in fields(Trace):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, np.ndarray):
            np.testing.assert_array_equal(a, b, err_msg=field.name)
        elif field.name != "notes":
            assert repr(a) == repr(b), field.name


@pytest.fixture(scope="session", params=SAMPLES, ids=lambda sample: sample.name)
def sample(request: pytest.FixtureRequest) -> Sample:
    """Each format in turn."""
    found: Sample = request.param
    return found


@pytest.fixture(params=[s for s in SAMPLES if s.data[:4] != b"PAR1"], ids=lambda sample: sample.name)
def text_sample(request: pytest.FixtureRequest) -> Sample:
    """Each format that is text in turn."""
    found: Sample = request.param
    return found
