"""Points and rows of a bench: what is measured, under which key, and the columns of a measurement.

Nothing here needs torch, so that rows can be read anywhere. ``docs/how-to/bench.md`` explains every column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pagesim.kernels.machine import Machine, digest, identity

SCHEMA = 2
"""Incremented whenever the meaning of a column changes."""

BENCHES = ("copy", "attention", "swap", "gemm")
"""The benches, in the order in which they are run and shown."""

OK, FAILED, OUT_OF_MEMORY, UNAVAILABLE = "ok", "failed", "out-of-memory", "unavailable"
"""Outcomes of a point."""

Row = dict[str, Any]
"""A point's parameters, measurements and machine, in the columns below."""

WHOLE_DTYPES = ("fp16", "bf16", "fp32")
STRATEGIES = ("copy-each", "gather", "copy-batch")
DIRECTIONS = ("out", "in")

BOUNDS: dict[str, tuple[int, int]] = {
    "batch": (1, 1 << 14),
    "context": (1, 1 << 20),
    "query": (1, 1 << 20),
    "queries": (1, 64),
    "window": (0, 1 << 20),
    "block_size": (1, 4096),
    "splits": (0, 1024),
    "q_heads": (1, 1024),
    "kv_heads": (1, 1024),
    "pieces": (1, 1024),
    "piece_bytes": (16, 1 << 34),
    "blocks": (1, 1 << 20),
    "tokens": (1, 1 << 24),
    "m": (1, 1 << 20),
    "n": (1, 1 << 20),
    "k": (1, 1 << 20),
}
"""Bounds of each column; 0 stands for the default: no window, no forced splits."""

CHOICES: dict[str, tuple[str | int, ...]] = {
    "head_size": (32, 64, 72, 80, 96, 112, 120, 128, 160, 192, 256, 512),
    "dtype": (*WHOLE_DTYPES, "fp8"),
    "layout": ("NHD", "HND"),
    "cores": ("cuda", "tensor"),
    "latent": (256, 512),
    "strategy": STRATEGIES,
    "direction": DIRECTIONS,
    "host_blocks": ("neighbours", "scattered"),
}
"""The values of columns that have only a few."""

PARAMETERS: dict[str, type] = {
    **dict.fromkeys(("bench", "op", "run"), str),
    **dict.fromkeys((*BOUNDS, "number"), int),
    **{name: type(values[0]) for name, values in CHOICES.items()},
}
"""Columns that describe what was measured; None if they do not apply to an op."""

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
    "peak_tflop_per_s": float,
    "of_peak": float,
    "max_error": float,
    "decode_context": int,
    "date": str,
}
"""Columns that hold results; None if not measured."""


def is_plain(row: Row) -> bool:
    """Return whether a row is of plain attention with the op's own number of splits."""
    return all(row[name] is None for name in ("splits", "queries", "window"))


@dataclass(frozen=True)
class Point:
    """One thing to measure: an op and its parameters, which are among ``PARAMETERS``."""

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
        """Return a key for this measurement, from its parameters, machine, versions and code."""
        return digest([SCHEMA, identity(machine), self.row()])

    def __str__(self) -> str:
        """Return the op and its parameters in one line."""
        return " ".join([self.op, *(f"{name}={value}" for name, value in self.parameters.items())])


def read_tokens(point: Point) -> int:
    """Return how many tokens of each sequence an attention op must read: those that any query sees."""
    window, context = point.parameters.get("window"), point["context"]
    return int(context if window is None else min(context, window + queries_of(point) - 1))


def visible_pairs(point: Point) -> int:
    """Return the number of pairs in a batch of a query and a token that it sees."""
    window, context = point.parameters.get("window"), point["context"]
    seen = (context - row for row in range(min(queries_of(point), context)))
    return int(point["batch"] * sum(tokens if window is None else min(tokens, window) for tokens in seen))


def queries_of(point: Point) -> int:
    """Return the number of new tokens per sequence, in prefill and in decode."""
    return int(point.parameters.get("query") or point.parameters.get("queries") or 1)


def make_row(point: Point, machine: Machine, measured: Mapping[str, Any]) -> Row:
    """Return a point's row: every column, with the machine under ``machine``."""
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
