"""Grids: the bench's ops, the columns that each depends on, and all combinations of their values.

Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from pagesim.errors import PagesimError
from pagesim.kernels.bench.rows import BOUNDS, CHOICES, WHOLE_DTYPES, Point

WHOLE_OPS = ("sdpa-decode", "sdpa-prefill", "mla-decode", "mla-write", "linear")
"""Ops that do not support FP8."""

USUAL = {"queries": 1, "window": 0, "splits": 0, "latent": 512}
"""Default values, which are omitted from a point."""


class Op(NamedTuple):
    """An op of the bench.

    Attributes:
        module: file in ``bench/`` that has its cases.
        columns: columns that it depends on.
    """

    module: str
    columns: tuple[str, ...]


_HEADS = ("q_heads", "kv_heads", "head_size", "dtype")
_DECODE = ("batch", "context", *_HEADS)
_PAGED = (*_DECODE, "layout", "block_size")
_PREFILL = ("batch", "context", "query", *_HEADS)
_BLOCKS = ("pieces", "piece_bytes", "blocks", "dtype")
_SWAP = ("strategy", "direction", "host_blocks", "pieces", "piece_bytes", "blocks")

OPS: dict[str, dict[str, Op]] = {
    "attention": {
        "paged-decode": Op("attention", (*_PAGED, "queries", "window", "splits")),
        "paged-decode-v1": Op("attention", _PAGED),
        "paged-decode-v2": Op("attention", _PAGED),
        "contiguous-decode": Op("attention", (*_DECODE, "layout", "splits")),
        "gather-decode": Op("attention", _PAGED),
        "sdpa-decode": Op("attention", _DECODE),
        "flashinfer-decode": Op("attention", (*_PAGED, "cores")),
        "vllm-triton-decode": Op("attention", _PAGED),
        "paged-prefill": Op("attention", (*_PREFILL, "layout", "block_size", "window")),
        "sdpa-prefill": Op("attention", _PREFILL),
        "mla-decode": Op("mla", ("batch", "context", "q_heads", "block_size", "dtype", "latent")),
    },
    "copy": {
        "device-copy": Op("cache_write", ("piece_bytes",)),
        "reshape-and-cache": Op(
            "cache_write", ("tokens", "block_size", "kv_heads", "head_size", "dtype", "layout")
        ),
        "mla-write": Op("cache_write", ("tokens", "block_size", "dtype", "latent")),
        "copy-blocks": Op("block_moves", _BLOCKS),
        "gather-blocks": Op("block_moves", _BLOCKS),
        "scatter-blocks": Op("block_moves", _BLOCKS),
    },
    "swap": {
        "pinned-copy": Op("swap", ("direction", "piece_bytes")),
        "swap": Op("swap", _SWAP),
    },
    "gemm": {"linear": Op("gemm", ("m", "n", "k", "dtype"))},
}
"""The ops of each bench."""

Values = Mapping[str | tuple[str, ...], Sequence[Any]]
"""Values of each column, or tuples of values for several columns that vary together."""


@dataclass(frozen=True)
class Grid:
    """Ops of a bench over all combinations of values; each op uses the columns that it depends on.

    Args:
        bench: ``attention``, ``copy``, ``swap`` or ``gemm``.
        ops: ops of the bench.
        values: values of each column.

    Raises:
        PagesimError: an op or value is invalid; the message names it and what is allowed.
    """

    bench: str
    ops: Sequence[str]
    values: Values

    def __post_init__(self) -> None:
        for op in self.ops:
            _among("op", op, tuple(OPS[self.bench]))
        for column, values in self.values.items():
            for value in values:
                for name, each in _pairs(column, value):
                    check_value(name, each)

    def points(self) -> Iterator[Point]:
        """Yield the points; those that differ only in the op are consecutive."""
        seen: set[str] = set()
        for values in product(*self.values.values()):
            chosen: dict[str, Any] = {}
            for column, value in zip(self.values, values, strict=True):
                chosen.update(_pairs(column, value))
            for op in self.ops:
                columns = OPS[self.bench][op].columns
                given = {name: chosen[name] for name in columns if name in chosen}
                given = {name: value for name, value in given.items() if USUAL.get(name) != value}
                point = Point(self.bench, op, given)
                if str(point) not in seen and is_done(point, chosen):
                    seen.add(str(point))
                    yield point


def _pairs(column: str | tuple[str, ...], value: Any) -> Iterable[tuple[str, Any]]:
    return zip(column, value, strict=True) if isinstance(column, tuple) else [(column, value)]


def is_done(point: Point, chosen: Mapping[str, Any]) -> bool:
    """Return whether an op supports a combination of values.

    Args:
        point: the op, with the values that it depends on.
        chosen: all values.
    """
    if point.op in WHOLE_OPS and chosen["dtype"] not in WHOLE_DTYPES:
        return False
    # Torch's causal mask only fits whole prompts.
    if point.op == "sdpa-prefill" and chosen["query"] != chosen["context"]:
        return False
    takes = OPS[point.bench][point.op].columns
    return all(chosen.get(name, usual) == usual or name in takes for name, usual in USUAL.items())


def check_value(column: str, value: Any) -> None:
    """Check a value of a column.

    Raises:
        PagesimError: the value is invalid.
    """
    if column in CHOICES:
        _among(column, value, CHOICES[column])
        return
    least, most = BOUNDS[column]
    if not least <= value <= most:
        raise PagesimError(f"{column} is {value}; it must be from {least} to {most}")
    if column == "piece_bytes" and value % 16:
        raise PagesimError(f"piece_bytes is {value}; it must be a multiple of 16")


def _among(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise PagesimError(f"{name} is {value}; it must be one of {', '.join(map(str, allowed))}")
