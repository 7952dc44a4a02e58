"""Regression: non-negative least squares of relative errors, with standard errors."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pagesim.costs.table import non_negative
from pagesim.experiments.recorded.recording import Floats, Ints, Rows

OUTLIER = 6.0
"""Robust standard deviations beyond which a row is left out: first requests contain compilation."""

FLAT = 1e-10
"""Share of the largest eigenvalue that is taken for nothing but rounding."""

TO_SIGMA = 1.4826
"""From the median of absolute deviations to a normal distribution's standard deviation."""


class Regression(NamedTuple):
    """Coefficients of one regression.

    Attributes:
        values: not negative, ``[K]``.
        errors: standard errors, ``[K]``; infinite where a column is all zeros.
        kept: rows that count and are not outliers, ``[N]``.
        residuals: fitted less measured, by ``scale``, ``[N]``.
    """

    values: Floats
    errors: Floats
    kept: Rows
    residuals: Floats


def regress(
    features: Floats, seconds: Floats, known: Floats, scale: Floats, weights: Floats, groups: Ints
) -> Regression:
    """Fit seconds = known + features · values, by errors in parts of a scale.

    Args:
        features: ``[N, K]``.
        seconds: measured, ``[N]``, above 0.
        known: of these accounted for beforehand, ``[N]``.
        scale: of each row, ``[N]``, above 0: what it is expected to take. What it was measured to take is no
            scale: rows that are low by chance would count more, and all values come out too small.
        weights: of each row, ``[N]``; 0 for one that does not count.
        groups: of rows whose errors may be alike, ``[N]``.
    """
    relative = features / scale[:, None]
    target = (seconds - known) / scale
    counts = weights > 0
    kept = counts
    while True:
        own = (relative * weights[:, None])[kept]
        values = non_negative(own, (target * weights)[kept])
        residuals = relative @ values - target
        off = np.abs(residuals * weights)
        fine = counts & (off <= max(OUTLIER * TO_SIGMA * float(np.median(off[counts])), 1e-9))
        if (fine | ~kept).all():  # what was left out once stays out, so this ends
            break
        kept = kept & fine
    return Regression(
        values, _standard_errors(own, (residuals * weights)[kept], groups[kept]), kept, residuals
    )


def _standard_errors(features: Floats, residuals: Floats, groups: Ints) -> Floats:
    """Return the larger of two standard errors: of errors alike within groups, and of errors all apart.

    The first is the sandwich by clusters (Liang and Zeger, 1986). Clusters are few, so it is too small by
    chance about as often as too large.
    """
    size = np.sqrt(np.square(features).sum(0))
    seen = size > 0
    errors = np.full(features.shape[1], np.inf)
    if not seen.any():
        return errors
    a = features[:, seen] / size[seen]
    inverse = _inverse(a.T @ a)
    names = np.unique(groups)
    scores = np.array([a[groups == name].T @ residuals[groups == name] for name in names])
    alike = inverse @ (scores.T @ scores) @ inverse * len(names) / max(1, len(names) - 1)
    apart = inverse * float(np.square(residuals).sum()) / max(1, len(a) - a.shape[1])
    errors[seen] = np.sqrt(np.maximum(np.diag(alike), np.diag(apart))) / size[seen]
    return errors


def _inverse(gram: Floats) -> Floats:
    """Return the inverse of a matrix of products; what columns do not tell apart becomes large."""
    values, directions = np.linalg.eigh(gram)
    inverse: Floats = directions / np.maximum(values, FLAT * values[-1]) @ directions.T
    return inverse
