"""Readers of traces, of length models and of tokenizers; and that no row is lost in silence."""

from __future__ import annotations

import csv
import io
import json
import re
import tempfile
from pathlib import Path

import numpy as np
from target import Target, of_tests, one_line

import pagesim as ps
from pagesim.workloads import LengthModel, load, make_trace, save
from pagesim.workloads.tokenizer import counter
from pagesim.workloads.trace import Trace

ROWS_SAID = re.compile(r"(?:skipped|left out) (\d+) of (\d+) rows")


class LostRows(AssertionError):
    """A trace has fewer requests than its file has rows, and no note says so."""


def made() -> list[Target]:
    """Return these."""
    return [*_traces(), *_lengths(), *_tokenizers()]


def _traces() -> list[Target]:
    found = []
    for sample in of_tests("workloads/conftest").SAMPLES:
        suffix = {b"PAR1": "parquet", b"[": "json", b"{": "jsonl"}
        kind = next((suffix[start] for start in suffix if sample.data.startswith(start)), "csv")
        found.append(trace_target(sample.name, f"trace.{kind}", sample.data))
    with tempfile.TemporaryDirectory() as folder:
        for suffix in ("csv", "parquet"):
            file = Path(folder) / f"trace.{suffix}"
            save(rich_trace(), file)
            found.append(trace_target(f"every column, {suffix}", file.name, file.read_bytes()))
    talk = [
        {"id": str(k), "conversations": [
            {"from": ("human", "gpt")[turn % 2], "value": f"words {turn} " * k} for turn in range(6)
        ]} for k in range(12)
    ]  # fmt: skip
    found.append(trace_target("conversations", "trace.json", json.dumps(talk).encode()))
    lines = (
        json.dumps({"timestamp": 27 * k, "input_length": 600 + k, "output_length": 9, "hash_ids": [k, k + 1]})
        for k in range(40)
    )
    found.append(trace_target("mooncake, longer", "trace.jsonl", "\n".join(lines).encode()))
    return found


def trace_target(name: str, file: str, data: bytes) -> Target:
    """Return what reads a trace, and looks for rows that are lost."""
    return Target(f"trace: {name}", {file: data}, (file,), lambda folder: _read_trace(folder / file))


def rich_trace() -> Trace:
    size = 30
    rng = np.random.default_rng(1)
    prompts = rng.integers(20, 900, size)
    samples = [(5,) if k % 3 else (4, 9) for k in range(size)]
    return Trace(
        np.sort(rng.uniform(0, 60, size)),
        prompts,
        np.array([max(own) for own in samples]),
        n=np.array([len(own) for own in samples]),
        sample_tokens=samples,
        request_id=np.array([f"r{k}" for k in range(size)], dtype=object),
        hash_ids=[tuple(range(k, k + -(-int(tokens) // 64))) for k, tokens in enumerate(prompts)],
        hash_block_size=64,
        session_id=np.array([f"s{k % 7}" for k in range(size)], dtype=object),
        abort_s=np.where(rng.random(size) < 0.3, 100.0, np.inf),
        prefix_tokens=np.full(size, 10),
    )


def _read_trace(file: Path) -> None:
    try:
        trace = load(file)
    except ps.PagesimError as error:
        one_line(error)
        trace = load(file, on_bad_row="skip")
    if trace.think_s is None:
        _no_row_is_lost(trace, file)
    if len(trace) <= 64 and int(trace.output_tokens.max()) < 10**5 and float(trace.arrival_s.max()) < 1e6:
        ps.simulate(trace, "vllm-v0", num_blocks=400, steps="none", until=1e6)


def _no_row_is_lost(trace: Trace, file: Path) -> None:
    """Check the rows of a file with a request in each: a row of a format of closed loops may hold several."""
    said = [(int(some), int(all_)) for some, all_ in ROWS_SAID.findall("\n".join(trace.notes))]
    rows = _rows(file)
    if not all(all_ in rows for _, all_ in said) or len(trace) + sum(some for some, _ in said) not in rows:
        raise LostRows(f"{len(trace)} requests of {rows} rows; it is said that {said} are left out")


def _rows(file: Path) -> set[int]:
    """Count a file's rows, in a way that has nothing in common with the reader's."""
    data = file.read_bytes()
    if data[:4] == b"PAR1":
        import pyarrow.parquet as pq

        return {pq.ParquetFile(io.BytesIO(data)).metadata.num_rows}
    text = data.decode("utf-8-sig")
    if text.lstrip()[:1] == "[":
        return {len(json.loads(text))}
    if text.lstrip()[:1] == "{":
        lines = sum(bool(line.strip()) for line in text.split("\n"))
        whole = f"[{text}]"
        return {lines, len(json.loads(whole))} if _is_json(whole) else {lines}
    records = csv.reader(io.StringIO(text, newline=""))
    return {sum(len(row) > 1 or bool("".join(row).strip()) for row in records) - 1}


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _lengths() -> list[Target]:
    lines = make_trace("sharegpt", num_requests=400)
    small = ps.workloads.fit(
        lines, "small", ps.workloads.Provenance("d", "s", "l"), bins=6, total_below=2048
    ).to_json()

    def read(folder: Path) -> None:
        LengthModel.load(folder / "m.json").sample(50, np.random.default_rng(0))
        make_trace(str(folder / "m.json"), num_requests=20)

    return [Target("length model", {"m.json": small.encode()}, ("m.json",), read)]


def _tokenizers() -> list[Target]:
    words = {"[UNK]": 0, "one": 1, "two": 2, "three": 3}
    content = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"},
    }  # fmt: skip

    def read(folder: Path) -> None:
        counter(str(folder / "tokenizer.json"))(["one two", "", "three four"])

    return [
        Target("tokenizer.json", {"tokenizer.json": json.dumps(content).encode()}, ("tokenizer.json",), read)
    ]
