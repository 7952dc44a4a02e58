"""Workers start at once, end with the process that started them, and give the same results in any form."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import pagesim as ps
from pagesim.errors import PagesimError
from pagesim.experiments.sweeps import forked, workers
from pagesim.experiments.sweeps.workers import Workers

SLOWEST_START_S = 0.5

forks = pytest.mark.skipif(not forked.can_fork(), reason="workers are forked on Linux only")


@pytest.fixture(params=["forked", "loky"])
def kind(request, monkeypatch):
    """Workers that are forked, where they can be, and others."""
    if request.param == "loky":
        monkeypatch.setattr(workers, "can_fork", lambda: False)
    elif not forked.can_fork():
        pytest.skip("workers are forked on Linux only")
    return request.param


def doze(seconds: int) -> int:
    time.sleep(seconds)
    return seconds


def test_each_call_is_answered_once_by_another_process(kind):
    with Workers(2) as both:
        squares = list(both.call(pow, [(number, 2) for number in range(200)]))
        processes = set(both.call(os.getpid, [()] * 20))
    assert sorted(squares) == [number**2 for number in range(200)]
    assert os.getpid() not in processes
    assert 1 <= len(processes) <= 2


def test_one_job_is_this_process():
    with Workers(1) as alone:
        assert set(alone.call(os.getpid, [()] * 3)) == {os.getpid()}


def test_a_worker_that_is_killed_is_a_sentence(kind):
    with Workers(2) as both, pytest.raises(PagesimError, match="a worker process was killed"):
        list(both.call(signal.raise_signal, [(signal.SIGKILL,)] * 4))


def test_a_sweep_is_the_same_whatever_workers_it_has(kind, tmp_path):
    load = {"num_requests": 30, "num_blocks": 300, "seeds": 2}
    for jobs in (1, 2):
        ps.sweep(grid={"policy": ["orca-max", "vllm-v1"]}, out=tmp_path / str(jobs), jobs=jobs, **load)
    for name in ("runs.parquet", "means.parquet"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


@forks
def test_there_are_no_more_workers_than_calls():
    # One that is idle takes memory as one that works does, and a machine has not room for any number.
    before = set(multiprocessing.active_children())
    with Workers(1500) as many:
        for calls in (2, 1, 3):
            list(many.call(os.getpid, [()] * calls))
            assert len(set(multiprocessing.active_children()) - before) <= max(2, calls)
        assert sorted(many.call(abs, [(number,) for number in (-3, 2, -1)])) == [1, 2, 3]


@forks
def test_a_process_that_does_not_start_is_a_sentence(monkeypatch):
    def refuses() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuses)
    with Workers(2) as both, pytest.raises(PagesimError, match=r"cannot be started .Resource .* fewer jobs"):
        both.call(os.getpid, [()] * 2)


@forks
def test_workers_start_in_under_half_a_second():
    took = []
    for _ in range(5):  # the shortest counts: the others are what else the machine does
        began = time.perf_counter()
        with Workers(2) as both:
            assert len(list(both.call(os.getpid, [()] * 2))) == 2
            took.append(time.perf_counter() - began)
    assert min(took) < SLOWEST_START_S


@forks
def test_what_is_under_way_ends_when_nothing_waits_for_it():
    began = time.perf_counter()
    with pytest.raises(ZeroDivisionError), Workers(2) as both:
        sum(1 / seconds for seconds in both.call(doze, [(0,), (300,), (300,)]))
    assert time.perf_counter() - began < 60


@forks
def test_workers_end_with_the_process_that_was_killed(tmp_path):
    program = f"""
import os, time
from pathlib import Path
from pagesim.experiments.sweeps.workers import Workers

def work(number):
    Path({str(tmp_path)!r}, str(number)).write_text(str(os.getpid()))
    time.sleep(300)

with Workers(2) as both:
    list(both.call(work, [(0,), (1,)]))
"""
    with subprocess.Popen([sys.executable, "-c", program]) as parent:
        files = [tmp_path / "0", tmp_path / "1"]
        wait_for(lambda: all(file.exists() and file.read_text() for file in files))
        parent.kill()
    running = [Path("/proc", file.read_text()) for file in files]
    wait_for(lambda: not any(alive(process) for process in running))


def wait_for(condition) -> None:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < 60
        time.sleep(0.01)


def alive(process: Path) -> bool:
    try:
        return "\nState:\tZ" not in (process / "status").read_text()
    except OSError:
        return False
