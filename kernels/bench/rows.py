"""A bench's points and rows: what is measured, under which key, and the columns that a measurement fills.

Nothing here needs torch, so that rows can be read anywhere. ``docs/bench.md`` explains every column.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pagesim.errors import PagesimError, brief
from pagesim.kernels.machine import Machine, digest, identity

SCHEMA = 1
"""Raised whenever a column changes its meaning."""

BENCHES = ("copy", "attention", "swap", "gemm")
"""In the order in which they are run and shown."""

OK, FAILED, OUT_OF_MEMORY, UNAVAILABLE = "ok", "failed", "out-of-memory", "unavailable"
"""What became of a point."""

Row = dict[str, Any]
"""One point's parameters, what was measured, and the machine; the columns below."""

PARAMETERS = {
    "bench": str,
    "op": str,
    "batch": int,
    "context": int,
    "query": int,
    "shared": int,
    "queries": int,
    "window": int,
    "block_size": int,
    "q_heads": int,
    "kv_heads": int,
    "head_size": int,
    "dtype": str,
    "layout": str,
    "splits": int,
    "tile": int,
    "warps": int,
    "stages": int,
    "lengths": str,
    "capacity": int,
    "schedule": str,
    "cores": str,
    "strategy": str,
    "direction": str,
    "host_blocks": str,
    "piece_bytes": int,
    "pieces": int,
    "blocks": int,
    "tokens": int,
    "m": int,
    "n": int,
    "k": int,
}
"""Columns that say what was measured; None where they mean nothing to an op."""

MEASURED = {
    "status": str,
    "error": str,
    "median_s": float,
    "p20_s": float,
    "p80_s": float,
    "noise": float,
    "samples": int,
    "clock": str,
    "bytes_moved": int,
    "flops": int,
    "gb_per_s": float,
    "tflop_per_s": float,
    "reference": str,
    "reference_gb_per_s": float,
    "fraction": float,
    "splits_used": int,
    "max_error": float,
    "slowdown": float,
    "alone_s": float,
    "in_front_s": float,
    "swap_s": float,
    "date": str,
}
"""Columns that say what came of it; None where it was not measured."""


FORCED = ("splits", "tile", "warps", "stages", "lengths", "capacity", "schedule")
"""Columns of attention that say what is not the planner's choice for a batch of equal lengths."""

VARIED = ("queries", "window")
"""Columns of attention that say what else than a query a sequence over its whole context is computed."""


def is_planned(row: Row) -> bool:
    """Return whether a row is of equal lengths, of the planner's own choice, and of plain attention."""
    return all(row[name] is None for name in (*FORCED, *VARIED))


@dataclass(frozen=True)
class Point:
    """One thing to measure: an op and its parameters, among ``PARAMETERS``."""

    bench: str
    op: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unknown = self.parameters.keys() - PARAMETERS.keys()
        assert not unknown, f"no column for {unknown}"

    def __getitem__(self, name: str) -> Any:
        return self.parameters[name]

    def row(self) -> Row:
        """Return the columns of ``PARAMETERS``."""
        return {**dict.fromkeys(PARAMETERS), "bench": self.bench, "op": self.op, **self.parameters}

    def key(self, machine: Machine) -> str:
        """Return what tells this measurement from all others: parameters, machine, versions and code."""
        return digest([SCHEMA, identity(machine), self.row()])

    def __str__(self) -> str:
        """Return the op and its parameters, in a line."""
        return " ".join([self.op, *(f"{name}={value}" for name, value in self.parameters.items())])


def context_lens(point: Point) -> list[int]:
    """Return the tokens of each sequence of an attention op: all alike, or as ``lengths`` has them."""
    mixed = point.parameters.get("lengths")
    return [point["context"]] * point["batch"] if mixed is None else parse_lengths(mixed)


def read_tokens(point: Point) -> list[int]:
    """Return how many tokens of each sequence an attention op has to read: those that any query sees."""
    rows = point.parameters.get("query") or point.parameters.get("queries") or 1
    window = point.parameters.get("window")
    return [length if window is None else min(length, window + rows - 1) for length in context_lens(point)]


def visible_pairs(point: Point) -> int:
    """Return how many pairs of a query and a token that it sees there are in a batch."""
    rows = point.parameters.get("query") or point.parameters.get("queries") or 1
    window = point.parameters.get("window")
    seen = (length - row for length in context_lens(point) for row in range(min(rows, length)))
    if window is None:
        return sum(seen)
    return sum(min(tokens, window) for tokens in seen)


def parse_lengths(text: str) -> list[int]:
    """Return the lengths that a text such as ``131072+200x128`` stands for: one, then 200 of 128 tokens.

    Raises:
        PagesimError: it is something else.
    """
    found: list[int] = []
    for part in text.split("+"):
        match = re.fullmatch(r"(?:([1-9]\d{0,4})x)?([1-9]\d{0,6})", part.strip(), re.ASCII)
        if match is None:
            raise PagesimError(
                f"lengths is {brief(text)}; numbers of tokens joined by + are needed, as 131072+200x128"
            )
        found += [int(match[2])] * int(match[1] or 1)
    return found


def make_row(point: Point, machine: Machine, measured: Mapping[str, Any]) -> Row:
    """Return a point's row: every column, the machine under ``machine``."""
    unknown = measured.keys() - MEASURED.keys()
    assert not unknown, f"no column for {unknown}"
    return {
        "schema": SCHEMA,
        "key": point.key(machine),
        **point.row(),
        **dict.fromkeys(MEASURED),
        **measured,
        "machine": machine,
    }


def flat(rows: Iterable[Row]) -> dict[str, list[Any]]:
    """Return rows as columns; what the machine is stands in ``machine_device`` and so on."""
    columns: dict[str, list[Any]] = {}
    rows = list(rows)
    machine = sorted({name for row in rows for name in row["machine"]})
    for name in ("schema", "key", *PARAMETERS, *MEASURED):
        columns[name] = [row.get(name) for row in rows]
    for name in machine:
        columns[f"machine_{name}"] = [row["machine"].get(name) for row in rows]
    return columns
