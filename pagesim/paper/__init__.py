"""The PagedAttention paper, figure by figure: its numbers beside ours."""

from __future__ import annotations

from pagesim.paper.catalogue import BEYOND, FIGURES, PAPER, figure
from pagesim.paper.figures.base import PaperFigure
from pagesim.paper.numbers import CERTAINTIES, Number, csv
from pagesim.paper.reproduce import Reproduced, reproduce
from pagesim.paper.setting import Setting

__all__ = [
    "BEYOND",
    "CERTAINTIES",
    "FIGURES",
    "PAPER",
    "Number",
    "PaperFigure",
    "Reproduced",
    "Setting",
    "csv",
    "figure",
    "reproduce",
]
