"""Load a trace from a file in any format, and save one as CSV or Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np

from pagesim.errors import PagesimError, TraceError
from pagesim.setup.files import put
from pagesim.workloads.formats import TextOptions, not_used, recognise
from pagesim.workloads.rows import OnBadRow
from pagesim.workloads.source import open_rows
from pagesim.workloads.texts import TurnChoice
from pagesim.workloads.trace import HASH_BLOCK_SIZE, Trace

NO_ARRIVALS = "no arrivals are recorded: every request arrives at 0 s"
"""The note of a trace whose file has no arrivals."""


def has_recorded_arrivals(trace: Trace) -> bool:
    """Whether the trace's arrival times were recorded or generated, and are not mere zeros."""
    return NO_ARRIVALS not in trace.notes


def load(
    path: str | Path,
    *,
    turns: TurnChoice = "first",
    tokenizer: str | None = None,
    on_bad_row: OnBadRow = "error",
    keep_think_s: bool = False,
) -> Trace:
    """Read a trace; the format is recognised by the file's content (see ``FORMATS``).

    Args:
        path: a file of CSV, JSON, JSON lines or Parquet.
        turns: of conversations (ShareGPT) the ``"first"`` turn, or ``"all"``: then each turn is a
            request whose prompt is the previous turn's prompt, its output and the new question, and
            ``session_id`` numbers the conversations. ``"after-completion"`` is the same, and of any file with
            sessions it lets each later turn be sent when the last one is over, after the file's ``think_s``
            (0 where there is none); else that column is not used, but for files in which only the first
            turn of a session has a time of its own.
        tokenizer: what counts the tokens of text, see ``tokenizer.counter``.
        on_bad_row: ``"error"`` to raise at the first bad row, ``"skip"`` to leave bad rows out and note it.
        keep_think_s: whether the trace is to be saved and not to be run: it keeps ``think_s`` beside the
            times at which its turns were recorded.

    Returns:
        The trace, sorted by arrival; its notes say what was assumed, skipped or sorted. Where the format
        has no arrivals, all are 0 s and the notes hold ``NO_ARRIVALS``.

    Raises:
        TraceError: the file is missing, empty, damaged or of no known format, or a row is bad. One
            sentence with the file, the row (counted from 1, the header not counted), the field, the value
            and the bound.
        PagesimError: an option is unknown, or the tokenizer cannot be had.
    """
    path = Path(path)
    for option, value, allowed in (
        ("turns", turns, get_args(TurnChoice)),
        ("on_bad_row", on_bad_row, get_args(OnBadRow)),
    ):
        if value not in allowed:
            raise PagesimError(f"{option} is {value!r}; it must be {' or '.join(allowed)}")
    rows = open_rows(path, on_bad_row)
    format = recognise(rows)
    if not len(rows):
        raise TraceError(f"{path}: the file has a header but no rows")
    columns = format.read(rows, TextOptions(turns, tokenizer))
    notes = [*rows.notes, *not_used(rows, format)]
    if "arrival_s" not in columns:
        columns["arrival_s"] = np.zeros(len(columns["prompt_tokens"]))
        notes.append(NO_ARRIVALS)
    elif (np.diff(columns["arrival_s"]) < 0).any():
        notes.append("the rows were not in order of arrival and have been sorted")
    if turns == "after-completion":
        if columns.get("session_id") is None:
            raise PagesimError(f"{path}: turns after-completion need sessions: the file has no session_id")
        columns.setdefault("think_s", np.zeros(len(columns["prompt_tokens"])))
    elif "think_s" in columns:
        if format.closed_loop or _later_turns_have_no_times(columns):
            notes.append("each later turn is sent when the last one is over, after its think_s")
        elif not keep_think_s or columns.get("session_id") is None:
            del columns["think_s"]
            notes.append(
                "column think_s is not used: turns arrive as recorded (turns after-completion uses it)"
            )
    try:
        return Trace(**columns, notes=tuple(notes))
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error


def _later_turns_have_no_times(columns: Mapping[str, Any]) -> bool:
    """Say whether there are later turns, and each stands at the time of the first of its session.

    So they stand in a saved trace whose later turns are sent when the ones before are over.
    """
    begun: dict[object, float] = {}
    turns = 0
    for session, time in zip(columns.get("session_id", ()), columns["arrival_s"], strict=False):
        if session is not None:
            turns += 1
            if begun.setdefault(session, time) != time:
                return False
    return turns > len(begun)


def save(trace: Trace, path: str | Path) -> None:
    """Write a trace in our own format, so that ``load`` gives it back exactly (its notes are not kept).

    A trace with ``think_s`` is given back by ``turns="after-completion"``, which is not needed where later
    turns have no times of their own.

    Columns that say nothing are left out: arrivals that were never recorded, ``n`` and ``beam_width`` of
    1, the optional ones that the trace lacks, and a ``hash_block_size`` of 512. Where samples differ in
    length, ``output_tokens`` is ``518;66`` in CSV and a list in Parquet. The file is complete or not there:
    it is written beside and renamed.

    Args:
        trace: what to write.
        path: ends in ``.csv`` or ``.parquet``; an existing file is replaced.

    Raises:
        PagesimError: another suffix, or a folder that cannot be written.
    """
    path = Path(path)
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise PagesimError(
            f"{path}: a trace is saved as .csv or .parquet, not as {path.suffix or 'no suffix'!r}"
        )
    columns = _columns(trace)
    data = _to_csv(columns) if path.suffix.lower() == ".csv" else _to_parquet(columns)
    put(path, lambda out: out.write(data))


def _columns(trace: Trace) -> dict[str, list[Any]]:
    """Return the columns to write, each as a list; those that say nothing are left out."""
    ids, size = trace.hash_ids, trace.hash_block_size
    given: dict[str, Any] = {
        "request_id": trace.request_id,
        "arrival_s": trace.arrival_s if has_recorded_arrivals(trace) else None,
        "prompt_tokens": trace.prompt_tokens,
        "output_tokens": trace.output_tokens,
        "n": trace.n if (trace.n != 1).any() else None,
        "beam_width": trace.beam_width if (trace.beam_width != 1).any() else None,
        "hash_ids": ids and [list(each) for each in ids],
        "hash_block_size": [size] * len(trace) if ids is not None and size != HASH_BLOCK_SIZE else None,
        "prefix_tokens": trace.prefix_tokens,
        "session_id": trace.session_id,
        "think_s": trace.think_s,
        "priority": trace.priority,
        "abort_s": trace.abort_s,
    }
    columns = {
        name: column.tolist() if isinstance(column, np.ndarray) else column
        for name, column in given.items()
        if column is not None
    }
    if trace.sample_tokens is not None:  # a length alone stands for all samples of its row
        columns["output_tokens"] = [
            list(own) if len(set(own)) > 1 else [own[0]] for own in trace.sample_tokens
        ]
    if trace.abort_s is not None:
        columns["abort_s"] = [None if np.isinf(time) else time for time in columns["abort_s"]]
    return columns


def _to_csv(columns: dict[str, list[Any]]) -> bytes:
    cells = {
        name: [";".join(map(str, v)) if isinstance(v, list) else v for v in values]
        for name, values in columns.items()
    }
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(cells)
    writer.writerows(zip(*cells.values(), strict=True))
    return out.getvalue().encode()


def _to_parquet(columns: dict[str, list[Any]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"hash_ids": pa.list_(pa.int64()), "abort_s": pa.float64(), "arrival_s": pa.float64()}
    table = pa.table({name: pa.array(values, types.get(name)) for name, values in columns.items()})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data
