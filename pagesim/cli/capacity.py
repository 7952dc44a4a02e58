"""``pagesim capacity``: the highest request rate, or concurrency, at which each policy keeps a goal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pagesim.cli.options import OUT, SCENARIO, scenario_from, with_flags
from pagesim.cli.runs import ADDRESS, EXECUTOR, JOBS, SEEDS, bar, number, say_notes
from pagesim.setup.scenario import Comparison

if TYPE_CHECKING:
    from pagesim.experiments.sweeps.search import CapacityTables

GOALS = Annotated[
    list[str] | None,
    typer.Option(
        "--goal", metavar="GOAL", help="Bound on a latency, such as p99_ttft<=2s. Repeatable; all must hold."
    ),
]
FIND = Annotated[
    str | None,
    typer.Option(
        metavar="OPTION",
        help="Load that is raised until a goal fails. [rate|max_concurrency] [default: rate]",
    ),
]
LOWEST = Annotated[
    float | None,
    typer.Option(help="Lowest load to try, in requests per second or requests. [default: 0.1, or 1]"),
]
HIGHEST = Annotated[
    float | None,
    typer.Option(help="Highest load to try, in requests per second or requests. [default: 1000, or 4096]"),
]
TOLERANCE = Annotated[
    float | None,
    typer.Option(
        help="Relative distance between the load that holds and the one that fails. [default: 0.02]"
    ),
]


@with_flags(Comparison, leave_out=("policy", "rate", "duration", "steps"))
def command(
    *,
    scenario: SCENARIO = None,
    goal: GOALS = None,
    find: FIND = None,
    seeds: SEEDS = None,
    lowest: LOWEST = None,
    highest: HIGHEST = None,
    tolerance: TOLERANCE = None,
    out: OUT = None,
    jobs: JOBS = None,
    executor: EXECUTOR = "local",
    address: ADDRESS = None,
    flags: dict[str, Any],
) -> None:
    """Find the highest load at which each policy keeps its goals.

    The search doubles the load, then bisects.

    With --find max_concurrency, the most outstanding requests. The same requests are sent each time. With
    --out, which may be a sweep's, no run is ever repeated.

    Example: pagesim capacity --goal 'p99_ttft<=2s' --policies orca-max,vllm-sosp --num-requests 500
    """
    from pagesim.cli import show
    from pagesim.experiments.sweeps.figures import capacity_bars
    from pagesim.experiments.sweeps.run_store import opened
    from pagesim.experiments.sweeps.search import Search, keep, run_search
    from pagesim.experiments.sweeps.workers import Workers
    from pagesim.results.drawing import load_of

    own = {
        "find": find and find.replace("-", "_"),
        "seeds": seeds,
        "lowest": lowest,
        "highest": highest,
        "tolerance": tolerance,
    }
    given = {**flags, **{name: value for name, value in own.items() if value is not None}}
    if goal:
        given["goals"] = tuple(goal)
    chosen = scenario_from(Search, scenario, given)
    chosen.parsed_goals()
    with opened(out) as store, Workers(jobs, executor, address) as workers:
        with bar("capacity") as progress:
            tables = run_search(chosen, store, workers, progress=progress)
        if out is not None:
            keep(tables, store)
            show.put_figure(
                capacity_bars(tables.rates, load_of(chosen, ("rate", "max_concurrency"))), out, "capacity"
            )
    say_notes(tables.probes["notes"])
    _show(tables)
    show.stored(out)


def _show(tables: CapacityTables) -> None:
    from pandas import isna

    from pagesim.cli import show
    from pagesim.cli.tables import put_table
    from pagesim.experiments.sweeps.figures import label

    metrics = list(tables.rates.columns[4:])
    found = tables.rates.columns[1]
    put_table(
        "Highest rate that keeps the goal, requests/s"
        if found == "rate"
        else "Most outstanding requests at which the goal is kept",
        ["policy", "keeps at", "fails at", *(label(name).replace(".", "\n") for name in metrics), ""],
        [
            [
                *(row["policy"], number(row[found]), number(row["fails_at"])),
                *(number(row[name]) for name in metrics),
                row["verdict"],
            ]
            for _, row in tables.rates.iterrows()
        ],
        texts=(0, 3 + len(metrics)),
    )
    for policy, own in tables.probes.groupby("policy", sort=False):
        lowest_that_fails = own[~own["hold"]].head(1)
        for error, unserved in zip(lowest_that_fails["error"], lowest_that_fails["unserved"], strict=True):
            if not isna(error):
                show.say(f"{policy}: a run failed: {error}")
            elif unserved:
                show.say(f"{policy}: {unserved} requests got no answer, so the goal is not kept there")
