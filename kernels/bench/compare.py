"""Compares our ops with the best other op of the same shape: peers, and torch's own attention."""

from __future__ import annotations

from collections.abc import Iterable

from pagesim.kernels.bench.rows import OK, Row, is_plain

FAR_BEHIND = 1.2
"""Time relative to the best other op from which a kernel should be improved, or the other op be used."""

OURS = {"paged-decode": "decode", "paged-prefill": "prefill"}

_SHAPE = ("batch", "context", "query", "q_heads", "kv_heads", "head_size", "dtype")


def compare(rows: Iterable[Row]) -> list[tuple[Row, Row, float]]:
    """Return each row of ours with the fastest other op of its shape, and the ratio of their times.

    An op over a contiguous cache has no block size or layout, and is compared with each of them.
    """
    good = [row for row in rows if row["status"] == OK and row["bench"] == "attention" and is_plain(row)]
    found = []
    for row in good:
        if row["op"] not in OURS:
            continue
        others = [
            other
            for other in good
            if other["op"].endswith(f"-{OURS[row['op']]}")
            and other["op"] not in ("contiguous-decode", "gather-decode", row["op"])
            and all(other[name] == row[name] for name in _SHAPE)
            and all(other[name] in (None, row[name]) for name in ("block_size", "layout"))
        ]
        if others:
            best = min(others, key=lambda other: float(other["median_s"]))
            found.append((row, best, row["median_s"] / best["median_s"]))
    return found
