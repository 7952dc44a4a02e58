"""Output of ``pagesim plan`` for SGLang servers, and of a plan next to a server's start-up log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pagesim.cli import show
from pagesim.cli.printing import put_table
from pagesim.hardware.gpus import GIB

if TYPE_CHECKING:
    from pagesim.experiments.plan import Plan
    from pagesim.experiments.sglang_plan import SglangPlan


def show_sglang(found: SglangPlan) -> None:
    """Print how memory is divided, the pools, and the line that the engine logs."""
    rows = [(part.name, f"{part.bytes / GIB:,.2f}", part.known) for part in found.parts]
    title = f"Memory of each GPU: {found.system.model} on {found.system.gpu}"
    put_table(title, ("", "GiB", ""), rows, texts=(0, 2))
    show.say("SGLang 0.5.23: " + ", ".join(f"{name} {value}" for name, value in found.settled.items()))
    pools = [
        (name, f"{slots:,}", f"{size:,.0f}", f"{slots * size / GIB:,.2f}")
        for name, (slots, size) in found.pools.items()
    ]
    ranks = found.settled.get("attn_dp_size", 1)
    title = "Pools" if ranks == 1 else f"Pools of each of {ranks} ranks"
    put_table(title, ("", "slots", "bytes a slot", "GiB"), pools)
    for line in found.log:
        show.say(line)


def beside_log(
    logged: Mapping[str, float], found: Plan | SglangPlan, exact: Plan | None
) -> list[dict[str, Any]]:
    """Return the numbers of a start-up log next to the plan's, one row each.

    Args:
        logged: the log's numbers, by name.
        found: the plan, its memory estimated.
        exact: the plan for the cache memory that the log reports, if it does.
    """
    from pagesim.experiments.startup_log import compare

    given = {each.name: each.planned for each in compare(logged, exact)} if exact else {}
    follows = ("KV cache, tokens", "concurrency", "blocks")
    return [
        {
            **each._asdict(),
            "difference": each.difference,
            "from_logged_gib": given.get(each.name) if each.name in follows else None,
        }
        for each in compare(logged, found)
    ]


def show_log(rows: list[dict[str, Any]]) -> None:
    """Print the rows as a table, and explain how they follow from each other."""

    def text(value: float | None) -> str:
        return "–" if value is None else f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"

    put_table(
        "The server's own log beside the plan",
        ("", "log", "plan", "difference", "from the log's GiB"),
        [
            (
                row["name"],
                *(text(row[column]) for column in ("logged", "planned", "difference", "from_logged_gib")),
            )
            for row in rows
        ],
    )
    if any(row["from_logged_gib"] is not None for row in rows):
        show.say(
            "The plan estimates the GiB of the cache; the last column takes them from the log, with its two "
            "decimals, and what follows is as in the engine"
        )
