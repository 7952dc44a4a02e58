"""Snapshots: what the pool of blocks looks like at some instants, and which requests were away when."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np

from pagesim.accounting.request_log import RequestLog
from pagesim.kvcache import HybridManager
from pagesim.results.replay import Looks, NotReplayed, replayed, server_of
from pagesim.results.report.cells import (
    AddressedManager,
    Column,
    Table,
    blank,
    cells_of,
    changes,
    ledger_of,
    reservation_of,
    samples_of,
)
from pagesim.results.report.group_cells import ledger_of_groups, tables_of
from pagesim.results.result import Result
from pagesim.scheduling.arrivals import NEVER
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.observer import Observer
from pagesim.scheduling.request import EngineRequest
from pagesim.setup.prepare import PreparedSystem

STAY = 6
"""Numbers that are known of a stay."""

PARKED = -(1 << 62)
"""The precedence of a stay that does not run: the lowest."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The pool in one iteration, after scheduling.

    Attributes:
        clock: ticks at which the iteration was scheduled; of an idle pool, since when it has been idle.
        iteration: its number; -1 while no request runs.
        counts: running requests, waiting ones, those in the swap space.
        external: whether the head of the queue cannot be placed though enough blocks are free.
        stays: of the samples on the device, those included that hold blocks and do not run, ``[S]``: rows of
            `Snapshots.stays`; of a hybrid cache one a request and KV group.
        lengths: tokens that they hold, ``[S]``.
        needed: the first token that any of theirs attends to from now on, ``[S]``.
        cells: what differs from the snapshot before, ``[4, C]``, see `cells.changes`; before the first one
            all is `cells.blank`.
        swapped: the same of the swap space.
        ledger: the strict view, ``[E]``, in the order and the unit of `LedgerShape.entries`.
    """

    clock: int
    iteration: int
    counts: tuple[int, int, int]
    external: bool
    stays: Column
    lengths: Column
    needed: Column
    cells: Column
    swapped: Column
    ledger: Column


class _Holding(NamedTuple):
    """What a stay holds: see `Snapshot`, and `cells_of` for its precedence."""

    stay: int
    table: Table
    length: int
    needed: int
    precedence: int


@dataclass(slots=True)
class Absence:
    """A request's time between a preemption and its next iteration.

    Attributes:
        row: of the request.
        swapped: whether its memory was moved away; if not, it is recomputed.
        tokens: that are computed again when it comes back; 0 unless it is recomputed.
        blocks: that were moved away.
        start, end: ticks; an end of -1 means that it never came back.
    """

    row: int
    swapped: bool
    start: int
    blocks: int = 0
    tokens: int = 0
    end: int = -1


class Snapshots(Looks[Snapshot]):
    """Looks at an engine's memory.

    Attributes:
        scheduler: with its memory, which gives its blocks numbers.
        absences: of the whole run, in order of their beginning.
    """

    scheduler: Scheduler
    memory: AddressedManager

    def __init__(self, instants: Sequence[int]) -> None:
        super().__init__(instants)
        self.absences: list[Absence] = []
        self._stays = array("q")
        self._stay_of: dict[tuple[int, ...], int] = {}
        self._away: dict[int, Absence] = {}  # by row

    def begun(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.memory = memory = cast(AddressedManager, scheduler.memory)
        self._cells = blank(memory.num_blocks)
        self._swapped = blank(memory.cpu_blocks)

    @property
    def stays(self) -> Column:
        """What is known of each stay on a snapshot, ``[K, 6]``.

        Row, sample, final length, reserved tokens, KV group; 0 where the request runs, else which of
        `Scheduler.parks` it stands in, from 1 on.
        """
        return np.array(self._stays, np.int64).reshape(-1, STAY)

    def planned(self, batch: Batch, now: int, start: int, ticks: int) -> None:
        for request in batch.prompts:
            absence = self._away.pop(request.row, None)
            if absence is not None:
                absence.end = now
                absence.tokens = request.samples * request.length - request.cached
        for request in batch.resumed:
            self._away.pop(request.row).end = now
        super().planned(batch, now, start, ticks)

    def departed(self, batch: Batch, now: int) -> None:
        for request in batch.recomputed:
            self._leave(Absence(request.row, False, now))
        for request in batch.swapped_out:
            self._leave(Absence(request.row, True, now, self.memory.held_blocks(request)))

    def _leave(self, absence: Absence) -> None:
        # A request that is preempted twice before it runs again was away all the time.
        if absence.row not in self._away:
            self._away[absence.row] = absence
            self.absences.append(absence)

    def look(self, number: int, now: int, batch: Batch | None) -> Snapshot:
        scheduler, memory = self.scheduler, self.memory
        chunks = {} if batch is None else dict(batch.chunks)
        here = [each for request in scheduler.running.values() for each in self._holdings(request, chunks)]
        for park, requests in enumerate(scheduler.held_without_running() if scheduler.parks else (), 1):
            here += [each for request in requests for each in self._holdings(request, chunks, park)]
        away = [each for request in scheduler.swapped for each in self._holdings(request, chunks)]
        stays, lengths, needed = (
            np.array(column, np.int64)
            for column in ([h.stay for h in here], [h.length for h in here], [h.needed for h in here])
        )
        cells, swapped = (
            cells_of(
                blocks, [h.stay for h in some], [h.table for h in some], [h.precedence for h in some], of
            )
            for blocks, some, of in ((memory.num_blocks, here, memory), (memory.cpu_blocks, away, None))
        )
        external = scheduler.blocked_externally()
        if isinstance(memory, HybridManager):
            ledger = ledger_of_groups(
                cells, stays, lengths, needed, self.stays, memory, parks=scheduler.parks
            )
        else:
            size = memory.block_size
            ledger = ledger_of(
                cells, stays, lengths, self.stays, block_size=size, external=external, parks=scheduler.parks
            )
        changed, moved = changes(self._cells, cells), changes(self._swapped, swapped)
        self._cells, self._swapped = cells, swapped
        counts = (len(scheduler.running), scheduler.queue.waiting, len(scheduler.swapped))
        return Snapshot(now, number, counts, external, stays, lengths, needed, changed, moved, ledger)

    def _holdings(
        self, request: EngineRequest, chunks: Mapping[EngineRequest, int], park: int = 0
    ) -> list[_Holding]:
        """Return what each sample of a request holds; of a hybrid cache, what it holds in each KV group.

        Args:
            request: it runs, or holds memory without running.
            chunks: tokens that requests compute of their prompts.
            park: see `stays`. A block that a running request has, too, counts as that of the latter.
        """
        scheduler, memory = self.scheduler, self.memory
        length = scheduler.stored_length(request) if scheduler.decodes_apart else memory.length(request)
        if isinstance(memory, HybridManager):
            before = length - chunks.get(request, int(request.decodes))
            final = request.final_length
            # A block that several have counts as that of the one which is furthest behind.
            return [
                _Holding(
                    self._stay((request.row, 0, final, final, number, park)),
                    table,
                    length,
                    group.rule.skipped(before),
                    PARKED if park else -before,
                )
                for number, (group, table) in enumerate(
                    zip(memory.groups, tables_of(memory, request), strict=True)
                )
            ]
        numbers = (0,) if request.family is None else request.family.numbers
        reserved = reservation_of(memory, request)
        samples = zip(numbers, request.finals, samples_of(memory, request), strict=True)
        # One that several have counts as that of the one that fills most of it, the last to write.
        return [
            _Holding(
                self._stay((request.row, number, final, final if reserved is None else reserved, 0, park)),
                table,
                length,
                0,
                PARKED if park else final,
            )
            for number, final, table in samples
        ]

    def _stay(self, key: tuple[int, ...]) -> int:
        number = self._stay_of.setdefault(key, len(self._stay_of))
        if STAY * number == len(self._stays):
            self._stays.extend(key)
        return number


def snapshots_of(result: Result, instants: Sequence[int], *observers: Observer) -> Snapshots:
    """Replay a stored run; return snapshots of its memory at some instants.

    Args:
        result: as `pagesim.load` returns it.
        instants: ticks, rising.
        observers: further ones of the replay.

    Raises:
        NotReplayed: the run cannot be replayed, what comes of it is not what was stored, or its blocks have
            no numbers.
    """

    def replay(setting: PreparedSystem, log: RequestLog) -> Snapshots:
        snapshots = Snapshots(instants)
        server = server_of(setting, log, snapshots, *observers, tables=True)
        if not server.scheduler.memory.names_blocks:
            allocator = setting.config.policy.allocator
            raise NotReplayed(f"allocator {allocator} counts blocks and gives them no numbers")
        server.replay()
        snapshots.idle(server.engine.over_at, NEVER)
        return snapshots

    return replayed(result, replay)
