"""Checks: whether stored tables and summaries are what a run can have left; others may have changed them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pagesim.errors import brief
from pagesim.scheduling.request import Status
from pagesim.sim.clock import LONGEST_S
from pagesim.workloads.trace import MAX_SAMPLES, MAX_TOKENS

if TYPE_CHECKING:  # see pagesim.api
    import pandas as pd

MOST = 1 << 53
"""No count is larger: 64-bit floats hold every whole number up to here."""

MOST_SAMPLES = 10**8
"""Samples of all requests; each takes some bytes of memory in most of what is made of a result."""

MOST_NESTED = 16
"""Tables within tables of a summary."""

_LATEST_S = 2 * LONGEST_S

_BOUNDS = {
    "prompt_tokens": (1, MAX_TOKENS),
    "output_tokens": (1, MAX_TOKENS),
    "n": (1, MAX_SAMPLES),
    "replica": (-1, MOST),
    "prefill_replica": (-1, MOST),
    "decode_replica": (-1, MOST),
}
"""Least and most of counts; of all others, and of tokens in an iteration, 0 and `MOST`."""

_COUNTS = ("cached_tokens", "loaded_tokens", "recomputes", "swaps", "iterations", *_BOUNDS)
"""Columns that hold whole numbers, wherever they stand."""

_TEXTS = {
    "status": tuple(status.name.lower() for status in Status),
    "choice": ("swap", "recompute"),
    "pool": ("prefill", "decode"),
}
"""Columns of texts, and those that there are."""

_SAMPLES = ("sample_tokens", "sample_finish_s")

_SUMMARY: dict[str, int | type] = {
    "policy": str,
    "requests.total": 0,
    "memory.num_blocks": 1,
    "memory.block_size": 1,
    "memory.cpu_blocks": 0,
    "memory.strict.per_iteration": dict,
    "memory.strict.per_second": dict,
    "memory.strict.peak": dict,
    "preemptions.recompute": 0,
    "preemptions.swap": 0,
    "iterations": 0,
}
"""What every summary of one system has: a type, or a whole number of at least so much."""

_ANY = {"options": dict, "options.defaults": dict, "memory.groups": dict, "memory.tiers": dict}
"""What it may have."""


def check_summary(summary: Any, *, of_cluster: bool = False) -> dict[str, Any]:
    """Return a summary, if it has what every summary has.

    Raises:
        ValueError: it has not; the message says what is wrong.
    """
    _check_values(summary)
    needed: dict[str, int | type] = {"cluster": dict, "requests.total": 0} if of_cluster else _SUMMARY
    for name, kind in {**needed, **_ANY}.items():
        found = summary
        for part in name.split("."):
            found = found.get(part, _ABSENT) if isinstance(found, dict) else _ABSENT
        if found is _ABSENT and name not in needed:
            continue
        if isinstance(kind, type):
            good, what = isinstance(found, kind), "a text" if kind is str else "a table"
        else:
            good, what = type(found) is int and found >= kind, f"a whole number from {kind}"
        if not good:
            value = "absent" if found is _ABSENT else brief(found)
            raise ValueError(f"{name} of summary.json is {value}; it must be {what}")
    for name, tier in summary.get("memory", {}).get("tiers", {}).items():
        known = tier if isinstance(tier, dict) else {}
        capacity = known.get("capacity", _ABSENT)
        sized = capacity is None or (type(capacity) is int and capacity >= 0)
        if not sized or not isinstance(known.get("per_second"), dict):
            raise ValueError(f"memory.tiers.{name} of summary.json has no capacity or no shares")
    checked: dict[str, Any] = summary
    return checked


_ABSENT = object()


def _check_values(summary: Any) -> None:
    """Make sure that a summary is a table of tables of numbers and texts."""
    if not isinstance(summary, dict):
        raise ValueError("summary.json holds no table")
    level: list[Any] = [summary]
    for _ in range(MOST_NESTED):
        inside = [part for each in level for part in (each.values() if isinstance(each, dict) else each)]
        for value in inside:
            if isinstance(value, int | float) and abs(value) > 2**63:
                raise ValueError(f"summary.json holds {brief(value)}, which no number of a run is")
        level = [part for part in inside if isinstance(part, dict | list)]
        if not level:
            return
    raise ValueError(f"summary.json is nested more than {MOST_NESTED} deep")


def check_total(summary: Mapping[str, Any], requests: pd.DataFrame) -> None:
    """Make sure that a summary is about the requests of a table.

    Raises:
        ValueError: it counts others.
    """
    if summary["requests"]["total"] != len(requests):
        raise ValueError(f"summary.json does not count the {len(requests)} rows of requests.parquet")
    ended = requests["status"].value_counts()
    for status in ("finished", "aborted"):  # those ignored count as rejected
        counted = summary["requests"].get(status, 0)
        if counted != ended.get(status, 0):
            raise ValueError(
                f"summary.json counts {brief(counted)} {status} requests, requests.parquet has "
                f"{ended.get(status, 0)}"
            )


def check_table(name: str, table: pd.DataFrame, columns: Iterable[str]) -> None:
    """Make sure that a table has its columns, and in every column what a run can leave there.

    Args:
        name: its file's, without the suffix.
        table: as it was read.
        columns: those that it must have.

    Raises:
        ValueError: it has not; the message names the column.
    """
    needed = tuple(columns)
    for column in needed:
        if column not in table:
            raise ValueError(f"{name}.parquet lacks the column {column}")
    for column in map(str, table):
        values = table[column]
        where = f"{column} of {name}.parquet"
        if column in _TEXTS or column == "tier":
            _check_texts(where, values, _TEXTS.get(column))
        elif column in _SAMPLES:
            continue
        elif column == "request_id":
            if values.dtype.kind not in "iu" and not all(isinstance(value, str) for value in values):
                raise ValueError(f"{where} holds what is neither a whole number nor a text")
        elif values.dtype.kind not in "if":  # nor unsigned ones, which NumPy does not add to others
            raise ValueError(f"{where} holds no numbers of a run, but {values.dtype}")
        else:
            whole = name in ("steps", "tiers") and column in needed
            _check_numbers(name, column, values.to_numpy(), may_be_nan=not whole)
    if name == "requests":
        if (samples := int(table["n"].sum())) > MOST_SAMPLES:
            raise ValueError(f"n of {name}.parquet is {samples} in all; at most {MOST_SAMPLES} are read")
        _check_samples(table)
    elif "clock" in table and "pool" not in table and (np.diff(table["clock"].to_numpy()) < 0).any():
        raise ValueError(f"clock of {name}.parquet falls")


def _check_texts(where: str, values: pd.Series[Any], known: tuple[str, ...] | None) -> None:
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"{where} holds what is no text")
    for value in values.unique():
        if known is not None and value not in known:
            raise ValueError(f"{where} holds {brief(value)}; it must be one of {', '.join(known)}")


def _check_numbers(table: str, column: str, values: npt.NDArray[Any], *, may_be_nan: bool) -> None:
    where = f"{column} of {table}.parquet"
    if column in _COUNTS and values.dtype.kind == "f":
        raise ValueError(f"{where} holds no whole numbers")
    is_time = column.endswith("_s") or column in ("clock", "start")
    least, most = (0, _LATEST_S) if is_time else _BOUNDS.get(column, (0, MOST))
    if table == "steps" and column == "prompt_tokens":
        least, most = 0, MOST
    # What never happened, and what there is no mean of, is NaN.
    given = values[~np.isnan(values)].astype(np.float64) if values.dtype.kind == "f" else values
    if len(given) < len(values) and not may_be_nan:
        raise ValueError(f"{where} holds NaN")
    if len(given) and not least <= given.min() <= given.max() <= most:
        wrong = given[(given < least) | (given > most)][0]
        raise ValueError(f"{where} holds {wrong}; it must be from {least} to {most:g}")


def _check_samples(requests: pd.DataFrame) -> None:
    """Make sure that what is kept of each sample is a list of as many numbers as the request has samples."""
    if not any(name in requests for name in _SAMPLES):
        return
    if missing := [name for name in _SAMPLES if name not in requests]:
        raise ValueError(f"requests.parquet lacks the column {missing[0]}")
    for name, most in zip(_SAMPLES, (MAX_TOKENS, _LATEST_S), strict=True):
        for own, n in zip(requests[name], requests["n"], strict=True):
            good = isinstance(own, np.ndarray) and own.shape == (n,) and own.dtype.kind in "iuf"
            if not good or ((own < 0) | (own > most)).any():
                raise ValueError(f"{name} of requests.parquet holds {brief(own)}; it must be {n} numbers")
