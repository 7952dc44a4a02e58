"""StudyRow: the result of one replay of a study, as a row of its table."""

from __future__ import annotations

from typing import Any, NamedTuple


class StudyRow(NamedTuple):
    """A row of a study's table.

    Attributes:
        values: values by column; names include the units, such as ``ttft_p50_s``.
        notes: observations and assumptions made during the run.
    """

    values: dict[str, Any]
    notes: tuple[str, ...] = ()
