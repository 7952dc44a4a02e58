"""Decoders: what decoding sequences of a counted hybrid cache take and give back, without a look at each."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from pagesim.kvcache.base import KVCache
from pagesim.kvcache.groups import opening_step
from pagesim.kvcache.holder import Holder
from pagesim.kvcache.hybrid.free import STEP, FreeBlocks
from pagesim.kvcache.hybrid.piece import WindowTable
from pagesim.kvcache.hybrid.stores import WindowStore

_NOTHING: dict[Holder, int] = {}


class Kept:
    """What is kept with a holder.

    Attributes:
        tables: of each store.
        content: of its tokens; None where none of them can be found.
        settled: whether, while it decodes, what its windows give back follows from its length.
        settlings: how often that ended.
        firsts: while it decodes, of each store of windows the step at which it gives back its first block.
        turns: these, modulo the block size: no settled holder gives anything back at other steps.
        counted: of each of them, while it is settled, where it is counted what it gives back.
    """

    __slots__ = ("content", "counted", "firsts", "settled", "settlings", "tables", "turns")

    def __init__(self, tables: list[Any], content: Any, windows: int) -> None:
        self.tables = tables
        self.content = content
        self.settled = False
        self.settlings = 0
        self.firsts: list[int] = []
        self.turns: set[int] = set()
        self.counted: list[list[int] | None] = [None] * windows


Change = tuple[Holder, Kept, int, int]
"""A settled holder, what is kept with it, its ``settlings``, and which of the stores of windows."""


class Decoders:
    """The decoding holders of a memory.

    A holder takes a block of each group once in as many steps as a block has tokens: that is counted. What
    its windows give back is looked at in its first step, or its first two: there some of its prompt was in
    flight just before. From then on it is *settled*, and that is counted, too. Only a sequence that shares
    what its windows are about to give back is not: it is looked at whenever a window gives a block back.

    Args:
        memory: whose they are; of it the steps and the lag are looked at.
        windows: the stores of windows, each with its place among all stores.
        free: the free blocks.
        held: of each group the blocks that sequences have.
    """

    __slots__ = (
        "_count",
        "_fresh",
        "_newest",
        "_starting",
        "_takes",
        "_taking",
        "_unsettled",
        "_until",
        "free",
        "held",
        "memory",
        "size",
        "windows",
    )

    def __init__(
        self, memory: KVCache, windows: list[tuple[int, WindowStore]], free: FreeBlocks, held: list[int]
    ) -> None:
        self.memory = memory
        self.windows = windows
        self.free = free
        self.held = held
        self.size = size = memory.block_size
        # How many take blocks at a step, and who, by the step modulo the block size.
        self._takes = [0] * size
        self._taking: list[dict[Holder, None]] = [{} for _ in range(size)]
        self._count = 0
        # Those that are not settled, by the step, likewise, at which a window gives a block back; and by the
        # step itself, before which some of their prompt was in flight.
        self._unsettled: list[dict[Holder, None]] = [{} for _ in range(size)]
        self._fresh: dict[int, list[Holder]] = {}
        # Settled ones, by the step after which what they give back is not what it was; apart if it is nothing
        # until then.
        self._until: dict[int, list[Change]] = {}
        self._starting: dict[int, list[Change]] = {}
        self._newest = -1  # the first step of those that began to decode last

    # Questions

    def blocks_needed(self, steps: int) -> int:
        """Return the blocks that all take over the next steps."""
        takes, size = self._takes, self.size
        first = (self.memory.steps + 1) % size
        if steps == 1:
            return takes[first] * len(self.held)
        rounds, rest = divmod(steps, size)
        end = first + rest
        holders = rounds * self._count + sum(takes[first:end]) + sum(takes[: max(0, end - size)])
        return holders * len(self.held)

    def steps_that_fit(self, steps: int, room: int) -> int:
        """Return for how many of the next steps so many blocks last, what is given back not counted."""
        memory, size, decoding = self.memory, self.size, self._count
        if memory.lag and self._newest == memory.steps + 1:
            return 0  # what is in flight is a prompt's: what is released follows no rule of the length
        if room < 0:
            return 0
        room //= len(self.held)
        if (steps // size + 1) * decoding <= room:
            return steps
        rounds, room = divmod(room, decoding)
        first = (memory.steps + 1) % size
        taken = accumulate(self._takes[first:] + self._takes[:first])
        return min(steps, rounds * size + sum([holders <= room for holders in taken]))

    def steps_missing(self, steps: int, blocks: int) -> int:
        """Return after how many of the next steps there are for sure not so many free blocks more."""
        now, size = self.memory.steps, self.size
        for step, holders in self._fresh.items():
            if holders:
                steps = min(steps, step - now - 1)
        for step in self._starting:
            steps = min(steps, step - now)
        for ahead in range(1, steps + 1):
            turn = (now + ahead) % size
            blocks += self._takes[turn] * len(self.held)
            for _, store in self.windows:
                blocks -= (store.gives[turn] + store.passes[turn]) * store.groups
            if blocks <= 0 or self._unsettled[turn]:
                return ahead - 1
        return max(0, steps)

    def gone(self, holder: Holder, number: int) -> int:
        """Return the leading blocks that a holder has no more in a store of windows, by its place there."""
        kept: Kept = holder.kv
        place, store = self.windows[number]
        table: WindowTable = kept.tables[place]
        if kept.settled:
            memory = self.memory
            return max(table.gone, store.released(memory.length(holder) - 1 - memory.lag))
        return table.gone

    # Who decodes

    def enter(self, holder: Holder) -> None:
        """Let a holder decode, of which tokens and base are set."""
        memory, size, kept = self.memory, self.size, holder.kv
        base, steps, lag = holder.base, memory.steps, memory.lag
        turn = opening_step(base, size)
        self._takes[turn] += 1
        self._taking[turn][holder] = None
        self._count += 1
        kept.firsts = [store.window + lag + size - base for _, store in self.windows]
        kept.turns = {first % size for first in kept.firsts}
        for at in kept.turns:
            self._unsettled[at][holder] = None
        for step in (steps + 1, steps + 2) if lag else (steps + 1,):
            self._fresh.setdefault(step, []).append(holder)
        self._newest = steps + 1

    def leave(self, holder: Holder) -> None:
        """Let a holder decode no longer."""
        kept: Kept = holder.kv
        if kept.settled:
            self._stop_all(holder)
        else:
            for at in kept.turns:
                self._unsettled[at].pop(holder, None)
        for holders in self._fresh.values():
            if holder in holders:
                holders.remove(holder)
        turn = opening_step(holder.base, self.size)
        self._takes[turn] -= 1
        del self._taking[turn][holder]
        self._count -= 1

    def unsettle(self, holder: Holder) -> None:
        """From now on look what a settled holder gives back."""
        self._stop_all(holder)
        for at in holder.kv.turns:
            self._unsettled[at][holder] = None

    # Steps

    def pass_one(self) -> None:
        """Note that a step was taken in which every holder was looked at."""
        step = self.memory.steps
        self._fresh.pop(step, None)
        self._change(step)

    def grow(self, steps: int, changes: list[tuple[int, ...]]) -> int:
        """Let all holders give back and take what they do in the next steps.

        Args:
            steps: how many.
            changes: what is appended to after each step in which there was something: see `take_changes`.

        Returns:
            The blocks that are to be evicted, which count as cached no more.
        """
        memory, free, held, size, takes = self.memory, self.free, self.held, self.size, self._takes
        unsettled, fresh, until, starting = self._unsettled, self._fresh, self._until, self._starting
        windows = [(store, store.gives, store.passes) for _, store in self.windows]
        groups, evicted = len(held), 0
        for step in range(memory.steps + 1, memory.steps + steps + 1):
            memory.steps = step
            turn = step % size
            holders, given, passed = takes[turn], 0, 0
            for store, gives, passes in windows:
                back = gives[turn] + passes[turn]
                if back:
                    passing = passes[turn] * store.groups
                    passed += passing
                    given += back * store.groups - passing
                    for group in store.numbers:
                        held[group] -= back
            looked_at = _NOTHING
            if unsettled[turn] or step in fresh:
                looked_at = self._look_at_all(step)
            elif not (holders or given or passed):
                if step in until or step in starting:
                    self._change(step)
                continue
            for group in range(groups):
                held[group] += holders
            released, taken, blank = given, holders * groups, free.blank
            if looked_at:
                released += sum(looked_at.values())
            if taken > blank:
                lost = self._evicted_in_turn(turn, looked_at) if released else taken - blank
                evicted += lost
                blank += lost
                free.cached -= lost
            free.blank = blank + released - taken
            free.cached += passed
            if step in until or step in starting:
                self._change(step)
            changes.append((step, free.cached, *held))
        return evicted

    # Inside

    def _look_at_all(self, step: int) -> dict[Holder, int]:
        """Let unsettled holders give back what they do in a step; return what of it cannot be found."""
        due = {**self._unsettled[step % self.size], **dict.fromkeys(self._fresh.pop(step, ()))}
        looked_at: dict[Holder, int] = {}
        free = self.free
        for holder in sorted(due, key=lambda holder: holder.order) if len(due) > 1 else due:
            if not holder.kv.settled:
                free.at = step * STEP + holder.order
                looked_at[holder] = self._look_at(holder, step)
        free.let_pass(step)
        return looked_at

    def _look_at(self, holder: Holder, step: int) -> int:
        """Let an unsettled holder give back what it does in a step; return what cannot be found."""
        before, lag = holder.base + step - 1, self.memory.lag
        settles = holder.in_flight == lag
        processed, holder.in_flight = before - holder.in_flight, lag
        kept: Kept = holder.kv
        blank = 0
        for place, store in self.windows:
            table = kept.tables[place]
            end = store.released(processed)
            if end > table.gone:
                blank += store.give_back(table, end)
            settles = (
                settles
                and table.gone == end
                and (kept.content is None or table.passed >= table.decided)
                and (not table.pieces or store.index.can_pass(table))
            )
        if settles:
            kept.settled = True
            for at in kept.turns:
                self._unsettled[at].pop(holder, None)
            for number in range(len(kept.firsts)):
                self._go_on(holder, number)
        return blank

    def _go_on(self, holder: Holder, number: int) -> None:
        """Count what a window gives back from the first place on that is not gone, as long as it is alike."""
        kept: Kept = holder.kv
        place, store = self.windows[number]
        table: WindowTable = kept.tables[place]
        size, pieces, gone, first = self.size, table.pieces, table.gone, kept.firsts[number]
        if first + gone * size > self.memory.steps + size:
            self._note(self._starting, first + (gone - 1) * size, holder, number)
            return
        counted = store.gives
        if pieces:
            piece = pieces[0]
            last = piece.start - 1
            if piece.start == gone:
                piece.since = first * STEP + holder.order
                self.free.push_passing(piece)
                counted = store.passes
                last = gone + piece.count - 1
            self._note(self._until, first + last * size, holder, number)
        kept.counted[number] = counted
        counted[first % size] += 1

    def _note(self, changes: dict[int, list[Change]], step: int, holder: Holder, number: int) -> None:
        """Note that after a step a settled holder gives back something else."""
        kept: Kept = holder.kv
        change = (holder, kept, kept.settlings, number)
        if step in changes:
            changes[step].append(change)
        else:
            changes[step] = [change]

    def _change(self, step: int) -> None:
        """Go on where after a step a settled holder does not give back what it did."""
        for changes in (self._until, self._starting):
            for holder, kept, settlings, number in changes.pop(step, ()):
                if holder.kv is kept and kept.settlings == settlings:
                    self._stop(holder, number)
                    self._go_on(holder, number)

    def _stop(self, holder: Holder, number: int) -> None:
        """Count no longer what a window gives back."""
        kept: Kept = holder.kv
        place, store = self.windows[number]
        table: WindowTable = kept.tables[place]
        counted = kept.counted[number]
        table.gone = self.gone(holder, number)
        if counted is None:
            return
        counted[kept.firsts[number] % self.size] -= 1
        if counted is store.passes:
            store.index.stop_passing(table)
        kept.counted[number] = None

    def _stop_all(self, holder: Holder) -> None:
        kept: Kept = holder.kv
        for number in range(len(kept.firsts)):
            self._stop(holder, number)
        kept.settled = False
        kept.settlings += 1

    def _evicted_in_turn(self, turn: int, looked_at: dict[Holder, int]) -> int:
        """Return the blocks that are evicted in a step.

        One after the other, holders give back, then take; what cannot be found is taken first.

        Args:
            turn: the step, modulo the block size.
            looked_at: unsettled holders, with what they give back that cannot be found.
        """
        given = dict(looked_at)
        for number, (_, store) in enumerate(self.windows):
            if store.gives[turn]:
                # Those that take a block as they are of this length:
                opens = (turn + 1 - store.window - self.memory.lag) % self.size
                for holder in self._taking[opens]:
                    if holder.kv.counted[number] is store.gives and holder not in looked_at:
                        given[holder] = given.get(holder, 0) + store.groups
        taking, blank, evicted = self._taking[turn], self.free.blank, 0
        for holder in sorted({**given, **taking}, key=lambda holder: holder.order):
            blank += given.get(holder, 0)
            if holder in taking:
                blank -= len(self.held)
                if blank < 0:
                    evicted -= blank
                    blank = 0
        return evicted
