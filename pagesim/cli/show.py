"""What a person sees in the terminal: progress, notes, tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from pagesim.api import Rows, Watch, run, trace_of
from pagesim.metrics import VIEWS
from pagesim.request import Trace
from pagesim.results import Result, to_json
from pagesim.scenario import Comparison, Scenario

UPDATE_EVERY = 500
"""Requests between two updates of a progress bar."""

Summary = dict[str, Any]


def replay(scenario: Scenario, out: Path | None, *, steps: bool) -> Result:
    """Run a scenario with a progress bar."""
    trace = trace_of(scenario)
    with _progress({scenario.policy: trace}) as watch:
        return run(scenario, trace, steps=_rows(out, steps), watch=watch[scenario.policy])


def replay_all(comparison: Comparison, out: Path | None, *, steps: bool) -> dict[str, Result]:
    """Run a comparison's policies one after another over the same trace."""
    trace = trace_of(comparison)
    with _progress(dict.fromkeys(comparison.policies, trace)) as watch:
        return {
            policy: run(comparison.under(policy), trace, steps=_rows(out, steps), watch=watch[policy])
            for policy in comparison.policies
        }


def as_json(value: Any) -> None:
    """Print JSON to standard output and nothing else."""
    sys.stdout.write(to_json(value))


def notes(result: Result) -> None:
    """Say what was noticed or assumed."""
    errors = Console(stderr=True)
    for note in result.notes:
        errors.print(f"note: {note}", style="dim", highlight=False)


def stored(out: Path | None) -> None:
    """Say where the result is."""
    if out is not None:
        Console().print(f"stored in {out}", highlight=False)


def one(result: Result) -> None:
    """Print a run's summary."""
    summary = result.summary
    console = Console()
    console.print(_outcome(summary), highlight=False)
    latency = Table(title="Latency, seconds", title_justify="left")
    latency.add_column("")
    columns = ("mean", "p50", "p90", "p95", "p99")
    for column in columns:
        latency.add_column(column, justify="right")
    for name, label in _LATENCIES.items():
        latency.add_row(label, *(_number(summary[name][column], 4) for column in columns))
    console.print(latency)
    memory = Table(title="KV cache, % of capacity", title_justify="left")
    memory.add_column("")
    for column in ("mean over iterations", "mean over time"):
        memory.add_column(column, justify="right")
    means = summary["memory"]["strict"]
    for entry in VIEWS["strict"]:
        memory.add_row(
            entry.replace("_", "-"),
            _number(means["per_iteration"][entry], 2),
            _number(means["per_second"][entry], 2),
        )
    console.print(memory)


def side_by_side(summaries: dict[str, Summary]) -> None:
    """Print a comparison."""
    console = Console()
    memory = Table(title="KV cache, % of capacity, mean over iterations", title_justify="left")
    memory.add_column("policy")
    for entry in VIEWS["strict"]:
        memory.add_column(entry.replace("_", "-"), justify="right")
    for policy, summary in summaries.items():
        means = summary["memory"]["strict"]["per_iteration"]
        memory.add_row(policy, *(_number(means[entry], 1) for entry in VIEWS["strict"]))
    console.print(memory)
    service = Table(title="Service", title_justify="left")
    service.add_column("policy")
    for column in (
        "finished",
        "batch",
        "requests/s",
        "tokens/s",
        "s/token, mean",
        "s/token, p95",
        "TTFT s, p50",
        "TPOT s, p50",
        "preempted",
    ):
        service.add_column(column, justify="right")
    for policy, summary in summaries.items():
        requests = summary["requests"]
        service.add_row(
            policy,
            f"{requests['finished']}/{requests['total']}",
            _number(summary["batch"]["mean"], 2),
            _number(summary["throughput"]["requests_per_s"], 2),
            _number(summary["throughput"]["tokens_per_s"], 1),
            _number(summary["normalized_latency"]["mean"], 4),
            _number(summary["normalized_latency"]["p95"], 4),
            _number(summary["ttft"]["p50"], 3),
            _number(summary["tpot"]["p50"], 4),
            str(sum(summary["preemptions"].values())),
        )
    console.print(service)
    for policy, summary in summaries.items():
        if summary["requests"]["rejected"] or summary["requests"]["stuck"]:
            console.print(f"{policy}: {_outcome(summary)}", highlight=False)


_LATENCIES = {
    "normalized_latency": "per output token",
    "latency": "end to end",
    "ttft": "to first token (TTFT)",
    "tpot": "per further token (TPOT)",
    "itl": "between tokens (ITL)",
    "queueing": "queueing",
}


def _outcome(summary: Summary) -> str:
    requests = summary["requests"]
    parts = [f"{requests['finished']} of {requests['total']} requests finished"]
    if requests["rejected"]:
        parts.append(f"{requests['rejected']} rejected (longer than the model or the memory can hold)")
    if requests["stuck"]:
        parts.append(f"{requests['stuck']} given up (could never go on)")
    if requests["unfinished"]:
        parts.append(f"{requests['unfinished']} unfinished")
    parts.append(f"{summary['iterations']} iterations")
    parts.append(f"mean batch {_number(summary['batch']['mean'], 2)}")
    parts.append(f"{sum(summary['preemptions'].values())} preemptions")
    parts.append(f"{_number(summary['throughput']['tokens_per_s'], 1)} tokens/s")
    return ", ".join(parts)


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _rows(out: Path | None, steps: bool) -> Rows:
    if out is None:
        return "none"
    return "iterations" if steps else "stretches"


@contextmanager
def _progress(traces: dict[str, Trace]) -> Iterator[dict[str, Watch | None]]:
    """Show a bar a policy on a terminal; elsewhere nothing."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield dict.fromkeys(traces)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:

        def watch(policy: str, trace: Trace) -> Watch:
            task = progress.add_task(policy, total=len(trace))

            def update(over: int) -> None:
                if over % UPDATE_EVERY == 0 or over == len(trace):
                    progress.update(task, completed=over)

            return update

        yield {policy: watch(policy, trace) for policy, trace in traces.items()}
