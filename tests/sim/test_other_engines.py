"""Schedulers that pagesim does not have, on its core: two batches in flight."""

from __future__ import annotations

from collections import deque
from random import Random

import numpy as np
import pytest

from pagesim.costs.affine import Affine
from pagesim.kvcache import (
    BlockManager,
    KVGroup,
    PagedManager,
)
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.continuous import ContinuousBatching
from pagesim.scheduling.continuous_options import SospOptions
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.request import EngineRequest
from pagesim.workloads.trace import Trace
from tests.sim.drive import drive


class TwoInFlight(ContinuousBatching):
    """The next batch is scheduled while the last one runs: what it samples is a placeholder.

    A request whose last token is in flight keeps its memory and gets no further token. What a batch brings
    is known when it is over: then, and not before, its requests go.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.in_flight = 2
        self._launched: deque[int] = deque()  # the step of growth of each batch in flight
        self._ending: dict[int, EngineRequest] = {}  # by order: whose last token is in flight

    def plan(self, now: int) -> Batch:
        self._set_ending_aside()
        batch = super().plan(now)
        self._launched.append(self.memory.steps)
        if self._ending:
            self.must_replan = True
        return batch

    def advance(self, steps: int) -> None:
        super().advance(steps)
        self._launched = deque([self.memory.steps])

    def finish(self, now: int) -> list[EngineRequest]:
        known = self._launched.popleft()
        over = [request for request in self._ending.values() if request.last_step <= known]
        for request in over:
            del self._ending[request.order]
            self.running_sequences += 1
            self.context += self.memory.length(request)
            self._over(request, now)
        return over

    def steps_until_next_decision(self) -> int:
        return 0 if self._ending else super().steps_until_next_decision()

    def preempt(self, request: EngineRequest, batch: Batch) -> None:
        raise AssertionError("these tests give memory enough")

    def _set_ending_aside(self) -> None:
        while self._finishing and self._finishing[0][0] <= self.memory.steps:
            _, order, request = self._finishing.pop(0)
            self.events.interval_ended(request)
            self.memory.stop_decoding(request)
            self._ending[order] = request
            self.context -= self.memory.length(request)
            self.running_sequences -= 1


def replay(
    scheduler: type[Scheduler], memory: BlockManager, trace: Trace, cost: Affine, *, fast_forward: bool
) -> tuple[dict[str, np.ndarray], int]:
    """Return the columns over requests and iterations, and how many rows these were written in."""
    serves = scheduler(memory, SospOptions(max_num_batched_tokens=200), max_model_len=400)
    return drive(serves, trace, cost, fast_forward=fast_forward)


def random_trace(seed: int, requests: int = 25) -> Trace:
    rnd = Random(seed)
    arrival = np.sort([round(rnd.random() * 4, rnd.choice((1, 6))) for _ in range(requests)])
    prompt = np.array([rnd.randint(1, 90) for _ in range(requests)])
    return Trace(arrival, prompt, np.array([rnd.randint(1, 60) for _ in range(requests)]))


@pytest.mark.parametrize("seed", range(8))
def test_two_batches_in_flight_fast_forward_as_they_step(seed):
    trace, cost = random_trace(seed), Affine(0.01, 1e-4, 1e-6)
    ways = [
        replay(TwoInFlight, PagedManager(400, [KVGroup(16)]), trace, cost, fast_forward=fast_forward)
        for fast_forward in (True, False)
    ]
    (fast, rows), (stepping, steps) = ways
    assert all(np.array_equal(fast[name], stepping[name]) for name in stepping)
    assert rows < steps


def test_with_two_batches_in_flight_a_decision_is_made_while_the_last_iteration_runs():
    trace = Trace(np.zeros(1), np.array([10]), np.array([6]))
    columns, _ = replay(
        TwoInFlight, PagedManager(400, [KVGroup(16)]), trace, Affine(1.0, 0, 0), fast_forward=True
    )
    second = 10**12
    # The last schedule finds the request waiting for its last token, and is empty.
    assert (columns["clock"] / second).tolist() == [0, 0, 1, 2, 3, 4, 5]
    assert (columns["start"] / second).tolist() == [0, 1, 2, 3, 4, 5, 5]
    assert columns["finish"].tolist() == [6 * second]
