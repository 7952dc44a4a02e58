"""The recorder: logs what the engine does, in one row per stretch of iterations and one row per request.

The recorder stores integers: picoseconds and counts. At intervals it converts its rows to a `Chunk` with the
ledger of every iteration and drops them, so memory stays bounded however long the run is.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from struct import Struct

import numpy as np

from pagesim.accounting.chunks import RARE_FIELDS, ROW_FIELDS, Chunk, Rows, keep_freed
from pagesim.accounting.group_residency import GroupResidency
from pagesim.accounting.held_without_running import HeldWithoutRunning
from pagesim.accounting.ledger import HELD_WITHOUT_RUNNING, LedgerError
from pagesim.accounting.request_log import Move, RequestLog
from pagesim.accounting.residency import PlainResidency, Residency
from pagesim.accounting.shared_tails import shared_tails
from pagesim.accounting.sums import Column
from pagesim.kvcache.radix import HostRadixManager
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.observer import FastForward, Observer
from pagesim.scheduling.request import EngineRequest, Status
from pagesim.setup.compiled import mypyc_attr

CHUNK_ITERATIONS = 1 << 15

_FINISHED = int(Status.FINISHED)

NOTHING_RARE = [0] * len(RARE_FIELDS)

_pack_row = Struct(f"{len(ROW_FIELDS)}q").pack  # takes half the time of appending number by number


@mypyc_attr(allow_interpreted_subclasses=True)
class Recorder(Observer):
    """Records what happens in one engine and passes it on in chunks.

    Args:
        scheduler: the engine's scheduler, with an empty block manager.
        log: log that receives the requests' times.
        consume: called with each chunk, in order.

    Attributes:
        iterations: iterations so far, planned or fast-forwarded.
        rows: rows passed on so far.
    """

    __slots__ = (
        "_ahead",
        "_answered",
        "_answered_at",
        "_away_since",
        "_chunk_iterations",
        "_chunk_start",
        "_decodes_apart",
        "_external",
        "_held_without_running",
        "_joined_at",
        "_last_gaps",
        "_last_start",
        "_late",
        "_moves",
        "_notes_rare",
        "_residency",
        "_rows",
        "_stalls",
        "blocks_in",
        "blocks_out",
        "consume",
        "full_at",
        "iterations",
        "log",
        "memory",
        "recomputed_total",
        "rows",
        "scheduler",
        "swapped_total",
    )

    def __init__(self, scheduler: Scheduler, log: RequestLog, consume: Callable[[Chunk], None]) -> None:
        keep_freed()
        self.scheduler = scheduler
        self.memory = scheduler.memory
        self.log = log
        self.consume = consume
        self.iterations = 0
        self.rows = 0
        self.recomputed_total = 0
        self.swapped_total = 0
        self.blocks_in = 0
        self.blocks_out = 0
        self._chunk_start = 0
        self._ahead = scheduler.in_flight > 1
        self._decodes_apart = scheduler.decodes_apart
        self._last_start = 0  # start of the last iteration passed on
        memory = self.memory
        self._moves = log.moves
        self._residency: Residency = (GroupResidency if memory.is_hybrid else PlainResidency)(scheduler)
        self._notes_rare = (
            not memory.grows
            or bool(scheduler.parks)
            or scheduler.widest > 1
            or scheduler.swap_space.may_swap_one
        )
        # Iterations per chunk, and the iteration at which the next chunk is full and should be passed on.
        self._chunk_iterations = CHUNK_ITERATIONS // 16 if self._decodes_apart else CHUNK_ITERATIONS
        self.full_at = self._chunk_iterations
        self._rows = array("q")
        self._external = 0  # in the last planned iteration: free blocks that the queue's head could not use
        # Pairs of a gap and its number of sequences, negative to cancel gaps that a row counts wrongly.
        self._late = array("q")
        # Time of the last token: of all decoding requests, of preempted requests, and of the requests that
        # joined while decoding is stalled by prompts.
        self._answered = 0
        self._away_since: dict[int, int] = {}
        self._stalls = False
        self._joined_at: dict[int, tuple[int, EngineRequest]] = {}
        # Where an iteration's tokens may be returned after it ends: their gaps, as in ``_late``.
        self._last_gaps: list[tuple[int, int]] | None = None
        if self._ahead and (scheduler.connector is not None or isinstance(self.memory, HostRadixManager)):
            self._last_gaps = []
        # Where an iteration's tokens are known only when it has finished: time of each request's last token.
        self._answered_at: dict[int, int] = {}
        self._held_without_running = HeldWithoutRunning(scheduler) if scheduler.parks else None

    # Iterations

    def planned(self, batch: Batch, now: int, start: int, ticks: int) -> None:
        self._add_row(batch, now, start, ticks, self._note_tokens(batch, now, start, ticks))

    def held_up(self, end: int, until: int) -> None:
        first_token = self.log.first_token
        for request in self.scheduler.running.values():
            if first_token[request.row] == end:
                first_token[request.row] = until
        for row, (joined, request) in self._joined_at.items():
            if joined == end:
                self._joined_at[row] = until, request
        if self._answered != end:
            assert self._stalls  # nothing decoded along with the prompts
            return
        self._answered = until
        for gap, sequences in self._last_gaps or ():
            self._late.fromlist([gap, -sequences, gap + until - end, sequences])

    def fast_forwarded(self, run: FastForward) -> None:
        scheduler, memory = self.scheduler, self.memory
        sequences = run.sequences
        noted = len(self._late)
        if self._joined_at or run.start != self._answered:
            # The row counts a gap from the previous iteration to its first step, but these were stalled then.
            self._late.fromlist([run.first, -sequences])
            self._go_on(sequences, run.start + run.first)
        self._answered = run.end
        if self._last_gaps is not None:
            last = run.first + run.increment * (run.steps - 1)
            self._note_last_gaps(noted if run.steps == 1 else len(self._late), last, sequences)
        shared, rare = memory.shared_blocks, NOTHING_RARE
        if self._notes_rare:
            # In a fast-forward that no plan directly precedes, no request is waiting.
            external = self._external if run.decided < run.start else 0
            further, rare = self._rare(sequences + run.draining, external, run.end, None)
            shared -= further
        # fmt: off
        self._rows.frombytes(_pack_row(
            0, run.decided, run.start, run.first, run.increment, run.steps, memory.steps + 1,
            sequences + run.draining, scheduler.queue.waiting, memory.free_blocks, sequences, sequences,
            run.context, sequences, 0, shared, memory.cached_blocks, *rare,
        ))
        # fmt: on
        self._residency.fast_forwarded(self.iterations, run.steps)
        self.iterations += run.steps

    def departed(self, batch: Batch, now: int) -> None:
        for request in batch.recomputed:
            row = request.row
            self._move(row, Move.PREEMPTED, now)
            if self.scheduler.loses_in_flight and request.length == request.prompt:
                self.log.first_token[row] = -1  # this token was in flight and is lost
            self._go_away(row)
            self.log.recomputes[row] += 1
            self.recomputed_total += 1
        for request in batch.swapped_out:
            self._move(request.row, Move.SWAPPED, now)
            self._go_away(request.row)
            self.log.swaps[request.row] += 1
            self.swapped_total += 1
        for request, swaps, *prices in batch.choices:
            blocks, swap, recompute = prices
            self.log.choices.append((request.row, now, swaps, request.length, blocks, swap, recompute))

    def held_without_running_changes(self, now: int) -> None:
        if self._held_without_running is not None:
            self._held_without_running.changes(now)

    # Requests

    def answered(self, requests: Sequence[EngineRequest], now: int) -> None:
        before = self._answered_at
        gaps = Counter([now - before.get(request.row, now + 1) for request in requests])
        gaps.pop(-1, None)  # requests that got their first token
        for gap, count in gaps.items():
            self._late.fromlist([gap, count])
        before.update(dict.fromkeys([request.row for request in requests], now))
        first_token = self.log.first_token
        for request in requests:
            if first_token[request.row] < 0:
                first_token[request.row] = now

    def interval_ended(self, request: EngineRequest) -> None:
        since, now = request.since, self.iterations
        request.since = now
        if since < now:
            self._residency.note(request, since, now - 1)

    def finished(self, request: EngineRequest, now: int) -> None:
        row, log = request.row, self.log
        self.interval_ended(request)
        log.finish[row] = now
        log.status[row] = _FINISHED
        if self._decodes_apart:
            self._answered_at.pop(row, None)
        if self._away_since:
            self._away_since.pop(row, None)
        if self._joined_at:
            self._joined_at.pop(row, None)

    def samples_finished(self, request: EngineRequest, now: int) -> None:
        assert request.family is not None
        times = self.log.sample_finish.setdefault(request.row, {})
        times.update(dict.fromkeys(request.family.ended, now))

    def left(self, row: int, now: int, status: Status) -> None:
        self._away_since.pop(row, None)
        self._joined_at.pop(row, None)
        self._answered_at.pop(row, None)
        self.log.finish[row] = now
        self.log.status[row] = status

    def flush(self) -> None:
        """Pass on the rows recorded so far as a chunk."""
        if self.iterations == self._chunk_start:
            return
        for request in self.scheduler.running.values():
            self.interval_ended(request)
        table = np.array(self._rows, np.int64).reshape(-1, len(ROW_FIELDS))
        columns = dict(zip(ROW_FIELDS, np.ascontiguousarray(table.T), strict=True))
        columns["running_groups"] = columns["running_sequences"] - columns["further_samples"]
        columns["free_cpu_blocks"] = self.memory.cpu_blocks - columns["used_cpu_blocks"]
        self.blocks_in += int(columns["swapped_in"].sum())
        self.blocks_out += int(columns["swapped_out"].sum())
        columns["iteration"] = self._chunk_start + np.cumsum(columns["iterations"]) - columns["iterations"]
        columns["context_growth"] = np.where(columns["planned"] == 1, 0, columns["running_sequences"])
        late = np.array(self._late, np.int64).reshape(-1, 2)
        self.rows += len(table)
        self._rows, self._late = array("q"), array("q")
        begin, self._chunk_start = self._chunk_start, self.iterations
        self.full_at = self.iterations + self._chunk_iterations
        others = self._held_without_running
        gaps = np.empty((0, 2), np.int64) if others is None else others.take_gaps()
        self.consume(self._expand(Rows(columns), begin, late, gaps))

    # Inside

    def _note_tokens(self, batch: Batch, now: int, start: int, ticks: int) -> int:
        """Record the times of an iteration's tokens; return the sequences that also had one just before."""
        end, noted = start + ticks, len(self._late)
        continuing = 0 if self._decodes_apart else batch.decoding
        if batch.discarded:
            continuing -= len(batch.discarded)
            for request in batch.discarded:
                self._joined_at.pop(request.row, None)
        self._stalls = not batch.decodes
        if batch.prompts:
            self._admitted(batch, now, end)
        if batch.completed:
            for request in batch.completed:
                self._answer(request, end)
        if batch.resumed or batch.skipped or batch.served_again:
            continuing -= self._return(batch, start, end)
        if batch.decodes:
            if self._joined_at or (continuing and start != self._answered):
                self._go_on(continuing, end)
                continuing = 0
            if batch.tokens:
                self._answered = end
                if self._last_gaps is not None:
                    self._note_last_gaps(noted, ticks, continuing)
        return continuing

    def _add_row(self, batch: Batch, now: int, start: int, ticks: int, continuing: int) -> None:
        """Add the row of a planned iteration from the current state of memory."""
        scheduler, memory = self.scheduler, self.memory
        for request in batch.prompts:
            request.since = self.iterations
        shared, rare = memory.shared_blocks, NOTHING_RARE
        if self._notes_rare:
            blocked = not memory.grows and scheduler.blocked_externally()
            self._external = memory.free_blocks if blocked else 0
            further, rare = self._rare(batch.sequences, self._external, start + ticks, batch)
            shared -= further
        # fmt: off
        self._rows.frombytes(_pack_row(
            1, now, start, ticks, 0, 1, memory.steps, batch.sequences, scheduler.queue.waiting,
            memory.free_blocks, batch.batched_tokens, batch.tokens, batch.context_tokens, continuing,
            len(batch.recomputed) + len(batch.swapped_out), shared, memory.cached_blocks, *rare,
        ))
        # fmt: on
        self._residency.planned(batch, self.iterations)
        self.iterations += 1

    def _admitted(self, batch: Batch, now: int, end: int) -> None:
        log, incomplete = self.log, batch.incomplete
        first_scheduled, first_token = log.first_scheduled, log.first_token
        for request in batch.prompts:
            row = request.row
            if request.loaded:
                assert log.loaded_tokens is not None
                log.loaded_tokens[row] = request.loaded
            if first_scheduled[row] < 0:
                first_scheduled[row] = now
                if request.cached:
                    log.cached_tokens[row] = request.cached
                if not incomplete and not self._stalls and not self._decodes_apart:
                    first_token[row] = end
                    continue
            else:
                self._move(row, Move.BACK, now)
            if not (incomplete and request in incomplete):
                self._answer(request, end)

    def _answer(self, request: EngineRequest, end: int) -> None:
        """Record a token at ``end``: a request's first, or its first after preemption or a skipped turn."""
        row = request.row
        if row in self._away_since:
            since = self._away_since.pop(row)
            if not self._decodes_apart:
                self._late.fromlist([end - since, request.samples])
            self._move(row, Move.ANSWERED, end)
        if self._stalls:
            self._joined_at[row] = end, request
        if self.log.first_token[row] < 0 and not self._decodes_apart:
            self.log.first_token[row] = end

    def _return(self, batch: Batch, start: int, end: int) -> int:
        """Record which requests resume decoding and which are skipped; return the former's sequences."""
        returning = 0
        for request in batch.resumed:
            request.since = self.iterations
            self._move(request.row, Move.BACK, start)
            self._answer(request, end)
            returning += request.samples
        for request in batch.skipped:
            self._away_since.setdefault(request.row, self._answered)
        for request in batch.served_again:
            self._answer(request, end)
            returning += request.samples
        return returning

    def _go_on(self, continuing: int, end: int) -> None:
        """Record the token gaps of an iteration that does not directly follow the previous decoding one.

        Args:
            continuing: sequences that decode on, including those that joined while the others were stalled.
            end: end of the iteration, in ticks.
        """
        for joined, request in self._joined_at.values():
            if request.decodes:  # otherwise its only token is in flight
                self._late.fromlist([end - joined, request.samples])
                continuing -= request.samples
        self._late.fromlist([end - self._answered, continuing])
        self._joined_at.clear()

    def _note_last_gaps(self, noted: int, ticks: int, continuing: int) -> None:
        """Save the last iteration's gaps: those of its row and those in ``_late`` from ``noted`` on."""
        late = self._late[noted:]
        self._last_gaps = [(ticks, continuing), *zip(late[::2], late[1::2], strict=True)]

    def _go_away(self, row: int) -> None:
        """Record when a preempted request got its last token, if it has one."""
        joined = self._joined_at.pop(row, None)  # it does not continue with the stalled requests
        if self.log.first_token[row] >= 0 or self._decodes_apart:
            self._away_since.setdefault(row, self._answered if joined is None else joined[0])

    def _move(self, row: int, move: Move, now: int) -> None:
        if self._moves is not None:
            self._moves.fromlist([row, move, now])

    def _rare(self, sequences: int, external: int, end: int, batch: Batch | None) -> tuple[int, list[int]]:
        """Return the values that samples, swapping, reservations and non-running requests add to a row.

        Args:
            sequences: running sequences, as in the current row.
            external: free blocks that the request at the head of the queue cannot use.
            end: end of the row's iterations, in ticks.
            batch: planned batch; None for a fast-forward.

        Returns:
            Non-running requests' references to blocks beyond the first; a row's ``RARE_FIELDS``.
        """
        scheduler, memory, others = self.scheduler, self.memory, self._held_without_running
        further, parked = 0, dict.fromkeys(HELD_WITHOUT_RUNNING, 0)
        if others is not None:
            others.count()
            others.written_until(end)
            parked.update(zip(others.names, others.blocks, strict=True))
            further = others.further_names()
        shares_tails = bool(memory.shared_blocks) and not memory.steps_that_fit(1, 0)
        return further, [
            sequences - len(scheduler.running),
            len(scheduler.swapped),
            memory.cpu_blocks - memory.free_cpu_blocks,
            *((0, 0, 0) if batch is None else (batch.blocks_in, batch.blocks_out, batch.blocks_copied)),
            external,
            *(shared_tails(scheduler) if shares_tails else (0, 0)),
            *parked.values(),
        ]

    def _expand(self, rows: Rows, begin: int, late: Column, gaps: Column) -> Chunk:
        firsts, spread = rows.firsts, rows.spread
        ticks = spread("ticks") + rows.offset * spread("increment")
        # Within a row the iterations follow one another without gaps.
        passed = np.cumsum(ticks) - ticks
        start = passed + rows.spread_out(rows["start"] - passed[firsts])
        clock = np.where(spread("planned") == 1, spread("decided"), start)
        if self._ahead:
            # With two batches in flight, each is decided when the previous one starts.
            before = np.concatenate([[self._last_start], start[:-1]])
            clock = np.where(spread("planned") == 1, spread("decided"), before)
            self._last_start = int(start[-1])
        ledger = self._residency.take(rows, begin)
        # The ledger must agree with the block manager's own count, recorded in every planned iteration.
        planned = np.flatnonzero(rows["planned"])
        held = self.memory.num_blocks - rows["free_blocks"][planned]
        counted = ledger.physical_blocks[firsts[planned]]
        if (counted != held).any():
            at = int(np.argmax(counted != held))
            raise LedgerError(
                f"iteration {rows['iteration'][planned[at]]}: memory holds {held[at]} blocks, "
                f"the ledger counts {counted[at]}"
            )
        return Chunk(rows, clock, start, ticks, ledger, late[:, 0], late[:, 1], gaps)
