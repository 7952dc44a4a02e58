"""Runs: many scenarios on many workers, with each result stored at once and nothing run twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagesim.api import run, trace_of
from pagesim.errors import PagesimError
from pagesim.experiments.sweeps.keys import recipe_key, run_key, simulator
from pagesim.experiments.sweeps.run_store import RunRecord, RunStore
from pagesim.experiments.sweeps.workers import Workers
from pagesim.setup.scenario import Scenario
from pagesim.workloads.trace import Trace

ProgressCallback = Callable[[int, int], None]
"""Called with the numbers of finished runs and of all runs; first with those found in the store."""

MOST_TRACES = 4
"""Traces kept in memory; runs are grouped by trace, so few are in use at a time."""

_traces: dict[str, Trace] = {}


@dataclass(frozen=True)
class StoredRun:
    """A scenario and how its run ended; ``key`` is its name in the store."""

    scenario: Scenario
    key: str
    record: RunRecord


def replay_all(
    scenarios: Sequence[Scenario],
    store: RunStore,
    workers: Workers,
    *,
    retry_failed: bool = False,
    progress: ProgressCallback | None = None,
) -> list[StoredRun]:
    """Replay scenarios that are not in the store yet; return how each ended, in their order.

    Args:
        scenarios: scenarios to run; the options of each must be compatible (`prepare.check`).
        store: store of results; each result is added at once, including failures.
        workers: processes that run the replays.
        retry_failed: whether to repeat runs that failed before.
        progress: called as runs finish, for a progress bar.

    Raises:
        PagesimError: no trace can be made, or the store cannot be written.
    """
    recipes = {scenario: recipe_key(scenario) for scenario in scenarios}
    keys = {scenario: run_key(scenario, recipe) for scenario, recipe in recipes.items()}
    records: dict[str, RunRecord] = {}
    for key in keys.values():
        record = store.run(key)
        if record is not None and not (retry_failed and record.status == "failed"):
            records[key] = record
    # Grouped by trace, so that each is made once.
    order = {recipe: place for place, recipe in enumerate(dict.fromkeys(recipes.values()))}
    left = [scenario for scenario, key in keys.items() if key not in records]
    left.sort(key=lambda scenario: order[recipes[scenario]])
    total = len(keys)
    without_trace: dict[str, PagesimError] = {}

    def calls() -> Iterator[tuple[str, Scenario, Trace, str]]:
        for scenario in left:
            try:
                trace = _trace(recipes[scenario], scenario)
            except PagesimError as error:
                without_trace[keys[scenario]] = error
            else:
                yield keys[scenario], scenario, trace, simulator()

    if progress is not None:
        progress(len(records), total)
    owners = {keys[scenario]: scenario for scenario in left}
    for key, record in run_and_store(_replay, calls(), owners, store, workers):
        records[key] = record
        if progress is not None:
            progress(len(records), total)
    if without_trace and not records:
        raise next(iter(without_trace.values()))
    records |= {key: RunRecord("failed", str(error), None) for key, error in without_trace.items()}
    return [StoredRun(scenario, keys[scenario], records[keys[scenario]]) for scenario in scenarios]


def run_and_store(
    function: Callable[..., tuple[str, RunRecord]],
    calls: Iterable[tuple[Any, ...]],
    scenarios: Mapping[str, Scenario],
    store: RunStore,
    workers: Workers,
) -> Iterator[tuple[str, RunRecord]]:
    """Yield each run's key and outcome, which is stored as soon as the run finishes.

    Args:
        function: function that carries out a run and returns its key and outcome.
        calls: arguments of each call.
        scenarios: scenario by key, for people who read the store.
        store: store of runs.
        workers: processes that call the function.
    """
    for key, record in workers.call(function, calls):
        store.put_run(key, record, scenarios[key].model_dump(exclude={"steps"}, exclude_none=True))
        yield key, record


def _trace(recipe: str, scenario: Scenario) -> Trace:
    """Return the trace of a recipe; the last few are cached in memory."""
    if recipe not in _traces:
        made = trace_of(scenario)
        while len(_traces) >= MOST_TRACES:
            del _traces[next(iter(_traces))]
        _traces[recipe] = made
    return _traces[recipe]


def _replay(key: str, scenario: Scenario, trace: Trace, version: str) -> tuple[str, RunRecord]:
    if simulator() != version:
        raise PagesimError(f"a worker has pagesim {simulator()}, and this is {version}; install the same")
    try:
        result = run(scenario, trace, steps="none")
        return key, RunRecord("done", None, result.summary, result.notes)
    except PagesimError as error:
        return key, RunRecord("failed", str(error), None)
    except (
        Exception,
        SystemExit,
    ) as error:  # a bug in pagesim or a plug-in must not stop the other runs
        return key, RunRecord("failed", f"{type(error).__name__}: {error}", None)
