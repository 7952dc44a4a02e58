"""Validation: one trace both ways, really carried out and simulated, and by how much the two differ."""

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
"""Kinds of iterations; one that swaps is of the last kind, whatever it computes."""

LATENCIES = ("normalized_latency", "ttft", "tpot", "latency")
"""What is compared end to end, beside ``duration``; ``docs/reference/metrics.md`` defines it."""

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
    """Observes a run's iterations, and predicts each from its own shape: the same schedule, another clock.

    Args:
        cost: what predicts.

    Attributes:
        kinds: of each iteration, ``[I]``.
        measured_s: what each took, ``[I]``.
        predicted_s: what it would have taken by ``cost``, ``[I]``.
    """

    cost: CostModel
    kinds: list[str] = field(default_factory=list)
    measured_s: list[float] = field(default_factory=list)
    predicted_s: list[float] = field(default_factory=list)

    def planned(self, batch: Batch, now: int, start: int, ticks: int) -> None:
        shape = shape_of(batch)
        if not (shape.tokens or shape.blocks_out or shape.blocks_in or shape.blocks_copied):
            return  # nothing was done: nothing was measured
        self.kinds.append(kind_of(shape))
        self.measured_s.append(ticks / TICKS_PER_SECOND)
        self.predicted_s.append(self.cost.iteration(shape) / TICKS_PER_SECOND)

    def next_look(self) -> int:
        return 0  # every iteration


def by_kind(iterations: Iterations) -> dict[str, Errors]:
    """Return the errors of each kind of iteration that there was, and of ``all``.

    ``iterations``: how many; ``mean_s``: what they took; ``signed`` and ``absolute``: mean relative error of
    one, with its sign and without; ``total``: relative error of all their time together.
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
"""`pagesim.device.live.run_live`, or what stands in for it."""


@dataclass(frozen=True)
class Case:
    """One policy and way to preempt, both ways.

    Attributes:
        policy: its name.
        preemption: how.
        live: what was carried out.
        simulated: what the profile alone gives.
        iterations: of the live run, each with what the profile says it should take.
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
        """By metric and statistic, seconds of the live run and of the simulated one."""
        live, simulated = (
            {
                **{name: result.summary[name] for name in LATENCIES},
                "duration": {"mean": duration_of(result)},
            }
            for result in (self.live, self.simulated)
        )
        return residuals_of(live, simulated)

    def report(self) -> dict[str, Any]:
        """Return everything that was found, as JSON holds it."""
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
    """Run a trace both ways under several policies; yield each case as it is done.

    Args:
        system: what serves; its ``cost`` is the profile that is held against the live runs.
        trace: the requests.
        policies: names of `POLICIES`.
        preemptions: how victims are preempted, each in a run of its own, under the policies that can.
        live: what carries out a run.
        check: whether the live runs compare sequences with the same ones computed in one piece.
        progress: called with each case that begins.
        **how: of `run_live`: ``device``, ``cuda_graphs``, ``swap``.

    Raises:
        PagesimError: an option is off, or the profile is not for this model and these blocks.
    """
    for case in _cases(system, policies, preemptions):
        preemption = _preemption_of(case)
        name = f"{case.policy}, {preemption}"
        if progress is not None:
            progress(f"{name}: live")
        # The same terms as the simulation's, in a cost model of its own: it counts what it is asked.
        iterations = Iterations(EngineConfig(case).cost)
        measured = live(case, trace, check=check, observers=[iterations], **how)
        if progress is not None:
            progress(f"{name}: simulated")
        # A live run may have settled what a simulated one leaves open, such as its swap space.
        simulated = run(measured.scenario, trace, steps="none")
        yield Case(case.policy, preemption, measured, simulated, iterations)


def _cases(system: System, policies: Sequence[str], preemptions: Sequence[Preemption]) -> Iterator[System]:
    seen: set[tuple[str, str]] = set()
    # Live runs have no front end; what is given holds for both.
    default = system.model_copy(update={"preemption": None, "frontend": system.frontend or "0"})
    for preemption in preemptions:
        for policy, each in each_policy(default, policies).items():
            if preemption != "default" and can_use(EngineConfig(each).policy, "preemption", preemption):
                each = each.model_copy(update={"preemption": preemption})
            way = _preemption_of(each)
            # Policies that cannot preempt so are run once, as they can.
            if (policy, way) not in seen and not (
                way != preemption and any(name == policy for name, _ in seen)
            ):
                seen.add((policy, way))
                yield each


def _preemption_of(system: System) -> str:
    """Return how a system's victims are preempted."""
    return system.option("preemption") or "default"
