"""The planner's constants from rows: what decode took under forced plans, and which constants say so.

A step of equal lengths takes, with t the seconds of a tile,

    launch + t · (rounds · (chain + start_tiles) + reduction_tiles + reduce_tiles · splits)

and no reduction where there is one split. Given ``start_tiles``, which has a say in the rounds too, the
rest is linear, and solved by least squares of relative errors without negative numbers; ``start_tiles`` is
what makes the error least. What follows from comparisons, not from times, is chosen by comparing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import log
from typing import Any

import numpy as np

from pagesim.errors import PagesimError
from pagesim.kernels.bench.rows import Row, parse_lengths
from pagesim.kernels.bench.steps import (
    Form,
    Shape,
    Step,
    best_form,
    by_shape,
    decodes,
    geometric_mean,
    model_of,
    programs_of,
    steps_of,
)
from pagesim.kernels.plan_constants import PlanConstants
from pagesim.kernels.planner import plan_decode

LEAST_SPLITS = (64, 128, 256, 512, 1024)
"""Candidates of ``min_split_tokens``."""

_MOST_START = 64.0


@dataclass(frozen=True, slots=True)
class Choice:
    """What the planner chooses for a shape, and what that took.

    Attributes:
        shape: batch, context, query heads, KV heads.
        splits: those that were measured nearest to the planner's, before and with the fitted constants.
        best: the fastest.
        losses: time of the planner's choice over that of the fastest, before and with the fitted constants.
    """

    shape: Shape
    splits: tuple[int, int]
    best: int
    losses: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Fit:
    """What rows say of the constants.

    Attributes:
        constants: fitted ones.
        tile_s: seconds of a tile.
        launch_s: seconds of a step beside its tiles.
        error: root mean square of the relative errors of the step's estimated time.
        rows: how many took part.
        form: of the programs that were timed.
        choices: one a shape.
    """

    constants: PlanConstants
    tile_s: float
    launch_s: float
    error: float
    rows: int
    form: Form
    choices: tuple[Choice, ...]

    def as_json(self) -> dict[str, Any]:
        """Return what is stored beside the constants."""
        return {
            "tile_s": self.tile_s,
            "launch_s": self.launch_s,
            "error": self.error,
            "rows": self.rows,
            "before": geometric_mean(choice.losses[0] for choice in self.choices),
            "after": geometric_mean(choice.losses[1] for choice in self.choices),
        }


def fit_constants(rows: Sequence[Row]) -> Fit:
    """Return the constants that say best what rows of ``tune_points`` have measured.

    Raises:
        PagesimError: the rows do not tell them; the message says what is missing.
    """
    form = best_form(rows)
    steps = steps_of(rows, form)
    constants, tile_s, launch_s, error = _fit_times(steps, form.constants())
    constants = replace(constants, min_split_tokens=_least_split(steps, constants))
    if (empty := _empty_tiles(rows, form, tile_s)) is not None:
        constants = replace(constants, empty_tiles=empty)
    choices = _choices(steps, form.constants(), constants)
    return Fit(constants, tile_s, launch_s, error, len(steps), form, choices)


def _fit_times(steps: Sequence[Step], constants: PlanConstants) -> tuple[PlanConstants, float, float, float]:
    """Return constants, seconds of a tile and of a launch, and the error that is left."""
    rounds = {step.parts(constants).rounds for step in steps}
    if len(steps) < 8 or len(rounds) < 2 or max(rounds) < 2 or not any(step.splits > 1 for step in steps):
        raise PagesimError(
            f"{len(steps)} rows of forced splits are there; the fit needs 8 that succeeded, of one split and "
            "of several, some that fill the GPU more than once: measure all of `pagesim bench tune`"
        )

    def solved(start: float) -> tuple[float, np.ndarray]:
        return _least_squares(steps, replace(constants, start_tiles=start))

    best = reach = _MOST_START / 2
    for width in (1.0, 0.1, 0.01):
        low, high = max(0.0, best - reach), best + reach
        tried = [round(low + width * n, 2) for n in range(round((high - low) / width) + 1)]
        best, reach = min(tried, key=lambda start: (solved(start)[0], start)), width
    error, (launch_s, tile_s, reduction_s, reduce_s) = solved(best)
    if not tile_s > 0:
        raise PagesimError("the rows take as long whatever their tiles; were they measured on a GPU?")
    fitted = replace(
        constants,
        start_tiles=best,
        reduction_tiles=float(reduction_s / tile_s),
        reduce_tiles=float(reduce_s / tile_s),
    )
    return fitted, float(tile_s), float(launch_s), error


def _least_squares(steps: Sequence[Step], constants: PlanConstants) -> tuple[float, np.ndarray]:
    """Return the error and (launch, tile, reduction, reduction a split) in seconds, none below 0."""
    rows = []
    for step in steps:
        parts = step.parts(constants)
        units = parts.rounds * (parts.chain + constants.start_tiles)
        rows.append((1.0, units, float(parts.filled > 0), float(parts.filled)))
    seconds = np.array([step.seconds for step in steps])
    scaled = np.array(rows) / seconds[:, None]  # [N, 4]: errors are relative
    best: tuple[float, np.ndarray] = (float("inf"), np.zeros(4))
    for count in range(1, 5):
        for kept in combinations(range(4), count):
            part = scaled[:, kept]
            solution = np.linalg.lstsq(part, np.ones(len(seconds)), rcond=None)[0]
            error = float(np.sqrt(np.mean((part @ solution - 1) ** 2)))
            if (solution >= 0).all() and error < best[0] - 1e-12:
                whole = np.zeros(4)
                whole[list(kept)] = solution
                best = error, whole
    return best


def _least_split(steps: Sequence[Step], constants: PlanConstants) -> int:
    """Return the candidate under which the planner's choices lose least; the default where it is no worse."""
    losses = {
        least: geometric_mean(
            loss for _, loss in _chosen(steps, replace(constants, min_split_tokens=least)).values()
        )
        for least in LEAST_SPLITS
    }
    default = PlanConstants().min_split_tokens
    best = min(losses, key=lambda least: (losses[least], -least))
    return default if losses[default] <= losses[best] * 1.001 else best


def _chosen(steps: Sequence[Step], constants: PlanConstants) -> dict[Shape, tuple[int, float]]:
    """Return of each shape the splits that were measured nearest to the planner's, and their loss."""
    found = {}
    for shape, mine in by_shape(steps).items():
        model = replace(mine[0].model, constants=constants)
        wanted = model.best_splits(mine[0].tiles)
        nearest = min(mine, key=lambda step: (abs(log(step.splits / wanted)), step.splits))
        found[shape] = nearest.splits, nearest.seconds / min(step.seconds for step in mine)
    return found


def _choices(steps: Sequence[Step], before: PlanConstants, after: PlanConstants) -> tuple[Choice, ...]:
    old, new = _chosen(steps, before), _chosen(steps, after)
    return tuple(
        Choice(
            shape,
            (old[shape][0], new[shape][0]),
            min(mine, key=lambda step: step.seconds).splits,
            (old[shape][1], new[shape][1]),
        )
        for shape, mine in by_shape(steps).items()
    )


def _empty_tiles(rows: Iterable[Row], form: Form, tile_s: float) -> float | None:
    """Return what an idle program costs: the median over skewed batches of a grid's time beyond a list's."""
    pairs: dict[str, dict[str, Row]] = {}
    for row in decodes(rows, skewed=True):
        if Form.of(row) == form and row["schedule"]:
            pairs.setdefault(row["lengths"], {})[row["schedule"]] = row
    costs = []
    for text, found in pairs.items():
        if found.keys() == {"grid", "list"}:
            row, lengths = found["grid"], parse_lengths(text)
            plan = plan_decode(lengths, **programs_of(row), num_splits=row["splits_used"], work_list=False)
            counted = plan.count(lengths)
            if idle := row["kv_heads"] * (counted.started - counted.with_work):
                longer = row["median_s"] - found["list"]["median_s"]
                costs.append(max(0.0, longer) / tile_s * model_of(row).slots / idle)
    return float(np.median(costs)) if costs else None
