"""The PagedAttention paper, figure by figure: its numbers compared with ours."""

from __future__ import annotations

from pagesim.experiments.paper.figure import PaperFigure, Reproduced
from pagesim.experiments.paper.numbers import CERTAINTIES, Number, csv
from pagesim.experiments.paper.reproduce import BEYOND, FIGURES, chosen, reproduce
from pagesim.experiments.paper.setting import PaperSetting

__all__ = [
    "BEYOND",
    "CERTAINTIES",
    "FIGURES",
    "Number",
    "PaperFigure",
    "PaperSetting",
    "Reproduced",
    "chosen",
    "csv",
    "reproduce",
]
