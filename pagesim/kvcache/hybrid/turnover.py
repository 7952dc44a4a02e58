"""Turnover: what requests take and give back where none finds another's blocks, worked out long afterwards.

Which free block is taken next then matters for one number only: how many of them can still be found. Those
that cannot be found are taken first. So what is evicted follows from the order in which blocks are taken and
given back, and that order is known: between steps it is noted, and in steps it follows from the lengths.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt

from pagesim.kvcache.groups import KVGroup, SlidingWindow
from pagesim.kvcache.holder import Holder
from pagesim.kvcache.hybrid.blocks import Blocks
from pagesim.kvcache.hybrid.kinds import Setting, WindowGroup
from pagesim.setup.compiled import mypyc_attr

Numbers = npt.NDArray[np.int64]

_ORDERS = 40
"""Bits for the order of what happens in a step, or after one."""


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

    def released(self, processed: int) -> int:
        """Return the leading blocks that no token after the first so many attends to."""
        skipped = processed - self._window + 1
        return skipped // self.size if skipped > 0 else 0

    def released_of(self, processed: Numbers) -> Numbers:
        """Return the same of many."""
        return np.maximum(processed - self._window + 1, 0) // self.size

    def processed_at(self, places: Numbers) -> Numbers:
        """Return after how many tokens a block is not attended to any more, by its place."""
        return (places + 1) * self.size + self._window - 1


@mypyc_attr(allow_interpreted_subclasses=True)
class Life:
    """What is kept of a holder.

    Attributes:
        holder: see there.
        registered: leading blocks of which it is decided whether they can be found.
        spans: of each of the `Windows` which places can be found once they are full, from one to another.
        gone: of each the leading places without a block.
        since: while it decodes, the steps that had been taken when it began to; else -1.
        noted: the last of its steps that was noted.
        first: of each of the `Windows` the places that are gone with its first step; empty before that.
        given: places that can be found and were given back: the number of the `Windows`, from which to which;
            and if that was between steps, after how many, the place of that in the order of all such things,
            and twice 0; if in steps, the base of the holder, ``since`` and ``first``, and 1.
        released: after how many steps it gave everything back, and the place of that in that order.
        pushed: blocks that could be found and were given back up to then, by all.
        dropped: those of them that former holders had up to their end.
    """

    __slots__ = (
        "dropped",
        "first",
        "given",
        "gone",
        "holder",
        "noted",
        "pushed",
        "registered",
        "released",
        "since",
        "spans",
    )

    def __init__(self, holder: Holder, spans: Sequence[tuple[int, int]], registered: int) -> None:
        self.holder = holder
        self.spans = spans
        self.registered = registered
        self.gone = [0] * len(spans)
        self.since = self.noted = -1
        self.first: list[int] = []
        self.given: list[Given] = []
        self.pushed = self.dropped = 0
        self.released = (0, 0)


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
        kept: of former holders some blocks of which may be found.
        cached: free blocks that can be found, as of `settle`.
        lag: steps in flight.
        log: rows of what happened between steps: after how many; blocks taken in each group; given back in
            each group of full attention, and how many of these can be found; likewise of the windows.
        marks: pairs of the steps taken when the cached blocks were asked for, and the length of the log.
    """

    __slots__ = (
        "_blank",
        "_blocks",
        "_changes",
        "_dropped",
        "_full",
        "_groups",
        "_nothing",
        "_pushed",
        "_rows",
        "_size",
        "_step",
        "_stints",
        "_times",
        "_width",
        "cached",
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
        self.kept: deque[Life] = deque()
        self.log = array("q")
        self._width = 4 + 2 * len(self.windows)
        self._nothing = (0,) * (2 + 2 * len(self.windows))
        # Rows of steps in which a sequence decodes: base, order, since, the step before the first, the last;
        # and of windows the places given back, from which to which, `Life.first`, and which can be found.
        self._stints = array("q")
        self.marks = array("q")
        self._dropped = 0  # blocks that could be found and were given back by holders at their end
        self._times = 0  # rows of the log that were settled
        # As of the last time that this was settled, after so many steps:
        self._step = 0
        self._blank = self._blocks = num_blocks
        self.cached = 0
        self._pushed = 0  # blocks given back that can be found
        self._rows: list[Numbers] = []
        self._changes: list[Numbers] = []

    # What happens between steps

    def begin(self, holder: Holder, steps: int) -> None:
        """Note that a new holder has blocks for its tokens, after so many steps."""
        tokens, size = holder.tokens, self._size
        if holder.content is None:
            life = Life(holder, [(0, 0)] * len(self.windows), 0)
        else:
            spans: list[tuple[int, int]] = []
            for windows in self.windows:
                spans += windows.kind.wanted(holder)
            life = Life(holder, spans, (tokens - holder.unknown) // size)
        self.lives[holder] = life
        self.log.fromlist([steps, -(-tokens // size), *self._nothing])

    def take(self, life: Life, steps: int, blocks: int) -> None:
        """Note that a resting holder took so many blocks in each group; its tokens are those with them."""
        if blocks:
            self.log.fromlist([steps, blocks, *self._nothing])
        self.register(life, life.holder.tokens)

    def register(self, life: Life, length: int) -> None:
        """Note that those blocks of a holder of this length can be found that are full and known."""
        holder = life.holder
        if holder.content is not None:
            full = (length - holder.unknown) // self._size
            if full > life.registered:
                life.registered = full

    def trim(self, life: Life, steps: int) -> None:
        """Note what a resting holder gives back that goes on."""
        holder, row = life.holder, [steps, 0, 0, 0]
        for windows, gone in zip(self.windows, life.gone, strict=True):
            number, end = windows.number, max(gone, windows.released(holder.tokens - holder.in_flight))
            low, high = life.spans[number]
            low, high = max(low, gone), min(high, life.registered, end)
            row += end - gone, max(0, high - low)
            if low < high:
                at = self._times + len(self.log) // self._width
                life.given.append((number, low, high, steps, at, 0, 0))
            life.gone[number] = end
        if any(row[4:]):
            self.log.fromlist(row)

    def release(self, life: Life, steps: int, length: int) -> None:
        """Note that a holder of this length gives everything back."""
        holder, size = life.holder, self._size
        if life.since >= 0:
            self.stop(life, steps)
        end, registered = -(-length // size), life.registered
        if holder.content is not None:
            full = (length - holder.unknown) // size
            if full > registered:
                life.registered = registered = full
        row = [steps, 0, end, registered]
        pushed = registered * self._full
        for windows in self.windows:
            low, high = life.spans[windows.number]
            gone = life.gone[windows.number]
            if high > registered:
                high = registered
            if low < gone:
                low = gone
            findable = high - low if high > low else 0
            pushed += findable * windows.groups
            row += end - gone, findable
        if registered:
            life.released = steps, self._times + len(self.log) // self._width
            self._dropped = life.dropped = self._dropped + pushed
            kept, most = self.kept, self._blocks
            kept.append(life)
            # What is free and can be found was given back last.
            while self._dropped - kept[0].dropped >= most:
                kept.popleft()
        self.log.fromlist(row)
        del self.lives[holder]

    # Steps

    def start(self, holder: Holder, steps: int) -> bool:
        """Note that a holder decodes after so many steps.

        Returns:
            Whether it is known what can be found of its windows: all of its prompt is known.
        """
        life = self.lives[holder]
        life.since = life.noted = steps
        life.first = []
        known = life.registered
        for _, last in life.spans:  # noqa: SIM110 (in half the time)
            if last > known:
                return False
        return True

    def stop(self, life: Life, steps: int) -> None:
        """Note that a holder decodes no longer."""
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
        for life in self.lives.values():
            if life.since >= 0 and life.noted < steps:
                self._note(life, steps)
        log = np.array(self.log, np.int64).reshape(-1, self._width).T
        at = self._keys(log[0], 1, np.arange(log.shape[1]))
        keys, given, findable = map(np.concatenate, zip(self._logged(log, at), *self._stepped(), strict=True))
        order = np.argsort(keys)
        keys = keys[order]
        # Before the first of them, and after each of them.
        blank, pushed = np.zeros(len(keys) + 1, np.int64), np.zeros(len(keys) + 1, np.int64)
        np.cumsum(given[order], out=blank[1:])
        np.cumsum(findable[order], out=pushed[1:])
        blank += self._blank
        # Blocks that can be found are taken only when there is none left that cannot.
        lost = np.maximum(-np.minimum.accumulate(blank), 0)
        cached = pushed - lost
        cached += self.cached
        marks = np.array(self.marks, np.int64).reshape(-1, 2)
        self._rows.append(
            cached[np.searchsorted(keys, self._keys(marks[:, 0], 1, marks[:, 1] // self._width))]
        )
        when = keys >> _ORDERS
        last = np.flatnonzero(np.diff(when, append=-1))
        last = last[when[last] & 1 == 0]
        self._changes.append(np.column_stack([(when[last] >> 1) + self._step, cached[last + 1]]))
        self._step = steps
        self._blank, self.cached = int(blank[-1] + lost[-1]), int(cached[-1])
        self._keep(self._pushed + pushed[np.searchsorted(keys, at, "right")], self._pushed + int(pushed[-1]))
        self._times += log.shape[1]
        for notes in (self.log, self._stints, self.marks):
            del notes[:]

    def given_back_at(self, windows: Windows, places: Numbers, base: int, since: int, first: int) -> Numbers:
        """Return the steps at which a decoding holder gives places back; see `Life.given`."""
        later = windows.processed_at(places) - base + 1 + self.lag
        return np.where(places < first, since + 1, np.maximum(later, since + 2))

    # Inside

    def _keys(self, steps: Numbers, after: int, order: Numbers) -> Numbers:
        """Return numbers in the order in which things happen: in steps, or after them, and there in order."""
        return ((steps - self._step) * 2 + after << _ORDERS) + order

    def _note(self, life: Life, steps: int) -> None:
        """Note the steps of a decoding holder up to one."""
        since, holder, gone, lag = life.since, life.holder, life.gone, self.lag
        base, known = holder.base, life.registered
        row = [base, holder.order, since, life.noted, steps]
        life.noted = steps
        firsts = life.first
        if not firsts:
            # Before its first step some of its prompt was in flight.
            processed = base + since - holder.in_flight
            for windows in self.windows:
                first, before = windows.released(processed), gone[windows.number]
                firsts.append(before if before > first else first)
        for windows in self.windows:
            number = windows.number
            start, first = gone[number], firsts[number]
            end = first
            if steps > since + 1:
                end = windows.released(base + steps - 1 - lag)
                if end < first:
                    end = first
            low, high = life.spans[number]
            if high > known:
                high = known
            row += start, end, first, low, high
            if start < high and low < end:
                given = number, max(low, start), min(high, end), base, since, first, 1
                life.given.append(given)
            gone[number] = end
        self._stints.fromlist(row)

    def _logged(self, log: Numbers, keys: Numbers) -> _Events:
        """Return what happened between steps."""
        full, back = log[3] * self._full, (log[2] - log[3]) * self._full - log[1] * self._groups
        for windows in self.windows:
            every, findable = log[4 + 2 * windows.number : 6 + 2 * windows.number]
            back += (every - findable) * windows.groups
            full += findable * windows.groups
        return keys, back, full

    def _stepped(self) -> Iterator[_Events]:
        """Yield what happened in steps: what was taken, and what was given back by windows."""
        stints = np.array(self._stints, np.int64).reshape(-1, 5 + 5 * len(self.windows)).T
        base, order, since, begin, end = np.ascontiguousarray(stints[:5])
        order = order * (1 + len(self.windows))
        size = self._size
        stride = size * 2 << _ORDERS
        # A block is taken with the token behind a multiple of the block size.
        first = (begin - 1 + base) // size + 1
        counts = (end - 1 + base) // size + 1 - first
        keys = self._keys(1 - base + first * size, 0, order + len(self.windows))
        keys = np.repeat(keys, counts) + _places(counts) * stride
        yield keys, np.full(len(keys), -self._groups), np.zeros(len(keys), np.int64)
        for windows in self.windows:
            column = 5 + 5 * windows.number
            start, stop, gone, low, high = np.ascontiguousarray(stints[column : column + 5])
            own, groups = order + windows.number, windows.groups
            # What is given back with the first step, and the second, may be much at once.
            for step, last in (
                (since + 1, gone),
                (since + 2, np.maximum(gone, windows.released_of(base + since + 1 - self.lag))),
            ):
                until = np.minimum(np.maximum(last, start), stop)
                some = np.flatnonzero(until > start)
                if len(some):
                    findable = np.maximum(np.minimum(until, high) - np.maximum(start, low), 0)[some]
                    every = (until - start)[some]
                    yield (
                        self._keys(step[some], 0, own[some]),
                        (every - findable) * groups,
                        findable * groups,
                    )
                start = until
            counts = stop - start
            steps = windows.processed_at(start) - base + 1 + self.lag
            keys = np.repeat(self._keys(steps, 0, own), counts) + _places(counts) * stride
            findable = np.zeros(len(keys), np.int64)
            few = np.maximum(np.minimum(stop, high) - np.maximum(start, low), 0)
            before = np.cumsum(counts) - counts + np.maximum(low - start, 0)
            findable[np.repeat(before, few) + _places(few)] = groups
            yield keys, groups - findable, findable

    def _keep(self, pushed: Numbers, all_pushed: int) -> None:
        """Keep of former holders those of which something may be found.

        Args:
            pushed: blocks that could be found and were given back with each row of the log, by all.
            all_pushed: up to now.
        """
        kept = self.kept
        for life in reversed(kept):
            row = life.released[1] - self._times
            if row < 0:
                break
            life.pushed = int(pushed[row])
        self._pushed = all_pushed
        while kept and all_pushed - kept[0].pushed >= self.cached:
            kept.popleft()


_Events = tuple[Numbers, Numbers, Numbers]
"""Of events their keys, the blocks given back that cannot be found, fewer than 0 for taken, and that can."""


def _places(counts: Numbers) -> Numbers:
    """Return for ``counts[i]`` things of each i which of its things each is, from 0."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
