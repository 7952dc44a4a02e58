"""How wrong a prediction from neighbours is: each fifth of a table's points held out in its turn."""

from __future__ import annotations

import numpy as np

from pagesim.costs.held_out import TermError, fifths
from pagesim.costs.operators.tables import Floats, Ints, OperatorTable


def held_out(table: OperatorTable) -> OperatorTable:
    """Return the table with the errors of its inner points, each fifth predicted from the other four.

    A prediction is the geometric mean of the lines along each axis, between the nearest known points.
    """
    errors: list[float] = []
    for seconds in table.seconds:
        places = np.argwhere(np.isfinite(seconds))
        sizes = [each[at].tolist() for each, at in zip(table.axes, places.T, strict=True)]
        points = list(zip(*sizes, strict=True))
        for fifth in fifths(points, " ".join(table.name)):
            unseen = tuple(places[fifth].T)
            kept = seconds.copy()
            kept[unseen] = np.nan
            lines = [np.apply_along_axis(_line, axis, kept, each) for axis, each in enumerate(table.axes)]
            logs = np.log(np.stack([each[unseen] for each in lines]))
            known = np.isfinite(logs)
            asked = known.any(0)
            guess = np.exp(np.where(known, logs, 0).sum(0)[asked] / known.sum(0)[asked])
            errors += np.abs(guess / seconds[unseen][asked] - 1).tolist()
    return table._replace(held_out=TermError.of(errors))


def _line(seconds: Floats, sizes: Ints) -> Floats:
    """Return what lines between the known points give, ``[S]``; NaN before the first and after the last."""
    known = np.isfinite(seconds)
    if not known.any():
        return seconds
    return np.interp(sizes, sizes[known], seconds[known], left=np.nan, right=np.nan)
