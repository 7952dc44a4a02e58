"""Capacity search: the highest rate, or most outstanding requests, at which a policy meets its goals."""

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
"""What can be searched for, with the default lowest and highest values."""

UNITS = {"rate": "rate", "max_concurrency": "concurrency"}

WITHOUT_RATE = ("recorded", "all-at-once", "sosp")
"""Arrival processes that have no rate, or whose requests differ between rates."""


class Search(Comparison):
    """A scenario, policies, and the goals that each policy must meet at the highest load it can sustain."""

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
        return tuple(value) if isinstance(value, list) else value  # TOML has no tuples

    def parsed_goals(self) -> list[Goal]:
        """Return the parsed goals.

        Raises:
            PagesimError: there is no goal, one is invalid, or an option is not allowed in a search.
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
        """Return the scenario in which only the policy, the searched option and the seed vary."""
        own = set(Search.model_fields) - set(Scenario.model_fields)
        base = Scenario(**self.model_dump(exclude=own))
        if self.find == "max_concurrency" and self.arrivals is None:
            base = base.model_copy(update={"rate": math.inf})
        return base.model_copy(update=self.at(self.bracket().lowest))

    def bracket(self) -> RateSearch:
        """Return the range in which to search."""
        lowest, highest = BOUNDS[self.find]
        return RateSearch(
            lowest if self.lowest is None else self.lowest,
            highest if self.highest is None else self.highest,
            self.tolerance,
            whole=self.find == "max_concurrency",
        )

    def at(self, value: float) -> dict[str, Any]:
        """Return the searched option set to a value."""
        return {self.find: int(value) if self.find == "max_concurrency" else value}


@dataclass(frozen=True)
class CapacityTables:
    """Results of a capacity search.

    Attributes:
        rates: one row per policy: the highest ``rate`` in requests/s, or ``max_concurrency``, that meets the
            goals (NaN if the lowest does not); ``fails_at``, the lowest that was seen to fail (or NaN); a
            ``verdict``; and each goal's metric at the highest, in seconds, as the mean over the seeds.
        probes: one row per policy and tried value: those metrics, whether the goals ``hold``, how many
            requests were ``unserved``, the first ``error`` of a failed run, and ``notes`` on assumptions, one
            per line.
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

    The load is doubled from the lowest until a goal fails, then bisected. The same requests are sent at every
    load: a rate only scales their arrival times, and with a bound on outstanding requests, all of them arrive
    at the start unless ``arrivals`` says otherwise. A goal holds if the mean over the seeds is within its
    bound and every request that the system can serve at all finished.

    Args:
        trace: a bundled workload's name, or a trace file.
        policies: names of `POLICIES`.
        goals: such as ``"p99_ttft<=2s"`` or ``["normalized_latency<=1.0", "p95_tpot<=100ms"]``;
            statistics are mean (the default), p50, p90, p95 and p99.
        find: ``rate``, or ``max_concurrency``.
        seeds: number of seeds at each load.
        lowest: load to start with, by default 0.1 requests/s or 1 request.
        highest: load to stop at, by default 1000 requests/s or 4096 requests.
        tolerance: largest relative distance between the load that holds and the one that fails.
        out: a folder as for `sweep`, possibly the same one; None stores nothing.
        jobs: as for `sweep`.
        executor: as for `sweep`.
        address: as for `sweep`.
        **options: fields of `Scenario` except ``policy``, ``rate``, ``duration`` and the searched option.

    Returns:
        The tables of rates and of probes.

    Raises:
        PagesimError: a goal, an option, a trace or the folder is invalid; then nothing is run.

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
    """Carry out a search; called by `capacity` and by the command line.

    All policies take their next step together, to keep many workers busy.
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
    # If no run failed, the column would have no type.
    return CapacityTables(pd.DataFrame(rows), pd.DataFrame(probes).astype({"error": "string"}))


def keep(tables: CapacityTables, store: RunStore) -> None:
    """Write a search's tables into its folder, replacing older ones."""
    keep_table(tables.rates, store.folder / "capacity.parquet")
    keep_table(tables.probes, store.folder / "probes.parquet")


def _probe(runs: Sequence[StoredRun], goals: Sequence[Goal]) -> dict[str, Any]:
    """Return the result of one policy at one load, over all seeds."""
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
    """Return a note if the requests are only a short burst at this rate, else an empty string.

    By Little's law, rate · latency requests are outstanding in the steady state. If these are a tenth of all
    requests or more, warm-up and drain are a large part of the run, and queues have no time to grow.
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
    """Return the mean; NaN if a value is missing, since a goal without a value does not hold."""
    return math.nan if not values or None in values else float(np.mean([v for v in values if v is not None]))


def _unserved(summary: Mapping[str, Any]) -> int:
    """Return how many requests did not finish, except those that no load would let the system serve.

    Latencies cover only finished requests, so a system that drops requests would look fast.
    """
    requests = summary["requests"]
    return sum(int(requests[outcome]) for outcome in ("unschedulable", "aborted", "unfinished"))
