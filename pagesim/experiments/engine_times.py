"""An engine's own time, from runs of it: two numbers with which simulated runs take as long as measured ones.

Seconds an iteration and a sequence that kernels do not hide show in the time per output token. What the time
to first token lacks is what the client waited beside the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pagesim.costs import EngineTime
from pagesim.errors import PagesimError

STEP = EngineTime(1e-3, 2e-5)
"""How far the numbers are moved to see what they change."""

ROUNDS = 3
"""Times that the numbers are corrected: a time per output token is nearly linear in them."""


MOST_CONDITION = 200.0
"""Of the two numbers' effects on the runs: beyond it a percent of noise is more than all of one of them."""


class Means(NamedTuple):
    """What a run took in the mean.

    Attributes:
        tpot_s: seconds per output token.
        ttft_s: seconds to the first token.
    """

    tpot_s: float
    ttft_s: float


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A run of a server, and the same run simulated.

    Attributes:
        name: for tables.
        measured: what the server took.
        simulate: what it takes in the simulator, with an engine's own time; no front end.
    """

    name: str
    measured: Means
    simulate: Callable[[EngineTime], Means]


def fit_engine_time(runs: Sequence[MeasuredRun]) -> EngineTime:
    """Return the own time with which simulated times per output token come nearest to the measured ones.

    Least squares of relative errors, neither number below 0.

    Args:
        runs: of one engine, at several concurrencies: one alone does not tell the two numbers apart.

    Raises:
        PagesimError: there are too few runs, or the two numbers cannot be told apart.
    """
    from scipy.optimize import nnls

    if len(runs) < 2:
        raise PagesimError(
            f"{len(runs)} runs do not tell seconds an iteration from seconds a sequence; give two"
        )
    at = EngineTime()
    measured = np.array([run.measured.tpot_s for run in runs])
    for _ in range(ROUNDS):
        here, more, longer = (
            np.array([run.simulate(engine).tpot_s for run in runs])
            for engine in (
                at,
                EngineTime(at.iteration_s + STEP.iteration_s, at.sequence_s),
                EngineTime(at.iteration_s, at.sequence_s + STEP.sequence_s),
            )
        )
        slopes = np.stack(
            [(more - here) / STEP.iteration_s, (longer - here) / STEP.sequence_s], axis=1
        )  # [N, 2]
        rest = measured - here + slopes @ [at.iteration_s, at.sequence_s]
        # In units of the steps both columns are of one size.
        weighed = slopes * [STEP.iteration_s, STEP.sequence_s] / measured[:, None]
        if np.linalg.cond(weighed) > MOST_CONDITION:
            raise PagesimError(
                "the runs do not tell seconds an iteration from seconds a sequence: their batches are alike; "
                "give runs of other concurrencies"
            )
        (iteration, sequence), _ = nnls(weighed, rest / measured)
        at = EngineTime(
            iteration * STEP.iteration_s, sequence * STEP.sequence_s, f"fitted to {len(runs)} runs"
        )
    return at


def fit_frontend(runs: Sequence[MeasuredRun], engine: EngineTime) -> float:
    """Return the seconds beside the engine with which times to first token miss by the least in the mean.

    Args:
        runs: of one engine.
        engine: its own time.
    """
    measured = np.array([run.measured.ttft_s for run in runs])
    missing = measured - [run.simulate(engine).ttft_s for run in runs]
    # The sum of |missing - f| / measured is least at the weighted median.
    order = np.argsort(missing)
    weights = np.cumsum(1 / measured[order])
    return max(0.0, float(missing[order][np.searchsorted(weights, weights[-1] / 2)]))
