"""Replicas: what a router may know of the engines when a request arrives."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pagesim.sim.clock import steps_before

Column = npt.NDArray[np.int64]


class ReplicaState(NamedTuple):
    """What an engine does until its next decision.

    Attributes:
        held: tokens that its sequences hold in the planned iteration.
        start: when that iteration ends, in ticks.
        run: the fast-forward that follows: number of steps, ticks of the first, increase in ticks per step,
            and tokens held in the first.
        sequences: number of running sequences, each of which gains one token per step of ``run``.
    """

    held: int
    start: int
    run: tuple[int, int, int, int]
    sequences: int

    def tokens_at(self, now: int) -> int:
        """Return the tokens held in the current iteration; one that ends now is still current."""
        steps, first, increment, context = self.run
        begun = steps_before(first or 1, increment, now - self.start) if steps and self.sequences else 0
        return context + (begun - 1) * self.sequences if begun else self.held


class Replicas:
    """The engines of a cluster, as columns over replicas, ``[R]``.

    Args:
        count: number of engines.

    Attributes:
        outstanding: unfinished requests that were routed to each engine.
        waiting_tokens: prompt tokens of those requests that have never run.
        ask: functions that return an engine's state, by engine.
    """

    def __init__(self, count: int) -> None:
        self.outstanding: Column = np.zeros(count, np.int64)
        self.waiting_tokens: Column = np.zeros(count, np.int64)
        self.ask: dict[int, Callable[[], ReplicaState]] = {}

    def __len__(self) -> int:
        return len(self.outstanding)

    def kv_tokens(self, now: int) -> Column:
        """Return the tokens whose keys and values each engine holds in the current iteration, ``[R]``.

        An iteration that ends now is still current: a request that arrives now is routed before it ends.
        """
        tokens: Column = np.zeros(len(self), np.int64)
        for replica, ask in self.ask.items():
            tokens[replica] = ask().tokens_at(now)
        return tokens
