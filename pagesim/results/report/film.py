"""Film: what the pool of blocks looked like at some instants of a run, and who lost his place when."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pagesim.kvcache import PagedAllocator
from pagesim.results.report.picture import Column, blank, blocks_of, cells_of, changes, ledger_of
from pagesim.scheduling import Group, Plan, Scheduler


@dataclass(frozen=True, slots=True)
class Picture:
    """The pool in one iteration, after scheduling.

    Attributes:
        clock: ticks at which the iteration was scheduled; of an idle pool, since when it has been idle.
        iteration: its number; -1 while nobody runs.
        counts: running groups, waiting requests, groups in the swap space.
        external: whether free memory would hold the head of the queue and no placement exists.
        stays: of the sequences on the device, ``[S]``: rows of `Film.stays`.
        lengths: tokens that they hold, ``[S]``.
        cells: what differs from the picture before, ``[4, C]``, see `picture.changes`; before the first one
            all is `picture.blank`.
        swapped: the same of the swap space.
        ledger: the strict view in token slots, ``[7]``.
    """

    clock: int
    iteration: int
    counts: tuple[int, int, int]
    external: bool
    stays: Column
    lengths: Column
    cells: Column
    swapped: Column
    ledger: Column


@dataclass(slots=True)
class Absence:
    """A group's time between a preemption and its next iteration.

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


class Film:
    """Looks at a scheduler's memory at the first iteration at or after each of some instants.

    Looking changes nothing: it names blocks in the order in which they were taken, and names decide nothing.

    Args:
        scheduler: with its memory, before anything happens.
        instants: ticks, rising.

    Attributes:
        pictures: in order.
        shown: for each instant the picture that stands for it, ``[N]``.
        absences: of the whole run, in order of their beginning.
        end: when the last iteration ended, ticks.
    """

    def __init__(self, scheduler: Scheduler, instants: Sequence[int]) -> None:
        self.scheduler = scheduler
        self.instants = instants
        self.pictures: list[Picture] = []
        self.shown: list[int] = []
        self.absences: list[Absence] = []
        self.end = 0
        memory = scheduler.memory
        if isinstance(memory, PagedAllocator):
            memory.names_at_once = True
        self._cells = blank(memory.num_blocks)
        self._swapped = blank(memory.cpu_blocks)
        self._stays = array("q")
        self._stay_of: dict[tuple[int, int, int, int], int] = {}
        self._who: dict[int, tuple[int, int, int]] = {}  # by sequence: row, sample, final length
        self._away: dict[int, Absence] = {}  # by row

    @property
    def stays(self) -> Column:
        """Row, sample, final length and reserved tokens of each stay that is on a picture, ``[K, 4]``."""
        return np.array(self._stays, np.int64).reshape(-1, 4)

    @property
    def due(self) -> int | None:
        """The next instant to look at, in ticks; None if there is none."""
        return self.instants[len(self.shown)] if len(self.shown) < len(self.instants) else None

    def iteration(self, plan: Plan, number: int, now: int) -> None:
        """An iteration was planned for ``now``."""
        for group in plan.prompts:
            self._meet(group)
            absence = self._away.pop(group.row, None)
            if absence is not None:
                absence.end = now
                absence.tokens = group.samples * group.length - group.cached
        for group in plan.resumed:
            self._away.pop(group.row).end = now
        if self.due is not None and self.due <= now:
            self._look(number, now, now)

    def idle(self, now: int, until: int | None) -> None:
        """Nothing runs from ``now`` until then; None for ever."""
        due = self.due
        if due is not None and (until is None or due < until):
            self._look(-1, now, until)

    def departures(self, plan: Plan, now: int) -> None:
        """Groups lost their place before ``now``."""
        memory = self.scheduler.memory
        for group in plan.recomputed:
            self._leave(Absence(group.row, False, now))
        for group in plan.swapped_out:
            assert isinstance(memory, PagedAllocator), "only paged memory swaps"
            self._leave(Absence(group.row, True, now, memory.distinct_blocks(group.sequences)))

    def _meet(self, group: Group) -> None:
        numbers = group.numbers or range(group.samples)
        for sequence, number, final in zip(group.sequences, numbers, group.finals, strict=True):
            self._who[sequence] = group.row, number, final

    def _leave(self, absence: Absence) -> None:
        # Whoever is preempted twice before he runs again was away all the time.
        if absence.row not in self._away:
            self._away[absence.row] = absence
            self.absences.append(absence)

    def _look(self, number: int, now: int, until: int | None) -> None:
        """Take a picture for the instants before ``until``, and for that at ``now``."""
        scheduler, memory = self.scheduler, self.scheduler.memory
        while (due := self.due) is not None and (until is None or due <= now or due < until):
            self.shown.append(len(self.pictures))
        staying, lengths = array("q"), array("q")
        tables: list[Sequence[int]] = []
        for group in scheduler.running():
            for sequence in group.sequences:
                staying.append(self._stay(sequence))
                lengths.append(group.base + memory.steps_grown)
                tables.append(blocks_of(memory, sequence))
        away = memory.swapped_tables() if isinstance(memory, PagedAllocator) else {}
        moved = [self._stay(sequence) for sequence in away]
        known, stays, tokens = self.stays, np.array(staying), np.array(lengths)
        cells = cells_of(memory.num_blocks, staying, tables, known, memory)
        swapped = cells_of(memory.cpu_blocks, moved, list(away.values()), known, None)
        external = scheduler.blocked_externally()
        self.pictures.append(
            Picture(
                now,
                number,
                (scheduler.running_groups, scheduler.waiting, scheduler.swapped),
                external,
                stays,
                tokens,
                changes(self._cells, cells),
                changes(self._swapped, swapped),
                ledger_of(cells, stays, tokens, known, block_size=memory.block_size, external=external),
            )
        )
        self._cells, self._swapped = cells, swapped

    def _stay(self, sequence: int) -> int:
        """Return a sequence's row of ``stays``."""
        row, sample, final = self._who[sequence]
        memory = self.scheduler.memory
        # On demand nothing is reserved beyond what the tokens will fill.
        reserved = final if memory.grows_on_demand else memory.reserved_tokens(sequence)
        key = row, sample, final, reserved
        number = self._stay_of.setdefault(key, len(self._stay_of))
        if 4 * number == len(self._stays):
            self._stays.extend(key)
        return number
