"""Records: what the engine writes down, in columns: a row a stretch of like iterations, a row a request.

The recorder keeps whole picoseconds and counts. Every now and then it turns what it has into a `Chunk`, with
the ledger of every iteration, and forgets it: memory stays bounded however long a run is.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from pagesim.accounting.ledger import ON_DEMAND, Column, Ledger, LedgerError, Sharing, Stay, expand
from pagesim.kvcache import Allocator
from pagesim.scheduling import Choice, Group

CHUNK_ITERATIONS = 1 << 15


class Status(IntEnum):
    """How a request ended."""

    UNFINISHED = 0
    FINISHED = 1
    REJECTED = 2
    STUCK = 3
    IGNORED = 4
    ABORTED = 5


class Move(IntEnum):
    """How a request that was scheduled before changed its place."""

    PREEMPTED = 0
    SWAPPED = 1
    BACK = 2
    ANSWERED = 3


DECISION_FIELDS = (
    "iteration",
    "clock",
    "ticks",
    "growth",
    "running_groups",
    "running_sequences",
    "swapped",
    "waiting",
    "free_blocks",
    "free_cpu_blocks",
    "batched_tokens",
    "tokens",
    "context_tokens",
    "swapped_in",
    "swapped_out",
    "copied",
    "preempted",
    "external_blocks",
    "continuing",
    "shared_blocks",
    "shared_slack",
    "shared_rounding",
    "cached_blocks",
    "blocks_taken",
)
"""What is written down of a planned iteration, all after scheduling.

    iteration: its number.
    clock, ticks: when it was scheduled, and how long it took, in ticks.
    growth: steps of growth that memory had taken.
    running_groups, running_sequences, swapped, waiting: how many.
    free_blocks: on the device, as the allocator counts them.
    free_cpu_blocks: in the swap space.
    batched_tokens, tokens, context_tokens: see `Plan`.
    swapped_in, swapped_out, copied: blocks moved.
    preempted: groups.
    external_blocks: free but unusable for the head of the queue.
    continuing: sequences that also got a token in the iteration before.
    shared_blocks, shared_slack, shared_rounding: see `ledger.Sharing`; a leap changes none of them.
    cached_blocks, blocks_taken: see `Allocator`.
"""

LEAP_FIELDS = ("leap", "leap_ticks", "leap_increment", "leap_context")
"""The leap that followed: iterations, ticks of the first, how many more each took than the one before, and
tokens of context in the first."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some consecutive decisions and the leaps that followed, iteration by iteration.

    A stretch is a planned iteration or a leap: iterations that differ only by growth.

    Attributes:
        stretches: for each stretch, ``[S]``: the columns named in ``DECISION_FIELDS`` as they are in its
            first iteration (``clock`` in a leap still that of the decision), ``iterations``, ``first_ticks``
            and ``increment`` of the iterations' length, and ``context_growth``, tokens of context a step.
        stretch: for each iteration the index of its stretch, ``[I]``.
        offset: for each iteration its place in its stretch, ``[I]``.
        clock, ticks: when each iteration was scheduled and how long it took, ``[I]``, in ticks.
        ledger: of each iteration.
        late: gaps between two tokens of sequences that lost their place or stood still in between, in ticks,
            ``[G]``.
        late_counts: how many sequences each is of, ``[G]``.
    """

    stretches: dict[str, Column]
    stretch: Column
    offset: Column
    clock: Column
    ticks: Column
    ledger: Ledger
    late: Column
    late_counts: Column


class _OpenStay(NamedTuple):
    """The present stay of a running group: what `Stay` needs to know of its beginning.

    ``finals`` are the final lengths of its samples, ``held`` the blocks and the tokens that are reserved for
    each, if they are.
    """

    first: int
    base: int
    finals: tuple[int, ...]
    held: list[tuple[int, int]]


class RequestLog:
    """What becomes of the requests of a trace, by row, whichever engine serves them.

    Args:
        requests: rows of the trace.

    Attributes:
        first_scheduled, first_token, finish: ticks; -1 for what has not happened.
        recomputes, swaps: how often each was preempted.
        status: a `Status` each.
        choices: how victims were preempted where that was free to choose: see `Recorder.choose`.
        cached_tokens: of prompts, found in the cache when they were admitted first, by row.
        sample_finish: where the samples of a request differ in length, when each was over, by row and sample.
        moves: (row, a `Move`, ticks) flat, in order: who lost its place, came back, and had a token again;
            None unless somebody put an array here before the run.
    """

    def __init__(self, requests: int) -> None:
        self.first_scheduled = array("q", [-1]) * requests
        self.first_token = array("q", [-1]) * requests
        self.finish = array("q", [-1]) * requests
        self.recomputes = array("i", [0]) * requests
        self.swaps = array("i", [0]) * requests
        self.status = bytearray(requests)
        self.choices: list[tuple[int, ...]] = []
        self.cached_tokens: dict[int, int] = {}
        self.sample_finish: dict[int, dict[int, int]] = {}
        self.moves: array[int] | None = None


class Recorder:
    """Collects what happens in one engine and hands it on in chunks.

    Args:
        memory: the allocator of the run.
        log: where requests' times go.
        consume: called with each chunk, in order.
    """

    def __init__(self, memory: Allocator, log: RequestLog, consume: Callable[[Chunk], None]) -> None:
        self.memory = memory
        self.consume = consume
        self.iterations = 0
        self.decisions = 0  # how many were handed on
        self.first_scheduled = log.first_scheduled
        self.first_token = log.first_token
        self.finish = log.finish
        self.recomputes = log.recomputes
        self.swaps = log.swaps
        self.status = log.status
        self.choices = log.choices
        self.cached_tokens = log.cached_tokens
        self.sample_finish = log.sample_finish
        self.moves = log.moves
        self.recomputed_total = 0
        self.swapped_total = 0
        self.blocks_in = 0
        self.blocks_out = 0
        self._chunk_start = 0
        self.full_at = CHUNK_ITERATIONS  # how many iterations make a chunk that should be handed on
        self._decisions = array("q")
        self._stays = array("q")
        self._open: dict[int, _OpenStay] = {}  # by the request's row
        self._late = array("q")  # pairs of a gap and how many sequences it is of
        # When the last token was there: of groups that lost their place, and, while decoding stands still for
        # prompts, of everybody else and of those who joined meanwhile.
        self._away_since: dict[int, int] = {}
        self.stalled_since: int | None = None
        self._joined_at: dict[int, int] = {}

    # Requests

    def enter(self, group: Group, now: int, end: int | None) -> None:
        """A group starts to run in an iteration that lasts from ``now`` to ``end``.

        Args:
            group: with its memory.
            now: ticks.
            end: ticks; None if it gets no token by then.
        """
        row = group.row
        memory = self.memory
        held = (
            []
            if memory.grows_on_demand
            else [(memory.held_blocks(s), memory.reserved_tokens(s)) for s in group.sequences]
        )
        self._open[row] = _OpenStay(self.iterations, group.base, group.finals, held)
        if self.first_scheduled[row] < 0:
            self.first_scheduled[row] = now
            if group.cached:
                self.cached_tokens[row] = group.cached
        else:
            self._move(row, Move.BACK, now)
        if end is not None:
            self.answer(group, end)

    def answer(self, group: Group, end: int) -> None:
        """A group gets a token at ``end``: its first, or the first after it lost its place or its turn."""
        self._answer(group.row, end, group.samples)

    def skip(self, group: Group, now: int) -> None:
        """A group that decodes gets no token in the iteration that starts at ``now``."""
        self._away_since.setdefault(group.row, now)

    def rebase(self, group: Group) -> None:
        """A running group's memory no longer follows from its length as it did.

        Some of its samples are over, or its length does not grow by one in this iteration.
        """
        self._close(group.row)
        self._open[group.row] = _OpenStay(self.iterations, group.base, group.finals, [])

    def preempt(self, group: Group, now: int, *, swapped: bool) -> None:
        """A group lost its place before this iteration."""
        self._close(group.row)
        self._move(group.row, Move.SWAPPED if swapped else Move.PREEMPTED, now)
        if swapped:
            self._go_away(group.row, now)
            self.swaps[group.row] += 1
            self.swapped_total += 1
        else:
            self.lose(group.row, now)

    def choose(self, choice: Choice, now: int) -> None:
        """A victim was preempted as is cheaper: row, ticks, swapped, tokens, blocks, both prices."""
        group = choice.group
        self.choices.append(
            (group.row, now, choice.swaps, group.length, choice.blocks, choice.swap, choice.recompute)
        )

    def stall(self, now: int) -> None:
        """An iteration that starts at ``now`` computes prompts alone: everybody else gets no token."""
        if self.stalled_since is None:
            self.stalled_since = now

    def go_on(self, groups: Iterable[Group], now: int, end: int) -> None:
        """The first iteration after a stall decodes until ``end``: note the gaps of these groups."""
        for group in groups:
            self._late.extend((end - self._last_token(group.row, now), group.samples))
        self.stalled_since = None
        self._joined_at.clear()

    def end(self, group: Group, now: int) -> None:
        """Samples of a group have their last tokens: all of them, or some while the others go on."""
        if group.outputs is not None:
            times = self.sample_finish.setdefault(group.row, {})
            times.update(dict.fromkeys(group.ended, now))
        if group.samples:
            self.rebase(group)
        else:
            self.leave(group.row, now, Status.FINISHED)

    def leave(self, row: int, now: int, status: Status) -> None:
        """A request is over; ``now`` is when its last token was there, or when it was given up."""
        self._close(row)
        self._away_since.pop(row, None)
        self.finish[row] = now
        self.status[row] = status

    # Iterations

    def decide(self, decision: list[int], leap: tuple[int, int, int, int]) -> None:
        """Write down a planned iteration and the leap that followed; no group has changed since.

        Args:
            decision: as ``DECISION_FIELDS``.
            leap: as ``LEAP_FIELDS``.
        """
        decision += leap
        self._decisions.fromlist(decision)
        self.iterations += 1 + leap[0]

    # What a lane writes down of requests that are one sequence each; it keeps their stays itself

    def join(self, row: int, now: int, end: int) -> None:
        """A request starts to run in an iteration that lasts from ``now`` to ``end``, and gets a token."""
        if self.first_scheduled[row] < 0:
            self.first_scheduled[row] = now
        self._answer(row, end, 1)

    def lose(self, row: int, now: int) -> None:
        """A request lost its memory before this iteration, and will be recomputed."""
        self._go_away(row, now)
        if self._joined_at:
            self._joined_at.pop(row, None)
        self.recomputes[row] += 1
        self.recomputed_total += 1

    def go_on_all(self, sequences: int, end: int) -> None:
        """As `go_on`, where all of so many sequences go on."""
        assert self.stalled_since is not None
        self._late.extend((end - self.stalled_since, sequences - len(self._joined_at)))
        for joined in self._joined_at.values():
            self._late.extend((end - joined, 1))
        self.stalled_since = None
        self._joined_at.clear()

    def forget(self, rows: Iterable[int]) -> None:
        """These requests are over before decoding goes on."""
        for row in rows:
            self._joined_at.pop(row, None)

    def take(self, decisions: Column, stays: Column) -> None:
        """Take what was written down elsewhere.

        Args:
            decisions: rows of ``DECISION_FIELDS`` and ``LEAP_FIELDS``, ``[D, 28]``.
            stays: first and last iteration, base and final length, ``[S, 4]``, of single sequences on demand.
        """
        self._decisions.frombytes(decisions.tobytes())
        whole = np.empty((len(stays), len(Stay._fields)), np.int64)
        whole[:, :4] = stays
        whole[:, 4:] = ON_DEMAND, 0, 1, 1
        self._stays.frombytes(whole.tobytes())

    def give(self, row: int) -> int:
        """Return the first iteration of a request's present stay, which is kept elsewhere from now on."""
        return self._open.pop(row).first

    def flush(self) -> None:
        """Hand on what there is as a chunk."""
        if self.iterations == self._chunk_start:
            return
        for row, stay in list(self._open.items()):
            self._close(row)
            # It goes on in the next iteration unless the engine says otherwise first.
            self._open[row] = stay._replace(first=self.iterations)
        names = DECISION_FIELDS + LEAP_FIELDS
        table = np.array(self._decisions, np.int64).reshape(-1, len(names)).T
        decisions = dict(zip(names, table, strict=True))
        stays = np.array(self._stays, np.int64).reshape(-1, len(Stay._fields))
        stays[:, :2] -= self._chunk_start
        self.blocks_in += int(decisions["swapped_in"].sum())
        self.blocks_out += int(decisions["swapped_out"].sum())
        self._decisions, self._stays = array("q"), array("q")
        self.decisions += len(table[0])
        self._chunk_start = self.iterations
        self.full_at = self.iterations + CHUNK_ITERATIONS
        late, self._late = np.array(self._late, np.int64).reshape(-1, 2), array("q")
        self.consume(self._expand(decisions, stays, late))

    def _expand(self, decisions: dict[str, Column], stays: Column, late: Column) -> Chunk:
        stretches = _stretches(decisions)
        counts = stretches["iterations"]
        stretch = np.repeat(np.arange(len(counts)), counts)
        offset = np.arange(len(stretch)) - np.repeat(np.cumsum(counts) - counts, counts)

        def spread(name: str) -> Column:
            """Return a column of stretches over the iterations; many are 0 throughout."""
            column = stretches[name]
            return column[stretch] if column.any() else np.zeros(len(stretch), np.int64)

        first, increment = spread("first_ticks"), spread("increment")
        ticks = first + offset * increment
        # Iterations follow one another without a gap until the next decision.
        clock = stretches["starts"][stretch] + offset * first + increment * (offset * (offset - 1) // 2)
        lost, lost_in_a_row = np.array(self.memory.take_evictions(), np.int64).reshape(-1, 2).T

        def lost_by(taken: Column) -> Column:
            """Return how much content had been lost when so many blocks had been taken."""
            turn = np.searchsorted(lost, taken, "right")
            last = np.maximum(turn - 1, 0)
            kept = np.maximum(lost[last] + lost_in_a_row[last] - 1 - taken, 0)
            return np.where(turn > 0, np.cumsum(lost_in_a_row)[last] - kept, 0)

        def cached_blocks(held: Column) -> Column:
            """A leap only takes blocks, in an order that was noted where content was lost on the way."""
            cached = spread("cached_blocks")
            if len(lost):
                before = spread("blocks_taken")
                taken = before + held - (self.memory.num_blocks - spread("free_blocks"))
                cached += lost_by(before) - lost_by(taken)
            return cached

        ledger = expand(
            stays,
            spread("growth") + offset,
            block_size=self.memory.block_size,
            num_blocks=self.memory.num_blocks,
            external_blocks=spread("external_blocks"),
            sharing=Sharing(*(spread(f"shared_{name}") for name in Sharing._fields)),
            cached_blocks=cached_blocks,
        )
        # The allocator's own count, taken in every planned iteration, must agree with the ledger's.
        planned = decisions["iteration"] - decisions["iteration"][0]
        held = self.memory.num_blocks - decisions["free_blocks"]
        differs = ledger.physical_blocks[planned] != held
        if differs.any():
            at = int(np.argmax(differs))
            raise LedgerError(
                f"iteration {decisions['iteration'][at]}: the allocator holds {held[at]} blocks, "
                f"the ledger counts {ledger.physical_blocks[planned[at]]}"
            )
        return Chunk(stretches, stretch, offset, clock, ticks, ledger, late[:, 0], late[:, 1])

    def _answer(self, row: int, end: int, sequences: int) -> None:
        if row in self._away_since:
            self._late.extend((end - self._away_since.pop(row), sequences))
            self._move(row, Move.ANSWERED, end)
        if self.stalled_since is not None:
            self._joined_at[row] = end
        if self.first_token[row] < 0:
            self.first_token[row] = end

    def _move(self, row: int, move: Move, now: int) -> None:
        if self.moves is not None:
            self.moves.extend((row, move, now))

    def _go_away(self, row: int, now: int) -> None:
        """Note when a request that loses its place had its last token, if it had one."""
        if self.first_token[row] >= 0:
            self._away_since.setdefault(row, self._last_token(row, now))

    def _last_token(self, row: int, now: int) -> int:
        return now if self.stalled_since is None else self._joined_at.get(row, self.stalled_since)

    def _close(self, row: int) -> None:
        """Write down the stay of a group that ran until the last iteration."""
        stay = self._open.pop(row, None)
        if stay is None or stay.first == self.iterations:
            return
        first, base, finals, held = stay
        last = self.iterations - 1
        if held:
            for final, (blocks, reserved) in zip(finals, held, strict=True):
                self._stays.fromlist([first, last, base, final, blocks, reserved, 1, 1])
        elif len(finals) == 1:
            self._stays.fromlist([first, last, base, finals[0], ON_DEMAND, 0, 1, 1])
        else:
            for final, alike in Counter(finals).items():
                self._stays.fromlist([first, last, base, final, ON_DEMAND, 0, alike, 1])


def _stretches(decisions: dict[str, Column]) -> dict[str, Column]:
    """Return the columns of `Chunk.stretches`, and ``starts``, when each stretch's first iteration began."""
    leaps = decisions["leap"] > 0
    of = np.repeat(np.arange(len(leaps)), 1 + leaps)
    leap = np.ones(len(of), bool)
    leap[np.cumsum(1 + leaps) - (1 + leaps)] = False
    columns = {name: decisions[name][of] for name in DECISION_FIELDS}
    sequences = columns["running_sequences"]
    columns["iterations"] = np.where(leap, decisions["leap"][of], 1)
    columns["starts"] = columns["clock"] + np.where(leap, columns["ticks"], 0)
    columns["first_ticks"] = np.where(leap, decisions["leap_ticks"][of], columns["ticks"])
    columns["increment"] = np.where(leap, decisions["leap_increment"][of], 0)
    columns["context_growth"] = np.where(leap, sequences, 0)
    columns["context_tokens"] = np.where(leap, decisions["leap_context"][of], columns["context_tokens"])
    columns["iteration"] += leap
    columns["growth"] += leap
    for name in ("batched_tokens", "tokens", "continuing"):
        columns[name] = np.where(leap, sequences, columns[name])
    for name in ("swapped_in", "swapped_out", "copied", "preempted"):
        columns[name] = np.where(leap, 0, columns[name])
    return columns
