"""A figure of the paper: what it shows, which runs it needs, what is measured, and how it is drawn."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagesim.experiments.paper.jobs import Load, Outcome
from pagesim.experiments.paper.numbers import Key, Number
from pagesim.experiments.paper.setting import DEPLOYMENTS, SYSTEMS, PaperServer, PaperSetting
from pagesim.setup.reading import parse_toml, read_text

if TYPE_CHECKING:  # matplotlib is slow to import
    from matplotlib.figure import Figure

LIMITS: dict[str, Any] = {
    "sizing": "paper",
    "async_scheduling": False,
    "max_num_batched_tokens": 2560,
    "max_num_seqs": 2048,
}
"""Limits of the paper's vLLM as options of vllm-v1, which, unlike vllm-sosp, can cache prefixes."""


@dataclass(frozen=True)
class FigureRun:
    """A system under a load, for a bar, a point or a curve.

    Attributes:
        series, x: names of its numbers.
        server: deployment to simulate.
        policy: policy of the system.
        workload: workload, as for `PaperSetting.load`.
        options: further options of `PaperSetting.load`.
        beside: whether it is replayed only for a ratio and not shown.
    """

    series: str
    x: str
    server: PaperServer
    policy: str
    workload: str
    options: Mapping[str, Any]
    beside: bool

    @property
    def key(self) -> Key:
        """Series and x."""
        return self.series, self.x

    def load(self, setting: PaperSetting) -> Load:
        """Return the load to replay."""
        return setting.load(self.server, self.policy, self.workload, **self.options)


@dataclass(frozen=True)
class PaperFigure:
    """A figure or table of the paper, as described by a table of ``figures.toml``.

    Attributes:
        name: its name on the command line.
        title: what it shows.
        how: what is replayed, and over what values are averaged.
        rests_on: what our numbers depend on: ``memory``, ``lengths``, or ``step times``.
        runs: runs to replay.
        measure: what to take from a run's result, a key of `values.MEASURES`.
        ratios: keys of ratios of knees, with the keys of both knees.
        form: name of a function of `drawing`, and its options; None if it is not drawn.
        missing: why it is not drawn, if it is not.
    """

    name: str
    title: str
    how: str
    rests_on: str
    runs: Sequence[FigureRun]
    measure: str
    ratios: Mapping[Key, tuple[Key, Key]]
    form: Mapping[str, Any] | None
    missing: str = ""

    def loads(self, setting: PaperSetting) -> dict[Key, Load]:
        """Return the loads to replay, by series and x of the run."""
        return {run.key: run.load(setting) for run in self.runs}


@dataclass(frozen=True)
class Reproduced:
    """A figure with its numbers.

    Attributes:
        figure: figure of the paper.
        setting: setting with which it was made.
        found: results of its runs, by series and x.
        numbers: the paper's numbers and ours.
    """

    figure: PaperFigure
    setting: PaperSetting
    found: Mapping[Key, Outcome]
    numbers: list[Number]

    def draw(self) -> Figure | None:
        """Return the drawn figure; None if it is not drawn."""
        from pagesim.experiments.paper import drawing

        if self.figure.form is None:
            return None
        options = dict(self.figure.form)
        drawn: Figure = getattr(drawing, options.pop("form"))(self, **options)
        return drawn


@cache
def read_figures() -> dict[str, PaperFigure]:
    """Return the figures by name: the paper's in its order, then those beyond it."""
    tables = parse_toml(read_text(Path(__file__).with_name("figures.toml")))
    return {
        name: PaperFigure(
            name,
            table["title"],
            table["how"],
            table["rests_on"],
            [run for row in table.get("runs", ()) for run in _runs({**table.get("common", {}), **row})],
            table.get("measure", ""),
            {key: both for row in table.get("ratios", ()) for key, both in _ratios(**row)},
            table.get("draw"),
            table.get("missing", ""),
        )
        for name, table in tables.items()
    }


def _runs(row: dict[str, Any]) -> Iterator[FigureRun]:
    """Yield the runs of a row, one for each combination of values in ``each``."""
    each = row.pop("each", {})
    for values in itertools.product(*each.values()):
        options = {**row, **dict(zip(each, values, strict=True))}
        if options.pop("limits", "") == "paper":
            options |= LIMITS
        policy, panel = options.pop("policy"), options.pop("panel", None)
        series = options.pop("series", None) or SYSTEMS[policy]
        x = options.pop("x", "").format(**options) if panel is None else at_knee(panel)
        server, workload = DEPLOYMENTS[options.pop("server")], options.pop("workload")
        beside = options.pop("beside", False)
        yield FigureRun(series, x, server, policy, workload, options, beside)


def _ratios(panels: Sequence[str], over: str, under: Sequence[str]) -> Iterator[tuple[Key, tuple[Key, Key]]]:
    for panel, divisor in itertools.product(panels, under):
        knees = (over, at_knee(panel)), (divisor, at_knee(panel))
        yield (f"{over} / {divisor}", f"rate sustained, {panel}"), knees


def at_knee(panel: str) -> str:
    """Return the x of a panel's knees."""
    return f"knee, {panel}, req/s"
