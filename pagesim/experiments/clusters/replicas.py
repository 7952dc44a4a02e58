"""Replicas: what a router may know of the engines at the instant at which a request arrives."""

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
        held: tokens that its sequences hold in the iteration that it planned.
        start: ticks at which that ends.
        run: the fast-forward that follows: steps, ticks of the first, how many more each takes than the one
            before, and tokens held in the first.
        sequences: that run, and get a token in each step of it.
    """

    held: int
    start: int
    run: tuple[int, int, int, int]
    sequences: int

    def tokens_at(self, now: int) -> int:
        """Return the tokens that are held in the iteration in progress; one that ends now still is."""
        steps, first, increment, context = self.run
        begun = steps_before(first or 1, increment, now - self.start) if steps and self.sequences else 0
        return context + (begun - 1) * self.sequences if begun else self.held


class Replicas:
    """The engines of a cluster, as columns over replicas, ``[R]``.

    Args:
        count: engines.

    Attributes:
        outstanding: requests that were routed there and are not over.
        waiting_tokens: prompt tokens of those of them that have never run.
        ask: by engine, says what it does.
    """

    def __init__(self, count: int) -> None:
        self.outstanding: Column = np.zeros(count, np.int64)
        self.waiting_tokens: Column = np.zeros(count, np.int64)
        self.ask: dict[int, Callable[[], ReplicaState]] = {}

    def __len__(self) -> int:
        return len(self.outstanding)

    def kv_tokens(self, now: int) -> Column:
        """Return the tokens whose keys and values each engine holds in the iteration in progress, ``[R]``.

        An iteration that ends now is still in progress: what arrives now is routed before it is over.
        """
        tokens: Column = np.zeros(len(self), np.int64)
        for replica, ask in self.ask.items():
            tokens[replica] = ask().tokens_at(now)
        return tokens
