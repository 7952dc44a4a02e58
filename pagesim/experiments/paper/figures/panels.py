"""Panels of latency over rates: what Fig. 12, 14, 16 and 17 have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pagesim.experiments.paper.figures.base import Outcomes, PaperFigure
from pagesim.experiments.paper.jobs import Curve, Job, knee
from pagesim.experiments.paper.numbers import Bar, Certainty, Number, Quoted
from pagesim.experiments.paper.setting import SYSTEMS, Deployment, Setting

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Line:
    """One system's curve in a panel.

    Attributes:
        rates: requests/s to begin with, ascending.
        policy: ours.
        read: the paper's knee, read by eye; None if it was not read.
        options: further fields of its scenario.
        change: of the trace, a key of `pagesim.experiments.paper.jobs.CHANGES`.
        label: in the legend; the paper's name for the policy when left out.
    """

    rates: tuple[float, ...]
    policy: str
    read: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    change: str | None = None
    label: str = ""

    @property
    def name(self) -> str:
        """In legends and tables."""
        return self.label or SYSTEMS[self.policy]


@dataclass(frozen=True)
class Panel:
    """Latency over rates of several systems on one workload; ``seconds`` of arrivals, or the server's."""

    title: str
    server: Deployment
    workload: str
    lines: tuple[Line, ...]
    seconds: float | None = None


@dataclass(frozen=True)
class Ratio:
    """One knee over another, as the paper gives it.

    Attributes:
        panel: its title.
        over, under: names of two lines of it.
        paper: value or range.
        certainty: of that.
        bar: what was promised.
    """

    panel: str
    over: str
    under: str
    paper: Quoted | None
    certainty: Certainty
    bar: Bar | None = None


def evenly(low: float, high: float, count: int = 4) -> tuple[float, ...]:
    """Return so many rates from one to the other."""
    return tuple(round(low + (high - low) * at / (count - 1), 4) for at in range(count))


def around(rate: float) -> tuple[float, ...]:
    """Return rates around one at which a knee is expected."""
    return tuple(float(f"{rate * share:.4g}") for share in (0.5, 0.8, 1.0, 1.25))


def curve_jobs(setting: Setting, panels: Sequence[Panel]) -> dict[str, Job]:
    """Return a curve for each line."""
    return {
        f"{panel.title} {line.name}": Curve(
            setting.scenario(
                panel.server, line.policy, panel.workload, seconds=panel.seconds, **line.options
            ),
            line.rates,
            line.change,
        )
        for panel in panels
        for line in panel.lines
    }


def knees(found: Outcomes, panels: Sequence[Panel]) -> dict[tuple[str, str], float | None]:
    """Return each line's knee by panel and name."""
    return {
        (panel.title, line.name): knee(found[f"{panel.title} {line.name}"]["points"])
        for panel in panels
        for line in panel.lines
    }


def knee_numbers(figure: str, found: Outcomes, panels: Sequence[Panel]) -> list[Number]:
    """Return the knees, beside those read by eye."""
    ours = knees(found, panels)
    return [
        Number(
            figure,
            line.name,
            f"knee, {panel.title}, req/s",
            line.read,
            "" if line.read is None else "F",
            ours[panel.title, line.name],
        )
        for panel in panels
        for line in panel.lines
    ]


def ratio_numbers(
    figure: str, found: Outcomes, panels: Sequence[Panel], ratios: Sequence[Ratio]
) -> list[Number]:
    """Return ratios of knees."""
    ours = knees(found, panels)
    return [
        Number(
            figure,
            f"{ratio.over} / {ratio.under}",
            f"rate sustained, {ratio.panel}",
            ratio.paper,
            ratio.certainty,
            quotient(ours[ratio.panel, ratio.over], ours[ratio.panel, ratio.under]),
            ratio.bar,
        )
        for ratio in ratios
    ]


def quotient(over: float | None, under: float | None) -> float | None:
    """Return a ratio; None where a part of it is missing."""
    return None if over is None or not under else over / under


def panel_figure(
    name: str,
    title: str,
    how: str,
    rests_on: str,
    panels: Sequence[Panel],
    ratios: Sequence[Ratio],
    *,
    columns: int,
    beside: Sequence[Panel] = (),
    more: Callable[[Outcomes], list[Number]] = lambda _: [],
) -> PaperFigure:
    """Return a figure of panels: its numbers are ratios of knees, and knees.

    Args:
        name: see `PaperFigure`.
        title: likewise.
        how: likewise.
        rests_on: likewise.
        panels: that are drawn.
        ratios: of knees in these panels, and in those beside them.
        columns: panels in a row.
        beside: panels that are replayed for the ratios and not drawn.
        more: numbers between the ratios and the knees.
    """

    def jobs(setting: Setting) -> dict[str, Job]:
        return curve_jobs(setting, (*panels, *beside))

    def numbers(_: Setting, found: Outcomes) -> list[Number]:
        return [
            *ratio_numbers(name, found, (*panels, *beside), ratios),
            *more(found),
            *knee_numbers(name, found, panels),
        ]

    def draw(_: Setting, found: Outcomes, __: Sequence[Number]) -> Figure:
        return draw_panels(found, panels, columns)

    return PaperFigure(name, title, how, rests_on, jobs, numbers, draw)


def draw_panels(found: Outcomes, panels: Sequence[Panel], columns: int) -> Figure:
    """Draw the curves of each panel, cut at 1 s/token, the paper's knees as hollow markers on the edge."""
    from pagesim.experiments.paper.drawing import curves, hollow, legend, legend_below
    from pagesim.results.drawing import panels as empty

    figure, axes = empty(-(-len(panels) // columns), columns, 3.6, 2.9)
    shown: list[str] = []
    alike = len({tuple(line.name for line in panel.lines) for panel in panels}) == 1
    for each, panel in zip(axes, panels, strict=False):
        styles = _styles(panel)
        curves(
            each,
            {styles[line.name]: found[f"{panel.title} {line.name}"]["points"] for line in panel.lines},
            {styles[line.name]: line.name for line in panel.lines},
            {styles[line.name]: line.read for line in panel.lines if line.read is not None},
        )
        each.set_title(panel.title, fontsize=9, pad=10)  # markers stand on the upper edge
        if [line.name for line in panel.lines] != shown:
            if any(line.read is not None for line in panel.lines):
                hollow(each, "paper's knee, by eye")
            if alike and len(panels) > 1:
                legend_below(figure, each)
            else:
                legend(each)
            shown = [line.name for line in panel.lines]
    for each in axes[len(panels) :]:
        each.set_visible(False)
    return figure


def _styles(panel: Panel) -> dict[str, str]:
    """Return by whose style each line is drawn: its policy's, or that of one that is free."""
    free = [policy for policy in SYSTEMS if all(line.policy != policy for line in panel.lines)]
    taken: set[str] = set()
    styles = {}
    for line in panel.lines:
        known = line.policy in SYSTEMS and line.policy not in taken
        styles[line.name] = line.policy if known else free.pop(0)
        taken.add(styles[line.name])
    return styles
