"""Snapshots: the pool of blocks at given instants, and the periods during which requests were preempted."""

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
    StayTable,
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
"""Number of fields of a stay."""

PARKED = -(1 << 62)
"""Precedence of a stay whose request does not run, the lowest."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The pool in one iteration, after scheduling.

    Attributes:
        clock: ticks at which the iteration was scheduled, or since when the engine has been idle.
        iteration: number of the iteration; -1 while no request runs.
        counts: running requests, waiting requests and requests in the swap space.
        external: whether the request at the head of the queue cannot be placed despite enough free blocks.
        stays: rows of `Snapshots.stays` for the samples that hold blocks on the device, running or not,
            ``[S]``; for a hybrid cache one per request and KV cache group.
        lengths: tokens that each stay holds, ``[S]``.
        needed: first token to which each stay's tokens still attend, ``[S]``.
        cells: cells that changed since the previous snapshot, ``[4, C]``, see `cells.changes`; the first
            snapshot is compared with `cells.blank`.
        swapped: the same for the swap space.
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
    """What a stay holds; see `Snapshot`, and `cells_of` for the precedence."""

    stay: int
    table: StayTable
    length: int
    needed: int
    precedence: int


@dataclass(slots=True)
class Absence:
    """The period between a request's preemption and its next iteration.

    Attributes:
        row: trace row of the request.
        swapped: whether its memory was swapped out; otherwise it is recomputed.
        tokens: tokens recomputed when the request resumes; 0 if it was swapped.
        blocks: blocks swapped out.
        start, end: ticks; an end of -1 means that it never resumed.
    """

    row: int
    swapped: bool
    start: int
    blocks: int = 0
    tokens: int = 0
    end: int = -1


class Snapshots(Looks[Snapshot]):
    """Takes snapshots of an engine's memory.

    Attributes:
        scheduler: scheduler whose block manager numbers its blocks.
        absences: absences during the whole run, ordered by start.
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
        """The stays of all snapshots, ``[K, 6]``.

        The columns are row, sample, final length, reserved tokens, KV cache group and park, which is 0 for a
        running request, else the position in `Scheduler.parks`, counted from 1.
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
        # A request preempted twice before it runs again has a single absence.
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
        """Return what each sample of a request holds, or what it holds in each group of a hybrid cache.

        Args:
            request: request that runs or holds memory without running.
            chunks: prompt tokens that each request computes.
            park: park as in `stays`; blocks shared with a running request belong to the latter.
        """
        scheduler, memory = self.scheduler, self.memory
        length = scheduler.stored_length(request) if scheduler.decodes_apart else memory.length(request)
        if isinstance(memory, HybridManager):
            before = length - chunks.get(request, int(request.decodes))
            final = request.final_length
            # A shared block belongs to the request that is furthest behind.
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
        # A shared block belongs to the sample that fills most of it, the last one to write.
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
    """Replay a stored run and return snapshots of its memory at given instants.

    Args:
        result: result as returned by `pagesim.load`.
        instants: ticks, ascending.
        observers: further observers of the replay.

    Raises:
        NotReplayed: the run cannot be replayed, its outcome differs from the stored one, or its blocks have
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
