"""Tree history: token pool usage by a radix tree, and what SGLang's admission depends on, over time."""

from __future__ import annotations

from array import array
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from pagesim.kvcache.radix import RadixManager, StateRadixManager, WindowedRadixManager
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.observer import FastForward, Observer
from pagesim.scheduling.sglang import Sglang

COUNTS = (
    *("ticks", "iterations", "blank", "evictable", "protected", "own"),
    *("holders", "evicted", "retracted", "is_full"),
)


WINDOW_COUNTS = ("window_blank", "window_evictable", "window_protected", "window_own", "tombstones")
"""Counts of the sliding-window layers' pool, if they have their own."""

STATE_COUNTS = ("state_blank", "state_evictable", "state_protected", "state_own")
"""Counts of the pool of recurrent states, in slots, if there is one."""


class TreeHistory(Observer):
    """Records the usage of token slots in every planned iteration and at the end of every fast-forward.

    A token slot is *blank*, *evictable* (in the tree, held by no request), *protected* (in the tree and held
    by a request) or *own* (held by a request outside the tree). The four sum to the capacity. The pools of
    sliding-window layers and of states have the same four counts, which sum to their own capacities.
    *Tombstones* are tokens of the tree that have no slot in the window layers' pool.
    """

    def __init__(self) -> None:
        self._counts = array("q")
        self._windows = array("q")
        self._states = array("q")
        self._ratios = array("d")
        self._evicted = 0
        self._retracted = 0

    def begun(self, scheduler: Scheduler) -> None:
        self._scheduler = cast(Sglang, scheduler)

    def departed(self, batch: Batch, now: int) -> None:
        self._retracted += len(batch.recomputed)

    def planned(self, batch: Batch, now: int, start: int, ticks: int) -> None:
        self._note(start, 1)

    def advanced(self, run: FastForward) -> None:
        last = run.end - (run.first + run.increment * (run.steps - 1))
        self._note(last, run.steps)

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Return a column for each count and for the new-token ratio, ``[I]`` each.

        A row is a planned iteration, or the last of the ``iterations`` iterations of a fast-forward.
        """
        table = np.array(self._counts, np.int64).reshape(-1, len(COUNTS))
        windows = np.array(self._windows, np.int64).reshape(-1, len(WINDOW_COUNTS))
        states = np.array(self._states, np.int64).reshape(-1, len(STATE_COUNTS))
        return {
            **dict(zip(COUNTS, table.T, strict=True)),
            **(dict(zip(WINDOW_COUNTS, windows.T, strict=True)) if len(windows) else {}),
            **(dict(zip(STATE_COUNTS, states.T, strict=True)) if len(states) else {}),
            "new_token_ratio": np.array(self._ratios, np.float64),
        }

    def _note(self, ticks: int, iterations: int) -> None:
        scheduler = self._scheduler
        memory = scheduler.memory
        assert isinstance(memory, RadixManager)
        tree, page = memory.tree, memory.block_size
        blank = memory.available_blocks * page
        own = memory.num_blocks * page - blank - tree.evictable - tree.protected
        # fmt: off
        self._counts.fromlist([
            ticks, iterations, blank, tree.evictable, tree.protected, own, len(scheduler.running),
            memory.evicted - self._evicted, self._retracted, int(scheduler.running_batch.batch_is_full),
        ])
        # fmt: on
        if isinstance(memory, WindowedRadixManager):
            blank = memory.available_window_blocks * page
            windows = memory.tree
            live = windows.window_tokens
            own = memory.windows.num_blocks * page - blank - live
            dead = windows.evictable + windows.protected - live
            self._windows.fromlist([blank, windows.window_evictable, windows.window_protected, own, dead])
        if isinstance(memory, StateRadixManager):
            evictable, protected = memory.tree.evictable_states, memory.tree.protected_states
            self._states.fromlist([memory.free_states, evictable, protected, memory.own_states])
        self._ratios.append(scheduler.new_token_ratio.current)
        self._evicted, self._retracted = memory.evicted, 0
