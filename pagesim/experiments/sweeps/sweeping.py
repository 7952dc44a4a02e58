"""Carry out a sweep, from its plan to its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagesim.api import simulate
from pagesim.experiments.sweeps.grid import Sweep, grid_toml
from pagesim.experiments.sweeps.keys import recipe_key, run_key
from pagesim.experiments.sweeps.run_store import RunRecord, RunStore, opened
from pagesim.experiments.sweeps.runs import ProgressCallback, StoredRun, replay_all
from pagesim.experiments.sweeps.sweep_tables import MARGIN, SweepTables, metrics_of, tables_of
from pagesim.experiments.sweeps.workers import Executor, Workers
from pagesim.setup.files import put, put_text
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
        grid: values of each option that varies; each policy gets the options that it supports.
        seeds: number of seeds at each point: ``seed``, ``seed + 1`` and so on.
        out: folder that stores each run as soon as it finishes, and the tables. Further sweeps with the same
            folder, such as larger ones, do not repeat a run. None stores nothing.
        jobs: runs at a time; None for one per core.
        executor: ``local``, or ``ray`` for a Ray cluster.
        address: address of the Ray cluster, such as ``10.0.0.1:6379``.
        retry_failed: whether to repeat runs that failed before.
        **options: the fields of `Scenario` that do not vary, such as ``num_blocks=983`` or ``duration=60.0``.

    Returns:
        The tables of runs, of means over the seeds, and of timings. Points that cannot run and failed runs
        are rows with an error.

    Raises:
        PagesimError: an option or the folder is invalid, or no point can run; then nothing is run.

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
    store: RunStore,
    workers: Workers,
    *,
    retry_failed: bool = False,
    progress: ProgressCallback | None = None,
) -> SweepTables:
    """Run a sweep's runs that are not stored yet; called by `sweep` and by the command line."""
    scenarios = plan.scenarios()
    able = [scenario for scenario, refusal in scenarios.items() if not refusal]
    runs = iter(replay_all(able, store, workers, retry_failed=retry_failed, progress=progress))
    return tables_of(
        [
            StoredRun(scenario, run_key(scenario, recipe_key(scenario)), RunRecord("failed", refusal, None))
            if refusal
            else next(runs)
            for scenario, refusal in scenarios.items()
        ]
    )


def point_columns() -> list[str]:
    """Return the names of the metric columns in the table of points, before any run has finished."""
    summary = simulate("fixed:1,1", num_blocks=200, steps="none").summary
    return [column for name in metrics_of(summary) for column in (name, f"{name}.{MARGIN}")]


def keep(plan: Sweep, tables: SweepTables, store: RunStore) -> None:
    """Write a sweep's plan and tables into its folder, replacing older ones."""
    put_text(store.folder / "sweep.toml", grid_toml(plan))
    for name in ("runs", "means", "timings"):
        keep_table(getattr(tables, name), store.folder / f"{name}.parquet")


def keep_table(table: pd.DataFrame, file: Path) -> None:
    """Write a table to a Parquet file, atomically."""
    put(file, lambda out: table.to_parquet(out, index=False))
