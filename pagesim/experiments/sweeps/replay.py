"""Replay: many scenarios on many workers, each result stored when it is there, nothing done twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module

from pagesim.api import run, trace_of
from pagesim.errors import PagesimError
from pagesim.experiments.sweeps.keys import recipe_key, run_key, simulator
from pagesim.experiments.sweeps.store import Record, Store
from pagesim.experiments.sweeps.traces import StoredTrace
from pagesim.experiments.sweeps.workers import SharedTrace, Workers
from pagesim.setup.scenario import Scenario

ProgressCallback = Callable[[int, int], None]
"""Called with how many runs are over, and of how many; at first with those that were over before."""


@dataclass(frozen=True)
class StoredRun:
    """A scenario and how its run ended; ``key`` is its name in the store."""

    scenario: Scenario
    key: str
    record: Record


def replay_all(
    scenarios: Sequence[Scenario],
    store: Store,
    workers: Workers,
    *,
    retry_failed: bool = False,
    progress: ProgressCallback | None = None,
) -> list[StoredRun]:
    """Replay scenarios, or find in the store what came of them; return how each ended, in their order.

    Args:
        scenarios: what to run; the options of each must go together (`serving.check`).
        store: what is found is kept there at once, also how a run failed.
        workers: what replays.
        retry_failed: whether runs that failed before are run again.
        progress: for a bar.

    Raises:
        PagesimError: a trace cannot be made (nothing is run then), or the store cannot be written.
    """
    recipes = {scenario: recipe_key(scenario) for scenario in scenarios}
    traces = _stored_traces(recipes, store, workers)
    digests = {recipe: trace.digest() for recipe, trace in traces.items()}
    keys = {scenario: run_key(scenario, digests[recipe]) for scenario, recipe in recipes.items()}
    records: dict[str, Record] = {}
    for key in keys.values():
        record = store.run(key)
        if record is not None and not (retry_failed and record.status == "failed"):
            records[key] = record
    # Trace by trace, so that a worker loads each only once.
    rank = {recipe: place for place, recipe in enumerate(traces)}
    left = sorted(
        (scenario for scenario, key in keys.items() if key not in records), key=lambda s: rank[recipes[s]]
    )
    total = len(records) + len(left)

    def calls() -> Iterator[tuple[str, Scenario, SharedTrace, str]]:
        last, shared = None, None
        for scenario in left:
            if shared is None or recipes[scenario] != last:
                last, shared = recipes[scenario], workers.share(traces[recipes[scenario]])
            yield keys[scenario], scenario, shared, simulator()

    if progress is not None:
        progress(len(records), total)
    owners = {keys[scenario]: scenario for scenario in left}
    results = workers.call(_replay, calls())
    import_module("pandas")  # for the tables; that takes as long as ten runs, and workers replay meanwhile
    for key, record in results:
        store.put_run(key, record, owners[key].model_dump(exclude={"steps"}, exclude_none=True))
        records[key] = record
        if progress is not None:
            progress(len(records), total)
    return [StoredRun(scenario, keys[scenario], records[keys[scenario]]) for scenario in scenarios]


def _stored_traces(recipes: dict[Scenario, str], store: Store, workers: Workers) -> dict[str, StoredTrace]:
    """Return the trace of each recipe, in order; those that are not stored yet are made."""
    owners: dict[str, Scenario] = {}
    for scenario, recipe in recipes.items():
        owners.setdefault(recipe, scenario)
    missing = [(recipe, owner, store) for recipe, owner in owners.items() if store.trace(recipe) is None]
    for error in workers.call_here(_make, missing):
        if error is not None:
            raise error
    found = {recipe: store.trace(recipe) for recipe in owners}
    return {recipe: trace for recipe, trace in found.items() if trace is not None}


def _make(recipe: str, scenario: Scenario, store: Store) -> PagesimError | None:
    # An error is returned, not raised: executors wrap what is raised each in its own way.
    try:
        store.put_trace(recipe, trace_of(scenario))
    except PagesimError as error:
        return error
    return None


def _replay(key: str, scenario: Scenario, shared: SharedTrace, version: str) -> tuple[str, Record]:
    if simulator() != version:
        raise PagesimError(f"a worker has pagesim {simulator()}, and this is {version}; install the same")
    trace = shared.load()
    try:
        result = run(scenario, trace, steps="none")
        return key, Record("done", None, result.summary, result.notes)
    except PagesimError as error:
        return key, Record("failed", str(error), None)
    except (
        Exception,
        SystemExit,
    ) as error:  # a mistake of ours, or a plug-in's, in one run: the others go on
        return key, Record("failed", f"{type(error).__name__}: {error}", None)
