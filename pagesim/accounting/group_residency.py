"""Group residency: what requests held in a hybrid cache's KV cache groups, and the resulting ledger."""

from __future__ import annotations

from array import array
from collections import Counter
from itertools import chain
from struct import Struct

import numpy as np

from pagesim.accounting.chunks import Rows
from pagesim.accounting.group_ledger import Held, HeldStay, expand_groups
from pagesim.accounting.ledger import Ledger, LedgerError
from pagesim.accounting.residency import Residency, counts_in
from pagesim.accounting.shared_out_of_window import SharedOutOfWindow
from pagesim.accounting.sums import Stay
from pagesim.kvcache import State
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.request import EngineRequest
from pagesim.setup.compiled import mypyc_attr

_pack_stay = Struct(f"{len(Stay._fields)}q").pack


@mypyc_attr(allow_interpreted_subclasses=True)
class GroupResidency(Residency):
    """Records the stays in a hybrid cache, which is always allocated on demand.

    The blocks of a decoding request follow from its length. Those of a request that computes its prompt or is
    paused are recorded, because its windows release blocks only when its next step is planned. The same holds
    for a request that begins to decode while the end of its prompt is in flight.
    """

    __slots__ = (
        "_counts",
        "_fresh",
        "_held_stays",
        "_shared",
        "_stays",
        "_width",
    )

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        assert self.memory.grows, "a cache of several KV groups is not reserved ahead"
        self._stays = array("q")
        self._held_stays = array("q")
        self._width = len(HeldStay._fields) + 2 * len(self.memory.groups)
        # For a block manager that keeps counts: each row's blocks of each group.
        self._counts = array("q")
        self._shared = SharedOutOfWindow(scheduler) if self.memory.caches_prefixes else None
        self._fresh: list[EngineRequest] = []  # requests whose prompts ended in the last plan

    def note(self, request: EngineRequest, first: int, last: int) -> None:
        decodes = request.decodes
        if decodes and request.family is None:
            final = request.prompt + request.output
            self._stays.frombytes(_pack_stay(first, last, request.length_offset, final, 1, 1))
            return
        if self.memory.releases and not decodes:
            self._note_held(request, first, last, 0)
            return
        growth, base = (1, request.length_offset) if decodes else (0, request.tokens)
        finals = request.finals if request.family is not None else (request.prompt + request.output,)
        for final, alike in Counter(finals).items():
            self._stays.fromlist([first, last, base, final, alike, growth])

    def planned(self, batch: Batch, iteration: int) -> None:
        memory = self.memory
        if memory.releases:
            running = self.scheduler.running
            for request, computed in batch.chunks:
                self._note_now(request, iteration, computed)
            for request in (*batch.served_again, *batch.resumed, *self._fresh):
                if request.decodes and request.since <= iteration and request.order in running:
                    self._note_now(request, iteration, 1)
            if memory.steps_in_flight:
                self._fresh = [request for request, _ in batch.chunks if request.decodes]
        self._count()
        if self._shared is not None:
            self._shared.planned(iteration, dict(batch.chunks))

    def fast_forwarded(self, iteration: int, steps: int) -> None:
        self._count()
        if self._shared is not None:
            self._shared.fast_forwarded(iteration, steps)

    def take(self, rows: Rows, first: int) -> Ledger:
        memory = self.memory
        stays = np.array(self._stays, np.int64).reshape(-1, len(Stay._fields))
        held_stays = np.array(self._held_stays, np.int64).reshape(-1, self._width)
        stays[:, :2] -= first
        held_stays[:, :2] -= first
        held = self._held(rows, first) if self._counts else None
        for notes in (self._stays, self._held_stays, self._counts):
            del notes[:]
        ledger = expand_groups(
            stays,
            held_stays,
            rows.growth,
            groups=memory.groups,
            page_bytes=memory.page_bytes,
            group_bytes=memory.group_bytes,
            capacity=memory.capacity_bytes,
            steps_in_flight=memory.steps_in_flight,
            held=held,
            held_without_running={name: rows.spread(name) for name in self.scheduler.parks},
        )
        if held is not None:
            self._check(rows, ledger)
        return ledger

    # Inside

    def _note_now(self, request: EngineRequest, iteration: int, computed: int) -> None:
        """Record what a request holds in the iteration just planned, which computes ``computed`` tokens."""
        if request.since < iteration:
            self.note(request, request.since, iteration - 1)
        self._note_held(request, iteration, iteration, computed)
        request.since = iteration + 1

    def _note_held(self, request: EngineRequest, first: int, last: int, computed: int) -> None:
        memory = self.memory
        length = memory.length(request)
        stored = length if self.scheduler.speculation is None else self.scheduler.stored_length(request)
        row = [first, last, stored, computed, request.prompt + request.output]
        for group, (tokens, blocks) in zip(memory.groups, memory.held_by_group(request), strict=True):
            row += (length - tokens) // group.block_size, blocks
        self._held_stays.fromlist(row)

    def _count(self) -> None:
        """Record the block manager's own counts for a row."""
        held = self.memory.held_by_groups()
        if held is None:
            return
        if self.scheduler.parks:
            others = list(chain(*self.scheduler.held_without_running()))
            only_theirs = self.memory.exclusive_blocks(others)
            held = [blocks - less for blocks, less in zip(held, only_theirs, strict=True)]
        self._counts.fromlist(list(held))

    def _held(self, rows: Rows, first: int) -> Held:
        """Return the block manager's counts at each iteration.

        Args:
            rows: rows of these iterations.
            first: number of the first iteration.
        """
        noted = np.array(self._counts, np.int64).reshape(len(rows["cached_blocks"]), -1)
        noted = np.column_stack([rows["cached_blocks"], noted])
        counts = counts_in(rows, noted, self.memory.take_changes())
        return Held(
            counts[:, 1 : 1 + len(self.memory.groups)],
            counts[:, 0],
            None if self._shared is None else self._shared.take(first, len(counts)),
            counts[:, -1] if self.memory.cuts_blocks else None,
        )

    def _check(self, rows: Rows, ledger: Ledger) -> None:
        """Check the ledger's count of shared references: the block manager's or, with states, at most that.

        Raises:
            LedgerError: the counts contradict each other.
        """
        planned = np.flatnonzero(rows["planned"])
        at = rows.firsts[planned]
        again = ledger.logical_blocks[at] - ledger.physical_blocks[at]
        shared = rows["shared_blocks"][planned]
        has_states = any(isinstance(group.rule, State) for group in self.memory.groups)
        differs = again > shared if has_states else again != shared
        if differs.any():
            wrong = int(np.argmax(differs))
            raise LedgerError(
                f"iteration {rows['iteration'][planned[wrong]]}: memory has {shared[wrong]} names of blocks "
                f"beyond the first, the ledger counts {again[wrong]}"
            )
