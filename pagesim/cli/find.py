"""``pagesim sweep --find``: the highest load at which each policy meets an objective."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagesim.cli import show
from pagesim.cli.flags import scenario_from
from pagesim.cli.printing import put_table
from pagesim.cli.runs import number, say_notes
from pagesim.setup.scenario import Scenario
from pagesim.setup.scenario_files import read_toml

if TYPE_CHECKING:
    from pagesim.experiments.sweeps.search import CapacityTables
    from pagesim.setup.serve import ServeLine


def find_highest(
    scenario: Path | None,
    given: dict[str, Any],
    served: ServeLine | None = None,
    *,
    out: Path | None,
    jobs: int | None,
    executor: str,
    address: str | None,
) -> None:
    """Find and show the highest load at which each policy meets its objectives.

    Args:
        scenario: a file of options.
        given: flags that override them, including the search's; without ``policies`` there is one policy.
        served: a server's line.
        out: folder of the tables, the figure and the runs.
        jobs: parallel runs.
        executor: ``local`` or ``ray``.
        address: of a Ray cluster.
    """
    from pagesim.experiments.sweeps.figures import capacity_bars
    from pagesim.experiments.sweeps.run_store import opened
    from pagesim.experiments.sweeps.search import Search, keep, run_search
    from pagesim.experiments.sweeps.workers import Workers
    from pagesim.results.drawing import load_of

    written = {} if scenario is None else read_toml(scenario)
    if "policies" not in {**written, **given}:
        known = {**written, **({} if served is None else served.options), **given}
        given = {**given, "policies": (known.get("policy", Scenario.model_fields["policy"].default),)}
    chosen = scenario_from(Search, scenario, given, served)
    chosen.parsed_goals()
    with opened(out) as store, Workers(jobs, executor, address) as workers:
        with show.bar("capacity") as progress:
            tables = run_search(chosen, store, workers, progress=progress)
        if out is not None:
            keep(tables, store)
            show.put_figure(
                capacity_bars(tables.rates, load_of(chosen, ("rate", "max_concurrency"))), out, "capacity"
            )
    say_notes([*(() if served is None else served.notes), *tables.probes["notes"]])
    _show(tables)
    show.stored(out)


def _show(tables: CapacityTables) -> None:
    from pandas import isna

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
