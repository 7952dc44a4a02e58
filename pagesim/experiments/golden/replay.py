"""Replay: replays a golden log's trace under its policy and compares all decisions."""

from __future__ import annotations

import csv
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pagesim.api import run
from pagesim.errors import PagesimError, reason
from pagesim.experiments.golden.attention_ranks import tables_of_attention_ranks
from pagesim.experiments.golden.columns import alike
from pagesim.experiments.golden.compare import Difference, first_difference
from pagesim.experiments.golden.data_parallel import tables_of_ranks
from pagesim.experiments.golden.details import Details
from pagesim.experiments.golden.manifest import GoldenLog
from pagesim.experiments.golden.sglang_details import SglangDetails, is_of_sglang
from pagesim.results.result import Result
from pagesim.scheduling.observer import Observer
from pagesim.setup.reading import read_file, read_parquet
from pagesim.setup.system import System, checked
from pagesim.sim.clock import TICKS_PER_SECOND
from pagesim.workloads import make_trace
from pagesim.workloads.trace import Trace

if TYPE_CHECKING:  # pandas is slow to import
    import pandas as pd


@dataclass(frozen=True)
class LogComparison:
    """The outcome of a golden log's replay.

    Attributes:
        log: the log.
        stepping: whether every iteration was planned individually, without fast-forwarding.
        tabled: whether blocks had numbers instead of only being counted.
        rows: number of rows of each of the log's tables, by name.
        difference: the first difference; None if every cell of every table is equal.
        wall_s: seconds taken by the replay, including building the trace and comparing.
    """

    log: GoldenLog
    stepping: bool
    tabled: bool
    rows: dict[str, int]
    difference: Difference | None
    wall_s: float


def compare_log(log: GoldenLog, *, stepping: bool, tables: bool = False) -> LogComparison:
    """Replay a log's trace and compare every iteration and every request with the log.

    Args:
        log: log to replay.
        stepping: whether to plan every iteration individually.
        tables: whether to number blocks instead of only counting them.

    Raises:
        PagesimError: a file of the log cannot be read, an option is invalid, or a column is missing.
    """
    started = time.perf_counter()
    rows: dict[str, int] = {}
    difference: Difference | None = None
    for table, (ours, theirs) in _side_by_side(log, stepping=stepping, tables=tables).items():
        rows[table] = len(theirs)
        difference = difference or first_difference(table, ours, theirs)
    return LogComparison(log, stepping, tables, rows, difference, time.perf_counter() - started)


def _side_by_side(
    log: GoldenLog, *, stepping: bool, tables: bool = False
) -> dict[str, tuple[pd.DataFrame, pd.DataFrame]]:
    """Return each of a log's tables as a pair with the same columns: pagesim's and the log's.

    Args:
        log: log to replay.
        stepping: whether to plan every iteration individually.
        tables: whether to number blocks instead of only counting them.

    Raises:
        PagesimError: as for `compare_log`.
    """
    trace = trace_of(log)
    logged = {table: _read(file) for table, file in log.tables.items()}
    if log.options.get("data_parallel_size"):
        system = _system(log, stepping=stepping)
        of_ranks = tables_of_ranks(system, trace, _names(trace), logged["steps"], tables=tables)
        return {table: alike(log, table, of_ranks[table], theirs) for table, theirs in logged.items()}
    if log.options.get("attn_dp_size"):
        of_ranks = tables_of_attention_ranks(_system(log, stepping=stepping), trace, logged["steps"])
        return {table: alike(log, table, of_ranks[table], theirs) for table, theirs in logged.items()}
    of_sglang = "steps" in logged and is_of_sglang(logged["steps"])
    details = SglangDetails() if of_sglang else Details(_names(trace))
    result = replay(log, trace, stepping=stepping, tables=tables, observers=[details])
    found = {}
    for table, theirs in logged.items():
        ours = getattr(result, table, None)
        if ours is None:
            raise PagesimError(f"log {log.name}: {log.policy} leaves no table {table}")
        if table == "steps" and (of_sglang or "scheduled_crc" in theirs):
            ours = details.add_to(ours, theirs)
        if table == "requests" and (of_sglang or "drafted" in theirs):
            ours = details.add_to_requests(ours)
        found[table] = alike(log, table, ours, theirs)
    return found


def _read(file: Path) -> pd.DataFrame:
    try:
        table: pd.DataFrame = read_parquet(read_file(file)).to_pandas()
    except OSError as error:
        raise PagesimError(f"{file}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise PagesimError(f"{file}: {reason(error)}") from None
    return table


def replay(
    log: GoldenLog,
    trace: Trace,
    *,
    stepping: bool,
    tables: bool = False,
    observers: Sequence[Observer] = (),
) -> Result:
    """Return the result of simulating a log's trace from `trace_of`, with one row per iteration.

    Raises:
        PagesimError: as for `pagesim.make_trace` and `pagesim.simulate`.
    """
    system = _system(log, stepping=stepping)
    return run(system, trace, steps="iterations", tables=tables, observers=observers)


def _system(log: GoldenLog, *, stepping: bool) -> System:
    """Return the system that reproduces a log's engine."""
    return checked(System, {"policy": log.policy, **log.options, "fast_forward": not stepping})


def trace_of(log: GoldenLog) -> Trace:
    """Return the requests of a log.

    A trace in the logs' own format may have a column ``prefix_id``. Requests with the same id then share
    their first ``prefix_tokens`` tokens, and a row with a ``parent`` continues that row's prompt and answer.

    Raises:
        PagesimError: as for `pagesim.make_trace`.
    """
    trace = make_trace(log.trace, **log.arrivals)
    if log.n is not None:
        trace = trace.with_columns({"n": np.full(len(trace), log.n)})
    if log.put_off:
        late = np.isin(trace.request_id, log.put_off)
        trace = trace.with_columns({"arrival_s": trace.arrival_s + late / TICKS_PER_SECOND})
    rows = _own_columns(log.trace)
    if rows and "prefix_id" in rows[0]:
        trace = _with_prefixes(trace, rows)
    return trace


def _own_columns(file: Path) -> list[dict[str, str]]:
    """Return the rows of a trace in the logs' own format; empty for any other format."""
    if file.suffix != ".csv":
        return []
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def _with_prefixes(trace: Trace, rows: Sequence[Mapping[str, str]]) -> Trace:
    """Return a trace whose prompts share what the rows say.

    A row with a parent continues the parent's prompt and answer, as the next turn of its session; so does a
    row with the session of an earlier row. In other rows each id stands for one token, and ids are equal only
    where the engine received the same token.
    """
    fresh = count()
    numbers: dict[tuple[str, int], int] = {}
    ids: list[tuple[int, ...]] = []
    sessions: dict[int, int] = {}
    begun: dict[str, int] = {}  # first row of each named session
    for row, tokens in zip(trace.request_id.tolist(), trace.prompt_tokens.tolist(), strict=True):
        own = rows[row]
        parent, session = own.get("parent"), own.get("session_id")
        first = sessions[int(parent)] if parent else begun.setdefault(session, row) if session else row
        sessions[row] = first
        shared = int(own["prefix_tokens"] or 0)
        begins = [numbers.setdefault((own["prefix_id"], at), next(fresh)) for at in range(shared)]
        ids.append(() if first != row else (*begins, *(next(fresh) for _ in range(tokens - shared))))
    columns = {"hash_ids": ids, "hash_block_size": 1, "prefix_tokens": None}
    if len(set(sessions.values())) < len(sessions):
        columns["session_id"] = np.array(list(sessions.values()))
    return trace.with_columns(columns)


def _names(trace: Trace) -> list[str]:
    """Return the names that vLLM's front end gives to the samples of all requests."""
    return [
        str(request) if n == 1 else f"{request}.{k}"
        for request, n in zip(trace.request_id.tolist(), trace.n.tolist(), strict=True)
        for k in range(n)
    ]
