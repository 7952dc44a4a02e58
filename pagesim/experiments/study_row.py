"""StudyRow: what one replay of a study found, a row of its table."""

from __future__ import annotations

from typing import Any, NamedTuple


class StudyRow(NamedTuple):
    """A row of a study's table.

    Attributes:
        values: by column; units are in the names, such as ``ttft_p50_s``.
        notes: what was noticed or assumed on the way.
    """

    values: dict[str, Any]
    notes: tuple[str, ...] = ()
