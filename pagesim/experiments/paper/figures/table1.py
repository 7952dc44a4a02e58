"""Table 1: what weights leave of each server for the cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagesim.costs.specs import capacity, gpu, model
from pagesim.experiments.paper.figures.base import Outcomes, PaperFigure, nothing
from pagesim.experiments.paper.numbers import Bar, Certainty, Number, Percent, Points, Printed, Quoted
from pagesim.experiments.paper.setting import SERVERS, Setting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GB = 1e9

WEIGHTS, SLOTS, BLOCKS, BYTES = "weights, GB", "KV slots", "blocks of 16", "KV bytes a token"

PAPER: dict[str, dict[str, tuple[Quoted, Certainty, Bar]]] = {
    "opt-13b": {
        WEIGHTS: (26.0, "B", Printed(1, 1)),
        SLOTS: (15_700.0, "B", Percent(1)),
        BLOCKS: (983.0, "A", Points(0)),
        BYTES: (819_200.0, "D", Points(0)),
    },
    "opt-66b": {
        WEIGHTS: (132.0, "B", Printed(1, 1)),
        SLOTS: (9_700.0, "B", Percent(1)),
        BLOCKS: ((603.0, 606.0), "A", Percent(1)),
        BYTES: (2_359_296.0, "D", Points(0)),
    },
    "opt-175b": {
        WEIGHTS: (346.0, "B", Printed(1, 1)),
        SLOTS: (60_100.0, "B", Percent(1)),
        BLOCKS: (3_757.0, "A", Percent(1)),
        BYTES: (4_718_592.0, "D", Points(0)),
    },
}


def numbers(_: Setting, __: Outcomes) -> list[Number]:
    """Count weights, and size the cache the artifact's way."""
    found = []
    for server in SERVERS:
        spec = model(server.model)
        fits = capacity(spec, gpu(server.gpu), tp=server.tp)
        ours = {
            WEIGHTS: spec.weight_bytes / GB,
            SLOTS: fits.slots,
            BLOCKS: fits.num_blocks,
            BYTES: spec.kv_bytes_per_token("fp16", server.tp) * server.tp,
        }
        found += [
            Number("table1", server.title, row, paper, certainty, float(ours[row]), bar)
            for row, (paper, certainty, bar) in PAPER[server.model].items()
        ]
    return found


def draw(_: Setting, __: Outcomes, numbers: Sequence[Number]) -> Figure:
    """Draw weights and KV slots, two bars a server."""
    from pagesim.experiments.paper.drawing import legend, pairs
    from pagesim.results.drawing import panels

    figure, axes = panels(1, 2)
    for each, row in zip(axes, (WEIGHTS, SLOTS), strict=True):
        chosen = [number for number in numbers if number.x == row]
        pairs(each, chosen, [number.series for number in chosen], row)
    legend(axes[0])
    return figure


FIGURE = PaperFigure(
    "table1",
    "Servers, weights and KV slots",
    "weights are parameters × 2 bytes; the cache is what the artifact's sizing rule leaves of the memory "
    "that the driver reports",
    "memory",
    nothing,
    numbers,
    draw,
)
