"""Exported block tables: a point for each batch that ``pagesim bench export`` wrote.

Nothing here needs torch.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from pagesim.errors import PagesimError
from pagesim.kernels.bench.rows import Point

OPS = ("replayed", "replayed-in-order")
"""A batch as its allocator left it, and with the blocks of each sequence in order: the same lengths and the
same sharing, so that what differs is where blocks lie."""

_COLUMNS = {
    "run": "run",
    "iteration": "iteration",
    "batch": "sequences",
    "tokens": "new_tokens",
    "block_size": "block_size",
    "q_heads": "heads",
    "kv_heads": "kv_heads",
    "head_size": "head_dim",
}
"""What a point's columns are called in ``batches.jsonl``."""


def points(folder: Path, dtype: str, *, one_head: bool = False) -> list[Point]:
    """Return a point for each batch of a folder and each op.

    Args:
        folder: that ``pagesim bench export`` wrote.
        dtype: of queries, keys and values.
        one_head: whether only one KV head is computed, with the query heads that read it.

    Raises:
        PagesimError: it is no such folder.
    """
    found, numbers = [], Counter[str]()
    try:
        for line in map(json.loads, (folder / "batches.jsonl").read_text(encoding="utf-8").splitlines()):
            given = {name: line[column] for name, column in _COLUMNS.items()}
            if one_head:
                given |= {"q_heads": given["q_heads"] // given["kv_heads"], "kv_heads": 1}
            numbers[line["run"]] += 1
            place = {"number": numbers[line["run"]], "file": str(folder / line["file"]), "dtype": dtype}
            found += [Point("attention", op, {**given, **place}) for op in OPS]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PagesimError(
            f"{folder}: is no folder of pagesim bench export ({type(error).__name__}: {error})"
        ) from None
    return found
