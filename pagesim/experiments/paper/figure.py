"""What a figure of the paper is made of, and curves of latency over rates, of which five figures are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pagesim.experiments.paper.jobs import Load, Outcome, knee
from pagesim.experiments.paper.numbers import Key, Number, Values
from pagesim.experiments.paper.setting import SYSTEMS, Deployment, PaperSetting

if TYPE_CHECKING:  # matplotlib takes long to import
    from matplotlib.figure import Figure

Loads = Mapping[Key, Load]
Found = Mapping[Key, Outcome]


@dataclass(frozen=True)
class PaperFigure:
    """A figure or table of the paper.

    Attributes:
        name: as the command takes it.
        title: what it shows.
        how: what is replayed, and what is averaged over what.
        rests_on: what our numbers depend on: ``memory``, ``lengths``, or ``step times``.
        loads: what has to be replayed, by series and x.
        measure: from the outcome of a load, its values.
        derive: from these, all values, in the order of the table.
        draw: the figure in the paper's form.
        missing: why it is not drawn, where it is not.
    """

    name: str
    title: str
    how: str
    rests_on: str
    loads: Callable[[PaperSetting], Loads] = lambda _: {}
    measure: Callable[[Key, Outcome], Values] = lambda _, __: {}
    derive: Callable[[PaperSetting, Values], Values] = lambda _, measured: measured
    draw: Callable[[PaperSetting, Found, Sequence[Number]], Figure] | None = None
    missing: str = ""


Line = tuple[str, str, Callable[..., Load]]
"""A curve: its panel, its name in legends and tables, and its load but for the setting."""

Ratio = tuple[str, str, str]
"""A panel, and the names of two lines of it whose knees are divided."""


def evenly(low: float, high: float, count: int = 4) -> tuple[float, ...]:
    """Return so many rates from one to the other."""
    return tuple(round(low + (high - low) * at / (count - 1), 4) for at in range(count))


def around(rate: float) -> tuple[float, ...]:
    """Return rates around one at which a knee is expected."""
    return tuple(float(f"{rate * share:.4g}") for share in (0.5, 0.8, 1.0, 1.25))


def line(
    panel: str,
    server: Deployment,
    policy: str,
    workload: str,
    rates: tuple[float, ...],
    *,
    label: str = "",
    **options: Any,
) -> Line:
    """Return a system's curve; it is named as the paper names the policy where no label is given."""

    def load(setting: PaperSetting) -> Load:
        return setting.load(server, policy, workload, rates=rates, **options)

    return panel, label or SYSTEMS[policy], load


def quotient(over: float | None, under: float | None) -> float | None:
    """Return a ratio; None where a part of it is missing."""
    return None if over is None or not under else over / under


def at_knee(panel: str) -> str:
    """Return the x of the knees of a panel."""
    return f"knee, {panel}, req/s"


def curve_figure(
    name: str,
    title: str,
    how: str,
    rests_on: str,
    lines: Sequence[Line],
    ratios: Sequence[Ratio],
    *,
    columns: int,
    beside: Sequence[Line] = (),
    more: Callable[[Values], Values] = lambda _: {},
) -> PaperFigure:
    """Return a figure of curves: its numbers are ratios of knees, and knees.

    Args:
        name: as the command takes it.
        title: what it shows.
        how: what is replayed, and what is averaged over what.
        rests_on: what our numbers depend on.
        lines: its curves, panel by panel.
        ratios: of knees.
        columns: panels in a row.
        beside: curves that are replayed for a ratio and not shown.
        more: from the knees, values between the ratios and the knees.
    """
    shown = [(name, at_knee(panel)) for panel, name, _ in lines]

    def derive(_: PaperSetting, knees: Values) -> Values:
        divided = {
            (f"{over} / {under}", f"rate sustained, {panel}"): quotient(
                knees[over, at_knee(panel)], knees[under, at_knee(panel)]
            )
            for panel, over, under in ratios
        }
        return {**divided, **more(knees), **{key: knees[key] for key in shown}}

    def draw(_: PaperSetting, found: Found, numbers: Sequence[Number]) -> Figure:
        from pagesim.experiments.paper.drawing import curves

        return curves(tuple(dict.fromkeys(panel for panel, *_ in lines)), found, numbers, columns)

    return PaperFigure(
        name,
        title,
        how,
        rests_on,
        lambda setting: {(name, at_knee(panel)): load(setting) for panel, name, load in (*lines, *beside)},
        lambda key, outcome: {key: knee(outcome["points"])},
        derive,
        draw,
    )
