"""Forked workers: processes that begin as copies of this one, and so need not import anything."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from types import TracebackType
from typing import Any, Self, TypeVar

AHEAD = 32
"""Calls a worker that wait for it, so that it never waits for the process that has them."""

R = TypeVar("R")

_PR_SET_PDEATHSIG = 1  # Source: Linux, include/uapi/linux/prctl.h


def can_fork() -> bool:
    """Say whether workers are forked on this system: Linux. Elsewhere system libraries do not survive it."""
    return sys.platform == "linux"


class ForkedWorkers:
    """Processes that calls are handed to, as a context; they start with the first call.

    Args:
        jobs: how many at most; there are never more than calls.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._processes: list[Any] = []

    def __enter__(self) -> Self:
        self._open(1)
        return self

    def _open(self, size: int) -> None:
        """Make a pool; its processes start with the first call, all at once."""
        context = multiprocessing.get_context("fork")
        self._pool = ProcessPoolExecutor(size, context, initializer=_begin, initargs=(os.getpid(),))
        self._size = size
        self._processes = []

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:  # what is under way may take hours, and nothing waits for it
            for process in self._processes:
                process.terminate()
        self._pool.shutdown(cancel_futures=True)

    def call(self, function: Callable[..., R], calls: Iterable[tuple[Any, ...]]) -> Iterator[R]:
        """Begin what a function does for each of these arguments; yield what it returns as it is done.

        Raises:
            BrokenProcessPool: a worker was killed.
        """
        left = iter(calls)
        first = list(islice(left, AHEAD * self._jobs))
        size = min(self._jobs, len(first))
        if size > self._size:
            self._pool.shutdown()
            self._open(size)
        under_way = {self._submit(function, each) for each in first}
        return self._results(function, left, under_way)

    def _results(
        self, function: Callable[..., R], left: Iterator[tuple[Any, ...]], under_way: set[Future[R]]
    ) -> Iterator[R]:
        while under_way:
            done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            under_way |= {self._submit(function, each) for each in islice(left, len(done))}
            for future in done:
                yield future.result()

    def _submit(self, function: Callable[..., R], arguments: tuple[Any, ...]) -> Future[R]:
        if self._processes:
            return self._pool.submit(function, *arguments)
        before = multiprocessing.active_children()
        with warnings.catch_warnings():
            # Python 3.12 and later warn of locks that other threads hold. A replay takes none of theirs.
            warnings.simplefilter("ignore", DeprecationWarning)
            future = self._pool.submit(function, *arguments)
        self._processes = [each for each in multiprocessing.active_children() if each not in before]
        return future


def _begin(parent: int) -> None:
    """Let a worker end with the process that started it, and not by Ctrl-C before it says so."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
