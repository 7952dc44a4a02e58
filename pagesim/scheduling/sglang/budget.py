"""What a pass of admission may still give away.

Source: SGLang 0.5.23, ``srt/managers/schedule_policy.py``, ``PrefillAdder``.
"""

from __future__ import annotations

from enum import Enum

from pagesim.kvcache import KVCache

CLIP = 4096
"""Tokens to come for which an admission leaves room at most, however many a request may generate."""


class Verdict(Enum):
    """Whether a pass goes on."""

    GO_ON = "go on"
    NO_ROOM = "no room"
    """Memory is short: no request is tried until one leaves."""
    NO_BUDGET = "no budget"


class Budget:
    """The tokens that are left of an iteration's and of memory's, in one pass.

    What requests that run are going to generate counts against memory, but only a share of it: ``promised``
    is a float, summed up in their order, because every comparison is made with that sum.

    Args:
        memory: what is free there is asked anew each time.
        prompts: tokens of prompts that may be admitted.
        chunk: tokens that prompts may compute; None where they are not cut.
        promised: tokens that running requests are going to take.
        current: those of them that they take in the iteration at hand.
    """

    __slots__ = ("_memory", "_page", "chunk", "current", "promised", "prompts")

    def __init__(
        self, memory: KVCache, prompts: int, chunk: int | None, promised: float, current: int
    ) -> None:
        self._memory = memory
        self._page = memory.block_size
        self.prompts = prompts
        self.chunk = chunk
        self.promised = promised
        self.current = current

    @property
    def total_left(self) -> float:
        """Tokens of memory that are neither held nor promised."""
        return self._memory.free_blocks * self._page - self.promised

    @property
    def current_left(self) -> int:
        """Tokens of memory that the iteration at hand does not take."""
        return self._memory.free_blocks * self._page - self.current

    def verdict(self) -> Verdict:
        """Say whether the next request may be tried."""
        if not (self.total_left > 0 and self.current_left > 0):
            return Verdict.NO_ROOM
        if self.prompts <= 0 or (self.chunk is not None and self.chunk <= 0):
            return Verdict.NO_BUDGET
        return Verdict.GO_ON

    def whole_pages(self, tokens: int) -> int:
        """Return the tokens of the pages that so many tokens take."""
        page = self._page
        return -(-tokens // page) * page

    def charge(self, tokens: int, to_come: int) -> None:
        """Take what a request computes off, and what it is going to generate."""
        taken = self.whole_pages(tokens)
        self.promised += taken + self._page + to_come
        self.current += taken + self._page
        self.prompts -= taken
        if self.chunk is not None:
            self.chunk -= taken

    def cut(self, found: int, tokens: int) -> int:
        """Return how many of so many tokens behind those found run: all, or whole pages of a chunk."""
        if self.chunk is None or self.whole_pages(tokens) <= self.chunk:
            return tokens
        page = self._page
        return (found + self.chunk // page * page) // page * page - found
