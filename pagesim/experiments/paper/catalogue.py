"""The figures by name, in the paper's order, and what goes beyond it."""

from __future__ import annotations

from pagesim.errors import PagesimError
from pagesim.experiments.paper.beyond import chunked, fragmentation, swap_map
from pagesim.experiments.paper.figures import (
    fig2,
    fig11,
    fig12,
    fig13,
    fig14,
    fig15,
    fig16,
    fig17,
    fig18a,
    fig18b,
    fig19a,
    fig19b,
    table1,
)
from pagesim.experiments.paper.figures.base import PaperFigure

PAPER: dict[str, PaperFigure] = {
    module.FIGURE.name: module.FIGURE
    for module in (
        fig2,
        table1,
        fig11,
        fig12,
        fig13,
        fig14,
        fig15,
        fig16,
        fig17,
        fig18a,
        fig18b,
        fig19a,
        fig19b,
    )
}
"""The paper's."""

BEYOND: dict[str, PaperFigure] = {
    module.FIGURE.name: module.FIGURE for module in (chunked, swap_map, fragmentation)
}
"""Questions that its readers ask and no figure answers."""

FIGURES = {**PAPER, **BEYOND}

ALL = "all"


def figure(name: str) -> PaperFigure:
    """Return a figure by name.

    Raises:
        PagesimError: there is none of this name.
    """
    if name not in FIGURES:
        raise PagesimError(f"there is no figure {name!r}; there are {', '.join(FIGURES)}, and {ALL}")
    return FIGURES[name]


def chosen(names: list[str]) -> list[PaperFigure]:
    """Return figures by name, each once; all of them for ``all``.

    Raises:
        PagesimError: there is none of some name.
    """
    if ALL in names:
        return list(FIGURES.values())
    return [figure(name) for name in dict.fromkeys(names)]
