"""Residency: from which iteration to which requests held memory, and the ledger that follows."""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections import Counter
from collections.abc import Callable

import numpy as np

from pagesim.accounting.chunks import Rows
from pagesim.accounting.ledger import ON_DEMAND, Interval, Ledger, Sharing, expand
from pagesim.accounting.sums import Column
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.request import EngineRequest
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Residency:
    """Notes what the ledger of some consecutive iterations follows from, a chunk's, and forgets it then.

    Args:
        scheduler: with its memory.
    """

    __slots__ = ("memory", "scheduler")

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.memory = scheduler.memory

    @abstractmethod
    def note(self, request: EngineRequest, first: int, last: int) -> None:
        """Note that from one iteration to another a request held memory in one way; it still does."""

    def note_last(self, request: EngineRequest, iteration: int) -> None:
        """Note the same of a request that rested for the one iteration before it is over."""
        self.note(request, iteration, iteration)

    def planned(self, batch: Batch, iteration: int) -> None:
        """Note what a plan left."""
        return

    def fast_forwarded(self, iteration: int, steps: int) -> None:
        """Note what a fast-forward of so many steps is going to begin with."""
        return

    @abstractmethod
    def take(self, rows: Rows, first: int) -> Ledger:
        """Return the ledger of all iterations since the last call.

        Args:
            rows: what was recorded of these iterations, a row a planned one and one a fast-forward.
            first: the number of the first of them.

        Raises:
            LedgerError: what was noted and the memory disagree.
        """


class PlainResidency(Residency):
    """Of a cache whose blocks are the same for all layers."""

    __slots__ = ("_intervals", "_is_plain", "_plain", "_speculates")

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._speculates = scheduler.speculation is not None
        self._is_plain = self.memory.is_plain and not self._speculates
        self._plain = array("q")  # intervals of single sequences on demand: first, last, base, final
        self._intervals = array("q")  # all others, as `Interval`

    def note(self, request: EngineRequest, first: int, last: int) -> None:
        if self._is_plain and request.family is None and request.growth == 1:
            final = request.prompt + request.output
            if request.decodes:
                self._plain.fromlist([first, last, request.base, final])
            else:
                self._intervals.fromlist([first, last, request.tokens, final, ON_DEMAND, 0, 1, 0])
            return
        memory = self.memory
        if self._speculates:
            stored, blocks = self.scheduler.stored_length(request), memory.held_blocks(request)
            self._intervals.fromlist([first, last, stored, request.final_length, blocks, 0, 1, 0])
            return
        growth, base = (request.growth, request.base) if request.decodes else (0, request.tokens)
        blocks, reserved = memory.held_and_reserved(request) or (ON_DEMAND, 0)
        if request.family is None:
            final = request.prompt + request.output
            self._intervals.fromlist([first, last, base, final, blocks, reserved, 1, growth])
            return
        for final, alike in Counter(request.finals).items():
            self._intervals.fromlist([first, last, base, final, blocks, reserved, alike, growth])

    def note_last(self, request: EngineRequest, iteration: int) -> None:
        if not self._is_plain:
            self.note(request, iteration, iteration)
            return
        # It rested as long as one that decodes from so many tokens.
        base, final = request.tokens - self.memory.steps, request.prompt + request.output
        self._plain.fromlist([iteration, iteration, base, final])

    def take(self, rows: Rows, first: int) -> Ledger:
        intervals = self._all_intervals(first)
        self._plain, self._intervals = array("q"), array("q")
        shared = rows["shared_blocks"].any()
        return expand(
            intervals,
            rows.growth,
            block_size=self.memory.block_size,
            num_blocks=self.memory.num_blocks,
            external_blocks=rows.spread_rare("external_blocks"),
            sharing=Sharing(*(rows.spread(f"shared_{name}") for name in Sharing._fields)) if shared else None,
            cached_blocks=self._cached_blocks(rows) if self.memory.caches_prefixes else None,
            parked_blocks={name: rows.spread(name) for name in self.scheduler.parks},
        )

    def _all_intervals(self, begin: int) -> Column:
        """Return rows of `Interval`, ``[N, 8]``, counted from the first iteration of the chunk."""
        plain = np.array(self._plain, np.int64).reshape(-1, 4)
        others = np.array(self._intervals, np.int64).reshape(-1, len(Interval._fields))
        whole = np.empty((len(plain) + len(others), len(Interval._fields)), np.int64)
        whole[: len(plain), :4] = plain
        whole[: len(plain), 4:] = ON_DEMAND, 0, 1, 1
        whole[len(plain) :] = others
        whole[:, :2] -= begin
        return whole

    def _cached_blocks(self, rows: Rows) -> Callable[[Column], Column]:
        """Return what tells cached blocks from blocks held, ``[I]`` both.

        A fast-forward only takes blocks: those that are not cached first, unless memory says which of its
        steps evicted content.
        """
        evicted = np.array(self.memory.take_evicted_in_steps(), np.int64).reshape(-1, 2)

        def cached_blocks(held: Column) -> Column:
            cached = rows.spread("cached_blocks")
            if not len(evicted):
                return np.minimum(cached, self.memory.num_blocks - held)
            steps, blocks = evicted.T
            gone = np.concatenate([[0], np.cumsum(blocks)])
            before = rows["growth"] - 1 + rows["planned"]
            cached += rows.spread_out(gone[np.searchsorted(steps, before, "right")])
            cached -= gone[np.searchsorted(steps, rows.growth, "right")]
            return cached

        return cached_blocks
