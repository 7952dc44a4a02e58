"""How wrong a prediction from neighbours is: every fifth point of a table held out in its turn."""

from __future__ import annotations

import numpy as np

from pagesim.costs.held_out import TermError
from pagesim.costs.operators.tables import Floats, OperatorTable

FOLDS = 5
"""A point belongs to one of so many folds, by the sum of its places on the axes."""


def held_out(table: OperatorTable) -> OperatorTable:
    """Return the table with the errors of its inner points, each predicted from those beside it.

    A prediction is the geometric mean of the lines along each axis, between the nearest known points that are
    not in the same fold.
    """
    seconds = table.seconds
    places = np.indices(seconds.shape)
    folds = places.sum(0) % FOLDS
    errors = []
    for fold in range(FOLDS):
        kept = np.where(folds == fold, np.nan, seconds)
        lines = [
            _lines(kept, np.asarray(sizes, np.float64), axis + 1) for axis, sizes in enumerate(table.axes)
        ]
        with np.errstate(invalid="ignore", divide="ignore"):
            logs = np.log(np.stack(lines))
            known = np.isfinite(logs)
            guess = np.exp(np.where(known, logs, 0).sum(0) / known.sum(0))
        asked = (folds == fold) & np.isfinite(seconds) & known.any(0)
        errors.append(np.abs(guess[asked] / seconds[asked] - 1))
    return table._replace(held_out=TermError.of(np.concatenate(errors).tolist()))


def _lines(kept: Floats, sizes: Floats, axis: int) -> Floats:
    """Return at every point the line between the nearest known points before and after it on an axis."""
    values = np.moveaxis(kept, axis, -1)
    known = np.isfinite(values)
    count = len(sizes)
    before = np.maximum.accumulate(np.where(known, np.arange(count), -1), -1)
    after = np.minimum.accumulate(np.where(known, np.arange(count), count)[..., ::-1], -1)[..., ::-1]
    between = (before >= 0) & (after < count)
    low, high = np.where(between, before, 0), np.where(between, after, 0)
    first, last = np.take_along_axis(values, low, -1), np.take_along_axis(values, high, -1)
    share = (sizes - sizes[low]) / np.maximum(sizes[high] - sizes[low], 1)
    found = np.where(between & ~known, first + (last - first) * share, np.nan)
    return np.moveaxis(found, -1, axis)
