"""Strange traces end in data or in one sentence, in no time and with no row lost."""

from __future__ import annotations

import gzip
import itertools
import json

import pytest
from nasty import NASTY_NUMBERS, NASTY_TEXTS, NASTY_VALUES
from target import Target
from trace_targets import trace_target
from trial import read

import pagesim as ps
from pagesim.workloads import load

HEADER = b"request_id,arrival_s,prompt_tokens,output_tokens\n"
GOOD = HEADER + b"".join(b"r%d,%d,%d,%d\n" % (n, n, 20 + n, 5 + n) for n in range(20))
TEXTS = [
    *(HEADER, b"", b"\n" * 9, b",\n,\n", GOOD.decode().encode("utf-16"), gzip.compress(GOOD)),
    *(GOOD.replace(b"\n", b"\r"), GOOD.replace(b",", b";"), GOOD.replace(b",", b"\t")),
    *(b"\xef\xbb\xbf" + GOOD, GOOD + b'"', GOOD + b"x" * 200_000, GOOD + b"\0" * 4096, GOOD[:-3] + b"\xff"),
    GOOD.replace(b"r1,", b'"' + b"y" * 200_000 + b'",'),
    *(start + GOOD for start in (b"PAR1", b"PK\x03\x04", b"[", b"{", b"#", b"\x1f\x8b")),
    *(GOOD.replace(b"request_id", name) for name in (b"prompt_tokens", b"")),
    *(GOOD.replace(b"prompt_tokens", b"PROMPT_TOKENS "), GOOD.replace(b"r3", b"r2")),
    *(b",".join([b"a"] * 100_000) + b"\n", b'{"prompt_tokens": 1' + b" " * 9_000_000, b"[" + b"1," * 500_000),
]
DEEP = [
    inner if alone else f'[{{"prompt_tokens": {inner}, "output_tokens": 4}}]'
    for depth in (900, 5000, 300_000)
    for left, right in (("[", "]"), ('{"a":', "}"))
    for closed in (0, depth)
    for alone in (True, False)
    for inner in [left * depth + "1" + right * closed]
]
IDS = [
    HEADER + b'"' + text.encode("utf-8", "replace").replace(b'"', b'""') + b'",0,5,4\nb,1,5,4\n'
    for text in NASTY_TEXTS
]
ROWS = ("r0,{},20,5", "r0,0.5,{},5", "r0,0.5,20,{}")
NUMBERS = [
    HEADER + row.format(number).encode() + b"\nr1,1.0,7,8\n"
    for row, number in itertools.product(ROWS, (*NASTY_NUMBERS, "1e-400", "-5", "", "1,5", "٣"))
]
COLUMNS = (
    *("request_id", "arrival_s", "prompt_tokens", "output_tokens", "hash_ids", "session_id", "abort_s", "n"),
    *("beam_width", "priority", "prefix_tokens", "think_s", "hash_block_size"),
)
RECORD = {"request_id": "a", "arrival_s": 0.5, "prompt_tokens": 5, "output_tokens": 4}
VALUES = [
    json.dumps({**RECORD, name: value})
    for name, value in itertools.product(COLUMNS, (*NASTY_VALUES, [1, 2, -1], [2**63], ["a"], [[1]]))
]
FORMS = (
    '"request_id": {0}, "prompt_tokens": 5, "output_tokens": 4',
    '"request_id": "a", "session_id": {0}, "prompt_tokens": 5, "output_tokens": 4',
    '"id": {0}, "conversations": [{{"from": "human", "value": "x"}}, {{"from": "gpt", "value": "y"}}]',
    '"id": "a", "conversations": [{{"from": "human", "value": {0}}}, {{"from": "gpt", "value": {0}}}]',
    '"instruction": {0}, "input": "", "output": "x"',
)
SURROGATES = [
    "{" + form.format(text) + "}"
    for form in FORMS
    for text in (r'"\ud800"', r'"a\udfffb"', r'"\udc00\ud800"', r'"\u0000"', r'"\ud83d"')
]
TIMES = (
    *("2023-11-16 18:15:46", "2023-11-16 18:15:47+00:00", "2023-11-16T18:15:46Z", "2023-11-16 25:00:00"),
    *("2023-13-45", "99999-01-01", "0000-00-00 00:00:00", "5", "", "nan", "inf", "-1", "1e300"),
)
DATES = [
    f"TIMESTAMP,ContextTokens,GeneratedTokens\n{one},5,4\n{other},5,4\n"
    for one, other in itertools.product(TIMES, repeat=2)
]
STRANGE = {
    "texts": ("csv", TEXTS), "deep": ("json", DEEP), "ids": ("csv", IDS), "numbers": ("csv", NUMBERS),
    "values": ("jsonl", VALUES), "surrogates": ("jsonl", SURROGATES), "dates": ("csv", DATES),
}  # fmt: skip


@pytest.mark.parametrize("kind", STRANGE)
def test_a_strange_trace_is_data_or_refused_in_a_sentence(kind, tmp_path):
    suffix, contents = STRANGE[kind]
    for place, content in enumerate(contents):
        data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
        target = trace_target(kind, f"trace.{suffix}", data)
        target.put(tmp_path)
        outcome = read(target, tmp_path)
        assert outcome.good, f"{kind} {place}: {data[:200]!r}: {outcome.detail}"


@pytest.mark.parametrize("prompt, output", [(10**6, 10**6), (5, 10**7), (10**7, 5), (1, 10**12)])  # noqa: PT006
def test_lengths_beyond_memory_take_no_time(prompt, output, tmp_path):
    more = "\n".join(f"x{n},0,9,{10**5}" for n in range(20))

    def served(folder):
        ps.simulate(load(folder / "t.csv"), "vllm-v1", num_blocks=400, steps="none", until=1e6)

    data = f"a,0,{prompt},{output}\n{more}\n".encode()
    target = Target("long", {"t.csv": HEADER + data}, ("t.csv",), served)
    target.put(tmp_path)
    outcome = read(target, tmp_path)
    assert outcome.good, outcome.detail
