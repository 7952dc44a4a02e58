"""Plans on a page: how each GPU's memory is divided before serving, and how many requests fit."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from pagesim.experiments.holdings import holding
from pagesim.experiments.plan import Plan, rule_of
from pagesim.results.report.assemble import write_page
from pagesim.results.report.pack import pack

SHORTEST = 512
"""Length in tokens of the shortest requests that a page counts; further lengths double."""

SECTIONS = ("memory", "lengths", "log", "groups-section", "scenario")

SCRIPTS = ("data.js", "parts.js", "headline.js", "charts.js", "theme.js", "plan.js")


def write_plan_page(plans: Mapping[str, Plan], out: Path) -> None:
    """Write a page that shows memory plans side by side.

    Args:
        plans: memory plans, by their names on the page.
        out: HTML file, written completely or not at all.

    Raises:
        PagesimError: the file cannot be written.
    """
    data = {"systems": [_plan(name, plan) for name, plan in plans.items()]}
    write_page(data, out, SECTIONS, SCRIPTS, title="Where the GPU's memory goes", first="memory")


def _plan(name: str, plan: Plan) -> dict[str, Any]:
    tokens, fit = _lengths(plan)
    return {
        "name": name,
        "scenario": {"model": plan.system.model, "gpu": plan.system.gpu, **plan.settled},
        # In the order of the figures, where the part that the engine may not use is last.
        "parts": [part._asdict() for part in (*plan.parts[1:], plan.parts[0])],
        "log": list(plan.log),
        "at_once": plan.at_once,
        "is_bound": plan.is_bound,
        "notes": list(plan.notes),
        "groups": [
            {
                "rule": rule,
                "groups": len(list(alike)),
                **{"layers": layers, "block_size": size, "page_bytes": page, "padding": padding},
                "most_blocks": most,
            }
            for (rule, layers, size, page, padding, most), alike in groupby(
                [
                    (
                        *(rule_of(group), len(group.layers), group.block_size, group.page_bytes),
                        *(plan.blocks.padding_of(group), group.most_blocks),
                    )
                    for group in plan.blocks.groups
                ]
            )
        ],
        "lengths": {"tokens": pack(tokens), "fit": pack(fit)},
    }


def _lengths(plan: Plan) -> tuple[list[int], list[int]]:
    """Return request lengths, and how many requests of each length fit when they are at their last token."""
    longest = plan.settled["max_model_len"]
    lengths = [SHORTEST << doubled for doubled in range(40) if SHORTEST << doubled < longest] + [longest]
    blocks = plan.blocks.num_blocks - 1  # without the null block
    system = plan.system.model_copy(update={"num_blocks": plan.blocks.num_blocks})
    fit = [blocks // holding(system, tokens).blocks for tokens in lengths]
    return lengths, fit
