"""The runs of a validation: each policy and way to preempt live, and again by the profile alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pagesim.api import run
from pagesim.device.live import run_live
from pagesim.device.validation.errors import Iterations, by_kind, metric_errors
from pagesim.results.result import Result
from pagesim.setup.comparison import can_use, each_policy
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.system import System
from pagesim.workloads.trace import Trace

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

    def report(self) -> dict[str, Any]:
        """Return everything that was found, as JSON holds it."""
        return {
            "policy": self.policy,
            "preemption": self.preemption,
            "same_schedule": by_kind(self.iterations),
            "end_to_end": metric_errors(self.live, self.simulated),
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
    default = system.model_copy(update={"preemption": None})
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
