"""What a lane writes down of its decisions, and the rows of a record that follow from it."""

from __future__ import annotations

from array import array

import numpy as np
import numpy.typing as npt

from pagesim.accounting.records import DECISION_FIELDS, LEAP_FIELDS

FIELDS = (
    "clock",
    "ticks",
    "growth",
    "running_sequences",
    "waiting",
    "free_blocks",
    "batched_tokens",
    "tokens",
    "context_tokens",
    "preempted",
    "continuing",
    *LEAP_FIELDS,
)
"""What is written down of a decision; the other columns of a record follow from them or are constant."""

CACHING_FIELDS = (
    *FIELDS[: -len(LEAP_FIELDS)],
    *("shared_blocks", "cached_blocks", "blocks_taken"),
    *LEAP_FIELDS,
)
"""The same where prefixes are cached."""

_COLUMNS = DECISION_FIELDS + LEAP_FIELDS


def as_rows(
    notes: array[int], fields: tuple[str, ...], *, iterations: int, free_cpu_blocks: int
) -> npt.NDArray[np.int64]:
    """Return decisions as `Recorder.take` wants them, ``[D, 28]``.

    Args:
        notes: of decisions, flat.
        fields: of each of them.
        iterations: how many there are in all after the last one.
        free_cpu_blocks: in each of them.
    """
    decisions = np.array(notes, np.int64).reshape(-1, len(fields))
    rows = np.zeros((len(decisions), len(_COLUMNS)), np.int64)
    rows[:, [_COLUMNS.index(name) for name in fields]] = decisions
    leapt = decisions[:, fields.index("leap")]
    rows[:, _COLUMNS.index("iteration")] = iterations - np.cumsum((1 + leapt)[::-1])[::-1]
    rows[:, _COLUMNS.index("running_groups")] = decisions[:, fields.index("running_sequences")]
    rows[:, _COLUMNS.index("free_cpu_blocks")] = free_cpu_blocks
    return rows
