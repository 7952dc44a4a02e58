"""Decoders: what decoding sequences of a counted hybrid cache take and give back, without a look at each."""

from __future__ import annotations

from array import array
from heapq import heappop, heappush
from itertools import accumulate
from typing import Any

from pagesim.kvcache.base import KVCache
from pagesim.kvcache.groups import opening_step
from pagesim.kvcache.holder import Holder
from pagesim.kvcache.hybrid.balance import Balance
from pagesim.kvcache.hybrid.changes import Changes
from pagesim.kvcache.hybrid.free import STEP, FreeBlocks
from pagesim.kvcache.hybrid.piece import WindowTable
from pagesim.kvcache.hybrid.stores import WindowStore
from pagesim.setup.compiled import mypyc_attr

_MANY = 3
"""Steps that are faster passed together than one by one."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Kept:
    """What is kept with a holder.

    Attributes:
        tables: of each store.
        content: of its tokens; None where none of them can be found.
        fresh_until: the last step before which some of its prompt was in flight.
        registered: leading blocks of which the stores were told that they are full.
        settled: whether, while it decodes, what its windows give back follows from its length.
        settlings: how often that ended.
        firsts: while it decodes, of each store of windows the step at which it gives back its first block.
        turns: these, modulo the block size: no settled holder gives anything back at other steps.
        counted: of each of them, while it is settled, where it is counted what it gives back.
    """

    __slots__ = (
        "content",
        "counted",
        "firsts",
        "fresh_until",
        "registered",
        "settled",
        "settlings",
        "tables",
        "turns",
    )

    def __init__(self, tables: list[Any], content: Any, windows: int) -> None:
        self.tables = tables
        self.content = content
        self.registered = self.fresh_until = 0
        self.settled = False
        self.settlings = 0
        self.firsts: list[int] = []
        self.turns: set[int] = set()
        self.counted: list[array[int] | None] = [None] * windows


Change = tuple[Holder, Kept, int, int]
"""A settled holder, what is kept with it, its ``settlings``, and which of the stores of windows."""


@mypyc_attr(allow_interpreted_subclasses=True)
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
        "_balances",
        "_count",
        "_events",
        "_fresh",
        "_newest",
        "_starting",
        "_takes",
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
        # How many take blocks at a step, modulo the block size; and how many blocks that cannot be found
        # these take there, and settled ones give back.
        self._takes = array("q", bytes(8 * size))
        self._balances = [Balance() for _ in range(size)]
        self._count = 0
        # Those that are not settled, by the step, likewise, at which a window gives a block back; and by the
        # step itself, before which some of their prompt was in flight.
        self._unsettled: dict[int, dict[Holder, None]] = {}
        self._fresh: dict[int, list[Holder]] = {}
        # Settled ones, by the step after which what they give back is not what it was; apart if it is nothing
        # until then.
        self._until: dict[int, list[Change]] = {}
        self._starting: dict[int, list[Change]] = {}
        self._events: list[int] = []  # a heap of the steps of these and of the fresh
        self._newest = -1  # the first step of those that began to decode last

    # Questions

    @property
    def taking(self) -> int:
        """The blocks that all take over as many steps as a block has tokens."""
        return self._count * len(self.held)

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
            if blocks <= 0 or turn in self._unsettled:
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
        windows = len(self.windows)
        self._balances[turn].add(holder.order * (windows + 1) + windows, -len(self.held))
        self._count += 1
        kept.firsts = [store.window + lag + size - base for _, store in self.windows]
        kept.turns = {first % size for first in kept.firsts}
        for step in (steps + 1, steps + 2) if lag else (steps + 1,):
            if step not in self._fresh:
                self._fresh[step] = []
                heappush(self._events, step)
            self._fresh[step].append(holder)
            kept.fresh_until = step
        self._newest = steps + 1

    def leave(self, holder: Holder) -> None:
        """Let a holder decode no longer."""
        kept: Kept = holder.kv
        memory = self.memory
        if kept.settled:
            self._stop_all(holder)
        else:
            self._watch_no_more(holder)
        if memory.steps < kept.fresh_until:
            for holders in self._fresh.values():
                if holder in holders:
                    holders.remove(holder)
        turn = opening_step(holder.base, self.size)
        self._takes[turn] -= 1
        windows = len(self.windows)
        self._balances[turn].remove(holder.order * (windows + 1) + windows)
        self._count -= 1

    def unsettle(self, holder: Holder) -> None:
        """From now on look what a settled holder gives back."""
        self._stop_all(holder)
        self._watch(holder)

    # Steps

    def pass_one(self) -> None:
        """Note that a step was taken in which every holder was looked at."""
        step = self.memory.steps
        for holder in self._fresh.pop(step, ()):
            if not holder.kv.settled:
                self._watch(holder)
        self._change(step)

    def grow(self, steps: int, changes: Changes) -> int:
        """Let all holders give back and take what they do in the next steps.

        Args:
            steps: how many.
            changes: where it is noted what they left.

        Returns:
            The blocks that are to be evicted, which count as cached no more.
        """
        memory, evicted = self.memory, 0
        end = memory.steps + steps
        while memory.steps < end:
            last = self._alike_until(end)
            if last - memory.steps >= _MANY:
                evicted += self._pass_alike(last - memory.steps, changes)
            else:
                last = min(end, last + 1)
                while memory.steps < last:
                    evicted += self._pass_one(changes)
        return evicted

    # Inside

    def _alike_until(self, end: int) -> int:
        """Return the last step before one at which holders are looked at, or change; at most an end."""
        now, size, events = self.memory.steps, self.size, self._events
        while events and events[0] <= now:
            heappop(events)
        if events and events[0] <= end:
            end = events[0] - 1
        for turn in self._unsettled:
            end = min(end, now + (turn - now - 1) % size)
        return end

    def _pass_alike(self, steps: int, changes: Changes) -> int:
        """Pass steps in which no holder is looked at; return the blocks that are to be evicted."""
        memory, free, held, size = self.memory, self.free, self.held, self.size
        now = memory.steps
        memory.steps = now + steps
        rounds, rest = divmod(steps, size)
        first = (now + 1) % size
        end = first + rest
        taking = _over(self._takes, first, end, rounds)
        given = passed = 0
        backs: list[tuple[WindowStore, int]] = []
        for _, store in self.windows:
            gives = _over(store.gives, first, end, rounds)
            passes = _over(store.passes, first, end, rounds)
            if gives or passes:
                given += gives * store.groups
                passed += passes * store.groups
                backs.append((store, gives + passes))
        if not (taking or backs):
            return 0
        changes.note_alike(now, steps, free.cached, held, self._takes)
        taken = taking * len(held)
        evicted = self._evict_alike(now, steps, changes) if taken > free.blank else 0
        for group in range(len(held)):
            held[group] += taking
        for store, back in backs:
            for group in store.numbers:
                held[group] -= back
        free.blank += given - taken + evicted
        free.cached += passed - evicted
        return evicted

    def _evict_alike(self, now: int, steps: int, changes: Changes) -> int:
        """Return how many blocks are evicted in such steps: those that are taken when none is blank."""
        blank, size, balances, evicted = self.free.blank, self.size, self._balances, 0
        for step in range(now + 1, now + steps + 1):
            balance = balances[step % size]
            lost = -blank - balance.least
            if lost > 0:
                evicted += lost
                blank += lost
                changes.note_lost(step, lost)
            blank += balance.total
        return evicted

    def _pass_one(self, changes: Changes) -> int:
        """Pass a step; return the blocks that are to be evicted."""
        memory, free, held = self.memory, self.free, self.held
        memory.steps = step = memory.steps + 1
        turn = step % self.size
        holders, given, passed, back = self._takes[turn], 0, 0, 0
        for _, store in self.windows:
            gives, passes = store.gives[turn], store.passes[turn]
            back = gives + passes
            if back:
                given += gives * store.groups
                passed += passes * store.groups
                for group in store.numbers:
                    held[group] -= back
        taken, blank, evicted = holders * len(held), free.blank, 0
        if turn in self._unsettled or step in self._fresh:
            balance = self._balances[turn]
            before = balance.copy() if taken > blank else balance
            looked_at = self._look_at_all(step)
            given += sum(looked_at.values())
            if taken > blank:
                stride = len(self.windows) + 1
                alone = [(holder.order * stride, blocks) for holder, blocks in looked_at.items()]
                evicted = max(0, -blank - before.least_with(alone))
        elif taken > blank:
            evicted = max(0, -blank - self._balances[turn].least)
        if holders:
            for group in range(len(held)):
                held[group] += holders
        free.blank = blank + given - taken + evicted
        free.cached += passed - evicted
        if step in self._until or step in self._starting:
            self._change(step)
        changes.note(step, free.cached, held)
        return evicted

    def _watch(self, holder: Holder) -> None:
        """Look at a holder in each step in which a window may give a block of it back."""
        for turn in holder.kv.turns:
            self._unsettled.setdefault(turn, {})[holder] = None

    def _watch_no_more(self, holder: Holder) -> None:
        """Look at it no longer."""
        for turn in holder.kv.turns:
            holders = self._unsettled.get(turn)
            if holders is not None:
                holders.pop(holder, None)
                if not holders:
                    del self._unsettled[turn]

    def _look_at_all(self, step: int) -> dict[Holder, int]:
        """Let unsettled holders give back what they do in a step; return what of it cannot be found."""
        due = {**self._unsettled.get(step % self.size, {}), **dict.fromkeys(self._fresh.pop(step, ()))}
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
            self._watch_no_more(holder)
            for number in range(len(kept.firsts)):
                self._go_on(holder, number)
        else:
            self._watch(holder)
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
        if counted is store.gives:
            order = holder.order * (len(self.windows) + 1) + number
            self._balances[first % size].add(order, store.groups)

    def _note(self, changes: dict[int, list[Change]], step: int, holder: Holder, number: int) -> None:
        """Note that after a step a settled holder gives back something else."""
        kept: Kept = holder.kv
        change = (holder, kept, kept.settlings, number)
        if step in changes:
            changes[step].append(change)
        else:
            changes[step] = [change]
            heappush(self._events, step)

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
        turn = kept.firsts[number] % self.size
        counted[turn] -= 1
        if counted is store.passes:
            store.index.stop_passing(table)
        else:
            self._balances[turn].remove(holder.order * (len(self.windows) + 1) + number)
        kept.counted[number] = None

    def _stop_all(self, holder: Holder) -> None:
        kept: Kept = holder.kv
        for number in range(len(kept.firsts)):
            self._stop(holder, number)
        kept.settled = False
        kept.settlings += 1


def _over(ring: array[int], first: int, end: int, rounds: int) -> int:
    """Return the sum of a ring over some whole rounds and from one place to another, maybe around its end."""
    blocks = sum(ring[first:end])
    if end > len(ring):
        blocks += sum(ring[: end - len(ring)])
    return blocks + rounds * sum(ring) if rounds else blocks
