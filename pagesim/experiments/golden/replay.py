"""Replay: a golden log's trace under its policy, and the comparison of all that was decided."""

from __future__ import annotations

import csv
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np

from pagesim.api import run
from pagesim.errors import PagesimError, reason
from pagesim.experiments.golden.columns import alike
from pagesim.experiments.golden.compare import Difference, first_difference
from pagesim.experiments.golden.manifest import GoldenLog
from pagesim.results.result import Result
from pagesim.setup.reading import read_parquet
from pagesim.setup.scenario import System, checked
from pagesim.workloads import make_trace
from pagesim.workloads.trace import Trace


@dataclass(frozen=True)
class Comparison:
    """What came of a golden log's replay.

    Attributes:
        log: the log.
        stepping: whether every iteration was planned by itself, and none taken at once with others.
        tabled: whether blocks had numbers, rather than being counted.
        rows: how many rows each of the log's tables has, by the table's name.
        difference: the first; None where every cell of every table is equal.
        wall_s: seconds that the replay took, its trace and the comparison included.
    """

    log: GoldenLog
    stepping: bool
    tabled: bool
    rows: dict[str, int]
    difference: Difference | None
    wall_s: float


def compare_log(log: GoldenLog, *, stepping: bool, tables: bool = False) -> Comparison:
    """Replay a log's trace and compare every iteration and every request with the log's.

    Args:
        log: what to replay.
        stepping: whether to plan every iteration by itself.
        tables: whether to give blocks numbers, rather than to count them.

    Raises:
        PagesimError: a file of the log cannot be read, an option is off, or a column is nowhere to be found.
    """
    started = time.perf_counter()
    result = replay(log, stepping=stepping, tables=tables)
    rows: dict[str, int] = {}
    difference: Difference | None = None
    for table, file in log.tables.items():
        try:
            theirs = read_parquet(file.read_bytes()).to_pandas()
        except OSError as error:
            raise PagesimError(f"{file}: cannot be read ({error.strerror})") from None
        except ValueError as error:
            raise PagesimError(f"{file}: {reason(error)}") from None
        ours = getattr(result, table, None)
        if ours is None:
            raise PagesimError(f"log {log.name}: {log.policy} leaves no table {table}")
        rows[table] = len(theirs)
        difference = difference or first_difference(table, *alike(log, table, ours, theirs))
    return Comparison(log, stepping, tables, rows, difference, time.perf_counter() - started)


def replay(log: GoldenLog, *, stepping: bool, tables: bool = False) -> Result:
    """Return the result of a log's trace under its policy, with a row an iteration.

    Raises:
        PagesimError: as `pagesim.make_trace` and `pagesim.simulate`.
    """
    options = {"policy": log.policy, **log.options, "fast_forward": not stepping}
    return run(checked(System, options), trace_of(log), steps="iterations", tables=tables)


def trace_of(log: GoldenLog) -> Trace:
    """Return the requests of a log.

    A file of the logs' own may have a column ``prefix_id``: there requests of one id begin with the same
    ``prefix_tokens`` tokens.

    Raises:
        PagesimError: as `pagesim.make_trace`.
    """
    trace = make_trace(log.trace, **log.arrivals)
    if log.n is not None:
        trace = trace.with_columns({"n": np.full(len(trace), log.n)})
    prefixes = _prefixes(log.trace)
    if prefixes:
        # An id a token, and the same one only where the engine was given the same token.
        fresh = count()
        numbers: dict[tuple[str, int], int] = {}
        ids = []
        for row, tokens in zip(trace.request_id, trace.prompt_tokens, strict=True):
            prefix, shared = prefixes[int(row)]
            begins = [numbers.setdefault((prefix, at), next(fresh)) for at in range(shared)]
            ids.append((*begins, *(next(fresh) for _ in range(tokens - shared))))
        trace = trace.with_columns({"hash_ids": ids, "hash_block_size": 1, "prefix_tokens": None})
    return trace


def _prefixes(file: Path) -> list[tuple[str, int]]:
    """Return each row's prefix and how many of its tokens are that; nothing where the file does not say."""
    if file.suffix != ".csv":
        return []
    with file.open(encoding="utf-8", newline="") as lines:
        rows = csv.DictReader(lines)
        if "prefix_id" not in (rows.fieldnames or ()):
            return []
        return [(row["prefix_id"], int(row["prefix_tokens"])) for row in rows]
