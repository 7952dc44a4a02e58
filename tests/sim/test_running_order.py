"""Requests that have their last tokens in one step go in the order in which they run."""

from __future__ import annotations

import numpy as np
import pytest

import pagesim as ps
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.observer import Observer
from pagesim.scheduling.request import EngineRequest
from pagesim.setup.prepare import prepare
from pagesim.setup.server import Server
from pagesim.setup.system import System, checked


class LastTokens(Observer):
    """Notes who goes, step by step, and who ran."""

    scheduler: Scheduler

    def __init__(self) -> None:
        self.ran: list[int] = []
        self.went: list[int] = []
        self.together = self.moved = 0

    def planned(self, batch: Batch, now: int, start: int, ticks: int) -> None:
        self.compare()
        running = self.scheduler.running
        self.ran = [request.row for request in running.values()]
        self.moved += list(running) != sorted(running)

    def finished(self, request: EngineRequest, now: int) -> None:
        self.went.append(request.row)

    def compare(self) -> None:
        places = [self.ran.index(row) for row in self.went]
        assert places == sorted(places), f"{self.went} went, and {self.ran} ran"
        self.together += len(places) > 1
        self.went = []


@pytest.mark.parametrize("policy", ["vllm-sosp", "vllm-v1"])
def test_requests_that_end_in_one_step_go_in_running_order(policy: str) -> None:
    random = np.random.default_rng(7)
    trace = ps.Trace(
        np.sort(random.uniform(0, 3, 400)), random.integers(1, 60, 400), random.integers(2, 30, 400)
    )
    if policy == "vllm-sosp":  # pairs of samples are swapped, and return before those that are recomputed
        trace = trace.with_columns({"n": random.integers(1, 3, 400)})
    options = {"policy": policy, "num_blocks": 60, "max_model_len": 100, "cost": "affine:0.02,1e-4,1e-6,1e-3"}
    setting = prepare(checked(System, {**options, "fast_forward": False}), trace)
    looks = LastTokens()
    server = Server(setting, setting.new_log(), setting.arrivals(), observers=[looks])
    looks.scheduler = server.scheduler
    server.engine.replay()
    assert looks.together > 10
    assert (looks.moved > 0) == (policy == "vllm-sosp")
