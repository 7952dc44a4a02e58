"""Tables of many runs: one row a run, and one row a point with its mean and confidence over the seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from pagesim.experiments.sweeps.confidence import mean_and_margin
from pagesim.experiments.sweeps.replay import StoredRun
from pagesim.setup.scenario import Scenario
from pagesim.setup.system import plugin_fields

if TYPE_CHECKING:  # see pagesim.api
    import pandas as pd

PARAMETERS = tuple(name for name in Scenario.model_fields if name != "steps")
"""The columns that say what was run; the options of others' schedulers follow where they are given."""

MARGIN = "ci95"
"""Ending of the column that holds half the width of a mean's 95 % confidence interval."""


@dataclass(frozen=True)
class SweepTables:
    """What came of a sweep, in the grid's order. Metrics are those of a run's summary, such as ttft.p99.

    Attributes:
        runs: one row a run: its ``key``, every parameter, ``status`` (``done`` or ``failed``), ``error``,
            ``notes`` (what was assumed, a line each), and every metric; the same sweep gives the same bytes
            of Parquet.
        means: one row a point: every parameter but the seed, how many ``runs`` are done and how many
            ``failed``, and for each metric its mean over them and, in ``<metric>.ci95``, half the width of
            the mean's 95 % confidence interval (Student's t); NaN for fewer than two runs.
        timings: one row a run: its ``key``, and what the simulator says of itself (``sim.wall_s`` in seconds,
            ``sim.peak_rss_mb``, ``sim.rows``), which no other sweep gives again.
    """

    runs: pd.DataFrame
    means: pd.DataFrame
    timings: pd.DataFrame


def flat(summary: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a summary's numbers by their dotted names."""
    for name, value in summary.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def metrics_of(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run found by dotted names: its numbers, without what was run, and how."""
    asked = ("policy", "options", "rejections", "sim")
    return dict(flat({name: value for name, value in summary.items() if name not in asked}))


def tables_of(runs: Sequence[StoredRun]) -> SweepTables:
    """Return the tables of runs, in their order."""
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


def _parameters(scenarios: Sequence[Scenario]) -> list[str]:
    """Return the options that have a column."""
    given = {name for scenario in scenarios for name in scenario.scheduler_options}
    return [*PARAMETERS, *sorted(given.difference(PARAMETERS))]


def _parameter(name: str, scenarios: Sequence[Scenario]) -> pd.Series[Any]:
    """Return an option's column; its type is the option's, whatever its values happen to be."""
    import pandas as pd

    kinds = {int: "Int64", float: "float64", bool: "boolean"}
    own = Scenario.model_fields.get(name)
    annotation = plugin_fields()[name][0] if own is None else own.annotation
    kind = next((k for k in (annotation, *get_args(annotation)) if k in kinds), None)
    asked = [scenario.option(name) for scenario in scenarios]
    values = ["+".join(value) if isinstance(value, tuple) else value for value in asked]  # as in a grid
    return pd.Series(values, dtype="string" if kind is None else kinds[kind])


def _columns(found: Sequence[Mapping[str, Any]]) -> dict[str, pd.Series[Any]]:
    """Return metrics as columns: counts stay whole numbers, also where a failed run has none."""
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
