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
"""Tables of a result, each stored in its own file."""


@dataclass(frozen=True)
class Stored:
    """The outcome of any replay: scenario, summary and requests table, saved to a folder all or nothing.

    Attributes:
        scenario: scenario that was run; only its `System` if the trace was given as an object.
        summary: every metric of ``docs/reference/metrics.md``, as in ``summary.json``.
        request_columns: columns of ``requests``, ``[N]`` each.
    """

    scenario: System
    summary: dict[str, Any]
    request_columns: Mapping[str, npt.NDArray[Any]]

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row per request, times in seconds; ``docs/reference/metrics.md`` describes the columns."""
        import pandas as pd

        return pd.DataFrame(self.request_columns)

    _kind: ClassVar[str] = "run"
    """Kind of the folder it is saved to, see `pagesim.setup.files`."""

    def save(self, directory: str | Path) -> Path:
        """Write the result to a folder, completely or not at all, replacing any older result.

        Raises:
            PagesimError: the folder holds something else or cannot be written.
        """
        return publish(Path(directory), self.write, self._kind)

    def write(self, folder: Path) -> None:
        """Write the result's files into an empty folder."""
        (folder / "scenario.toml").write_text(to_toml(self.scenario), encoding="utf-8")
        (folder / "summary.json").write_text(to_json(self.summary), encoding="utf-8")
        self.requests.to_parquet(folder / "requests.parquet", index=False)


@dataclass(frozen=True)
class Result(Stored):
    """The result of a run.

    Attributes:
        scenario: scenario that was run; only its `System` if the trace was given as an object.
        summary: every metric of ``docs/reference/metrics.md``, as in ``summary.json``.
        request_columns: columns of ``requests``, ``[N]`` each.
        requests: one row per request, as a DataFrame; times in seconds.
        kept_steps: rows behind ``steps``; None if steps were not kept.
        steps: one row per stretch (planned iteration or fast-forward), or per iteration; None if not kept.
        batches: one row per static batch; None for other schedulers.
        preemptions: one row per victim whose preemption mode was free to choose; None except under ``auto``.
        tier_columns: columns of ``tiers``, ``[C]`` each; None if there is no tier.
        tiers: one row per change of a cache tier other than the device, in chunks; None if there is no tier.
        tree: one row per planned iteration or fast-forward; None unless prefixes are cached in a radix tree
            and steps were kept.
        notes: observations and assumptions made during the run.
    """

    kept_steps: KeptFrames | None = None
    batches: pd.DataFrame | None = None
    preemptions: pd.DataFrame | None = None
    tier_columns: Mapping[str, npt.NDArray[Any]] | None = None
    tree: pd.DataFrame | None = None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Return the configuration, the outcome and the members to look at next, one line each."""
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
        """One row per stretch (planned iteration or fast-forward), or per iteration; None if not kept."""
        return None if self.kept_steps is None else self.kept_steps.frame()

    @cached_property
    def tiers(self) -> pd.DataFrame | None:
        """One row per change of a cache tier other than the device, in chunks; None if there is no tier."""
        if self.tier_columns is None:
            return None
        import pandas as pd

        return pd.DataFrame(self.tier_columns)

    def fragmentation(self) -> pd.DataFrame:
        """Return how the KV cache was used: used, reserved, lost to fragmentation, cached or free.

        The rows are ``used``, ``reserved``, ``internal fragmentation`` and its parts ``unused reservation``
        and ``rounding``, ``external fragmentation``, ``cached`` and ``free``. A hybrid cache also has
        ``recurrent states``, ``padding`` (a part) and ``out of window``. Blocks of requests that hold memory
        without running have their own rows. ``docs/reference/metrics.md`` defines all rows.

        Returns:
            Shares of the capacity from 0 to 1, in at least 8 rows and 3 columns: ``mean over iterations``
            (unweighted), ``mean over time`` (weighted by duration, with idle time counted as free) and
            ``peak`` (the maximum over iterations). In both means all rows except the parts add up to 1; peaks
            do not, since they occur in different iterations. With ``window``, only the window's iterations
            count. NaN if none ran.
        """
        import pandas as pd

        return pd.DataFrame(fragmentation_of(self.summary["memory"]), dtype=np.float64)

    def plot(self) -> Figure:
        """Draw the use of the KV cache over time, together with the batch and the queue.

        Raises:
            PagesimError: no steps were kept.
        """
        from pagesim.results.plots import memory_over_time

        if self.kept_steps is None or not self.kept_steps.rows:
            raise PagesimError("the result holds no steps; replay with steps='stretches'")
        return memory_over_time(self)

    def report(self) -> Report:
        """Return the page of ``pagesim report``, which notebooks display and `Report.save` writes.

        The block map comes from a replay of the stored run, so it is missing if the trace was an object.
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
    """Load a saved result.

    Args:
        directory: folder written by `Result.save` or by ``--out`` of ``pagesim run``, or one policy's folder
            written by ``--out`` of ``pagesim run --policies``.

    Raises:
        PagesimError: the folder holds no result or an incomplete one.
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
    """Return the summary and the tables of a stored result, checked to be unchanged.

    Args:
        folder: folder of the result.
        tables: names of tables; those that the result lacks are left out.
        kind: expected kind of the folder, see `pagesim.setup.files`.
        command: command that writes such folders.

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
    """Return JSON with one line per field, the format of all files that pagesim writes."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def end_of(result: Result) -> float:
    """Return a run's end in seconds: the later of its last finish and last step (arrival, without steps)."""
    columns, steps = result.request_columns, result.kept_steps
    others = columns["arrival_s"]
    if steps is not None and steps.rows:
        # A row of several iterations ends later, but records only the duration of its first one.
        last = steps.last()
        others = np.array([last["start"] + last["step_s"]])
    return float(np.nanmax(np.concatenate([columns["finish_s"], others]), initial=0.0))
