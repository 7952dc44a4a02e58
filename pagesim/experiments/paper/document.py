"""The document: misses first, then the paper's numbers and ours for each figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pagesim.experiments.paper.figure import Reproduced
from pagesim.experiments.paper.numbers import CERTAINTIES, Number, Range, Verdict, range_text
from pagesim.experiments.paper.reproduce import BEYOND
from pagesim.experiments.paper.setting import ENGINES, FITTED_TO, PaperSetting, in_words

COSTS = {
    "imported": "operators that others timed on A100s and published (linear layers and all-reduces by Vidur, "
    "attention by Frontier), rescaled to these models by the share of the datasheet's rates that they "
    "reached. Swaps, copies and the LM head are the datasheet's; figures over block sizes are analytic. "
    "pagesim's authors measured nothing",
    "analytic": "datasheets and rules of thumb. Nothing was measured",
}

VERDICTS: tuple[Verdict, ...] = ("holds", "misses", "within reading", "outside reading")
"""Verdicts that the document counts per figure."""

COUNTED: tuple[Verdict, ...] = (*VERDICTS, "not run")
"""Verdicts of numbers that are only in a figure's CSV file; misses are listed first in the document."""


def document(
    made: Sequence[Reproduced], setting: PaperSetting, *, pictures: Mapping[str, str] | None = None
) -> str:
    """Return the document as Markdown.

    Args:
        made: the figures in order, the paper's first.
        setting: the setting with which they were made.
        pictures: path of each figure's picture, relative to the document.
    """
    numbers = [number for each in made for number in each.numbers]
    parts = [
        "# The PagedAttention paper, figure by figure",
        "Kwon et al., *Efficient Memory Management for Large Language Model Serving with PagedAttention*, "
        "SOSP 2023. `pagesim reproduce` writes this file; do not edit it. The misses are "
        "explained in docs/validation/paper.md.",
        *_made_with(setting),
        "## What misses its bar",
        _listed(number for number in numbers if number.verdict == "misses"),
        "## In all",
        _table(
            {"figure": "---", "rests on": "---"} | dict.fromkeys(VERDICTS, "--:"),
            (_summary(each) for each in made if any(n.verdict in VERDICTS for n in each.numbers)),
        ),
    ]
    of_paper = sum(each.figure.name not in BEYOND for each in made)
    for place, each in enumerate(made):
        if place == of_paper > 0:
            parts.append("# Beyond the paper")
        parts += _section(each, pictures or {})
    return "\n\n".join(parts) + "\n"


def _made_with(setting: PaperSetting) -> list[str]:
    lines = [
        f"*Ours* uses {setting.name}.",
        f"**Costs.** {setting.cost}: {COSTS.get(setting.cost, 'as given on the command line')}.",
    ]
    if setting.fitted:
        bars = " and ".join(f"{bar} on {name}" for name, bar in FITTED_TO.items())
        lines.append(
            "**Two numbers are fitted**: the paper's engine's own time an iteration and a sequence. "
            f"They are fitted to two bars, Fig. 13's vLLM ({bars}). For OPT-13B they are "
            f"{in_words(ENGINES[setting.cost])}; with analytic costs, {in_words(ENGINES['analytic'])}. "
            "Every other number is a prediction."
        )
    sure = "; ".join(f"{letter}: {text}" for letter, text in CERTAINTIES.items() if letter)
    lines.append(
        f"**Certainty of the paper's numbers**, in parentheses. {sure}. A range is the text's, or what the "
        "artifact leaves open. *Bar* is the tolerance set before the run. The CSV files hold the errors, "
        "numbers that hold or were read off curves (counted below), and numbers that the paper does not give."
    )
    return lines


def _listed(numbers: Iterable[Number]) -> str:
    lines = [
        f"- **{number.figure}** {number.series}, {number.x}: {_range_cell(number.paper)}, ours "
        f"{_cell(number.ours)}{f' (bar {number.bar})' if number.bar else ''}"
        for number in numbers
    ]
    return "\n".join(lines) or "Nothing."


def _summary(each: Reproduced) -> list[str]:
    count = Counter(number.verdict for number in each.numbers)
    figure, counts = each.figure, [str(count[verdict] or "–") for verdict in VERDICTS]
    return [figure.name, figure.rests_on, *counts]


def _section(each: Reproduced, pictures: Mapping[str, str]) -> list[str]:
    figure = each.figure
    name = figure.name
    if name not in BEYOND:
        name = name.replace("fig", "Fig. ").replace("table", "Table ")
    parts = [
        f"## {name}: {figure.title}",
        f"{figure.how[0].upper()}{figure.how[1:]}.",
    ]
    if figure.missing:
        parts.append(f"**Not drawn**: {figure.missing}.")
    if figure.name in pictures:
        parts.append(f"![{figure.title}]({pictures[figure.name]})")
    given = [n for n in each.numbers if n.paper is not None and n.verdict not in COUNTED]
    if given:
        rows = (
            [f"{n.series}, {n.x}", f"{_range_cell(n.paper)} ({n.certainty})", _cell(n.ours)] for n in given
        )
        right = dict.fromkeys(["paper", "ours"], "--:")
        parts.append(_table({"numbers without a bar, or fitted": "---", **right}, rows))
    if len(given) < len(each.numbers):
        parts.append(f"`{figure.name}.csv` has {len(each.numbers) - len(given)} more numbers.")
    return parts


def _table(columns: Mapping[str, str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; ``columns`` are headings with their alignment."""
    lines = [list(columns), *([cell or "–" for cell in row] for row in rows)]
    head, *body = ("| " + " | ".join(line) + " |" for line in lines)
    return "\n".join([head, "|" + "|".join(columns.values()) + "|", *body])


def _range_cell(paper: Range | None) -> str:
    return range_text(paper, _cell, "–")


def _cell(value: float | None) -> str:
    """Return a value in readable form: four digits, and thousands separators."""
    if value is None:
        return ""
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
