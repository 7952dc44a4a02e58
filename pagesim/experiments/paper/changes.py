"""Before and after: an earlier reproduction's misses beside those of this one, and what left its bound."""

from __future__ import annotations

from collections.abc import Sequence

from pagesim.experiments.paper.columns import Column, column
from pagesim.experiments.paper.discrepancies import reason
from pagesim.experiments.paper.numbers import Number, shown
from pagesim.experiments.paper.reproduce import Reproduced
from pagesim.experiments.paper.setting import Setting

Pair = tuple[Number, Number]
"""A number before and after."""

NOTABLE = 0.1
"""A share of the paper's value: what came further off by more is listed, bound or none."""


def within(number: Number) -> bool | None:
    """Say whether a number is within its bound; None where it has none.

    A bound is the bar that was promised; without one, how well one reads a number by eye, or the range that
    the paper gives.
    """
    if number.verdict in ("fitted", "not run"):
        return None
    if number.verdict in ("holds", "within reading"):
        return True
    if number.verdict in ("misses", "outside reading"):
        return False
    return number.error == 0 if isinstance(number.paper, tuple) else None


def pairs(numbers: Sequence[Number], before: Column) -> list[Pair]:
    """Return each number that the paper gives, before and after, where both are known."""
    both = [(before.earlier(number), number) for number in numbers if number.paper is not None]
    return [(was, now) for was, now in both if was.ours is not None and now.ours is not None]


def left(found: Sequence[Pair]) -> list[Pair]:
    """Return what was within its bound before and is not after."""
    return [(was, now) for was, now in found if within(was) and within(now) is False]


def entered(found: Sequence[Pair]) -> list[Pair]:
    """Return what is within its bound and was not before."""
    return [(was, now) for was, now in found if within(was) is False and within(now)]


def further(found: Sequence[Pair]) -> list[Pair]:
    """Return what is further off than before by more than `NOTABLE`, and did not leave its bound."""
    gone = left(found)
    return [
        pair
        for pair in found
        if pair not in gone and pair[1].verdict != "fitted" and _share(pair[1]) - _share(pair[0]) > NOTABLE
    ]


def _share(number: Number) -> float:
    return abs(number.relative or 0.0)


def changes(made: Sequence[Reproduced], setting: Setting, before: Column) -> list[str]:
    """Return a section of the document: each figure's misses before and after, and what changed sides.

    Args:
        made: the figures, in order.
        setting: with which they were made.
        before: an earlier reproduction.
    """
    found = {each.figure.name: pairs(each.numbers, before) for each in made}
    every = [pair for figure in found.values() for pair in figure]
    return [
        "## Before and after",
        f"*Before*: {before.name}, engine: {before.engine}. *Now*: {setting.name}, engine: "
        f"{column(setting, []).engine}. A number's bound is its bar; without one, how well one reads by eye, "
        "or the range that the text gives. Means leave out what is fitted. The figures' tables have both "
        "errors of each number.",
        _by_figure(found),
        f"**Left its bound**: {len(left(every))}.",
        _listed(left(every), setting) or "None.",
        f"**Further off by more than {100 * NOTABLE:g} % of the paper's value**, with no bound or beyond it "
        f"before: {len(further(every))}.",
        _listed(further(every), setting) or "None.",
        f"**Came within it**: {len(entered(every))}.",
        _listed(entered(every), setting, why=False) or "None.",
    ]


def _by_figure(found: dict[str, list[Pair]]) -> str:
    lines = [
        "| figure | numbers of the paper | mean error before | now | bounds | kept before | now |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, numbers in found.items():
        if not numbers:
            continue
        bound = [(within(was), within(now)) for was, now in numbers if within(now) is not None]
        cells = [
            *(_mean([pair[side] for pair in numbers if pair[1].verdict != "fitted"]) for side in (0, 1)),
            str(len(bound)),
            *(str(sum(bool(pair[side]) for pair in bound)) for side in (0, 1)),
        ]
        lines.append(f"| {name} | {len(numbers)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(numbers: Sequence[Number]) -> str:
    """Return the mean share, without its sign, by which numbers are off that can be compared so."""
    shares = [_share(number) for number in numbers if number.relative is not None]
    return f"{100 * sum(shares) / len(shares):.1f} %" if shares else "–"


def _listed(found: Sequence[Pair], setting: Setting, *, why: bool = True) -> str:
    lines = []
    for was, now in found:
        because = reason(now, setting)
        text = f" {because[0].upper()}{because[1:]}." if why else ""
        paper = shown(now.paper).replace("..", "–")
        lines.append(
            f"- **{now.figure}** {now.series}, {now.x}: {paper}, before {_value(was)}, "
            f"now {_value(now)}.{text}"
        )
    return "\n".join(lines)


def _value(number: Number) -> str:
    share = number.relative
    return f"{number.ours:.4g}" + (f" ({100 * share:+.0f} %)" if share else "")
