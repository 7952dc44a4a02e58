"""Turnover: what requests take and give back where none finds another's blocks, worked out long afterwards.

Which free block is taken next then matters for one number only: how many of them can still be found. Those
that cannot be found are taken first. So what is evicted follows from the order in which blocks are taken and
given back, and that order is known: between steps it is noted, and in steps it follows from the lengths. What
windows give back follows from the tokens that have run, so these are noted, and not the blocks.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import groupby
from struct import Struct
from typing import Final

import numpy as np
import numpy.typing as npt

from pagesim.kvcache.groups import KVGroup, SlidingWindow
from pagesim.kvcache.holder import Holder
from pagesim.kvcache.hybrid.blocks import Blocks
from pagesim.kvcache.hybrid.kinds import Setting, WindowGroup
from pagesim.setup.compiled import mypyc_attr

Numbers = npt.NDArray[np.int64]

_LOGGED: Final = 7
"""Numbers in a row of the log."""

_STINT: Final = 9
"""Numbers in a row of what decoding holders did."""

_pack_logged = Struct(f"{_LOGGED}q").pack
_pack_stint = Struct(f"{_STINT}q").pack

_MOST_NOTED = 1 << 19
"""Numbers of the log that are kept to be counted together: so memory stays bounded."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Windows:
    """Neighbouring groups of one window.

    Attributes:
        number: which of these they are, counted from 0.
        first: which of the memory's groups is the first.
        groups: how many they are.
        kind: the rule of each.
    """

    __slots__ = ("_window", "first", "groups", "kind", "number", "size")

    def __init__(self, number: int, first: int, kind: WindowGroup, groups: int) -> None:
        self.number = number
        self.first = first
        self.groups = groups
        self.kind = kind
        self.size = kind.size
        assert isinstance(kind.group.rule, SlidingWindow)
        self._window = kind.group.rule.window

    def released(self, processed: Numbers) -> Numbers:
        """Return the leading blocks that no token after the first so many attends to."""
        return np.maximum(processed - self._window + 1, 0) // self.size

    def processed_at(self, places: Numbers) -> Numbers:
        """Return after how many tokens a block is not attended to any more, by its place."""
        return (places + 1) * self.size + self._window - 1

    def findable(self, prompt: Numbers) -> tuple[Numbers, Numbers]:
        """Return which places can be found, once they are full, of holders of such prompts: from, and to."""
        last = (prompt - 1) // self.size
        return np.maximum(last - self.kind.contiguous, 0), last


@mypyc_attr(allow_interpreted_subclasses=True)
class Life:
    """What is kept of a holder.

    Attributes:
        holder: see there.
        prompt: tokens of its prompt; 1 if nothing of it can ever be found.
        registered: leading blocks of which it is decided whether they can be found.
        processed: tokens that had run when its windows gave back last.
        since: while it decodes, the steps that had been taken when it began to; else -1.
        noted: the last of its steps that was noted.
        first: tokens that had run when its windows gave back in its first step; -1 before that.
        given: what its windows gave back: ``processed`` before and after, and ``registered``; and if that was
            between steps, after how many, the place of that in the order of all such things, and twice 0; if
            in steps, the base of the holder, ``since`` and ``first``, and 1.
    """

    __slots__ = ("first", "given", "holder", "noted", "processed", "prompt", "registered", "since")

    def __init__(self, holder: Holder, prompt: int, registered: int) -> None:
        self.holder = holder
        self.prompt = prompt
        self.registered = registered
        self.processed = 0
        self.since = self.noted = self.first = -1
        self.given: list[Given] = []


Given = tuple[int, int, int, int, int, int, int]
"""See `Life.given`."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Turnover:
    """Notes what is taken and given back, and counts later what of the free blocks can be found.

    Args:
        num_blocks: on the device, all free.
        groups: of full attention and windows, in blocks of one size.
        setting: see there.

    Attributes:
        windows: what these groups have of windows, neighbouring ones together.
        lives: of the holders.
        kept: of former holders some blocks of which may be found, in the order in which they ended.
        ended: of each of these, as of `settle`, after how many steps, and the place of that in the order of
            all that happened between steps, ``[2, K]``.
        cached: free blocks that can be found, as of `settle`.
        lag: steps in flight.
        log: rows of what happened between steps: after how many; blocks taken in each group; if a holder gave
            everything back, its blocks, else 0; its ``registered`` and ``prompt``; and its ``processed``
            before and after.
        marks: pairs of the steps taken when the cached blocks were asked for, and the length of the log.
    """

    __slots__ = (
        "_blank",
        "_changes",
        "_full",
        "_groups",
        "_kept_pushed",
        "_pushed",
        "_rows",
        "_size",
        "_step",
        "_stints",
        "_times",
        "cached",
        "ended",
        "kept",
        "lag",
        "lives",
        "log",
        "marks",
        "windows",
    )

    def __init__(self, num_blocks: int, groups: Sequence[KVGroup], setting: Setting) -> None:
        self.windows: list[Windows] = []
        first = 0
        for rule, alike in groupby(groups, key=lambda group: group.rule):
            own = list(alike)
            if isinstance(rule, SlidingWindow):
                kind = WindowGroup(first, len(groups), own[0], Blocks(0), setting)
                self.windows.append(Windows(len(self.windows), first, kind, len(own)))
            first += len(own)
        self._groups = len(groups)
        self._full = len(groups) - sum([each.groups for each in self.windows])
        self._size = groups[0].block_size
        self.lag = 0
        self.lives: dict[Holder, Life] = {}
        self.kept: list[Life] = []
        self.ended: Numbers = np.zeros((2, 0), np.int64)
        self._kept_pushed: Numbers = np.zeros(0, np.int64)  # see ``_pushed``, at the end of each of ``kept``
        self.log = array("q")
        # Rows of steps in which a holder decodes: base, order, since, the step before the first, the last;
        # its ``processed`` before, with its first step, and after; and its prompt.
        self._stints = array("q")
        self.marks = array("q")
        self._times = 0  # rows of the log that were settled
        # As of the last time that this was settled, after so many steps:
        self._step = 0
        self._blank = num_blocks
        self.cached = 0
        self._pushed = 0  # blocks given back that can be found
        self._rows: list[Numbers] = []
        self._changes: list[Numbers] = []

    # What happens between steps

    def begin(self, holder: Holder, steps: int) -> None:
        """Note that a new holder has blocks for its tokens, after so many steps."""
        tokens, size = holder.tokens, self._size
        if holder.content is None:
            life = Life(holder, 1, 0)
        else:
            life = Life(holder, holder.prompt, (tokens - holder.unknown) // size)
        self.lives[holder] = life
        self.log.frombytes(_pack_logged(steps, -(-tokens // size), 0, 0, 1, 0, 0))

    def take(self, holder: Holder, steps: int, blocks: int) -> None:
        """Note that a resting holder took so many blocks in each group; its tokens are those with them."""
        if blocks:
            self.log.frombytes(_pack_logged(steps, blocks, 0, 0, 1, 0, 0))
        self.register(holder, holder.tokens)

    def register(self, holder: Holder, length: int) -> None:
        """Note that those blocks of a holder of this length can be found that are full and known."""
        self._register(self.lives[holder], length)

    def trim(self, holder: Holder, steps: int) -> None:
        """Note what a resting holder gives back that goes on."""
        life = self.lives[holder]
        before, after = life.processed, holder.tokens - holder.in_flight
        if after > before:
            life.processed = after
            at = self._times + len(self.log) // _LOGGED
            life.given.append((before, after, life.registered, steps, at, 0, 0))
            self.log.frombytes(_pack_logged(steps, 0, 0, life.registered, life.prompt, before, after))

    def release(self, holder: Holder, steps: int, length: int) -> bool:
        """Note that a holder of this length gives everything back.

        Returns:
            Whether something of it can be found.
        """
        life = self.lives.pop(holder)
        registered = self._register(life, length)
        if life.since >= 0 and life.noted < steps:
            self._note(life, steps)
        if registered:
            self.kept.append(life)
        blocks, processed = -(-length // self._size), life.processed
        log = self.log
        log.frombytes(_pack_logged(steps, 0, blocks, registered, life.prompt, processed, processed))
        if len(log) > _MOST_NOTED:
            self.settle(steps)
        return registered > 0

    # Steps

    def start(self, holder: Holder, steps: int) -> bool:
        """Note that a holder decodes after so many steps.

        Returns:
            Whether it is known what can be found of its windows: all of its prompt is known.
        """
        life = self.lives[holder]
        life.since = life.noted = steps
        life.first = -1
        return (life.prompt - 1) // self._size <= life.registered or not self.windows

    def stop(self, holder: Holder, steps: int) -> None:
        """Note that a holder decodes no longer."""
        life = self.lives[holder]
        if steps > life.noted:
            self._note(life, steps)
        life.since = -1

    # What comes of it

    def take_rows(self) -> Numbers:
        """Return the cached blocks at each mark, ``[N, 1]``."""
        rows, self._rows = self._rows, []
        return np.concatenate([np.zeros(0, np.int64), *rows])[:, None]

    def take_changes(self) -> Numbers:
        """Return the steps that changed these, and how many there were after each, ``[N, 2]``."""
        changes, self._changes = self._changes, []
        return np.concatenate([np.zeros((0, 2), np.int64), *changes])

    def settle(self, steps: int) -> None:
        """Count what was noted, after so many steps."""
        if steps == self._step and not (self.log or self.marks):
            return
        for life in self.lives.values():
            if life.since >= 0 and life.noted < steps:
                self._note(life, steps)
        log = _rows_of(self.log, _LOGGED)
        logged = log[0] - self._step
        # What happens in a step, holder by holder, and then what happens after it.
        stepped = self._stepped()
        when, given, findable = map(np.concatenate, zip(stepped, self._logged(log), strict=True))
        order = _in_order(when)
        when = when[order]
        # Before the first of them, and after each of them.
        blank, pushed = np.empty(len(when) + 1, np.int64), np.empty(len(when) + 1, np.int64)
        blank[0], pushed[0] = self._blank, 0
        np.cumsum(given[order], out=blank[1:])
        blank[1:] += self._blank
        np.cumsum(findable[order], out=pushed[1:])
        # Blocks that can be found are taken only when there is none left that cannot.
        lost = np.maximum(-np.minimum.accumulate(blank), 0)
        cached = pushed - lost
        cached += self.cached
        marks = np.array(self.marks, np.int64).reshape(-1, 2).T
        steps_at = marks[0] - self._step
        # All that happened up to these steps, but for what was logged later.
        unlogged = np.searchsorted(logged, steps_at, "right") - marks[1] // _LOGGED
        self._rows.append(cached[np.searchsorted(when, steps_at, "right") - unlogged])
        after = order >= len(stepped[0])
        last = ~after
        last[:-1] &= (when[1:] != when[:-1]) | after[1:]
        (ends,) = np.nonzero(last)
        self._changes.append(np.column_stack([when[ends] + self._step, cached[ends + 1]]))
        self._step = steps
        self._blank, self.cached = int(blank[-1] + lost[-1]), int(cached[-1])
        pushed += self._pushed
        self._pushed = int(pushed[-1])
        self._keep(log, pushed[1:][after])
        self._times += log.shape[1]
        for notes in (self.log, self._stints, self.marks):
            del notes[:]

    def given_back_at(self, windows: Windows, places: Numbers, base: int, since: int, first: int) -> Numbers:
        """Return the steps at which a decoding holder gives places back; see `Life`."""
        later = windows.processed_at(places) - base + 1 + self.lag
        at_once = places < windows.released(np.array(first))
        return np.where(at_once, since + 1, np.maximum(later, since + 2))

    # Inside

    def _register(self, life: Life, length: int) -> int:
        """Note that full and known blocks can be found; return of how many leading ones that is decided."""
        holder, registered = life.holder, life.registered
        if holder.content is not None:
            full = (length - holder.unknown) // self._size
            if full > registered:
                life.registered = registered = full
        return registered

    def _note(self, life: Life, steps: int) -> None:
        """Note the steps of a decoding holder up to one."""
        since, holder, before = life.since, life.holder, life.processed
        base = holder.base
        if life.first < 0:
            # Before its first step some of its prompt was in flight.
            first = base + since - holder.in_flight
            life.first = before if before > first else first
        first = after = life.first
        if steps > since + 1:
            later = base + steps - 1 - self.lag
            if later > first:
                after = later
        self._stints.frombytes(
            _pack_stint(base, holder.order, since, life.noted, steps, before, first, after, life.prompt)
        )
        life.given.append((before, after, life.registered, base, since, first, 1))
        life.noted = steps
        life.processed = after

    def _logged(self, log: Numbers) -> _Events:
        """Return what happened between steps, in its order."""
        steps, taken, blocks, registered, prompt, before, after = log
        ends = blocks > 0
        findable = np.where(ends, registered, 0) * self._full
        given = blocks * self._full - findable - taken * self._groups
        for windows in self.windows:
            start, stop = windows.released(before), np.where(ends, blocks, windows.released(after))
            low, high = windows.findable(prompt)
            found = _overlap(start, stop, low, np.minimum(high, registered))
            given += (stop - start - found) * windows.groups
            findable += found * windows.groups
        return steps - self._step, given, findable

    def _stepped(self) -> _Events:
        """Return what holders took and gave back in steps, those that came first first, each in its order."""
        stints = _rows_of(self._stints, _STINT)
        stints = stints[:, np.argsort(stints[1], kind="stable")]
        stints[2:5] -= self._step
        base, _, since, begin, end, before, first, after, prompt = stints
        base += self._step
        size, lag = self._size, self.lag
        # Of each kind of events when a holder has the first, how many there are, a block size of steps apart,
        # and what each one gives back that cannot be found, and that can.
        events: list[tuple[Numbers, Numbers, Numbers, Numbers]] = []
        found_later: list[tuple[int, Numbers, Numbers, int]] = []
        nothing = np.zeros(len(base), np.int64)
        for windows in self.windows:
            start, stop, groups = windows.released(before), windows.released(after), windows.groups
            low, high = windows.findable(prompt)
            # What is given back with the first step, and the second, may be much at once.
            lasts = [(since + 1, windows.released(first))]
            if lag:
                lasts.append((since + 2, windows.released(np.maximum(first, base + since + 1 - lag))))
            for step, last in lasts:
                until = np.minimum(np.maximum(last, start), stop)
                found = _overlap(start, until, low, high)
                some = np.minimum(until - start, 1)
                events.append((step, some, (until - start - found) * groups, found * groups))
                start = until
            skipped, found = np.maximum(low - start, 0), _overlap(start, stop, low, high)
            found_later.append((len(events), skipped, found, groups))
            steps = windows.processed_at(start) - base + 1 + lag
            events.append((steps, stop - start, nothing + groups, nothing))
        # A block is taken with the token behind a multiple of the block size.
        places = (begin - 1 + base) // size + 1
        taken = (end - 1 + base) // size + 1 - places
        events.append((1 - base + places * size, taken, nothing - self._groups, nothing))
        steps, counts, given, findable = [
            np.stack(each, axis=1).ravel() for each in zip(*events, strict=True)
        ]
        before_them = np.cumsum(counts) - counts
        when = np.repeat(steps - before_them * size, counts)
        when += np.arange(len(when)) * size
        given, findable = np.repeat(given, counts), np.repeat(findable, counts)
        before_them = before_them.reshape(-1, len(events))
        for kind, skipped, found, groups in found_later:
            which = np.repeat(before_them[:, kind] + skipped, found) + _places(found)
            given[which] = 0
            findable[which] = groups
        return when, given, findable

    def _keep(self, log: Numbers, pushed: Numbers) -> None:
        """Keep of former holders those of which something may be found.

        Args:
            log: see there.
            pushed: blocks that could be found and were given back, by all, with each of its rows.
        """
        (ends,) = np.nonzero((log[2] > 0) & (log[3] > 0))
        ended = np.concatenate([self.ended, [log[0, ends], ends + self._times]], axis=1)
        kept_pushed = np.concatenate([self._kept_pushed, pushed[ends]])
        # What is free and can be found was given back last.
        gone = int(np.searchsorted(kept_pushed, self._pushed - self.cached, "right"))
        del self.kept[:gone]
        self.ended, self._kept_pushed = ended[:, gone:], kept_pushed[gone:]


_Events = tuple[Numbers, Numbers, Numbers]
"""Of events their steps, the blocks given back that cannot be found, fewer than 0 for taken, and that can."""


def _rows_of(notes: array[int], width: int) -> Numbers:
    """Return the columns of rows that were noted one after another, ``[width, N]``."""
    return np.ascontiguousarray(np.array(notes, np.int64).reshape(-1, width).T)


def _in_order(steps: Numbers) -> npt.NDArray[np.intp]:
    """Return the places of events by their steps, from 0 on; those of a step stay as they are."""
    short = not len(steps) or int(steps.max()) < 1 << 16
    return np.argsort(steps.astype(np.uint16) if short else steps, kind="stable")  # short ones by radix


def _overlap(start: Numbers, stop: Numbers, low: Numbers, high: Numbers) -> Numbers:
    """Return how many places from one to another are among those from a low one to a high one."""
    found: Numbers = np.maximum(np.minimum(stop, high) - np.maximum(start, low), 0)
    return found


def _places(counts: Numbers) -> Numbers:
    """Return for ``counts[i]`` things of each i which of its things each is, from 0."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
