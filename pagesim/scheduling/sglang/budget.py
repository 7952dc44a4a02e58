"""What a pass of admission may still give away.

Source: SGLang 0.5.23, ``srt/managers/schedule_policy.py``, ``PrefillAdder``.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from pagesim.kvcache import KVCache
from pagesim.kvcache.radix import WindowedRadixKV
from pagesim.setup.compiled import mypyc_attr

CLIP = 4096
"""Tokens to come for which an admission leaves room at most, however many a request may generate."""


class Verdict(Enum):
    """Whether a pass goes on."""

    GO_ON = "go on"
    NO_ROOM = "no room"
    """Memory is short: no request is tried until one leaves."""
    NO_BUDGET = "no budget"


@mypyc_attr(allow_interpreted_subclasses=True)
class Budget:
    """The tokens that are left of an iteration's and of memory's, in one pass.

    What requests that run are going to generate counts against memory, but only a share of it, a float that
    is summed up in their order, because every comparison is made with that sum. It is summed up once a bound
    on it leaves no room: where there is room beside the bound, there is room.

    Args:
        memory: what is free there is asked anew each time.
        prompts: tokens of prompts that may be admitted.
        chunk: tokens that prompts may compute; None where they are not cut.
        most: tokens that running requests are going to take, or more.
        sums_up: returns as many as they are going to take.
        current: those of them that they take in the iteration at hand.
    """

    __slots__ = ("_charged", "_memory", "_page", "_promised", "_sums_up", "chunk", "current", "prompts")

    looks_ahead = True
    """Whether requests of known length are walked through to the end (`KnownFuture`)."""

    def __init__(
        self,
        memory: KVCache,
        prompts: int,
        chunk: int | None,
        most: float,
        sums_up: Callable[[], float],
        current: int,
    ) -> None:
        self._memory = memory
        self._page = memory.block_size
        self.prompts = prompts
        self.chunk = chunk
        self.current = current
        self._promised = most
        self._sums_up: Callable[[], float] | None = sums_up
        self._charged: list[int] = []  # since then, as long as it is not summed up

    def leaves(self, tokens: int) -> bool:
        """Say whether more tokens of memory than so many are neither held nor promised."""
        free = self._memory.free_blocks * self._page
        if tokens < free - self._promised:
            return True
        return self._sums_up is not None and tokens < free - self._sum_up()

    @property
    def total_left(self) -> float:
        """Tokens of memory that are neither held nor promised."""
        return self._memory.free_blocks * self._page - self._sum_up()

    @property
    def current_left(self) -> int:
        """Tokens of memory that the iteration at hand does not take."""
        return self._memory.free_blocks * self._page - self.current

    def verdict(self) -> Verdict:
        """Say whether the next request may be tried."""
        free = self._memory.free_blocks * self._page
        if free <= self.current or (free <= self._promised and not self.leaves(0)):
            return Verdict.NO_ROOM
        if self.prompts <= 0 or (self.chunk is not None and self.chunk <= 0):
            return Verdict.NO_BUDGET
        return Verdict.GO_ON

    def whole_pages(self, tokens: int) -> int:
        """Return the tokens of the pages that so many tokens take."""
        page = self._page
        return -(-tokens // page) * page

    def has_room(self, tokens: int, to_come: int) -> bool:
        """Say whether a request fits that computes so many tokens and may generate so many."""
        return self.leaves(tokens + to_come + self._page)

    def has_room_for_known(self, tokens: int, to_come: int) -> bool:
        """Say whether the next iteration has room for one of known length."""
        return self.whole_pages(tokens) + self._page <= min(self.current_left, self.total_left)

    def charge(self, tokens: int, to_come: int) -> None:
        """Take what a request computes off, and what it is going to generate."""
        page = self._page
        taken = -(-tokens // page) * page
        promised = taken + page + to_come
        self._promised += promised
        if self._sums_up is not None:
            self._charged.append(promised)
        self.current += taken + page
        self.prompts -= taken
        if self.chunk is not None:
            self.chunk -= taken

    def most_of(self, tokens: int, to_come: int) -> int | None:
        """Return how much of a prompt that fits may run, of which the rest runs later; None for all of it."""
        return self.chunk

    def most_to_go_on(self) -> int:
        """Return how much of a prompt runs that has begun; 0 where it waits."""
        assert self.chunk is not None
        most = min(self.chunk, int(self.total_left))
        return most if most > 0 else self.chunk  # room or no room

    def cut(self, found: int, tokens: int, to_come: int) -> int:
        """Return how many of so many tokens behind those found run: all, or whole pages of a chunk."""
        most, page = self.most_of(tokens, to_come), self._page
        if most is None or -(-tokens // page) * page <= most:
            return tokens
        return (found + most // page * page) // page * page - found

    def _sum_up(self) -> float:
        """Return the tokens that are promised, summed up in their order."""
        if self._sums_up is not None:
            promised = self._sums_up()
            for tokens in self._charged:
                promised += tokens
            self._promised, self._sums_up = promised, None
        return self._promised


@mypyc_attr(allow_interpreted_subclasses=True)
class WindowBudget(Budget):
    """The same, and the tokens that are left of the window pool.

    What running requests are going to take of that is not promised: they hold a window, and give back as
    much as they take.

    Args:
        memory: see `Budget`.
        prompts, chunk, most, sums_up, current: see `Budget`.
    """

    __slots__ = ("_taken", "_windowed")

    looks_ahead = False

    def __init__(
        self,
        memory: KVCache,
        prompts: int,
        chunk: int | None,
        most: float,
        sums_up: Callable[[], float],
        current: int,
    ) -> None:
        super().__init__(memory, prompts, chunk, most, sums_up, current)
        assert isinstance(memory, WindowedRadixKV)
        self._windowed = memory
        self._taken = 0

    @property
    def window_left(self) -> int:
        """Tokens of the window pool that are neither held nor taken in this pass."""
        return self._windowed.free_window_blocks * self._page - self._taken

    def needed(self, tokens: int, to_come: int) -> int:
        """Return the tokens of the window pool that a request takes at most."""
        window = self._windowed.windows.window
        at_once = tokens if self.chunk is None else min(tokens, self.chunk)
        return max(at_once - window, 0) + min(tokens + to_come, window) + self._page

    def verdict(self) -> Verdict:
        return super().verdict() if self.window_left > 0 else Verdict.NO_ROOM

    def has_room(self, tokens: int, to_come: int) -> bool:
        return super().has_room(tokens, to_come) and self.most_of(tokens, to_come) != 0

    def has_room_for_known(self, tokens: int, to_come: int) -> bool:
        fits = super().has_room_for_known(tokens, to_come)
        return fits and self.needed(tokens, to_come) <= self.window_left

    def charge(self, tokens: int, to_come: int) -> None:
        self._taken += self.needed(self.whole_pages(tokens), to_come)
        super().charge(tokens, to_come)

    def most_of(self, tokens: int, to_come: int) -> int | None:
        needed, page = self.needed(self.whole_pages(tokens), to_come), self._page
        if needed < self.window_left:
            return self.chunk
        if self.chunk is None or needed < self._windowed.windows.num_blocks * page:
            return 0
        # It would never fit: as much of it runs as fits now.
        fits = self.window_left - self.needed(0, to_come)
        return min(self.chunk, max(0, fits // page * page))

    def most_to_go_on(self) -> int:
        assert self.chunk is not None
        return max(0, min(self.chunk, int(self.total_left), self.window_left - self._page))
