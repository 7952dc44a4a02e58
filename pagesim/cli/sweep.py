"""``pagesim sweep``: replay a scenario over a grid, or find the highest load that meets an objective."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pagesim.cli import show
from pagesim.cli.flags import OUT, SERVE, scenario_from, with_flags
from pagesim.cli.printing import put_table
from pagesim.cli.runs import ADDRESS, EXECUTOR, JOBS, SEEDS, number, say_notes
from pagesim.errors import PagesimError
from pagesim.setup.scenario import Comparison, Scenario

if TYPE_CHECKING:
    from pagesim.experiments.sweeps.sweep_tables import SweepTables

SHOWN = ("normalized_latency.mean", "ttft.p99", "throughput.tokens_per_s")
"""The metrics that are printed; the tables hold all."""

MOST_ROWS = 60

PLAN = Annotated[
    Path | None,
    typer.Argument(
        metavar="SWEEP.toml", help="Options, seeds and a [grid] from a file; flags win over them."
    ),
]
GRID = Annotated[
    list[str] | None,
    typer.Option(
        "--grid",
        metavar="OPTION=VALUE,…",
        help="Vary an option over comma-separated values, or semicolon-separated ones where a "
        "value holds a comma. Repeatable.",
    ),
]
X = Annotated[str | None, typer.Option(help="Plot over this option of the grid, or this metric.")]
Y = Annotated[list[str] | None, typer.Option(help="Plot this metric, such as ttft.p99. Repeatable.")]
HUE = Annotated[str | None, typer.Option(help="Draw a colour for each value of this option of the grid.")]
RETRY = Annotated[bool, typer.Option("--retry-failed", help="Run again what failed before.")]
FIND = Annotated[
    str | None,
    typer.Option(
        metavar="OPTION",
        help="Find the highest value of this option at which every --slo holds. [rate|max_concurrency]",
    ),
]
SLO = Annotated[
    list[str] | None,
    typer.Option("--slo", metavar="BOUND", help="Bound on a latency, such as p99_ttft<=2s. Repeatable."),
]
LOWEST = Annotated[
    float | None,
    typer.Option(help="Lowest value to try, in requests per second or requests. [default: 0.1, or 1]"),
]
HIGHEST = Annotated[
    float | None,
    typer.Option(help="Highest value to try, in requests per second or requests. [default: 1000, or 4096]"),
]
TOLERANCE = Annotated[
    float | None,
    typer.Option(help="Relative distance of the value that holds to one that fails. [default: 0.02]"),
]


@with_flags(Scenario, Comparison, leave_out=("steps",))
def command(
    *,
    plan: PLAN = None,
    serve: SERVE = None,
    grid: GRID = None,
    seeds: SEEDS = None,
    out: OUT = None,
    jobs: JOBS = None,
    executor: EXECUTOR = "local",
    address: ADDRESS = None,
    retry_failed: RETRY = False,
    find: FIND = None,
    slo: SLO = None,
    lowest: LOWEST = None,
    highest: HIGHEST = None,
    tolerance: TOLERANCE = None,
    x: X = None,
    y: Y = None,
    hue: HUE = None,
    flags: dict[str, Any],
) -> None:
    """Replay a scenario over a grid, or find its highest load.

    Several seeds run at each point, on all cores or on a Ray cluster. With --out each run is kept as soon as
    it is over, and no run is ever repeated.

    --find doubles the load, then bisects, and sends the same requests each time, under --policy or each of
    --policies.

    Example: pagesim sweep --grid policy=orca-max,vllm-sosp --grid rate=0.5,1,2 --duration 300 --out out/sweep
    """
    from pagesim.experiments.sweeps.figures import check_names, curves
    from pagesim.experiments.sweeps.grid import Sweep, parse_axes
    from pagesim.experiments.sweeps.run_store import opened
    from pagesim.experiments.sweeps.sweeping import keep, point_columns, run_sweep
    from pagesim.experiments.sweeps.workers import Workers
    from pagesim.results.drawing import load_of
    from pagesim.setup.serve import read_serve

    served = None if serve is None else read_serve(serve)
    search = {"goals": slo and tuple(slo), "lowest": lowest, "highest": highest, "tolerance": tolerance}
    search = {name: value for name, value in search.items() if value is not None}
    if find is not None:
        from pagesim.cli.find import find_highest

        if grid or x or y or hue:
            raise PagesimError(
                "--find takes no --grid and draws its own figure: leave --x, --y and --hue out"
            )
        seeds_given = {} if seeds is None else {"seeds": seeds}
        given = {**flags, **search, **seeds_given, "find": find.replace("-", "_")}
        find_highest(plan, given, served, out=out, jobs=jobs, executor=executor, address=address)
        return
    if search or "policies" in flags:
        name = "--policies" if "policies" in flags else f"--{next(iter(search)).replace('goals', 'slo')}"
        raise PagesimError(f"{name} is for a search: give --find rate, too; a grid has --grid policy=A,B")
    varied = {"grid": parse_axes(grid) if grid else None, "seeds": seeds}
    given = {**flags, **{name: value for name, value in varied.items() if value is not None}}
    chosen = scenario_from(Sweep, plan, given, served).located(plan.parent if plan else None)
    axes = list(chosen.axes())
    metrics = y or []
    if (x is None) != (not metrics) or (hue is not None and x is None):
        raise PagesimError("a figure needs --x and --y; --hue goes with them")
    if metrics and out is None:
        raise PagesimError("a figure needs --out, the folder that it is stored in")
    for metric in metrics:
        check_names(point_columns(), axes, x=x or "", y=metric, hue=hue)
    with opened(out) as store, Workers(jobs, executor, address) as workers:
        with show.bar("sweep") as progress:
            tables = run_sweep(chosen, store, workers, retry_failed=retry_failed, progress=progress)
        if out is not None:
            keep(chosen, tables, store)
            for metric in metrics:
                figure = curves(tables.means, axes, x=x or "", y=metric, hue=hue, load=load_of(chosen, axes))
                show.put_figure(figure, out, f"{metric}_by_{x}".replace(".", "_"))
    say_notes([*(() if served is None else served.notes), *tables.runs["notes"]])
    _show(tables, axes, list(dict.fromkeys((*SHOWN, *metrics))))
    show.stored(out)
    if tables.means["failed"].any():
        raise typer.Exit(1)


def _show(tables: SweepTables, axes: list[str], metrics: list[str]) -> None:
    from pandas import isna

    from pagesim.experiments.sweeps.figures import label
    from pagesim.experiments.sweeps.sweep_tables import MARGIN

    means = tables.means
    names = [name for name in axes if name != "seed"]
    metrics = [name for name in metrics if name in means]  # a table of failed runs has none
    rows = []
    for _, row in means.head(MOST_ROWS).iterrows():
        options = ["–" if isna(row[name]) else str(row[name]) for name in names]
        rows.append([*options, *(number(row[name], row[f"{name}.{MARGIN}"]) for name in metrics)])
    heads = [
        *(name.replace("_", " ") for name in names),
        *(label(name).replace(".", "\n") for name in metrics),
    ]
    put_table("Means over the seeds", heads, rows, wraps=True)
    if len(means) > MOST_ROWS:
        show.say(f"… and {len(means) - MOST_ROWS} points more in means.parquet")
    failed = tables.runs[tables.runs["status"] == "failed"]
    show.say(f"{len(tables.runs) - len(failed)} of {len(tables.runs)} runs done")
    for error, number_of in failed["error"].value_counts(sort=False).items():
        show.say(f"{number_of} failed: {error}")
