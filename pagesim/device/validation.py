"""Validation: run a trace live and simulate it, and compare the two."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pagesim.api import run
from pagesim.costs import CostModel, IterationShape
from pagesim.device.live import run_live
from pagesim.experiments.recorded.errors import Residual, as_json, residuals_of
from pagesim.experiments.recorded.simulate import duration_of
from pagesim.results.result import Result
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.observer import Observer
from pagesim.setup.comparison import can_use, each_policy
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.system import System
from pagesim.sim.clock import TICKS_PER_SECOND
from pagesim.sim.executor import shape_of
from pagesim.workloads.trace import Trace

KINDS = ("prefill", "decode", "mixed", "with swap")
"""Kinds of iterations; any iteration that swaps is of the last kind."""

LATENCIES = ("normalized_latency", "ttft", "tpot", "latency")
"""Metrics compared end to end in addition to ``duration``, as defined in ``docs/reference/metrics.md``."""

Errors = dict[str, float]


def kind_of(shape: IterationShape) -> str:
    """Return the kind of an iteration of this shape, one of ``KINDS``."""
    if shape.blocks_out or shape.blocks_in:
        return "with swap"
    if not shape.decoding:
        return "prefill"
    return "decode" if shape.tokens == shape.decoding else "mixed"


@dataclass
class Iterations(Observer):
    """Observes a run's iterations and predicts each from its shape, so that both share one schedule.

    Args:
        cost: cost model that predicts.

    Attributes:
        kinds: kind of each iteration, ``[I]``.
        measured_s: measured seconds of each iteration, ``[I]``.
        predicted_s: predicted seconds of each iteration, ``[I]``.
    """

    cost: CostModel
    kinds: list[str] = field(default_factory=list)
    measured_s: list[float] = field(default_factory=list)
    predicted_s: list[float] = field(default_factory=list)

    def planned(self, batch: Batch, now: int, start: int, ticks: int) -> None:
        shape = shape_of(batch)
        if not (shape.tokens or shape.blocks_out or shape.blocks_in or shape.blocks_copied):
            return  # nothing was done, so nothing was measured
        self.kinds.append(kind_of(shape))
        self.measured_s.append(ticks / TICKS_PER_SECOND)
        self.predicted_s.append(self.cost.iteration(shape) / TICKS_PER_SECOND)

    def next_look(self) -> int:
        return 0  # every iteration


def by_kind(iterations: Iterations) -> dict[str, Errors]:
    """Return the errors of each kind of iteration that occurred, and of ``all``.

    ``iterations`` is their number and ``mean_s`` their mean measured time. ``signed`` and ``absolute`` are
    the mean relative error with and without sign; ``total`` is the relative error of their total time.
    """
    kinds = np.array(iterations.kinds, dtype=object)
    measured, predicted = np.array(iterations.measured_s), np.array(iterations.predicted_s)
    return {
        kind: _errors(measured[chosen], predicted[chosen])
        for kind in (*KINDS, "all")
        if (chosen := np.full(len(kinds), True) if kind == "all" else kinds == kind).any()
    }


def _errors(measured: npt.NDArray[np.float64], predicted: npt.NDArray[np.float64]) -> Errors:
    relative = predicted / measured - 1
    return {
        "iterations": len(measured),
        "mean_s": float(measured.mean()),
        "signed": float(relative.mean()),
        "absolute": float(np.abs(relative).mean()),
        "total": float(predicted.sum() / measured.sum() - 1),
    }


Preemption = Literal["default", "recompute", "swap", "auto"]

Live = Callable[..., Result]
"""`pagesim.device.live.run_live`, or a substitute."""


@dataclass(frozen=True)
class Case:
    """A live run and a simulation with one policy and preemption mode.

    Attributes:
        policy: name of the policy.
        preemption: preemption mode.
        live: result of the live run.
        simulated: result of the simulation with the profile.
        iterations: the live run's iterations, measured and predicted.
    """

    policy: str
    preemption: str
    live: Result
    simulated: Result
    iterations: Iterations

    @property
    def name(self) -> str:
        """Policy and preemption in a few words."""
        return self.policy if self.preemption == "default" else f"{self.policy}, {self.preemption}"

    @property
    def residuals(self) -> dict[str, dict[str, Residual]]:
        """Seconds in the live run and in the simulation, by metric and statistic."""
        live, simulated = (
            {
                **{name: result.summary[name] for name in LATENCIES},
                "duration": {"mean": duration_of(result)},
            }
            for result in (self.live, self.simulated)
        )
        return residuals_of(live, simulated)

    def report(self) -> dict[str, Any]:
        """Return all findings in a form that JSON can hold."""
        return {
            "policy": self.policy,
            "preemption": self.preemption,
            "same_schedule": by_kind(self.iterations),
            "end_to_end": as_json(self.residuals),
            "batch": self._both("batch"),
            "iterations": self._both("iterations"),
            "preemptions": self._both("preemptions"),
            "swapped_blocks": self._both("swapped_blocks"),
            "extrapolated": self.simulated.summary["extrapolated"],
            "check": self.live.summary["live"].get("check"),
        }

    def _both(self, name: str) -> dict[str, Any]:
        return {"live": self.live.summary[name], "simulated": self.simulated.summary[name]}


def validate(
    system: System,
    trace: Trace,
    *,
    policies: Sequence[str],
    preemptions: Sequence[Preemption] = ("recompute", "swap"),
    live: Live = run_live,
    check: bool = True,
    progress: Callable[[str], None] | None = None,
    **how: Any,
) -> Iterator[Case]:
    """Run a trace live and simulated under several policies, yielding each case when it is done.

    Args:
        system: deployment to validate; its ``cost`` is the profile compared with the live runs.
        trace: the requests.
        policies: names of `POLICIES`.
        preemptions: preemption modes, each in its own run under the policies that support it.
        live: function that carries out a live run.
        check: whether live runs compare sequences with the same sequences computed contiguously.
        progress: called with a description when each run of a case begins.
        **how: arguments of `run_live`: ``device``, ``cuda_graphs``, ``swap``.

    Raises:
        PagesimError: an option is invalid, or the profile is for another model or block size.
    """
    for case in _cases(system, policies, preemptions):
        preemption = _preemption_of(case)
        name = f"{case.policy}, {preemption}"
        if progress is not None:
            progress(f"{name}: live")
        # A separate cost model with the simulation's terms, since it records extrapolated requests.
        iterations = Iterations(EngineConfig(case).cost)
        measured = live(case, trace, check=check, observers=[iterations], **how)
        if progress is not None:
            progress(f"{name}: simulated")
        # The live run may have fixed options that were left open, such as the swap space.
        simulated = run(measured.scenario, trace, steps="none")
        yield Case(case.policy, preemption, measured, simulated, iterations)


def _cases(system: System, policies: Sequence[str], preemptions: Sequence[Preemption]) -> Iterator[System]:
    seen: set[tuple[str, str]] = set()
    # Live runs have no front end; one that is given applies to both.
    default = system.model_copy(update={"preemption": None, "frontend": system.frontend or "0"})
    for preemption in preemptions:
        for policy, each in each_policy(default, policies).items():
            if preemption != "default" and can_use(EngineConfig(each).policy, "preemption", preemption):
                each = each.model_copy(update={"preemption": preemption})
            way = _preemption_of(each)
            # Policies that do not support this mode are run once, in their own.
            if (policy, way) not in seen and not (
                way != preemption and any(name == policy for name, _ in seen)
            ):
                seen.add((policy, way))
                yield each


def _preemption_of(system: System) -> str:
    """Return a system's preemption mode."""
    return system.option("preemption") or "default"
