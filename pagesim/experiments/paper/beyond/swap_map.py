"""Swap or recompute: how the verdict moves with model, context and link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pagesim.costs import PreemptionPrices, Roofline
from pagesim.costs.specs import Link, gpu, model
from pagesim.experiments.paper.figures.base import Outcomes, PaperFigure, nothing
from pagesim.experiments.paper.numbers import Number
from pagesim.experiments.paper.setting import Setting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "beyond-swap-map"

MODELS = {"opt-13b": 1, "opt-66b": 4, "llama-3-8b": 1, "llama-3-70b": 4}
"""Tensor parallel degree of each."""

CONTEXTS = (128, 512, 2048, 8192)

LINKS = {
    "PCIe 4": gpu("a100-80gb").host,
    "PCIe 5": gpu("h100").host,
    "NVLink-C2C": Link(450e9, 5e-6, "Grace Hopper: 900 GB/s both ways together, peak; latency typical"),
}

ON = "h100"
"""On which everything else is computed, so that only the link differs."""

BESIDE, EACH = 32, 512
"""Sequences that run meanwhile, and tokens that each of them holds."""


def ratio(name: str, tokens: int, link: str) -> float:
    """Return what swapping a context takes over what recomputing it takes; below 1 swapping is cheaper."""
    machine = replace(gpu(ON), host=LINKS[link])
    cost = Roofline(model(name), machine, tp=MODELS[name])
    swap, again = PreemptionPrices(cost)(tokens, -(-tokens // 16), BESIDE, BESIDE * EACH)
    return swap / again


def numbers(_: Setting, __: Outcomes) -> list[Number]:
    """Return the ratio for each model, context and link."""
    return [
        Number(
            NAME, f"swap / recompute, {link}", f"{name}, {tokens} tokens", None, "", ratio(name, tokens, link)
        )
        for link in LINKS
        for name in MODELS
        for tokens in CONTEXTS
    ]


def draw(_: Setting, __: Outcomes, numbers: Sequence[Number]) -> Figure:
    """Draw a map a link: purple where swapping is cheaper, orange where recomputing is."""
    from pagesim.results.drawing import panels, ratios

    figure, axes = panels(1, len(LINKS), 3.9, 2.6)
    for each, link in zip(axes, LINKS, strict=True):
        values = np.array([n.ours for n in numbers if n.series.endswith(link)], float)
        rows = [f"{name}, tp {tp}" for name, tp in MODELS.items()]
        ratios(each, values.reshape(len(MODELS), len(CONTEXTS)), rows, [str(tokens) for tokens in CONTEXTS])
        each.set_xlabel("context (tokens)", fontsize=8)
        each.set_title(f"swap / recompute, {link}", fontsize=9)
    return figure


def answer(numbers: Sequence[Number]) -> str:
    """Return how often swapping is the cheaper on each link."""
    said = []
    for link in LINKS:
        ratios = [n.ours for n in numbers if n.series.endswith(link) and n.ours is not None]
        said.append(f"{link} {sum(each < 1 for each in ratios)} of {len(ratios)}")
    return (
        f"Swapping is the cheaper in so many fields of the map: {'; '.join(said)}. "
        "Recomputing wins where the prompt "
        "is short enough to ride along with an iteration that waits for memory anyway; the fewer KV heads a "
        "model has for its size, the less there is to move. Contexts beyond OPT's 2048 "
        "tokens are there to compare."
    )


FIGURE = PaperFigure(
    NAME,
    "Swap or recompute, over models, contexts and links",
    f"the time by which iterations get longer, swapped over recomputed, by the price model of `--preemption "
    f"auto`; {BESIDE} sequences of {EACH} tokens run meanwhile; an H100 by its datasheet, with other links",
    "analytic step times and datasheets of links, whatever `--cost` is",
    nothing,
    numbers,
    draw,
    answer=answer,
)
