"""Search: simulate, regress in the simulated windows, and again, until the values stand."""

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
"""At most; three or four are enough unless memory runs short."""

SETTLED = 5e-4
"""Relative change of what windows take, root mean square, with which the search ends."""

WORTH = 0.05
"""Share by which residuals scatter less, at least, with a form of more values."""

LEAST_SPREAD = 1e-4
"""Of residuals, which a log without any noise has not."""


class SearchResult(NamedTuple):
    """Values, and what they were fitted with.

    Attributes:
        values: by ``COLUMNS``.
        errors: standard errors; 0 of those that were fixed.
        runs: the loads, simulated by these values.
        rows: what the loads said in these runs.
        kept: rows that count and are no outliers, ``[N]``.
        misses: simulated less measured, over simulated, ``[N]``.
    """

    values: Floats
    errors: Floats
    runs: tuple[Simulated, ...]
    rows: Equations
    kept: Rows
    misses: Floats

    @property
    def scatter(self) -> float:
        """Spread of misses, outliers cut off: the geometric mean over all rows of that of their kind."""
        logs = 0.0
        for of, spread in zip(
            (~self.rows.of_ttft, self.rows.of_ttft), _spreads(self.misses, self.rows.of_ttft), strict=True
        ):
            if of.any():
                cut = np.minimum(np.abs(self.misses[of]), OUTLIER * spread)
                logs += of.mean() * np.log(max(LEAST_SPREAD, float(np.sqrt(np.mean(np.square(cut))))))
        return float(np.exp(logs))

    def describes_better(self, other: SearchResult) -> bool:
        """Return whether these values describe the rows so much better that more of them are worth it.

        Schwarz's criterion (BIC), and at least by ``WORTH``: windows of one load overlap.
        """
        rows = len(self.misses)
        more = int((self.values > 0).sum()) - int((other.values > 0).sum())
        gain = np.log(other.scatter / self.scatter)
        return bool(gain > max(WORTH, more * np.log(rows) / (2 * rows)))

    @property
    def miss(self) -> float:
        """Mean miss of times from the first to the last token, without sign."""
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
        loads: to fit to.
        costs: what iterations take by values.
        start: values to begin with, by ``COLUMNS``.
        form: columns that are fitted; the others are 0.
        fixed: values that stay as they are, by column.
        first: of how many requests of each load the log is looked at; all when None.

    Raises:
        PagesimError: the loads say nothing.
    """
    free = np.array([name in form and name not in fixed for name in COLUMNS])
    values = np.where(free, start, [fixed.get(name, 0.0) for name in COLUMNS])
    kernels, best, spreads = costs.kernels(), None, None
    for _ in range(ROUNDS):
        runs = tuple(replay(load, costs.system, costs.cost(values), kernels) for load in loads)
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
        # Where memory runs short, who is preempted changes with every value: the best round is taken.
        if best is None or now.miss < best.miss:
            best = now
        values = np.where(free, ties @ found.values, values)
        if np.sqrt(np.mean(np.square(rows.features @ (values - now.values) / expected))) < SETTLED:
            break
    assert best is not None
    return best


def _ties(free: Rows, runs: Sequence[Simulated]) -> Floats:
    """Return how values follow from those that are fitted, ``[len(COLUMNS), F]``.

    A curve over tokens is straight over intervals in which no iteration is, up to the end of the next one in
    which some are: nothing says where in between it rises.
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
    """Return the standard errors of all columns; infinite where a column is not seen, 0 where it is fixed."""
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
    """Return the robust spread of both kinds of rows: the noisier count less."""
    decode, ttft = (
        max(LEAST_SPREAD, TO_SIGMA * float(np.median(np.abs(misses[of])))) if of.any() else 1.0
        for of in (~of_ttft, of_ttft)
    )
    return decode, ttft
