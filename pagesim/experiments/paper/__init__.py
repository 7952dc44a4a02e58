"""The PagedAttention paper, figure by figure: its numbers beside ours."""

from __future__ import annotations

from pagesim.experiments.paper.catalogue import BEYOND, FIGURES, PAPER, figure
from pagesim.experiments.paper.figures.base import PaperFigure
from pagesim.experiments.paper.numbers import CERTAINTIES, Number, csv
from pagesim.experiments.paper.reproduce import Reproduced, reproduce
from pagesim.experiments.paper.setting import Setting

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
