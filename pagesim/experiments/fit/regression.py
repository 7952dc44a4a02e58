"""Regression: non-negative least squares of relative errors, with standard errors."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pagesim.costs.table import non_negative
from pagesim.experiments.recorded.recording import Floats, Ints, Rows

OUTLIER = 6.0
"""Robust standard deviations beyond which a row is dropped, as first requests include compilation."""

FLAT = 1e-10
"""Share of the largest eigenvalue below which eigenvalues count as rounding errors."""

TO_SIGMA = 1.4826
"""Factor from the median absolute deviation to the standard deviation of a normal distribution."""


class Regression(NamedTuple):
    """Coefficients of one regression.

    Attributes:
        values: non-negative coefficients, ``[K]``.
        errors: standard errors, ``[K]``; infinite where a column is all zeros.
        kept: rows that count and are not outliers, ``[N]``.
        residuals: fitted minus measured, divided by ``scale``, ``[N]``.
    """

    values: Floats
    errors: Floats
    kept: Rows
    residuals: Floats


def regress(
    features: Floats, seconds: Floats, known: Floats, scale: Floats, weights: Floats, groups: Ints
) -> Regression:
    """Fit seconds = known + features · values, minimizing errors relative to a scale.

    Args:
        features: regressors, ``[N, K]``.
        seconds: measured times, ``[N]``, above 0.
        known: part of the times that is known beforehand, ``[N]``.
        scale: expected time of each row, ``[N]``, above 0. Measured times would be a biased scale: rows that
            are low by chance would weigh more, and all values would come out too small.
        weights: weight of each row, ``[N]``; 0 for a row that does not count.
        groups: groups of rows whose errors may be correlated, ``[N]``.
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
        if (fine | ~kept).all():  # rows once dropped stay dropped, so this terminates
            break
        kept = kept & fine
    return Regression(
        values, _standard_errors(own, (residuals * weights)[kept], groups[kept]), kept, residuals
    )


def _standard_errors(features: Floats, residuals: Floats, groups: Ints) -> Floats:
    """Return the larger of two standard errors, for errors correlated within groups and independent ones.

    The former is the cluster sandwich estimator (Liang and Zeger, 1986). With so few clusters it is by chance
    too small about as often as too large.
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
    """Return the inverse of a Gram matrix; it becomes large where columns cannot be told apart."""
    values, directions = np.linalg.eigh(gram)
    inverse: Floats = directions / np.maximum(values, FLAT * values[-1]) @ directions.T
    return inverse
