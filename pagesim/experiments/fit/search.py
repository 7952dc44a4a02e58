"""Search: alternates between simulation and regression until the values converge."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pagesim.errors import PagesimError
from pagesim.experiments.fit.costs import Costs
from pagesim.experiments.fit.equations import COLUMNS, Equations, equations
from pagesim.experiments.fit.iterations import RISES, SIZES, Simulated, replay
from pagesim.experiments.fit.regression import OUTLIER, TO_SIGMA, regress
from pagesim.experiments.recorded.recording import Floats, RecordedRun, Rows

ROUNDS = 10
"""Maximum number of rounds; three or four are enough unless memory runs short."""

SETTLED = 5e-4
"""Root mean square of the relative change of windows below which the search ends."""

WORTH = 0.05
"""Minimum relative decrease of the residuals' scatter for a form with more values to be chosen."""

LEAST_SPREAD = 1e-4
"""Minimum spread of residuals, for logs without any noise."""


class SearchResult(NamedTuple):
    """Values, and the data that they were fitted to.

    Attributes:
        values: fitted values, ordered as ``COLUMNS``.
        errors: standard errors; 0 for fixed values.
        runs: loads simulated with these values.
        rows: regression rows of the loads in these runs.
        kept: rows that count and are not outliers, ``[N]``.
        misses: simulated minus measured, divided by simulated, ``[N]``.
    """

    values: Floats
    errors: Floats
    runs: tuple[Simulated, ...]
    rows: Equations
    kept: Rows
    misses: Floats

    @property
    def scatter(self) -> float:
        """Spread of the misses with outliers clipped: geometric mean over rows of their kind's spread."""
        logs = 0.0
        for of, spread in zip(
            (~self.rows.of_ttft, self.rows.of_ttft), _spreads(self.misses, self.rows.of_ttft), strict=True
        ):
            if of.any():
                cut = np.minimum(np.abs(self.misses[of]), OUTLIER * spread)
                logs += of.mean() * np.log(max(LEAST_SPREAD, float(np.sqrt(np.mean(np.square(cut))))))
        return float(np.exp(logs))

    def describes_better(self, other: SearchResult) -> bool:
        """Return whether these values describe the rows enough better to justify their larger number.

        The test is Schwarz's criterion (BIC) and a gain of at least ``WORTH``, as windows of a load overlap.
        """
        rows = len(self.misses)
        more = int((self.values > 0).sum()) - int((other.values > 0).sum())
        gain = np.log(other.scatter / self.scatter)
        return bool(gain > max(WORTH, more * np.log(rows) / (2 * rows)))

    @property
    def miss(self) -> float:
        """Mean absolute miss of the times from the first to the last token."""
        of = self.kept & ~self.rows.of_ttft
        return float(np.abs(self.misses[of if of.any() else self.kept]).mean())


def search(
    loads: Sequence[RecordedRun],
    costs: Costs,
    start: Floats,
    form: Collection[str],
    fixed: Mapping[str, float],
    first: int | None = None,
) -> SearchResult:
    """Return the values with which simulated windows come closest to measured ones.

    Args:
        loads: loads to fit to.
        costs: conversion from values to iteration times.
        start: initial values, ordered as ``COLUMNS``.
        form: columns to fit; the others are 0.
        fixed: values to keep, by column.
        first: number of leading requests of each load whose log is used; None for all.

    Raises:
        PagesimError: no request of the loads can be used.
    """
    free = np.array([name in form and name not in fixed for name in COLUMNS])
    values = np.where(free, start, [fixed.get(name, 0.0) for name in COLUMNS])
    best, spreads = None, None
    for _ in range(ROUNDS):
        runs = tuple(replay(load, costs.system, costs.cost(values)) for load in loads)
        rows = _stacked(
            [
                equations(load, run, values[:-1], number, first)
                for number, (load, run) in enumerate(zip(loads, runs, strict=True))
            ]
        )
        ties = _ties(free, runs)
        expected = rows.features @ values + rows.known
        misses = (expected - rows.seconds) / expected
        spreads = spreads or _spreads(misses, rows.of_ttft)
        found = regress(
            rows.features @ ties,
            rows.seconds,
            rows.known + rows.features[:, ~free] @ values[~free],
            expected,
            np.where(rows.of_ttft, 1 / spreads[1], 1 / spreads[0]),
            rows.groups,
        )
        spreads = _spreads(found.residuals, rows.of_ttft)
        errors = _spread_out(ties, found.errors)
        now = SearchResult(values, errors, runs, rows, found.kept, misses)
        # When memory runs short, every value changes who is preempted: keep the best round.
        if best is None or now.miss < best.miss:
            best = now
        values = np.where(free, ties @ found.values, values)
        if np.sqrt(np.mean(np.square(rows.features @ (values - now.values) / expected))) < SETTLED:
            break
    assert best is not None
    return best


def _ties(free: Rows, runs: Sequence[Simulated]) -> Floats:
    """Return the matrix from fitted values to all values, ``[len(COLUMNS), F]``.

    A curve over tokens is linear over the intervals without iterations, up to the end of the next interval
    with some: nothing tells where in between it rises.
    """
    seen = sum(run.windows.ends_in() for run in runs) > 0
    ties = [row for row, name in zip(np.eye(len(COLUMNS)), COLUMNS, strict=True) if name not in RISES]
    ties = [row for row in ties if free[row.argmax()]]
    start = 0
    for place in np.flatnonzero(seen):
        if not free[COLUMNS.index(RISES[place])]:
            break
        row = np.zeros(len(COLUMNS))
        for inside in range(start, place + 1):
            width = SIZES[inside + 1] - SIZES[inside]
            row[COLUMNS.index(RISES[inside])] = width / (SIZES[place + 1] - SIZES[start])
        ties.append(row)
        start = int(place) + 1
    return np.array(ties).T


def _spread_out(ties: Floats, errors: Floats) -> Floats:
    """Return the standard errors of all columns: infinite for unobserved columns, 0 for fixed ones."""
    with np.errstate(invalid="ignore"):
        found: Floats = np.nan_to_num(ties * errors, nan=0.0, posinf=np.inf).max(1)
    return found


def _stacked(parts: Sequence[Equations]) -> Equations:
    whole = Equations(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    if not len(whole.seconds):
        raise PagesimError(
            "no request of these logs can be used: none has more than one token and was answered in the "
            "simulation, too; look at the server's settings (num_blocks, max_model_len)"
        )
    return whole


def _spreads(misses: Floats, of_ttft: Rows) -> tuple[float, float]:
    """Return the robust spread of each kind of rows, as noisier rows count less."""
    decode, ttft = (
        max(LEAST_SPREAD, TO_SIGMA * float(np.median(np.abs(misses[of])))) if of.any() else 1.0
        for of in (~of_ttft, of_ttft)
    )
    return decode, ttft
