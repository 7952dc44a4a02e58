"""Failure modes: cases in which real engines hang, leak or crash, and pagesim gives up a request instead."""

from __future__ import annotations

from enum import Enum

from pagesim.kvcache import BlockManager


class FailureMode(Enum):
    """What happened to a request, and what the real engine does in that case."""

    NEVER_ADMITTED = (
        "it can never be admitted, though no other request runs",
        "leaves it at the head of the queue and blocks all requests behind it for ever",
    )
    NEVER_SCHEDULED = (
        "no step can give it a token, whatever else is over",
        "plans steps without it, or empty ones, for ever",
    )
    SWAP_SPACE_FULL = (
        "it must be swapped out and the swap space has too few free blocks",
        "dies with an error, and all requests with it",
    )
    NEVER_SWAPPED_IN = (
        "it was swapped out and even an empty cache is too small for it to come back",
        "tries again for ever",
    )
    LEAK = (
        "it gets memory again after some of its samples are over",
        "counts those samples as users of the blocks and never frees them",
    )
    NEVER_BATCHED = (
        "it is too long for a batch of its own",
        "dies of an empty batch when its turn comes",
    )
    NEVER_RESUMED = (
        "its prompt, with what it generated before it was paused, is too long for an iteration",
        "dies of a failed check when its turn comes",
    )

    def __init__(self, what: str, really: str) -> None:
        self.what = what
        self.really = really

    @property
    def key(self) -> str:
        """Name of the failure mode in a summary."""
        return self.name.lower()


class StrictCompatError(Exception):
    """The real engine would stop here; holds the failure mode, the request's row, and the time in ticks."""

    def __init__(self, failure_mode: FailureMode, row: int, now: int) -> None:
        super().__init__(failure_mode, row, now)
        self.failure_mode = failure_mode
        self.row = row
        self.now = now


def no_room(memory: BlockManager) -> str:
    """Return the message for a request that needs more blocks than the cache has."""
    return (
        f"it needs more than the {memory.num_blocks} blocks of {memory.block_size} tokens that the KV "
        "cache has for it: see num_blocks"
    )
