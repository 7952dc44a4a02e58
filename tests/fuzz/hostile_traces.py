"""Hostile traces, under ``pagesim run``, ``trace describe`` and ``trace convert``."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from typing import Any

from hostile_case import Case, Content, canary, fifo, folder, link
from nasty import NASTY_NUMBERS, NASTY_TEXTS, NASTY_VALUES

HEADER = "request_id,arrival_s,prompt_tokens,output_tokens\n"
GOOD = (HEADER + "".join(f"r{n},{n / 2},{20 + n},{5 + n}\n" for n in range(20))).encode()
FORMS = (
    '"request_id": {0}, "prompt_tokens": 5, "output_tokens": 4',
    '"request_id": "a", "session_id": {0}, "prompt_tokens": 5, "output_tokens": 4',
    '"id": {0}, "conversations": [{{"from": "human", "value": "x"}}, {{"from": "gpt", "value": "y"}}]',
    '"id": "a", "conversations": [{{"from": "human", "value": {0}}}, {{"from": "gpt", "value": {0}}}]',
    '"instruction": {0}, "input": "", "output": "x"',
)


def _case(
    name: str, content: Content, rng: random.Random, expects: str = "any", file: str = "trace.csv"
) -> Case:
    path = "{}/" + file
    kind = rng.randrange(4)
    files = {file: content}
    if kind == 0:
        argv: tuple[str, ...] = ("trace", "describe", path)
    elif kind == 1:
        argv = ("trace", "convert", path, "{}/out." + rng.choice(("csv", "parquet")))
    else:
        argv = ("run", "--trace", path, "--num-blocks", "400", "--until", "1e6", "--num-requests", "30")
        argv = argv if kind == 2 else (*argv, "--out", "{}/out", "--json")
    skip = rng.random() < 0.2 and expects == "any"
    return Case("traces", name, (*argv, "--on-bad-row", "skip") if skip else argv, files, expects)


def _surrogate(rng: random.Random) -> Case:
    text = rng.choice((r'"\ud800"', r'"a\udfffb"', r'"\udc00\ud800"', r'"\u0000"', r'"\ud83d"'))
    record = "{" + rng.choice(FORMS).format(text) + "}"
    data = f"[{record}, {record}]" if rng.random() < 0.5 else f"{record}\n{record}\n"
    return _case("surrogates in an id", data.encode(), rng, file="trace.json")


def _no_file(rng: random.Random) -> Case:
    content, expects = rng.choice(
        (
            (fifo, "refused"), (folder, "refused"), (link("/dev/zero"), "refused"), (link("trace.csv"),
                                                                                     "refused"),
            (link("/dev/null"), "refused"), (link("/dev/urandom"), "refused"), (link("/dev/full"), "refused"),
            (link("/proc/self/mem"), "refused"), (link("nowhere"), "refused"),
            (link("/proc/self/maps"), "refused"),
            (link("/dev/tty"), "refused"), (link("/proc/self/environ"), "refused"), (fifo, "refused"),
        )
    )  # fmt: skip
    return _case("no plain file", content, rng, expects)


def _strange_name(rng: random.Random) -> Case:
    name = rng.choice(
        ("trace\udcff.csv", "tr\udce9ace.csv", "a\nb.csv", "\x1b[31m.csv", "-x.csv", "x" * 250,
         "tr\u202eace.csv",
         "sharegpt:5", "fixed:5", "trace@5.csv", "%s%n.csv", "~", "😀.csv", " .csv", "a'b\".csv")
    )  # fmt: skip
    return _case("strange names", GOOD, rng, file=name)


def _number(rng: random.Random) -> Case:
    values = ["r0", "0.5", "20", "5"]
    values[rng.randrange(1, 4)] = rng.choice((*NASTY_NUMBERS, "1e400", "-5", "", "1e-400", "1,5", "٣", "NaN"))
    return _case("numbers beyond bounds", (HEADER + ",".join(values) + "\nr1,1.0,7,8\n").encode(), rng)


def _value(rng: random.Random) -> Case:
    record: dict[str, Any] = {"request_id": "a", "arrival_s": 0.5, "prompt_tokens": 5, "output_tokens": 4}
    more = ("hash_ids", "session_id", "abort_s", "n", "beam_width", "priority", "prefix_tokens", "think_s",
            "hash_block_size")  # fmt: skip
    record[rng.choice((*record, *more))] = rng.choice((*NASTY_VALUES, [1, 2, -1], [2**63], ["a"], [[1]]))
    lines = [json.dumps(record)] * rng.choice((1, 2))
    return _case("nasty values", "\n".join(lines).encode(), rng, file="trace.jsonl")


def _deep(rng: random.Random) -> Case:
    depth = rng.choice((900, 5000, 300_000))
    left, right = rng.choice((("[", "]"), ('{"a":', "}")))
    inner = left * depth + "1" + right * rng.choice((depth, 0))
    data = inner if rng.random() < 0.4 else f'[{{"prompt_tokens": {inner}, "output_tokens": 4}}]'
    return _case("deep", data.encode(), rng, file="trace.json")


def _text(rng: random.Random) -> Case:
    data = rng.choice(
        (
            HEADER.encode(), b"", b"\n" * 9, b",\n,\n", GOOD.decode().encode("utf-16"), gzip.compress(GOOD),
            GOOD.replace(b"\n", b"\r"), GOOD.replace(b",", b";"), GOOD.replace(b",", b"\t"),
            b"\xef\xbb\xbf" + GOOD,
            GOOD + b'"', GOOD + b"x" * 200_000, GOOD.replace(b"r1,", b'"' + b"y" * 200_000 + b'",'),
            GOOD + b"\0" * 4096, b"PAR1" + GOOD, b"PK\x03\x04" + GOOD, GOOD[:-3] + b"\xff", b"[" + GOOD,
            b"{" + GOOD,
            GOOD.replace(b"request_id", b"prompt_tokens"), GOOD.replace(b"request_id", b""), b"#" + GOOD,
            GOOD.replace(b"prompt_tokens", b"PROMPT_TOKENS "), GOOD.replace(b"r3", b"r2"), b"\x1f\x8b" + GOOD,
            b",".join([b"a"] * 100_000) + b"\n", b'{"prompt_tokens": 1' + b" " * 9_000_000,
            b"[" + b"1," * 500_000,
        )
    )  # fmt: skip
    return _case("texts that are no table", data, rng)


def _twice(rng: random.Random) -> Case:
    key, value = rng.choice((("prompt_tokens", "9"), ("output_tokens", '"x"'), ("request_id", "null")))
    record = f'{{"request_id": "a", "prompt_tokens": 5, "output_tokens": 4, "{key}": {value}}}'
    return _case("a key twice", (record + "\n" + record).encode(), rng, file="trace.jsonl")


def _times(rng: random.Random) -> Case:
    times = ["2023-11-16 18:15:46", "2023-11-16 18:15:47+00:00", "5", "", "nan", "2023-13-45",
             "0000-00-00 00:00:00",
             "99999-01-01", "1e300", "2023-11-16T18:15:46Z", "-1", "inf", "2023-11-16 25:00:00"]  # fmt: skip
    rows = "".join(f"{rng.choice(times)},5,4\n" for _ in range(3))
    return _case("times", ("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows).encode(), rng)


def _large(rng: random.Random) -> Case:
    prompt, output = rng.choice(
        ((10**6, 10**6), (5, 10**9), (10**9, 5), (2**31, 2**31), (2**62, 2), (1, 10**12))
    )
    more = rng.choice(("", "\n" + "\n".join(f"x{n},0,9,{10**5}" for n in range(20))))
    return _case("lengths beyond memory", f"{HEADER}a,0,{prompt},{output}{more}\n".encode(), rng)


def _over(rng: random.Random) -> Case:
    """Convert onto something that is no trace."""
    target, files = rng.choice(
        (
            ("out.csv", canary("out.csv")), ("kept.csv", {"kept.csv": link("canary"), **canary("canary")}),
            ("folder.csv", {"folder.csv": folder}), ("pipe.csv", {"pipe.csv": fifo}), ("out.txt",
                                                                                       canary("out.txt")),
            ("trace.csv", {}), ("no/such/folder.csv", {}), ("canary/x.csv", canary("canary")), ("\udcff.csv",
                                                                                                {}),
            ("out.parquet", canary("out.parquet")), ("full.csv", {"full.csv": link("/proc/version")}), ("out",
                                                                                                    canary("out")),
        )
    )  # fmt: skip
    argv = ("trace", "convert", "{}/trace.csv", "{}/" + target)
    return Case("traces", "onto what is there", argv, {"trace.csv": GOOD, **files}, may_change=("trace.csv",))


def _columns(rng: random.Random) -> Case:
    names = ["prompt_tokens", "output_tokens", "TIMESTAMP", "ContextTokens", "GeneratedTokens",
             "Request tokens",
             "Response tokens", "Timestamp", "hash_ids", "input_length", "output_length",
             "arrived_at"]  # fmt: skip
    chosen = rng.sample(names, rng.choice((3, 6, 9)))
    rows = "".join(",".join(str(rng.randrange(1, 90)) for _ in chosen) + "\n" for _ in range(3))
    return _case("columns of two formats", (",".join(chosen) + "\n" + rows).encode(), rng)


def _ids(rng: random.Random) -> Case:
    text = rng.choice(NASTY_TEXTS).replace("\ud800", "x")
    cell = '"' + text.replace('"', '""') + '"'
    return _case("strange ids", f"{HEADER}{cell},0,5,4\nb,1,5,4\n".encode("utf-8", "replace"), rng)


MAKERS: tuple[Callable[[random.Random], Case], ...] = (
    _surrogate, _no_file, _number, _value, _strange_name, _text, _deep, _times, _over, _large, _twice,
    _columns, _ids, _surrogate, _value, _number,
)  # fmt: skip
