"""Film: what the pool of blocks looked like at some instants of a run, and who lost his place when."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pagesim.ledger import ENTRIES
from pagesim.memory import Allocator, Extent, PagedAllocator
from pagesim.scheduling import Group, Plan, Scheduler

Column = npt.NDArray[np.int64]

FREE, CACHED = -1, -2
"""In place of an owner: nobody; nobody, and the content can still be found."""

MOST_CELLS = 1 << 17
"""Blocks beyond this number are on no picture."""


@dataclass(frozen=True, slots=True)
class Picture:
    """The pool in one iteration, after scheduling.

    Attributes:
        clock: ticks at which the iteration was scheduled; of an idle pool, since when it has been idle.
        iteration: its number; -1 while nobody runs.
        counts: running groups, waiting requests, groups in the swap space.
        external: whether free memory would hold the head of the queue and no placement exists.
        stays: of the sequences on the device, ``[S]``: their numbers in `Film.stays`.
        lengths: tokens that they hold, ``[S]``.
        cells: owner, place and references of each block, ``[3, blocks]``. The owner is a stay or ``FREE`` or
            ``CACHED``; the place is the block's number in its owner's table, and of a free block 0 where a
            free run begins, else 1; references are names in tables.
        swapped: the same of the swap space.
        ledger: the strict view in token slots, ``[7]``, worked out from these tables alone.
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
        tokens: that it had, all of which are computed again if it is recomputed.
        blocks: that were moved away.
        start, end: ticks; an end of -1 means that it never came back.
    """

    row: int
    swapped: bool
    tokens: int
    blocks: int
    start: int
    end: int = -1


@dataclass
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

    scheduler: Scheduler
    instants: Sequence[int]
    pictures: list[Picture] = field(default_factory=list)
    shown: list[int] = field(default_factory=list)
    absences: list[Absence] = field(default_factory=list)
    end: int = 0
    _stays: array[int] = field(default_factory=lambda: array("q"))
    _numbers: dict[tuple[int, ...], int] = field(default_factory=dict)
    _stay_of: dict[int, int] = field(default_factory=dict)  # by sequence
    _away: dict[int, Absence] = field(default_factory=dict)  # by row

    def __post_init__(self) -> None:
        memory = self.scheduler.memory
        if isinstance(memory, PagedAllocator):
            memory.names_at_once = True

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
        for group in (*plan.prompts, *plan.resumed):
            absence = self._away.pop(group.row, None)
            if absence is not None:
                absence.end = now
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
            self._leave(Absence(group.row, False, group.samples * group.length, 0, now))
        for group in plan.swapped_out:
            assert isinstance(memory, PagedAllocator), "only paged memory swaps"
            blocks = memory.distinct_blocks(group.sequences)
            self._leave(Absence(group.row, True, group.samples * group.length, blocks, now))

    def _leave(self, absence: Absence) -> None:
        # Whoever is preempted twice before he runs again was away all the time.
        if absence.row not in self._away:
            self._away[absence.row] = absence
            self.absences.append(absence)

    def _look(self, number: int, now: int, until: int | None) -> None:
        """Take a picture for the instants before ``until``, and for that at ``now``."""
        scheduler = self.scheduler
        memory = scheduler.memory
        while (due := self.due) is not None and (until is None or due <= now or due < until):
            self.shown.append(len(self.pictures))
        stays, lengths, tables = array("q"), array("q"), []
        for group in scheduler.running():
            for sequence, stay in self._stays_of(group, memory):
                stays.append(stay)
                lengths.append(group.base + memory.steps_grown)
                tables.append(_blocks_of(memory, sequence))
        swapped: list[tuple[int, list[int]]] = []
        if isinstance(memory, PagedAllocator):
            swapped = [(self._stay_of.get(s, FREE), table) for s, table in memory.swapped_tables().items()]
        known = self.stays
        cells = _cells(memory.num_blocks, stays, tables, known)
        _mark_free(cells, memory.free_chunks(), memory.cached_extents())
        external = scheduler.blocked_externally()
        self.pictures.append(
            Picture(
                now,
                number,
                (scheduler.running_groups, scheduler.waiting, scheduler.swapped),
                external,
                np.array(stays),
                np.array(lengths),
                cells[:, :MOST_CELLS],
                _cells(memory.cpu_blocks, [s for s, _ in swapped], [t for _, t in swapped], known)[
                    :, :MOST_CELLS
                ],
                _ledger(cells, np.array(stays), np.array(lengths), known, memory.block_size, external),
            )
        )

    def _stays_of(self, group: Group, memory: Allocator) -> Iterable[tuple[int, int]]:
        """Yield the sequences of a running group, each with its number in ``stays``."""
        for place, (sequence, final) in enumerate(zip(group.sequences, group.finals, strict=True)):
            sample = group.numbers[place] if group.numbers else place
            # On demand nothing is reserved beyond what the tokens will fill.
            reserved = final if memory.grows_on_demand else memory.reserved_tokens(sequence)
            key = (group.row, sample, final, reserved)
            number = self._numbers.setdefault(key, len(self._numbers))
            if 4 * number == len(self._stays):
                self._stays.extend(key)
            self._stay_of[sequence] = number
            yield sequence, number


def _blocks_of(memory: Allocator, sequence: int) -> Sequence[int]:
    """Return all blocks that a sequence holds, in token order."""
    if memory.grows_on_demand:
        return memory.block_table(sequence)
    runs = memory.extents(sequence)
    if len(runs) == 1:
        return range(runs[0][0], sum(runs[0]))
    return [block for first, blocks in runs for block in range(first, first + blocks)]


def _cells(blocks: int, stays: Sequence[int], tables: Sequence[Sequence[int]], known: Column) -> Column:
    """Return owner, place and references of each block, ``[3, blocks]``."""
    cells = np.zeros((3, blocks), np.int64)
    cells[0], cells[1] = FREE, 1
    if not tables:
        return cells
    sizes = np.array([len(table) for table in tables])
    held = np.concatenate(
        [np.arange(t.start, t.stop) if isinstance(t, range) else np.array(t, np.int64) for t in tables]
    )
    place = np.arange(len(held)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    owner = np.repeat(np.array(stays, np.int64), sizes)
    # A block that several share counts as that of the one who fills most of it; the last to write has it.
    order = np.argsort(np.where(owner < 0, 0, known[owner, 2]) if len(known) else owner, kind="stable")
    cells[0][held[order]] = owner[order]
    cells[1][held[order]] = place[order]
    cells[2] = np.bincount(held, minlength=blocks)
    return cells


def _mark_free(cells: Column, chunks: list[Extent], cached: list[Extent]) -> None:
    for first, _ in chunks:
        cells[1, first] = 0
    for first, blocks in cached:
        cells[0, first : first + blocks] = CACHED


def _ledger(
    cells: Column, stays: Column, lengths: Column, known: Column, block_size: int, external: bool
) -> Column:
    """Return the entries of the ledger, ``[7]``, in token slots."""
    owner, place, _ = cells
    held = owner >= 0
    length = np.zeros(len(known), np.int64)
    length[stays] = lengths
    of, start = owner[held], place[held] * block_size
    final, reserved = known[of, 2], known[of, 3]
    ends = (np.minimum(length[of], final), final, reserved)
    used, filled, wanted = (np.clip(end - start, 0, block_size) for end in ends)
    free = int((owner == FREE).sum()) * block_size
    cached = int((owner == CACHED).sum()) * block_size
    entries = {
        "used": used.sum(),
        "reserved": (filled - used).sum(),
        "over_reserved": (wanted - filled).sum(),
        "rounding": (block_size - wanted).sum(),
        "external": free if external else 0,
        "cached": cached,
        "free": 0 if external else free,
    }
    return np.array([entries[name] for name in ENTRIES], np.int64)
