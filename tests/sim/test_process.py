"""An engine is a SimPy process, alone or in a cluster: every event of small replays, by hand."""

from __future__ import annotations

import gc
import traceback
import weakref
from typing import Any

import numpy as np
import pytest
import simpy

import pagesim as ps
from pagesim.errors import PagesimError
from pagesim.scheduling.batch import Batch
from pagesim.setup.prepare import prepare
from pagesim.setup.server import Server
from pagesim.setup.system import System
from pagesim.sim.clock import TICKS_PER_SECOND
from pagesim.sim.executor import Executor
from pagesim.workloads.trace import Request

SECOND: dict[str, Any] = {"policy": "vllm-sosp", "cost": "affine:1,0,0", "num_blocks": 50}
"""An iteration takes a second, whatever it computes."""

Event = tuple[float, str]


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """Return the events of all environments, as they happen: seconds, and the name of the event's class."""
    seen: list[Event] = []
    step = simpy.Environment.step

    def watched(self: simpy.Environment) -> None:
        if self._queue:
            seen.append((self._queue[0][0] / TICKS_PER_SECOND, type(self._queue[0][3]).__name__))
        step(self)

    monkeypatch.setattr(simpy.Environment, "step", watched)
    return seen


def trace(arrivals: list[float], outputs: list[int], **columns: Any) -> ps.Trace:
    return ps.Trace(np.array(arrivals), np.full(len(outputs), 4), np.array(outputs), **columns)


class Watching:
    """Sends everything to the first replica, and does not say that it looks at nothing."""

    def choose(self, request: Request, replicas: Any, now: int) -> int:
        return 0


ALONE = [
    (0.0, "Initialize"),
    (3.0, "Timeout"),  # a prompt, and two decode steps that decide nothing
    (10.0, "Timeout"),  # nothing to do until the second request
    (12.0, "Timeout"),
    (12.0, "Process"),  # it is over
]


def test_a_decision_of_a_single_engine_is_an_event(events: list[Event]) -> None:
    ps.simulate(trace([0.0, 10.0], [3, 2]), **SECOND)
    assert events == ALONE


def test_without_fast_forward_an_iteration_is_an_event(events: list[Event]) -> None:
    ps.simulate(trace([0.0, 10.0], [3, 2]), fast_forward=False, **SECOND)
    assert [when for when, kind in events if kind == "Timeout"] == [1, 2, 3, 10, 11, 12]
    assert len(events) == 6 + 2


def test_a_replica_is_woken_by_its_router(events: list[Event]) -> None:
    ps.simulate_cluster(trace([0.0, 10.0], [3, 2]), replicas=1, router=Watching(), **SECOND)
    assert events == [
        *[(0.0, "Initialize")] * 2,  # the engine, and what sends
        (0.0, "Event"),  # the engine wakes
        (3.0, "Timeout"),
        (10.0, "ArrivalEvent"),
        (10.0, "Event"),
        (10.0, "Process"),  # everything is sent
        (12.0, "Timeout"),
    ]


def test_a_request_that_is_routed_interrupts_the_fast_forward_under_way(events: list[Event]) -> None:
    given = trace([0.0, 2.5], [6, 2])
    routed = ps.simulate_cluster(given, replicas=1, router=Watching(), **SECOND)
    assert events[2:] == [
        (0.0, "Event"),
        (2.5, "ArrivalEvent"),
        (2.5, "Interruption"),
        (2.5, "Process"),
        (3.0, "Timeout"),  # the step under way is the last one that is decided without the second request
        (5.0, "Timeout"),  # its prompt, and its second token
        (6.0, "Timeout"),  # when all would have been over without it: the engine no longer waits for that
        (6.0, "Timeout"),
    ]
    events.clear()
    alone = ps.simulate(given, **SECOND)
    assert events == [(0.0, "Initialize"), *((at, "Timeout") for at in (3.0, 5.0, 6.0)), (6.0, "Process")]
    assert routed.requests["finish_s"].tolist() == alone.requests["finish_s"].tolist() == [6.0, 5.0]


def test_what_a_client_sends_next_arrives_before_the_engine_decides_again(events: list[Event]) -> None:
    result = ps.simulate(trace([0.0, 0.0], [2, 1]), max_concurrency=1, **SECOND)
    assert result.requests["first_scheduled_s"].tolist() == [0.0, 2.0]
    turn = ["Settlement", "Decision"]
    assert events == [
        (0.0, "Initialize"),
        (0.0, "ArrivalEvent"),
        *((0.0, kind) for kind in turn),
        (2.0, "Timeout"),
        (2.0, "Event"),  # the first is over, and the second is sent
        *((2.0, kind) for kind in turn),
        (3.0, "Timeout"),
        (3.0, "Event"),
        *((3.0, kind) for kind in turn),
    ]


class OddError(Exception):
    """Cannot be made again from its arguments, as SimPy does."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class Seconds(Executor):
    """Takes a second for an iteration, or fails at the first one."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error

    def execute(self, batch: Batch) -> int:
        if self.error is not None:
            raise self.error
        return TICKS_PER_SECOND

    def decode_run(self, sequences: int, context: int) -> tuple[int, int, int] | None:
        return None


@pytest.mark.parametrize("options", [{}, {"max_concurrency": 1}], ids=["open", "closed"])
@pytest.mark.parametrize("make", [lambda: OddError(1, 2), KeyboardInterrupt], ids=["error", "interrupt"])
def test_what_an_engine_raises_reaches_the_caller_as_itself(make: Any, options: Any) -> None:
    error = make()
    setting = prepare(System(**SECOND, **options), trace([0.0], [3]))
    server = Server(setting, setting.new_log(), setting.arrivals(), executor=lambda *_: Seconds(error))
    with pytest.raises(type(error)) as caught:
        server.replay()
    assert caught.value is error
    assert error.__cause__ is None
    assert error.__context__ is None
    names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert names[-1] == "execute"
    assert len(names) < 12


def test_what_a_router_raises_reaches_the_caller_as_itself() -> None:
    error = OddError(1, 2)

    class Lost:
        def choose(self, request: Request, replicas: Any, now: int) -> int:
            raise error

    with pytest.raises(OddError) as caught:
        ps.simulate_cluster(trace([0.0, 1.0], [3, 3]), replicas=2, router=Lost(), **SECOND)
    assert caught.value is error
    assert error.__cause__ is None


@pytest.mark.parametrize("router", ["round-robin", Watching()], ids=["apart", "together"])
def test_a_replica_beyond_the_longest_time_is_an_error_and_not_the_end(router: Any) -> None:
    given = trace([0.0] * 3, [2000] * 3)
    options = {**SECOND, "cost": "affine:1000,0,0", "num_blocks": 200, "max_num_seqs": 1}
    with pytest.raises(PagesimError, match=r"exceeds 4\.6e\+06 s of simulated time"):
        ps.simulate_cluster(given, replicas=1, router=router, **options)


@pytest.mark.parametrize("options", [{}, {"max_concurrency": 1}], ids=["open", "closed"])
def test_an_engine_goes_with_its_server_and_waits_for_no_garbage_collection(options: Any) -> None:
    setting = prepare(System(**SECOND, **options), trace([0.0, 1.0], [3, 3]))
    server = Server(setting, setting.new_log(), setting.arrivals(), executor=lambda *_: Seconds())
    executor = weakref.ref(server.engine.executor)
    gc.collect()
    gc.disable()
    try:
        server.replay()
        del server
        assert executor() is None
    finally:
        gc.enable()
