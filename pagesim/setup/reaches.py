"""What a scheduler says of layers that do not look back on all tokens, where a cost model asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pagesim.costs import CostModel, Reach, Reaching
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.reach import LastTokens, Reaches, SinceChunk

COUNTED: Mapping[str, Callable[[int], LastTokens | SinceChunk]] = {
    "window": LastTokens,
    "sparse": LastTokens,
    "chunk": SinceChunk,
}
"""What is counted for each kind of `Reach`."""


def reaches_of(cost: CostModel) -> tuple[Reach, ...] | None:
    """Return of what reaches a cost model asks to be told; None where it asks for nothing."""
    return cost.reaches if isinstance(cost, Reaching) else None


def let_follow(scheduler: Scheduler, cost: CostModel) -> None:
    """Let a scheduler that can say what is within reach in each iteration, if the cost model asks for it."""
    reaches = reaches_of(cost)
    if reaches is not None and scheduler.follows_reach:
        scheduler.reaches = Reaches([COUNTED[kind](size) for kind, size in reaches], scheduler.memory)


def unfollowed(cost: CostModel, scheduler: type[Scheduler], called: str) -> list[str]:
    """Return the note that a scheduler cannot, if so; ``called`` is its name."""
    if scheduler.follows_reach or not reaches_of(cost):
        return []
    return [
        f"{called} does not say how many tokens are within reach of layers that do not look back on all: "
        "they are charged for all"
    ]
