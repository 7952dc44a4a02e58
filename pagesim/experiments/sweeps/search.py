"""A capacity search: the highest rate, or most outstanding requests, at which a policy keeps its goals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, field_validator

from pagesim.errors import PagesimError
from pagesim.experiments.sweeps.goals import Goal, parse_goal
from pagesim.experiments.sweeps.rate_search import FOUND, RateSearch
from pagesim.experiments.sweeps.run_store import RunStore, opened
from pagesim.experiments.sweeps.runs import ProgressCallback, StoredRun, replay_all
from pagesim.experiments.sweeps.sweeping import keep_table
from pagesim.experiments.sweeps.workers import Executor, Workers
from pagesim.setup.comparison import each_policy
from pagesim.setup.prepare import check
from pagesim.setup.scenario import COMPARED, Comparison, Scenario
from pagesim.setup.scenario_files import absolute_paths
from pagesim.setup.system import checked

if TYPE_CHECKING:
    import pandas as pd

BOUNDS = {"rate": (0.1, 1000.0), "max_concurrency": (1, 4096)}
"""What a search may find, and where it begins and stops unless told."""

UNITS = {"rate": "rate", "max_concurrency": "concurrency"}

WITHOUT_RATE = ("recorded", "all-at-once", "sosp")
"""Arrivals that have no rate, or not the same requests at every rate."""


class Search(Comparison):
    """A scenario, policies, and the goals that each shall keep at as high a rate or concurrency as it can."""

    find: Literal["rate", "max_concurrency"] = Field(
        "rate",
        description="Load that is raised until a goal fails: the rate, or the maximum number of "
        "outstanding requests.",
    )
    goals: tuple[str, ...] = Field((), description="Bounds on latencies that all must hold.")
    seeds: int = Field(1, ge=1, le=10_000, description="Seeds at each rate; their mean must keep a goal.")
    lowest: float | None = Field(None, ge=1e-6, le=1e6, description="Lowest load to try.")
    highest: float | None = Field(None, ge=1e-6, le=1e6, description="Highest load to try.")
    tolerance: float = Field(
        0.02,
        ge=1e-4,
        le=1,
        description="Largest relative distance between the load that holds and the one that fails.",
    )

    @field_validator("goals", mode="before")
    @classmethod
    def _as_tuple(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value  # TOML knows no tuples

    def parsed_goals(self) -> list[Goal]:
        """Return the goals.

        Raises:
            PagesimError: there is none, one is no goal, or an option does not go with a search.
        """
        if not self.goals:
            raise PagesimError("goals is empty; a capacity search needs a goal, such as p99_ttft<=2s")
        if self.rate is not None:
            raise PagesimError(f"rate is {self.rate:g}; a capacity search finds it, leave it out")
        if self.duration is not None:
            raise PagesimError(
                f"duration is {self.duration:g}; a capacity search sends the same requests at every "
                "rate, give num_requests instead"
            )
        if self.find == "max_concurrency" and self.max_concurrency is not None:
            raise PagesimError(
                f"max_concurrency is {self.max_concurrency}; this capacity search finds it, leave it out"
            )
        if self.find == "rate" and self.arrivals in WITHOUT_RATE:
            raise PagesimError(
                f"arrivals is {self.arrivals!r}; a capacity search needs a process with a rate, such as "
                "poisson"
            )
        bracket = self.bracket()
        for name, value in (("lowest", bracket.lowest), ("highest", bracket.highest)):
            if bracket.whole and (value < 1 or value != int(value)):
                raise PagesimError(f"{name} is {value:g}; of requests it must be a whole number from 1")
        if bracket.lowest >= bracket.highest:
            raise PagesimError(f"lowest is {bracket.lowest:g}; it must be below highest, {bracket.highest:g}")
        return [parse_goal(text) for text in self.goals]

    def base(self) -> Scenario:
        """Return the scenario of which only the policy, what is searched for and the seed change."""
        own = set(Search.model_fields) - set(Scenario.model_fields)
        base = Scenario(**self.model_dump(exclude=own))
        if self.find == "max_concurrency" and self.arrivals is None:
            base = base.model_copy(update={"rate": math.inf})
        return base.model_copy(update=self.at(self.bracket().lowest))

    def bracket(self) -> RateSearch:
        """Return where to search."""
        lowest, highest = BOUNDS[self.find]
        return RateSearch(
            lowest if self.lowest is None else self.lowest,
            highest if self.highest is None else self.highest,
            self.tolerance,
            whole=self.find == "max_concurrency",
        )

    def at(self, value: float) -> dict[str, Any]:
        """Return the option that is searched for, with a value."""
        return {self.find: int(value) if self.find == "max_concurrency" else value}


@dataclass(frozen=True)
class CapacityTables:
    """What came of a capacity search.

    Attributes:
        rates: one row a policy: the highest ``rate`` in requests/s, or ``max_concurrency``, that keeps the
            goals (NaN if the lowest does not), the lowest that was seen to fail, ``fails_at`` (NaN if none
            was), a ``verdict``, and the mean over the seeds of each goal's metric there, in seconds.
        probes: one row a policy and value that was tried: those metrics, whether the goals ``hold``, how many
            requests got no answer (``unserved``), the first ``error`` of a run that failed, and ``notes`` of
            what was assumed, a line each.
    """

    rates: pd.DataFrame
    probes: pd.DataFrame


def capacity(
    trace: str | PathLike[str] = "sharegpt",
    policies: Sequence[str] = COMPARED,
    *,
    goals: Sequence[str] | str,
    find: Literal["rate", "max_concurrency"] = "rate",
    seeds: int = 1,
    lowest: float | None = None,
    highest: float | None = None,
    tolerance: float = 0.02,
    out: str | PathLike[str] | None = None,
    jobs: int | None = None,
    executor: Executor = "local",
    address: str | None = None,
    **options: Any,
) -> CapacityTables:
    """Find, for each policy, the highest request rate, or concurrency, at which all goals hold.

    It is doubled from the lowest until a goal fails, then bisected. Each time the same requests are sent:
    at a rate, only their arrivals move together; under a bound on outstanding ones, all are there from the
    start, unless arrivals say otherwise. A goal holds where the mean over the seeds is within its bound and
    every request that the system could ever serve got its answer.

    Args:
        trace: a bundled workload's name, or a trace file.
        policies: names of `POLICIES`.
        goals: such as ``"p99_ttft<=2s"`` or ``["normalized_latency<=1.0", "p95_tpot<=100ms"]``;
            statistics are mean (when left out), p50, p90, p95 and p99.
        find: ``rate``, or ``max_concurrency``.
        seeds: how many at each rate.
        lowest: requests/s to begin with, 0.1 when left out; or requests, 1.
        highest: requests/s to stop at, 1000; or requests, 4096.
        tolerance: relative distance at most of what holds to what fails.
        out: a folder as for `sweep`, and it may be the same one; None keeps nothing.
        jobs: as for `sweep`.
        executor: as for `sweep`.
        address: as for `sweep`.
        **options: the fields of `Scenario` but ``policy``, ``rate``, ``duration`` and what is searched for.

    Returns:
        The tables of rates and of what was tried.

    Raises:
        PagesimError: a goal, an option, a trace or the folder is off; then nothing is run.

    Example:
        >>> import pagesim as ps
        >>> found = ps.capacity("fixed:200,100", ["orca-max", "vllm-sosp"], goals="p99_ttft<=2s")
        >>> found.rates["verdict"].tolist()
        ['found', 'found']
    """
    given = (goals,) if isinstance(goals, str) else tuple(goals)
    values = {"trace": str(trace), "policies": tuple(policies), **options, "goals": given}
    values |= {"find": find, "seeds": seeds}
    plan = checked(Search, {**values, "lowest": lowest, "highest": highest, "tolerance": tolerance})
    plan = plan.model_copy(update=absolute_paths(plan))
    with opened(out) as store, Workers(jobs, executor, address) as workers:
        tables = run_search(plan, store, workers)
        if out is not None:
            keep(tables, store)
    return tables


def run_search(
    plan: Search, store: RunStore, workers: Workers, *, progress: ProgressCallback | None = None
) -> CapacityTables:
    """Search; what `capacity` and the command line call.

    All policies take their next step together, so that many workers have work.
    """
    import pandas as pd

    goals = plan.parsed_goals()
    systems = each_policy(plan.base(), plan.policies)
    for policy, system in systems.items():
        try:
            check(system)
        except PagesimError as error:
            raise PagesimError(f"policy={policy}: {error}") from None
    seeds = range(plan.seed, plan.seed + plan.seeds)
    brackets = {policy: plan.bracket() for policy in systems}
    probes: list[dict[str, Any]] = []
    while trying := {policy: value for policy, b in brackets.items() if (value := b.next()) is not None}:
        scenarios = [
            systems[policy].model_copy(update={**plan.at(value), "seed": seed})
            for policy, value in trying.items()
            for seed in seeds
        ]
        before = len(probes) * plan.seeds
        left = sum(b.left() for b in brackets.values()) * plan.seeds

        def callback(over: int, _: int, before: int = before, left: int = left) -> None:
            if progress is not None:
                progress(before + over, before + left)

        runs = replay_all(scenarios, store, workers, progress=callback)
        for policy, value in trying.items():
            own = [run for run in runs if run.scenario.policy == policy]
            probe = _probe(own, goals)
            brackets[policy].learn(value, probe["hold"])
            probes.append({"policy": policy, **plan.at(value), **probe})
    at = {(probe["policy"], probe[plan.find]): probe for probe in probes}
    nothing = {goal.metric: math.nan for goal in goals}
    rows = [
        {
            "policy": policy,
            plan.find: math.nan if bracket.holds is None else bracket.holds,
            "fails_at": math.nan if bracket.fails is None else bracket.fails,
            "verdict": bracket.verdict
            if bracket.verdict == FOUND
            else f"{bracket.verdict} {UNITS[plan.find]}",
            **{m: at[policy, bracket.holds][m] if bracket.holds else math.nan for m in nothing},
        }
        for policy, bracket in brackets.items()
    ]
    probes.sort(key=lambda probe: (plan.policies.index(probe["policy"]), probe[plan.find]))
    # Where no run failed the column would have no type.
    return CapacityTables(pd.DataFrame(rows), pd.DataFrame(probes).astype({"error": "string"}))


def keep(tables: CapacityTables, store: RunStore) -> None:
    """Write a search's tables into its folder, in place of older ones."""
    keep_table(tables.rates, store.folder / "capacity.parquet")
    keep_table(tables.probes, store.folder / "probes.parquet")


def _probe(runs: Sequence[StoredRun], goals: Sequence[Goal]) -> dict[str, Any]:
    """Return what the seeds of one policy at one rate say of the goals."""
    summaries = [run.record.summary for run in runs if run.record.summary is not None]
    means = {goal.metric: _mean([goal.value(summary) for summary in summaries]) for goal in goals}
    unserved = sum(map(_unserved, summaries))
    error = next((run.record.error for run in runs if run.record.error is not None), None)
    kept = all(means[goal.metric] <= goal.seconds for goal in goals)  # false for NaN
    hold = kept and not unserved and error is None
    notes = [note for run in runs for note in run.record.notes]
    if hold:
        notes += [_burst(run.scenario.rate, run.record.summary) for run in runs]
    text = "\n".join(dict.fromkeys(filter(None, notes)))
    return {**means, "hold": hold, "unserved": unserved, "error": error, "notes": text}


def _burst(rate: float | None, summary: Mapping[str, Any] | None) -> str:
    """Return that requests at a rate are a short burst, if they are; nothing otherwise.

    By Little's law rate · latency requests are outstanding once a load is steady. Where these are a tenth of
    all requests or more, much of the run is its beginning and its end, and queues have no time to grow.
    """
    if rate is None or not math.isfinite(rate) or summary is None or summary["latency"]["mean"] is None:
        return ""
    total, latency = summary["requests"]["total"], summary["latency"]["mean"]
    if rate * latency < total / 10:
        return ""
    return (
        f"{total:,} requests are a short burst: at {rate:.4g} requests/s they arrive within "
        f"{total / rate:.3g} s, and one takes {latency:.3g} s; a longer load holds less: raise num_requests"
    )


def _mean(values: Sequence[float | None]) -> float:
    """Return the mean; NaN where a value is missing: a goal without a number is not kept."""
    return math.nan if not values or None in values else float(np.mean([v for v in values if v is not None]))


def _unserved(summary: Mapping[str, Any]) -> int:
    """Return the requests that got no answer though they could have at another rate.

    Latencies are those of finished requests: a system that drops requests would look fast.
    """
    requests = summary["requests"]
    return sum(int(requests[outcome]) for outcome in ("unschedulable", "aborted", "unfinished"))
