"""Reads the statistics of a run that AIPerf exports as CSV; its JSON beside it has the load, too."""

from __future__ import annotations

import csv
from contextlib import suppress
from pathlib import Path
from typing import Any

from pagesim.experiments.recorded import aiperf
from pagesim.experiments.recorded.layout import json_of, table, text_of
from pagesim.experiments.recorded.recording import RecordedRun


def fits(text: str) -> bool:
    """Return whether a text may be such statistics."""
    return text.startswith("Metric,")


def read(file: Path) -> tuple[RecordedRun, ...]:
    """Return the run.

    Raises:
        PagesimError: a metric is missing or wrong.
    """
    beside = file.with_suffix(".json")
    if beside.is_file():
        return aiperf.read(str(beside), table(json_of(beside, text_of(beside))))
    return aiperf.read(str(file), _as_json(text_of(file)))


def _as_json(text: str) -> dict[str, Any]:
    """Return what the JSON would have, of two tables: statistics a row, and single values."""
    found: dict[str, Any] = {}
    names: list[str] = []
    for first, *cells in filter(None, csv.reader(text.splitlines())):
        if first == "Metric":
            names = ["avg" if name == "Value" else name for name in cells]
            continue
        metric, _, unit = first.partition(" (")
        of: dict[str, Any] = {"unit": unit.rstrip(")")}
        found[metric.lower().replace(" ", "_")] = of
        for name, cell in zip(names, cells, strict=False):
            with suppress(ValueError):
                of[name] = float(cell.replace(",", ""))
    return found
