"""Compare a log that was made with the golden one: every column, byte by byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from pagesim.experiments.golden import GoldenLog
from pagesim.experiments.golden.columns import OURS

NULLABLE = {"tables_crc": "Int64", "cached_tokens": "Int64"}
"""Columns of integers of which some rows have none."""

LOAD = ["num_batched_tokens", "num_running", "num_waiting", "num_swapped"]
"""What is 0 in the empty schedule with which the engine's loop ends a busy period."""


def compare(log: GoldenLog, made: dict[str, list[dict[str, Any]]], out: Path) -> str:
    """Store the tables that were made of a log; return where they first differ from the golden ones, or "".

    Args:
        log: the golden log.
        made: the rows of each table.
        out: the folder to store them in, in the coding of the golden logs.
    """
    verdict = ""
    for table, file in log.tables.items():
        ours = pd.DataFrame(made[table])
        ours = ours.astype({name: kind for name, kind in NULLABLE.items() if name in ours})
        if table == "steps" and log.without_flush:
            ours = without_flush(ours)
        write_table(out / file.name, ours)
        verdict = verdict or difference(table, ours, file)
    return verdict


def without_flush(steps: pd.DataFrame) -> pd.DataFrame:
    """Return the steps without the empty schedules of an empty engine, and numbered without them."""
    kept = steps[(steps[LOAD] != 0).any(axis=1)].reset_index(drop=True)
    return kept.assign(step=kept.index)


def difference(table: str, ours: pd.DataFrame, file: Path) -> str:
    """Return where a table first differs from the golden one, by rows and then by columns; "" if nowhere."""
    if not file.is_file():
        return f"there is no golden {file.name}"
    theirs = pd.read_parquet(file)
    found: list[tuple[int, int, str]] = []
    for at, column in enumerate(theirs):
        mine = ours[column if column in ours else OURS.get(column, column)]
        for row, (made, golden) in enumerate(zip(mine, theirs[column], strict=False)):
            if text(made) != text(golden):
                cells = f"{text(made)}, the golden log has {text(golden)}"
                found.append((row, at, f"{table}, row {row}, {column}: {cells}"))
                break
    if found:
        return min(found)[2]
    if len(ours) != len(theirs):
        return f"{len(ours):,} {table}, the golden log has {len(theirs):,}"
    return ""


def text(cell: Any) -> str:
    """Return a cell as text, which differs where a bit does; a list and an array are alike."""
    if pd.api.types.is_list_like(cell):
        return str([int(each) for each in cell])
    return "none" if pd.isna(cell) else str(cell)


def write_table(file: Path, frame: pd.DataFrame) -> None:
    """Write a table: integers as differences, seconds byte by byte, both of which compress well."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    coding = {}
    for column in table.schema:
        if pa.types.is_integer(column.type):
            coding[column.name] = "DELTA_BINARY_PACKED"
        elif pa.types.is_floating(column.type):
            coding[column.name] = "BYTE_STREAM_SPLIT"
    pq.write_table(
        table,
        file,
        compression="brotli",
        compression_level=11,
        use_dictionary=False,
        column_encoding=coding,
        write_statistics=False,
    )
