"""What chunked prefill and prefix caching change in Fig. 12."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagesim.experiments.paper.figures.base import Outcomes, PaperFigure
from pagesim.experiments.paper.figures.panels import (
    Line,
    Panel,
    Ratio,
    curve_jobs,
    draw_panels,
    evenly,
    knee_numbers,
    ratio_numbers,
)
from pagesim.experiments.paper.jobs import Job
from pagesim.experiments.paper.numbers import Number
from pagesim.experiments.paper.setting import OPT_13B, Setting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "beyond-chunked"

WHOLE, CHUNKED, CACHED = "vllm-v1, whole prompts", "vllm-v1, chunked prefill", "vllm-v1, chunked and cached"

RATES = evenly(1.0, 2.5)

PROMPT = "512"
"""Tokens of the system prompt in the second panel."""


def _v1(label: str, *, chunked: bool, caching: bool, **options: str) -> Line:
    as_published = {
        "sizing": "paper",
        "async_scheduling": False,
        "max_num_batched_tokens": 2560,
        "max_num_seqs": 2048,
    }
    return Line(
        RATES,
        "vllm-v1",
        options={
            "enable_chunked_prefill": chunked,
            "enable_prefix_caching": caching,
            **as_published,
            **options,
        },
        label=label,
    )


def _panel(title: str, **options: str) -> Panel:
    lines = (
        Line(RATES, "vllm-sosp", options=options),
        _v1(WHOLE, chunked=False, caching=False, **options),
        _v1(CHUNKED, chunked=True, caching=False, **options),
        _v1(CACHED, chunked=True, caching=True, **options),
    )
    return Panel(title, OPT_13B, "sharegpt", lines, SECONDS)


SECONDS = 1800.0

PLAIN, SYSTEM = "OPT-13B, ShareGPT", f"OPT-13B, ShareGPT, system prompt of {PROMPT}"

PANELS = (_panel(PLAIN), _panel(SYSTEM, shared_prefix=PROMPT))

RATIOS = tuple(
    Ratio(panel, over, under, None, "")
    for panel in (PLAIN, SYSTEM)
    for over, under in ((WHOLE, "vLLM"), (CHUNKED, "vLLM"), (CACHED, CHUNKED))
)


def jobs(setting: Setting) -> dict[str, Job]:
    """Return a curve for each scheduler, without and with a system prompt."""
    return curve_jobs(setting, PANELS)


def numbers(_: Setting, found: Outcomes) -> list[Number]:
    """Return ratios of knees, and knees."""
    return [*ratio_numbers(NAME, found, PANELS, RATIOS), *knee_numbers(NAME, found, PANELS)]


def draw(_: Setting, found: Outcomes, __: Sequence[Number]) -> Figure:
    """Draw both panels."""
    return draw_panels(found, PANELS, 2)


def answer(numbers: Sequence[Number]) -> str:
    """Return what the knees say."""
    over = {(n.series, n.x.removeprefix("rate sustained, ")): n.ours for n in numbers}

    def times(above: str, below: str, panel: str) -> str:
        value = over[f"{above} / {below}", panel]
        return "an unknown multiple" if value is None else f"{value:.2f} times"

    return (
        f"On ShareGPT as it is, chunks sustain {times(CHUNKED, 'vLLM', PLAIN)} the rate "
        "of the paper's vLLM, whole "
        f"prompts {times(WHOLE, 'vLLM', PLAIN)}, and caching "
        f"{times(CACHED, CHUNKED, PLAIN)} that of chunks alone. "
        f"Behind a system prompt of {PROMPT} tokens caching gives "
        f"{times(CACHED, CHUNKED, SYSTEM)}. The knee is "
        "about memory and prompts computed twice; what chunks do for the latency of "
        "the requests that decode meanwhile, a "
        "mean a token does not show."
    )


FIGURE = PaperFigure(
    NAME,
    "What chunked prefill and prefix caching change in Fig. 12",
    "OPT-13B, ShareGPT, arrivals for half an hour, the paper's limits on a batch; first turns of "
    "conversations begin with nothing in common, so a second panel puts a system prompt of 512 tokens "
    "before each",
    "step times",
    jobs,
    numbers,
    draw,
    answer=answer,
)
