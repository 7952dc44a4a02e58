"""The paper's Fig. 18 and 19: block sizes, and swapping against recomputing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pagesim.experiments.ablations import best, undo
from pagesim.experiments.paper.figure import Found, Loads, PaperFigure, quotient
from pagesim.experiments.paper.jobs import Outcome
from pagesim.experiments.paper.numbers import Key, Number, Values, published
from pagesim.experiments.paper.setting import OPT_13B, PaperSetting
from pagesim.experiments.paper.swaps import SIZES, TOKENS, blocks_profile, copy_by_copy
from pagesim.models import model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {"sharegpt": "ShareGPT", "alpaca": "Alpaca"}
RATES = {"sharegpt": 2.01, "alpaca": 30.1}
"""Requests/s: Alpaca's is the artifact's of Fig. 18b, ShareGPT's that of its Fig. 19b."""


def at_size(size: int) -> str:
    """Return the x of a latency at a block size."""
    return f"block {size}, s/token"


def lines_over_sizes(y: str, panel: str, _: PaperSetting, __: Found, numbers: Sequence[Number]) -> Figure:
    """Draw lines over block sizes, a panel for each ``series`` or ``unit``."""
    from pagesim.experiments.paper.drawing import over_sizes

    return over_sizes(numbers, panel, y)


def _of_size(setting: PaperSetting, workload: str, size: int, **options: Any) -> Any:
    """Return a load at a block size, always in the same memory."""
    rate = RATES[workload]
    return setting.load(OPT_13B, "vllm-sosp", workload, seconds=600, rate=rate, block_size=size, **options)


def _latency(key: Key, found: Outcome) -> Values:
    return {key: found["normalized_latency"]["mean"]}


def _best(_: PaperSetting, latencies: Values) -> Values:
    values: dict[Key, float | None] = {}
    for title in TITLES.values():
        line = {size: latencies[title, at_size(size)] or 0.0 for size in SIZES}
        least, alike = best(line)
        values[title, "best block size"] = least
        values[title, "largest within 5 % of the best"] = max(alike)
        values |= {(title, at_size(size)): latency for size, latency in line.items()}
    return values


def _undone(setting: PaperSetting) -> dict[str, dict[int, float]]:
    """Return seconds that undoing a preemption takes, by way and block size, with no engine around it.

    Raises:
        PagesimError: the cost knows no block sizes.
    """
    cost = setting.cost_on(OPT_13B, "vllm-sosp", block_sizes=True)
    profile = blocks_profile(cost, OPT_13B.model, OPT_13B.gpu, OPT_13B.tp).with_overhead(0.0)
    sizes, spec = [size for size in SIZES if size in profile.block_sizes], model(OPT_13B.model)
    ours, copies = (undo(each, spec, sizes, TOKENS) for each in (profile, copy_by_copy(profile)))
    return {
        SWAP: {each.block_size: each.swap_s for each in ours},
        "recompute": {each.block_size: each.recompute_s for each in ours},
        COPIES: {each.block_size: each.swap_s for each in copies},
    }


def _none_but_checked(setting: PaperSetting) -> Loads:
    """Return nothing to replay, but refuse a cost that knows no block sizes before anything else is done."""
    _undone(setting)
    return {}


def _swapped(setting: PaperSetting, _: Values) -> Values:
    lines = _undone(setting)
    swap, again = lines[SWAP], lines["recompute"]
    return {
        ("recompute", "largest over least"): max(again.values()) / min(again.values()),
        (SWAP, "block 1 over block 256"): swap[min(swap)] / swap[max(swap)],
        **{(way, f"block {size}, ms"): 1e3 * line[size] for way, line in lines.items() for size in line},
    }


SWAP, COPIES = "swap out and in", "swap, copy by copy"

WAYS: dict[str, dict[str, Any]] = {
    "recompute": {"preemption": "recompute"},
    "swap": {"preemption": "swap"},
    COPIES: {"preemption": "swap", "copies": True},
}


def _end_to_end(setting: PaperSetting) -> Loads:
    _undone(setting)
    return {
        (way, at_size(size)): _of_size(setting, "sharegpt", size, **options)
        for way, options in WAYS.items()
        for size in SIZES
    }


def _against_each_other(_: PaperSetting, latencies: Values) -> Values:
    ratios = {
        (f"recompute / {way}", f"block {size}"): quotient(
            latencies["recompute", at_size(size)], latencies[way, at_size(size)]
        )
        for size in SIZES
        for way in ("swap", COPIES)
    }
    return {**ratios, **latencies}


FIGURES = (
    PaperFigure(
        "fig18a",
        "What paging costs the kernel",
        "nothing",
        "kernels",
        derive=lambda _, __: dict.fromkeys(published("fig18a")),
        missing="needs kernels timed on a GPU, and none was at hand: `pagesim bench attention --ops "
        "paged-decode,contiguous-decode --batch 8,32 --context 64,128,256 --device cuda` times them",
    ),
    PaperFigure(
        "fig18b",
        "Latency over block sizes",
        "OPT-13B, 600 s of arrivals, the same memory at every block size; by `pagesim ablate block-size`. "
        "Costs are analytic unless a profile is given: those measured by others know block 16 alone",
        "step times and their dependence on the block size",
        lambda setting: {
            (TITLES[workload], at_size(size)): _of_size(setting, workload, size)
            for workload in RATES
            for size in SIZES
        },
        _latency,
        _best,
        partial(lines_over_sizes, "normalized latency", "series"),
    ),
    PaperFigure(
        "fig19a",
        "Swapping against recomputing, alone",
        "OPT-13B, a context of 256 tokens out and in again, or computed anew; by `pagesim ablate "
        "preemption`, the engine's overhead left out. Costs are analytic unless a profile is given",
        "transfers and their dependence on the block size",
        _none_but_checked,
        derive=_swapped,
        draw=partial(lines_over_sizes, f"to undo a preemption of {TOKENS} tokens", "unit"),
    ),
    PaperFigure(
        "fig19b",
        "Swapping against recomputing, end to end",
        "OPT-13B, ShareGPT, 2.01 requests/s for 600 s, the same memory at every block size; by `pagesim "
        "ablate preemption`. Costs are analytic unless a profile is given",
        "step times, transfers and their dependence on the block size",
        _end_to_end,
        _latency,
        _against_each_other,
        partial(lines_over_sizes, "normalized latency", "unit"),
    ),
)
