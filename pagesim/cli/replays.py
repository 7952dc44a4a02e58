"""Replays of ``pagesim run``: running, storing and showing them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pagesim.accounting.metrics import capacity_in
from pagesim.accounting.timeline import Timeline
from pagesim.api import Rows, run, trace_of
from pagesim.cli import show, show_runs
from pagesim.experiments.clusters import run_cluster, run_pools
from pagesim.results.result import Result, to_json
from pagesim.setup.comparison import scenarios_of
from pagesim.setup.data_parallel import engines_of
from pagesim.setup.files import seal
from pagesim.setup.scenario import APART, Cluster, Comparison, Scenario
from pagesim.setup.scenario_files import to_toml
from pagesim.setup.server import ProgressCallback
from pagesim.workloads.trace import Trace

UPDATE_EVERY = 500
"""Requests between two updates of a progress bar."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The outcome of a replay.

    Attributes:
        summary: what ``--json`` prints.
        runs: the summary of each policy's run.
        notes: what was assumed.
        store: writes everything into an empty folder.
        show: prints the tables.
        failed: whether a check against the device failed.
    """

    summary: dict[str, Any]
    runs: list[dict[str, Any]]
    notes: tuple[str, ...]
    store: Callable[[Path], None]
    show: Callable[[], None]
    failed: bool = False


def replay(scenario: Scenario, *, stored: bool, live: dict[str, Any], trace_events: bool) -> Replayed:
    """Replay a scenario, a comparison or a cluster with a progress bar.

    Args:
        scenario: a single system, a comparison or a cluster.
        stored: whether the result will be stored.
        live: options of a run on a device; None simulates.
        trace_events: whether to store a time line as well.
    """
    if isinstance(scenario, Comparison):
        return _comparison(scenario, stored=stored)
    trace = trace_of(scenario)
    if isinstance(scenario, Cluster):
        return _cluster(scenario, trace, stored=stored)
    if live:
        return _live(scenario, trace, live)
    timeline = Timeline(every=scenario.steps) if trace_events else None
    result = _one(scenario, trace, stored=stored, run=partial(run, timeline=timeline))
    return Replayed(
        result.summary,
        [result.summary],
        result.notes,
        lambda folder: _store(result, folder, timeline),
        lambda: show_runs.one(result),
    )


def _one(scenario: Scenario, trace: Trace, *, stored: bool, run: Callable[..., Result] = run) -> Result:
    """Replay a trace under one policy, simulated or on a device, with a progress bar."""
    rows: Rows = ("iterations" if scenario.steps else "stretches") if stored else "none"
    with _counting(scenario.policy, trace) as progress:
        return run(scenario, trace, steps=rows, progress=progress)


@contextmanager
def _counting(label: str, trace: Trace) -> Iterator[ProgressCallback | None]:
    """Show a progress bar over the requests of a trace."""
    with show.bar(label) as progress:

        def update(over: int) -> None:
            if progress is not None and (over % UPDATE_EVERY == 0 or over == len(trace)):
                progress(over, len(trace))

        yield None if progress is None else update


def _live(scenario: Scenario, trace: Trace, how: dict[str, Any]) -> Replayed:
    from pagesim.cli import show_live
    from pagesim.device.live import run_live

    if how["device"] == "auto":
        how = {**how, "device": None}

    def carry_out(system: Any, trace: Any, *, progress: Any, steps: Any) -> Any:
        return run_live(system, trace, progress=progress, **how)

    result = _one(scenario, trace, stored=True, run=carry_out)

    def tables() -> None:
        show_runs.one(result)
        show_live.measured(result)

    return Replayed(
        result.summary,
        [result.summary],
        result.notes,
        lambda folder: _store(result, folder),
        tables,
        failed=bool(how.get("check")) and not result.summary["live"]["check"]["passed"],
    )


def _store(result: Result, folder: Path, timeline: Timeline | None = None) -> None:
    from pagesim.results import trace_events
    from pagesim.results.plots import save_run_figures

    result.write(folder)
    save_run_figures(result, folder)
    steps: Any = result.steps
    if timeline is not None:
        trace_events.write(
            folder / trace_events.FILE,
            timeline,
            steps,
            title=result.scenario.policy,
            capacity=capacity_in(result.summary["memory"]),
        )


def _comparison(comparison: Comparison, *, stored: bool) -> Replayed:
    """Replay the same trace under one policy after another; all are validated before the first begins."""
    scenarios = scenarios_of(comparison)
    trace = trace_of(comparison)
    results = {policy: _one(scenario, trace, stored=stored) for policy, scenario in scenarios.items()}
    summaries = {policy: result.summary for policy, result in results.items()}

    def store(folder: Path) -> None:
        from pagesim.results.drawing import load_of
        from pagesim.results.plots import save_comparison_figures

        (folder / "scenario.toml").write_text(to_toml(comparison), encoding="utf-8")
        (folder / "summary.json").write_text(to_json({"runs": summaries}), encoding="utf-8")
        for policy, result in results.items():
            (folder / policy).mkdir()
            result.write(folder / policy)
            seal(folder / policy, "run")
        save_comparison_figures(summaries, folder, load_of(comparison))

    return Replayed(
        {"runs": summaries},
        list(summaries.values()),
        tuple(note for result in results.values() for note in result.notes),
        store,
        lambda: show_runs.side_by_side(summaries),
    )


def _cluster(cluster: Cluster, trace: Trace, *, stored: bool) -> Replayed:
    apart = {name: value for name in APART if (value := getattr(cluster, name)) is not None}
    _, ranks = engines_of(cluster)
    replicas = cluster.replicas or (2 if ranks == 1 else None)
    count = f"{cluster.prefill} + {cluster.decode}" if apart else str(replicas or ranks)
    with _counting(f"{cluster.policy} × {count}", trace) as progress:
        if apart:
            result = run_pools(cluster, trace, **apart, steps=stored, progress=progress)
        else:
            result = run_cluster(cluster, trace, replicas=replicas, router=cluster.router, progress=progress)
    return Replayed(
        result.summary,
        [result.summary],
        result.notes,
        result.write,
        lambda: show_runs.cluster(result),
    )
