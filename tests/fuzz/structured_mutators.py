"""Mutators that know what JSON and Parquet are; and small files that claim to be huge."""

from __future__ import annotations

import io
import json
import random
import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from nasty import NASTY_TEXTS, NASTY_VALUES
from text_mutators import flip_bits


def json_value(data: bytes, rng: random.Random) -> bytes:
    """Change values somewhere within JSON, or within one of many lines of it."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        lines = data.split(b"\n")
        at = rng.randrange(len(lines))
        try:
            lines[at] = _dump(_changed(json.loads(lines[at]), rng))
        except (ValueError, RecursionError):
            return flip_bits(data, rng)
        return b"\n".join(lines)
    try:
        for _ in range(rng.choice((1, 1, 1, 3))):
            content = _changed(content, rng)
        return _dump(content)
    except RecursionError:  # it was nested deeply before
        return flip_bits(data, rng)


def deep(data: bytes, rng: random.Random) -> bytes:
    """Wrap everything, or a part, in thousands of brackets."""
    depth = rng.choice((100, 900, 2_000, 100_000))
    left, right = rng.choice(((b"[", b"]"), (b'{"a":', b"}")))
    where = rng.randrange(3)
    if where == 0:
        return left * depth + data + right * depth
    found = list(re.finditer(rb"\d+", data[:100_000]))
    if where == 1 and found:
        number = rng.choice(found)
        return data[: number.start()] + left * depth + b"1" + right * depth + data[number.end() :]
    return left * depth


def parquet_columns(data: bytes, rng: random.Random) -> bytes:
    """Write a Parquet file anew with a column of another type, name, place or content."""
    try:
        table = pq.read_table(io.BytesIO(data))
        names = table.column_names
    except Exception:  # it was no Parquet, or was mutated before
        return flip_bits(data, rng)
    if not names:
        return flip_bits(data, rng)
    at = rng.randrange(len(names))
    kind = rng.randrange(6)
    if kind == 0:
        table = table.remove_column(at)
    elif kind == 1:
        new = rng.choice((*names, *NASTY_TEXTS[:-4]))
        table = table.rename_columns([new.encode("utf-8", "replace").decode() if i == at else name
                                      for i, name in enumerate(names)])  # fmt: skip
    elif kind == 2:
        table = table.append_column(rng.choice(names), _column(len(table), rng))
    else:
        table = table.set_column(at, names[at], _column(len(table), rng))
    if kind == 5 and rng.random() < 0.5:
        table = table.slice(0, rng.choice((0, 1, max(0, len(table) - 1))))
    if rng.random() < 0.2:
        table = table.replace_schema_metadata(
            {"pandas": rng.choice(("", "{}", "[]", '{"index_columns": ["x"]}', '{"index_columns": [{}]}'))}
        )
    out = io.BytesIO()
    try:
        pq.write_table(table, out, compression=rng.choice(("snappy", "gzip", "zstd", "none")))
    except pa.ArrowException:  # Parquet knows no such column
        return flip_bits(data, rng)
    return out.getvalue()


def parquet_bomb(data: bytes, rng: random.Random) -> bytes:
    """Write a small Parquet file of a great many rows, with the columns of this one."""
    try:
        names = pq.read_schema(io.BytesIO(data)).names
    except (pa.ArrowException, OSError, ValueError):  # it is damaged already
        return flip_bits(data, rng)
    rows = rng.choice((3_000_000, 30_000_000))
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), pa.array([5], pa.int64()))
    out = io.BytesIO()
    pq.write_table(pa.table(dict.fromkeys(names[:8], column)), out, compression="zstd")
    return out.getvalue()


def _dump(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=True).encode()


def _changed(content: Any, rng: random.Random) -> Any:
    """Return the content with one of its nodes removed, repeated, renamed or replaced."""
    if not isinstance(content, dict | list) or not content or rng.random() < 0.08:
        return deepcopy(rng.choice(NASTY_VALUES))
    keys = list(content) if isinstance(content, dict) else list(range(len(content)))
    key = rng.choice(keys)
    if isinstance(content[key], dict | list) and content[key] and rng.random() < 0.85:
        content[key] = _changed(content[key], rng)
        return content
    kind = rng.randrange(8)
    if kind == 0:
        del content[key]
    elif kind == 1 and isinstance(content, dict):
        content[rng.choice(NASTY_TEXTS)] = content.pop(key)
    elif kind == 1:
        content.insert(key, deepcopy(content[rng.choice(keys)]))
    elif kind == 2:
        content[key] = deepcopy(content[rng.choice(keys)])
    elif kind == 3:
        content[key] = [content[key]] * rng.choice((1, 2, 2000))
    else:
        content[key] = deepcopy(rng.choice(NASTY_VALUES))
    return content


def _utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _column(rows: int, rng: random.Random) -> pa.Array:
    """Return a column of a type and of values that are not expected."""
    kinds: tuple[Callable[[], Any], ...] = (
        lambda: pa.array([_utf8(rng.choice(NASTY_TEXTS[:-8])) for _ in range(rows)]),
        lambda: pa.array([rng.choice((1.0, 0.5, float("nan"), float("inf"), -1.0)) for _ in range(rows)]),
        lambda: pa.array([rng.choice((0, 1, -1, 2**63 - 1, -(2**63))) for _ in range(rows)], pa.int64()),
        lambda: pa.array([2**64 - 1] * rows, pa.uint64()),
        lambda: pa.array([rng.choice((None, 5)) for _ in range(rows)], pa.int32()),
        lambda: pa.nulls(rows),
        lambda: pa.array([True] * rows),
        lambda: pa.array([[1, 2]] * rows),
        lambda: pa.array([[None]] * rows, pa.list_(pa.float64())),
        lambda: pa.array([{"a": 1}] * rows),
        lambda: pa.array([b"\xff"] * rows, pa.binary()),
        lambda: pa.array([5] * rows, pa.timestamp("ns")),
        lambda: pa.array([2**62] * rows, pa.duration("s")),
        lambda: pa.array([5] * rows, pa.date32()),
        lambda: pa.array([1] * rows).cast(pa.decimal128(30, 2)),
        lambda: pa.array(["5"] * rows).dictionary_encode(),
        lambda: pa.array(np.full(rows, 5, np.float16)),
        lambda: pa.array([5] * rows, pa.int8()),
    )  # fmt: skip
    return rng.choice(kinds)()
