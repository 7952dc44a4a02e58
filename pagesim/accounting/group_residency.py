"""Group residency: what requests held in the KV groups of a hybrid cache, and the ledger that follows."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence

import numpy as np

from pagesim.accounting.chunks import Rows
from pagesim.accounting.group_ledger import Held, HeldStay, Stay, expand_groups
from pagesim.accounting.ledger import Ledger, LedgerError
from pagesim.accounting.passed import PassedSlots
from pagesim.accounting.residency import Residency
from pagesim.accounting.sums import Column
from pagesim.kvcache import State
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.request import EngineRequest
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class GroupResidency(Residency):
    """Of a hybrid cache, on demand.

    What a decoding request holds follows from its length. What one holds whose prompt runs or that rests is
    noted: its windows give back what its next step does not attend to when that step is planned. So is what
    one holds that begins to decode while the end of its prompt is in flight.
    """

    __slots__ = ("_counts", "_fresh", "_held_stays", "_passed", "_stays", "_width")

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        assert self.memory.grows, "a cache of several KV groups is not reserved ahead"
        self._stays = array("q")
        self._held_stays = array("q")
        self._width = len(HeldStay._fields) + 2 * len(self.memory.groups)
        # Of a memory that counts for itself, in each row: cached blocks, and blocks of each group.
        self._counts = array("q")
        self._passed = PassedSlots(scheduler) if self.memory.caches_prefixes else None
        self._fresh: list[EngineRequest] = []  # whose prompts ended in the last plan

    def note(self, request: EngineRequest, first: int, last: int) -> None:
        if self.memory.releases and not request.decodes:
            self._note_held(request, first, last, 0)
            return
        growth, base = (request.growth, request.base) if request.decodes else (0, request.tokens)
        if request.family is None:
            self._stays.fromlist([first, last, base, request.prompt + request.output, 1, growth])
            return
        for final, alike in Counter(request.finals).items():
            self._stays.fromlist([first, last, base, final, alike, growth])

    def planned(self, batch: Batch, iteration: int) -> None:
        if self.memory.releases:
            growth, running = self.scheduler.growth, self.scheduler.running
            for request, computed in batch.chunks:
                self._note_now(request, iteration, computed)
            for request in (*batch.caught_up, *batch.resumed, *self._fresh):
                if request.decodes and request.since <= iteration and request.order in running:
                    self._note_now(request, iteration, growth)
            if self.memory.lag:
                self._fresh = [request for request, _ in batch.chunks if request.decodes]
        self._count()
        if self._passed is not None and self.memory.shared_blocks:
            self._passed.planned(iteration, dict(batch.chunks))

    def fast_forwarded(self, iteration: int, steps: int) -> None:
        self._count()
        if self._passed is not None and self.memory.shared_blocks:
            self._passed.fast_forwarded(iteration, steps)

    def take(self, rows: Rows, first: int) -> Ledger:
        memory = self.memory
        stays = np.array(self._stays, np.int64).reshape(-1, len(Stay._fields))
        held_stays = np.array(self._held_stays, np.int64).reshape(-1, self._width)
        stays[:, :2] -= first
        held_stays[:, :2] -= first
        told = self.memory.take_rows()
        held = self._held(rows, first, told) if self._counts or len(told) else None
        self._stays, self._held_stays, self._counts = array("q"), array("q"), array("q")
        ledger = expand_groups(
            stays,
            held_stays,
            rows.growth,
            groups=memory.groups,
            page_bytes=memory.page_bytes,
            group_bytes=memory.group_bytes,
            capacity=memory.capacity_bytes,
            lag=memory.lag,
            held=held,
            parked_blocks={name: rows.spread(name) for name in self.scheduler.parks},
        )
        if held is not None:
            self._check(rows, ledger)
        return ledger

    # Inside

    def _note_now(self, request: EngineRequest, iteration: int, computed: int) -> None:
        """Note what a request holds in an iteration that was just planned, which computes so many tokens."""
        if request.since < iteration:
            self.note(request, request.since, iteration - 1)
        self._note_held(request, iteration, iteration, computed)
        request.since = iteration + 1

    def _note_held(self, request: EngineRequest, first: int, last: int, computed: int) -> None:
        memory = self.memory
        length = memory.length(request)
        row = [first, last, length, computed, request.prompt + request.output]
        for group, (tokens, blocks) in zip(memory.groups, memory.held_by_group(request), strict=True):
            row += (length - tokens) // group.block_size, blocks
        self._held_stays.fromlist(row)

    def _count(self) -> None:
        if not self.scheduler.parks and self.memory.note_row():
            return
        held = self.memory.held_by_groups()
        if held is not None:
            if self.scheduler.parks:
                parked = [request for each in self.scheduler.parked() for request in each]
                only_theirs = self.memory.exclusive_in_groups(parked)
                held = [blocks - less for blocks, less in zip(held, only_theirs, strict=True)]
            self._counts.fromlist([self.memory.cached_blocks, *held])

    def _held(self, rows: Rows, first: int, told: Sequence[tuple[int, ...]] | Column) -> Held:
        """Return what memory counted in each iteration: as noted, and as growth changed it since.

        Args:
            rows: see there.
            first: number of the first iteration.
            told: cached blocks that memory told later of the first rows, ``[N, 1]``.
        """
        planned = len(rows["planned"])
        noted = np.asarray(told)
        if self._counts:
            noted = np.array(self._counts, np.int64).reshape(planned - len(told), -1)
        if self._counts and len(told):
            before = np.full((len(told), noted.shape[1]), -1)
            before[:, :1] = told
            noted = np.concatenate([before, noted])
        counts = rows.spread_out(noted)
        width = 1 + counts.shape[1]
        changes = np.array(self.memory.take_changes(), np.int64)
        changes = changes[:, :width] if len(changes) else changes.reshape(0, width)
        growth = rows.growth
        latest = np.searchsorted(changes[:, 0], growth, "right") - 1
        grown = np.flatnonzero(latest >= 0)
        since = changes[latest[grown], 0] >= rows.spread("growth")[grown]
        grown = grown[since & (rows.spread("planned")[grown] == 0)]
        counts[grown] = changes[latest[grown], 1:]
        groups = len(self.memory.groups)
        blocks = counts[:, 1 : 1 + groups]
        if self._passed is None:
            passed = np.zeros((len(growth), groups), np.int64)
        else:
            passed = self._passed.take(first, len(growth))
        return Held(
            blocks if blocks.shape[1] else None,
            counts[:, 0],
            passed,
            counts[:, -1] if self.memory.cuts_blocks else None,
        )

    def _check(self, rows: Rows, ledger: Ledger) -> None:
        """Make sure that the names of blocks that were noted are as many as memory has, but for states' own.

        Raises:
            LedgerError: they are not.
        """
        planned = np.flatnonzero(rows["planned"])
        at = rows.firsts[planned]
        again = (ledger.logical_blocks - ledger.physical_blocks)[at]
        shared = rows["shared_blocks"][planned]
        has_states = any(isinstance(group.rule, State) for group in self.memory.groups)
        differs = again > shared if has_states else again != shared
        if differs.any():
            wrong = int(np.argmax(differs))
            raise LedgerError(
                f"iteration {rows['iteration'][planned[wrong]]}: memory has {shared[wrong]} names of blocks "
                f"beyond the first, the ledger counts {again[wrong]}"
            )
