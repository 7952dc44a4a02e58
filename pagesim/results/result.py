"""Result: the tables and the summary of one run, on disk and in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from pagesim.accounting.fragmentation import fragmentation_of
from pagesim.errors import PagesimError
from pagesim.results.kept_frames import KeptFrames
from pagesim.setup.files import publish, read_sealed
from pagesim.setup.reading import parse_json, read_parquet
from pagesim.setup.scenario import Scenario
from pagesim.setup.scenario_files import read_scenario, read_toml, to_toml
from pagesim.setup.system import System

if TYPE_CHECKING:  # see pagesim.api
    import pandas as pd
    from matplotlib.figure import Figure

    from pagesim.results.report import Report

TABLES = ("requests", "steps", "batches", "preemptions", "tiers", "tree")
"""The tables of a result, each in a file of its own."""


@dataclass(frozen=True)
class Stored:
    """What any replay leaves: a scenario, a summary, a row a request; as a folder, whole or not at all.

    Attributes:
        scenario: what was run; a bare `System` where the trace was given as an object.
        summary: every metric of ``docs/reference/metrics.md``, as ``summary.json`` holds it.
        request_columns: the columns of ``requests``, ``[N]`` each.
    """

    scenario: System
    summary: dict[str, Any]
    request_columns: Mapping[str, npt.NDArray[Any]]

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a request, ``docs/reference/metrics.md`` names the columns; times in seconds."""
        import pandas as pd

        return pd.DataFrame(self.request_columns)

    _kind: ClassVar[str] = "run"
    """What a folder that holds it is, see `pagesim.setup.files`."""

    def save(self, directory: str | Path) -> Path:
        """Write the result to a folder, all of it or nothing, replacing an older result.

        Raises:
            PagesimError: the folder holds something else, or cannot be written.
        """
        return publish(Path(directory), self.write, self._kind)

    def write(self, folder: Path) -> None:
        """Write the result's files into an empty folder."""
        (folder / "scenario.toml").write_text(to_toml(self.scenario), encoding="utf-8")
        (folder / "summary.json").write_text(to_json(self.summary), encoding="utf-8")
        self.requests.to_parquet(folder / "requests.parquet", index=False)


@dataclass(frozen=True)
class Result(Stored):
    """What came of a run.

    Attributes:
        scenario: what was run; a bare `System` where the trace was given as an object.
        summary: every metric of ``docs/reference/metrics.md``, as ``summary.json`` holds it.
        request_columns: the columns of ``requests``, ``[N]`` each.
        requests: one row a request, as a DataFrame; times in seconds.
        kept_steps: what ``steps`` is made of; None if they were not kept.
        steps: one row a stretch of like iterations, or one an iteration; None if they were not kept.
        batches: one row a static batch; None for other schedulers.
        preemptions: one row a victim whose preemption was free to choose; None but under ``auto``.
        tier_columns: the columns of ``tiers``, ``[C]`` each; None where there is no tier.
        tiers: one row a change of a tier beside the device, in chunks by entry; None where there is no tier.
        tree: one row an iteration that was planned or a fast-forward, where prefixes are cached in a radix
            tree and steps were kept; else None.
        notes: what was noticed or assumed on the way.
    """

    kept_steps: KeptFrames | None = None
    batches: pd.DataFrame | None = None
    preemptions: pd.DataFrame | None = None
    tier_columns: Mapping[str, npt.NDArray[Any]] | None = None
    tree: pd.DataFrame | None = None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Return what was run, how it went and what to look at next, a line each."""
        summary, system = self.summary, self.scenario
        requests, memory, times = summary["requests"], summary["memory"], summary["latency"]
        preempted = sum(summary["preemptions"].values())
        given_up = f"{requests['unschedulable']:,} given up, " if requests["unschedulable"] else ""
        lines = [
            f"<Result of {system.policy}: {system.model} on {system.gpu}, "
            f"{memory['num_blocks']:,} blocks of {memory['block_size']} tokens",
            f" {requests['finished']:,} of {requests['total']:,} requests finished, {given_up}"
            f"{summary['iterations']:,} iterations, {preempted:,} preemptions",
        ]
        if times["p50"] is not None:
            lines.append(f" latency p50 {times['p50']:.3g} s, p99 {times['p99']:.3g} s")
        return "\n".join([*lines, " .fragmentation() .requests .steps .summary .plot() .report()>"])

    @cached_property
    def steps(self) -> pd.DataFrame | None:
        """One row a stretch of like iterations, or one an iteration; None if they were not kept."""
        return None if self.kept_steps is None else self.kept_steps.frame()

    @cached_property
    def tiers(self) -> pd.DataFrame | None:
        """One row a change of a tier beside the device, in chunks by entry; None where there is no tier."""
        if self.tier_columns is None:
            return None
        import pandas as pd

        return pd.DataFrame(self.tier_columns)

    def fragmentation(self) -> pd.DataFrame:
        """Return where the KV cache went: used, reserved, lost to fragmentation, cached or free.

        The rows are ``used``, ``reserved``, ``internal fragmentation`` and its parts ``unused reservation``
        and ``rounding``, ``external fragmentation``, ``cached`` and ``free``. A hybrid cache has ``recurrent
        states``, ``padding`` (a part) and ``out of window``, too; blocks of requests that do not run have
        rows of their own. ``docs/reference/metrics.md`` defines them all.

        Returns:
            Shares of the capacity from 0 to 1, 8 rows or more by 3 columns: ``mean over iterations`` (each
            counts the same), ``mean over time`` (each counts as long as it takes, and idle time is free) and
            ``peak`` (the most in one iteration). In either mean all rows but the parts add up to 1; peaks do
            not, as they are of different iterations. Under ``window`` they are of the window's iterations.
            NaN where none ran.
        """
        import pandas as pd

        return pd.DataFrame(fragmentation_of(self.summary["memory"]), dtype=np.float64)

    def plot(self) -> Figure:
        """Draw where the KV cache goes over time, with the batch and the queue.

        Raises:
            PagesimError: no steps were kept.
        """
        from pagesim.results.plots import memory_over_time

        if self.kept_steps is None or not self.kept_steps.rows:
            raise PagesimError("the result holds no steps; replay with steps='stretches'")
        return memory_over_time(self)

    def report(self) -> Report:
        """Return the page of ``pagesim report``, which a notebook shows and `Report.save` writes.

        The blocks' map is of what was stored: of a trace given as an object there is none.
        """
        from pagesim.results.report import Report, write_report

        with TemporaryDirectory() as folder:
            self.save(Path(folder) / self.scenario.policy)
            page = Path(folder) / "report.html"
            write_report([Path(folder) / self.scenario.policy], page)
            return Report(page.read_text(encoding="utf-8"))

    def write(self, folder: Path) -> None:
        from pagesim.results.prometheus import openmetrics

        super().write(folder)
        (folder / "metrics.prom").write_text(openmetrics(self), encoding="utf-8")
        if self.kept_steps is not None:
            self.kept_steps.write(folder / "steps.parquet")
        for name in TABLES[2:]:
            table = getattr(self, name)
            if table is not None:
                table.to_parquet(folder / f"{name}.parquet", index=False)


def load(directory: str | Path) -> Result:
    """Read a result that was saved.

    Args:
        directory: a folder that `Result.save` or ``--out`` of ``pagesim run`` wrote, or one that ``--out`` of
            ``pagesim run --policies`` made for a policy.

    Raises:
        PagesimError: the folder is no result, or not the whole of one.
    """
    folder = Path(directory)
    summary, tables = read_result(folder, TABLES, "run", "pagesim run")
    requests = tables.pop("requests")
    scenario = folder / "scenario.toml"
    kind = Scenario if "trace" in read_toml(scenario) else System
    return Result(
        read_scenario(kind, scenario),
        summary,
        {name: requests[name].to_numpy() for name in requests.columns},
        KeptFrames.of(tables["steps"]) if "steps" in tables else None,
        tables.get("batches"),
        tables.get("preemptions"),
        _columns(tables.get("tiers")),
        tables.get("tree"),
    )


def read_result(
    folder: Path, tables: tuple[str, ...], kind: str, command: str
) -> tuple[dict[str, Any], dict[str, pd.DataFrame]]:
    """Return the summary and the tables of a stored result, as they were when it was stored.

    Args:
        folder: the result's.
        tables: by name; one that the result does not have is left out.
        kind: what the folder must be, see `pagesim.setup.files`.
        command: that stores such folders.

    Raises:
        PagesimError: the folder holds no such result, or a file is missing or was changed.
    """
    names = {f"{name}.parquet": name for name in tables}
    files = read_sealed(folder, ("scenario.toml", "summary.json", *names), kind, command)
    found = {name: read_parquet(files[file]).to_pandas() for file, name in names.items() if file in files}
    return parse_json(files["summary.json"]), found


def _columns(table: pd.DataFrame | None) -> dict[str, npt.NDArray[Any]] | None:
    return None if table is None else {name: table[name].to_numpy() for name in table.columns}


def to_json(value: Any) -> str:
    """Return JSON with a line a field, as every file of ours has it."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def end_of(result: Result) -> float:
    """Return when a run was over, in seconds: the end of the last row of its steps, or what happened last."""
    columns, steps = result.request_columns, result.kept_steps
    others = columns["arrival_s"]
    if steps is not None and steps.rows:
        # A row of several iterations ends later, but tells no more than when its first one does.
        last = steps.last()
        others = np.array([last["start"] + last["step_s"]])
    return float(np.nanmax(np.concatenate([columns["finish_s"], others]), initial=0.0))
