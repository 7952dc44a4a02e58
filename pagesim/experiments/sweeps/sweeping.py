"""A sweep from its plan to its tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagesim.api import simulate
from pagesim.errors import PagesimError
from pagesim.experiments.sweeps.grid import Sweep, grid_toml, label
from pagesim.experiments.sweeps.replay import ProgressCallback, replay_all
from pagesim.experiments.sweeps.store import Store, opened
from pagesim.experiments.sweeps.tables import MARGIN, SweepTables, metrics_of, tables_of
from pagesim.experiments.sweeps.workers import Executor, Workers
from pagesim.setup.files import put, put_text
from pagesim.setup.prepare import check
from pagesim.setup.scenario import Scenario
from pagesim.setup.system import checked

if TYPE_CHECKING:
    import pandas as pd


def sweep(
    trace: str | PathLike[str] = "sharegpt",
    *,
    grid: Mapping[str, Sequence[Any]],
    seeds: int = 1,
    out: str | PathLike[str] | None = None,
    jobs: int | None = None,
    executor: Executor = "local",
    address: str | None = None,
    retry_failed: bool = False,
    **options: Any,
) -> SweepTables:
    """Replay a scenario at every point of a grid, under several seeds.

    Args:
        trace: a bundled workload's name, or a trace file.
        grid: for each option that varies its values; a policy gets the options that it can use.
        seeds: how many at each point: ``seed``, ``seed + 1`` and so on.
        out: a folder that keeps each run as soon as it is over, and the tables. A sweep with the same folder,
            a longer one too, does not repeat a run. None keeps nothing.
        jobs: runs at a time; None for one a core.
        executor: ``local``, or ``ray`` for a Ray cluster.
        address: of the Ray cluster, such as ``10.0.0.1:6379``.
        retry_failed: whether runs that failed before are run again.
        **options: the fields of `Scenario` that do not vary, such as ``num_blocks=983`` or ``duration=60.0``.

    Returns:
        The tables of runs, of means over the seeds, and of timings. A run that failed is a row with an error.

    Raises:
        PagesimError: an option, a point of the grid, a trace or the folder is off; then nothing is run.

    Example:
        >>> import pagesim as ps
        >>> tables = ps.sweep(grid={"policy": ["orca-max", "vllm-sosp"], "rate": [1.0, 2.0]}, num_requests=50)
        >>> tables.means["requests.finished"].tolist()
        [50.0, 50.0, 50.0, 50.0]
    """
    values = {"trace": str(trace), **options, "seeds": seeds}
    plan = checked(Sweep, {**values, "grid": {name: list(own) for name, own in grid.items()}})
    plan = plan.located()
    with opened(out) as store, Workers(jobs, executor, address) as workers:
        tables = run_sweep(plan, store, workers, retry_failed=retry_failed)
        if out is not None:
            keep(plan, tables, store)
    return tables


def run_sweep(
    plan: Sweep,
    store: Store,
    workers: Workers,
    *,
    retry_failed: bool = False,
    progress: ProgressCallback | None = None,
) -> SweepTables:
    """Run what a sweep lacks; what `sweep` and the command line call."""
    scenarios = plan.scenarios()
    check_all(scenarios, plan.grid)
    return tables_of(replay_all(scenarios, store, workers, retry_failed=retry_failed, progress=progress))


def check_all(scenarios: Iterable[Scenario], axes: Iterable[str]) -> None:
    """Say, before anything is run, if the options of a scenario do not go together.

    Raises:
        PagesimError: the sentence begins with the point of the grid.
    """
    for scenario in dict.fromkeys(s.model_copy(update={"seed": 0}) for s in scenarios):
        try:
            check(scenario)
        except PagesimError as error:
            point = label(scenario, axes)
            raise PagesimError(f"{point}: {error}" if point else str(error)) from None


def point_columns() -> list[str]:
    """Return the names of all metrics as the table of points has them, before any run of a sweep is over."""
    summary = simulate("fixed:1,1", num_blocks=200, steps="none").summary
    return [column for name in metrics_of(summary) for column in (name, f"{name}.{MARGIN}")]


def keep(plan: Sweep, tables: SweepTables, store: Store) -> None:
    """Write a sweep's plan and tables into its folder, in place of older ones."""
    put_text(store.folder / "sweep.toml", grid_toml(plan))
    for name in ("runs", "means", "timings"):
        keep_table(getattr(tables, name), store.folder / f"{name}.parquet")


def keep_table(table: pd.DataFrame, file: Path) -> None:
    """Write a table to a Parquet file, all of it or nothing."""
    put(file, lambda out: table.to_parquet(out, index=False))
