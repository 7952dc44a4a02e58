"""Workers end with the process that started them, and give the same results however many there are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pagesim.errors import PagesimError
from pagesim.experiments.sweeps.workers import Workers


def test_each_call_is_answered_once_by_another_process():
    with Workers(2) as both:
        squares = list(both.call(pow, [(number, 2) for number in range(200)]))
        processes = set(both.call(os.getpid, [()] * 20))
    assert sorted(squares) == [number**2 for number in range(200)]
    assert os.getpid() not in processes
    assert 1 <= len(processes) <= 2


def test_more_jobs_than_cores_start_no_more_processes():
    with Workers(1500) as many:
        processes = set(many.call(os.getpid, [()] * 40))
    assert len(processes) <= max(2, os.cpu_count() or 1)


def test_one_job_is_this_process():
    with Workers(1) as alone:
        assert set(alone.call(os.getpid, [()] * 3)) == {os.getpid()}


def test_a_worker_that_is_killed_is_a_sentence():
    with Workers(2) as both, pytest.raises(PagesimError, match="a worker process was killed"):
        list(both.call(signal.raise_signal, [(signal.SIGKILL,)] * 4))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of ended workers' pipes
def test_what_is_under_way_ends_when_nothing_waits_for_it():
    began = time.perf_counter()
    with pytest.raises(TypeError), Workers(2) as both:
        sum(both.call(time.sleep, [(0,), (300,), (300,)]))  # None is no number
    assert time.perf_counter() - began < 60


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
