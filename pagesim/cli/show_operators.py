"""What a person sees of operator tables in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pagesim.cli.printing import put_table
from pagesim.costs.operators.tables import OperatorTable


def row(table: OperatorTable) -> dict[str, Any]:
    """Return what is known of a table, for JSON."""
    return {
        "table": " ".join(table.name),
        "release": table.release,
        **table.held_out.model_dump(exclude={"median"}),
    }


def tables(system: str, found: Sequence[OperatorTable]) -> None:
    """Print the tables of a system: their release, and how wrong a prediction from neighbours is."""
    rows = []
    for table in found:
        errors = table.held_out
        percents = (f"{100 * each:.1f}" if errors.points else "–" for each in (errors.mean, errors.worst))
        rows.append(
            (" ".join(table.name), table.release, f"{len(table.keys):,}", f"{errors.points:,}", *percents)
        )
    heads = ("table", "release", "shapes", "held out", "mean", "worst")
    put_table(f"{system}: relative errors of held-out points, %", heads, rows, texts=(0, 1))
