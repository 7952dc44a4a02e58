"""Exported block tables: one point for each batch written by ``pagesim bench export``.

Nothing here needs torch.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from pagesim.errors import PagesimError
from pagesim.kernels.bench.rows import Point

OPS = ("replayed", "replayed-in-order")
"""A batch as its allocator left it, and one with each sequence's blocks in order. Lengths and sharing are the
same, so that only the positions of blocks differ."""

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
"""Names of a point's columns in ``batches.jsonl``."""


def points(folder: Path, dtype: str, *, one_head: bool = False) -> list[Point]:
    """Return a point for each batch in a folder and each op.

    Args:
        folder: output folder of ``pagesim bench export``.
        dtype: type of queries, keys and values.
        one_head: whether to compute only one KV head, with the query heads that share it.

    Raises:
        PagesimError: the folder has no such output.
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
