"""Fig. 18a: what paging costs an attention kernel."""

from __future__ import annotations

from pagesim.experiments.paper.figures.base import Outcomes, PaperFigure, nothing
from pagesim.experiments.paper.numbers import Number
from pagesim.experiments.paper.setting import Setting

BATCHES, CONTEXTS = (8, 32), (64, 128, 256)
PAPER = (20.0, 26.0)
"""Percent by which the paper's kernel is slower than FasterTransformer's."""

MISSING = (
    "needs kernels timed on a GPU, and none was at hand: `pagesim bench attention --ops "
    "paged-decode,contiguous-decode --batch 8,32 --context 64,128,256 --device cuda` times them"
)


def numbers(_: Setting, __: Outcomes) -> list[Number]:
    """Return the paper's range alone."""
    return [
        Number("fig18a", f"paged over contiguous, batch {batch}", f"context {context}, %", PAPER, "V", None)
        for batch in BATCHES
        for context in CONTEXTS
    ]


FIGURE = PaperFigure(
    "fig18a", "What paging costs the kernel", "nothing", "kernels", nothing, numbers, None, MISSING
)
