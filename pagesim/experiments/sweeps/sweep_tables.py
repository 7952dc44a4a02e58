"""Tables of many runs: one row per run, and one per point with means and confidence over the seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import numpy.typing as npt

from pagesim.experiments.sweeps.runs import StoredRun
from pagesim.setup.scenario import Scenario
from pagesim.setup.system import plugin_fields

if TYPE_CHECKING:  # see pagesim.api
    import pandas as pd

PARAMETERS = tuple(name for name in Scenario.model_fields if name != "steps")
"""Columns that describe what was run; options of plug-in schedulers follow if they are given."""

MARGIN = "ci95"
"""Suffix of columns with half the width of a mean's 95 % confidence interval."""


@dataclass(frozen=True)
class SweepTables:
    """Results of a sweep, in the grid's order; metrics are those of a run's summary, such as ttft.p99.

    Attributes:
        runs: one row per run: its ``key``, every parameter, ``status`` (``done`` or ``failed``), ``error``,
            ``notes`` (assumptions, one per line), and every metric. The same sweep gives byte-identical
            Parquet.
        means: one row per point: every parameter except the seed, the numbers of finished (``runs``) and
            ``failed`` runs, and each metric's mean. ``<metric>.ci95`` is half the width of the mean's 95 %
            confidence interval (Student's t); NaN for fewer than two runs.
        timings: one row per run: its ``key`` and the simulator's own measurements (``sim.wall_s`` in seconds,
            ``sim.peak_rss_mb``, ``sim.rows``), which differ from sweep to sweep.
    """

    runs: pd.DataFrame
    means: pd.DataFrame
    timings: pd.DataFrame


def flat(summary: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted names and values of a summary's numbers."""
    for name, value in summary.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def metrics_of(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's metrics by dotted names, without its parameters and the simulator's measurements."""
    asked = ("policy", "options", "rejections", "sim")
    return dict(flat({name: value for name, value in summary.items() if name not in asked}))


def tables_of(runs: Sequence[StoredRun]) -> SweepTables:
    """Return the tables of these runs, in the same order."""
    import pandas as pd

    keys = pd.Series([run.key for run in runs], dtype="string")
    scenarios = [run.scenario for run in runs]
    parameters = {name: _parameter(name, scenarios) for name in _parameters(scenarios)}
    found = [metrics_of(run.record.summary) if run.record.summary else {} for run in runs]
    sims = [dict(flat({"sim": run.record.summary["sim"]})) if run.record.summary else {} for run in runs]
    ending = {
        "status": pd.Series([run.record.status for run in runs], dtype="string"),
        "error": pd.Series([run.record.error for run in runs], dtype="string"),
        "notes": pd.Series(["\n".join(run.record.notes) for run in runs], dtype="string"),
    }
    return SweepTables(
        runs=pd.DataFrame({"key": keys, **parameters, **ending, **_columns(found)}),
        means=_means(runs, found),
        timings=pd.DataFrame({"key": keys, **_columns(sims)}),
    )


def _means(runs: Sequence[StoredRun], found: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    points: dict[Scenario, list[int]] = {}
    for row, run in enumerate(runs):
        points.setdefault(run.scenario.model_copy(update={"seed": 0}), []).append(row)
    columns: dict[str, Any] = {
        name: _parameter(name, list(points)) for name in _parameters(list(points)) if name != "seed"
    }
    columns["runs"] = [sum(runs[row].record.status == "done" for row in rows) for rows in points.values()]
    columns["failed"] = [len(rows) for rows in points.values()]
    columns["failed"] = [every - done for every, done in zip(columns["failed"], columns["runs"], strict=True)]
    for name in _names(found):
        values = np.array([np.nan if (v := one.get(name)) is None else v for one in found], np.float64)
        both = [mean_and_margin(values[rows]) for rows in points.values()]
        columns[name] = [mean for mean, _ in both]
        columns[f"{name}.{MARGIN}"] = [margin for _, margin in both]
    return pd.DataFrame(columns)


def mean_and_margin(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean ignoring NaN, and half the width of its 95 % confidence interval (Student's t).

    Args:
        values: one value per seed, ``[N]``.

    Returns:
        Mean and margin; both are NaN without any value, and the margin also for a single one.
    """
    from scipy.special import stdtrit

    values = values[~np.isnan(values)]
    if len(values) < 2:
        return (float(values[0]) if len(values) else np.nan), np.nan
    error = float(values.std(ddof=1)) / len(values) ** 0.5
    return float(values.mean()), float(stdtrit(len(values) - 1, 0.975)) * error


def _parameters(scenarios: Sequence[Scenario]) -> list[str]:
    """Return the options that have a column."""
    given = {name for scenario in scenarios for name in scenario.scheduler_options}
    return [*PARAMETERS, *sorted(given.difference(PARAMETERS))]


def _parameter(name: str, scenarios: Sequence[Scenario]) -> pd.Series[Any]:
    """Return an option's column, with the option's type regardless of the values it happens to have."""
    import pandas as pd

    kinds = {int: "Int64", float: "float64", bool: "boolean"}
    own = Scenario.model_fields.get(name)
    annotation = plugin_fields()[name][0] if own is None else own.annotation
    kind = next((k for k in (annotation, *get_args(annotation)) if k in kinds), None)
    asked = [scenario.option(name) for scenario in scenarios]
    values = ["+".join(value) if isinstance(value, tuple) else value for value in asked]  # as in a grid
    return pd.Series(values, dtype="string" if kind is None else kinds[kind])


def _columns(found: Sequence[Mapping[str, Any]]) -> dict[str, pd.Series[Any]]:
    """Return metrics as columns; counts stay whole numbers even if a failed run has none."""
    import pandas as pd

    columns = {}
    for name in _names(found):
        values = [one.get(name) for one in found]
        whole = all(type(value) is int for value in values if value is not None)
        whole = whole and any(value is not None for value in values)
        columns[name] = pd.Series(values, dtype="Int64" if whole else "float64")
    return columns


def _names(found: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for one in found for name in one))
