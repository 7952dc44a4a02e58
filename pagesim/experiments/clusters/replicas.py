"""Replicas: what a router may know of the engines at the instant at which a request arrives."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

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


class Replicas:
    """The engines of a cluster, as columns over replicas, ``[R]``.

    An engine that fast-forwards does not say what it does at each instant. It says from when on it does, how
    long the steps take and how many tokens they add; what it holds at an instant follows.

    Args:
        count: engines.

    Attributes:
        outstanding: requests that were routed there and are not over.
        waiting_tokens: prompt tokens of those of them that have never run.
        changed: engines that have decided something since they were last asked.
        ask: what tells it, by engine.
    """

    def __init__(self, count: int) -> None:
        self.outstanding: Column = np.zeros(count, np.int64)
        self.waiting_tokens: Column = np.zeros(count, np.int64)
        self.changed: set[int] = set()
        self.ask: dict[int, Callable[[], ReplicaState]] = {}
        # Of the iteration that is planned or was last, and of the fast-forward that follows it.
        self._held = np.zeros(count, np.int64)
        self._start = np.zeros(count, np.int64)
        self._first = np.ones(count, np.int64)
        self._increment = np.zeros(count, np.int64)
        self._context = np.zeros(count, np.int64)
        self._sequences = np.zeros(count, np.int64)

    def __len__(self) -> int:
        return len(self.outstanding)

    def _hear(self, replica: int) -> None:
        """Ask an engine what it does."""
        held, start, (steps, first, increment, context), sequences = self.ask[replica]()
        self._held[replica] = held
        self._start[replica] = start
        self._first[replica] = first or 1
        self._increment[replica] = increment
        self._context[replica] = context
        self._sequences[replica] = sequences if steps else 0

    def kv_tokens(self, now: int) -> Column:
        """Return the tokens whose keys and values each engine holds in the iteration in progress, ``[R]``.

        An iteration that ends now is still in progress: what arrives now is routed before it is over.
        """
        for replica in self.changed:
            self._hear(replica)
        self.changed.clear()
        steps = steps_begun(self._first, self._increment, now - self._start)
        forwarding = (steps > 0) & (self._sequences > 0)
        return np.where(forwarding, self._context + (steps - 1) * self._sequences, self._held)


def steps_begun(first: Column, increment: Column, span: Column) -> Column:
    """Return how many consecutive steps start strictly less than ``span`` ticks from now, for each column.

    As `clock.steps_before`: the root of a quadratic, estimated and then corrected by integer tests.
    """
    within = np.maximum(span, 0).astype(np.float64)
    p = first - increment / 2
    # Only without any time can what it is divided by be 0, and then no step has begun.
    root = 2 * within / np.maximum(p + np.sqrt(p * p + 2.0 * increment * within), 0.5)
    steps = np.ceil(root).astype(np.int64)
    # The root is good to 12 digits: only next to a whole number must integers decide.
    near = np.abs(root - np.rint(root)) < 1e-4
    if not near[within > 0].any():
        return steps

    def spent(count: Column) -> Column:
        result: Column = count * first + increment * (count * (count - 1) // 2)
        return result

    while (over := (steps > 0) & (spent(steps - 1) >= span)).any():
        steps -= over
    while (under := spent(steps) < span).any():
        steps += under
    return steps
