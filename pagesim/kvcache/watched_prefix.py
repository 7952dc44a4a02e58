"""Prefix caching by the run, where it can be asked which blocks of a holder were taken again."""

from __future__ import annotations

from typing import Any, NamedTuple

from pagesim.kvcache.holder import Holder
from pagesim.kvcache.queued_prefix import QueuedPrefixKV
from pagesim.kvcache.run_index import Prefix, RunIndex
from pagesim.kvcache.runs import FreeQueue, Run
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Watch:
    """The blocks that a holder had, by their places in it, with all holders that have them since.

    Attributes:
        taken: which were taken, or taken over, since this was last emptied: each time the place of the first
            and that behind the last.
    """

    __slots__ = ("_runs", "taken")

    def __init__(self) -> None:
        self.taken: list[tuple[int, int]] = []
        self._runs: list[Run] = []

    def meets(self, first: int, end: int) -> bool:
        """Say whether any of these blocks was taken."""
        return any(start < end and first < stop for start, stop in self.taken)

    # For the memory that watches

    def add(self, run: Run) -> None:
        """Note a run in which some of the blocks are."""
        self._runs.append(run)

    def runs(self) -> list[Run]:
        """Return the runs in which some of the blocks are, or were; some twice."""
        return self._runs


class _Part(NamedTuple):
    """Some watched blocks of a run.

    Attributes:
        watch: of which they are.
        first: the place of the first of them, as the run's are counted.
        end: the place behind the last.
        shift: what a block's place in the watch is beyond ``sign`` times its place in the run.
        sign: 1; -1 where blocks lie in reverse order.
    """

    watch: Watch
    first: int
    end: int
    shift: int
    sign: int

    def note(self, first: int, end: int) -> None:
        """Note that blocks of the part were taken."""
        shift, sign = self.shift, self.sign
        self.watch.taken.append(
            (shift + first, shift + end) if sign > 0 else (shift - end + 1, shift - first + 1)
        )


@mypyc_attr(allow_interpreted_subclasses=True)
class _WatchedIndex(RunIndex):
    """See `RunIndex`: of runs of which some are watched.

    Attributes:
        watched: the parts of each run that are.
    """

    __slots__ = ("watched",)

    def __init__(self, queue: FreeQueue) -> None:
        super().__init__(queue)
        self.watched: dict[Run, list[_Part]] = {}

    def watch(self, run: Run, part: _Part) -> None:
        """Watch a part of a run."""
        self.watched.setdefault(run, []).append(part)
        part.watch.add(run)

    def forget_watch(self, watch: Watch) -> None:
        """Watch no part of a watch any more."""
        for run in watch.runs():
            parts = [part for part in self.watched.pop(run, ()) if part.watch is not watch]
            if parts:
                self.watched[run] = parts
        watch.runs().clear()

    def cut(self, run: Run, blocks: int) -> Run:
        rest = super().cut(run, blocks)
        for part in self.watched.get(run, ()):
            self.watch(rest, part)
        return rest


@mypyc_attr(allow_interpreted_subclasses=True)
class WatchedPrefixKV(QueuedPrefixKV):
    """As its parent, with watches: it says which blocks of a holder that is over are taken by others.

    Watched are runs, and the free blocks that hold nothing, which are a stack. What a prompt takes stays
    watched with its new holder, for others may find it there; blocks that are taken to decode do not.
    """

    _watching: _WatchedIndex  # the index

    def __init__(
        self, num_blocks: int, block_size: int, cpu_blocks: int = 0, *, reuses_unhashed_first: bool = True
    ) -> None:
        if not reuses_unhashed_first:
            raise ValueError("blocks can be watched where those that hold nothing are taken first")
        super().__init__(num_blocks, block_size, cpu_blocks)
        self._watches: dict[Prefix, Watch] = {}  # of holders that are not released
        self._on = 0  # watches
        self._passed = 0  # blocks of the last taking, as far as it is through
        self._fresh: list[
            tuple[_Part, int, int]
        ] = []  # parts that were taken, and which blocks of the taking

    # Watching

    def watch(self, holder: Holder) -> Watch:
        """Watch the blocks that a holder has until it is released; to be called before it is."""
        watch = Watch()
        self._on += 1
        self._tells_taken = True
        self._watches[holder.kv] = watch
        self._watch_runs(holder.kv, watch)
        return watch

    def end_watch(self, watch: Watch) -> None:
        """Watch no longer."""
        self._on -= 1
        self._watching.forget_watch(watch)
        self._watches = {prefix: each for prefix, each in self._watches.items() if each is not watch}
        self._tells_taken = self._on > 0
        self._fresh = []

    def take_over(self, holder: Holder) -> None:
        """Count the watched blocks that a holder has, or shares, as taken over now."""
        if self._on:
            self._note_held(holder, self.held_blocks(holder))

    # Changes

    def admit(self, holder: Holder, tokens: int) -> None:
        if not self._on:
            super().admit(holder, tokens)
            return
        found = self._match_of(holder, tokens).blocks
        self._fresh = []
        super().admit(holder, tokens)
        self._note_held(holder, found)
        self._watch_fresh(holder, found)

    def extend(self, holder: Holder, tokens: int) -> None:
        if not self._on:
            super().extend(holder, tokens)
            return
        held = self.held_blocks(holder)
        self._fresh = []
        super().extend(holder, tokens)
        self._watch_fresh(holder, held)

    def cache_full_blocks(self, holder: Holder) -> None:
        super().cache_full_blocks(holder)
        watch = self._watches.get(holder.kv) if self._on else None
        if watch is not None:
            self._watching.forget_watch(watch)
            self._watch_runs(holder.kv, watch)

    def release(self, holder: Holder) -> None:
        watch = self._watches.pop(holder.kv, None) if self._on else None
        if watch is None:
            super().release(holder)
            return
        prefix: Prefix = holder.kv
        self._watching.forget_watch(watch)
        blank = self._blank.count
        super().release(holder)
        self._watch_runs(prefix, watch)
        if self._blank.count > blank:
            self._watching.watch(
                self._blank, _Part(watch, blank, self._blank.count, prefix.hashed - blank, 1)
            )

    # As `QueuedPrefixKV`

    def _new_index(self, queue: FreeQueue) -> RunIndex:
        self._watching = _WatchedIndex(queue)
        return self._watching

    def _takes_now(self) -> None:
        self._passed = 0

    def _take_aside(self, blocks: int) -> None:
        super()._take_aside(blocks)
        self._passed += blocks

    def _took(self, run: Run, blocks: int) -> None:
        before = self._passed
        self._passed = before + blocks
        watched = self._watching.watched
        parts = watched.pop(run, None)
        if parts is None:
            return
        left: list[_Part] = []
        low = run.start + run.count
        high = low + blocks
        for part in parts:
            first, end = max(part.first, low), min(part.end, high)
            if first < end:
                part.note(first, end)
                # The last block of a run is taken first.
                turned = part._replace(shift=part.shift + part.sign * (before + high - 1), sign=-part.sign)
                self._fresh.append((turned, before + high - end, before + high - first))
            if part.first < low:
                left.append(part._replace(end=min(part.end, low)))
        if left:
            watched[run] = left

    # Inside

    def _watch_runs(self, prefix: Prefix, watch: Watch) -> None:
        for run in prefix.runs:
            self._watching.watch(run, _Part(watch, run.start, run.start + run.count, 0, 1))

    def _note_held(self, holder: Holder, blocks: int) -> None:
        """Note so many leading blocks of a holder as taken, as far as they can be found."""
        for run in holder.kv.runs:
            end = min(blocks, run.start + run.count)
            for part in self._watching.watched.get(run, ()):
                first, stop = max(part.first, run.start), min(part.end, end)
                if first < stop:
                    part.note(first, stop)

    def _watch_fresh(self, holder: Holder, place: int) -> None:
        """Watch what was just taken for a holder, from a place in it on, as far as it can be found."""
        fresh: Any
        for fresh, first, end in self._fresh:
            shift = fresh.shift - fresh.sign * place
            for run in holder.kv.runs:
                start, stop = max(place + first, run.start), min(place + end, run.start + run.count)
                if start < stop:
                    self._watching.watch(run, _Part(fresh.watch, start, stop, shift, fresh.sign))
        self._fresh = []
