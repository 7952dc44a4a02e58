"""Workers: processes that run replays on this machine or on a Ray cluster, through joblib."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, nullcontext
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, get_args

from pagesim.errors import PagesimError, reason

Executor = Literal["local", "ray"]

NO_PROCESSES = AssertionError, OSError, ImportError, NotImplementedError
"""Exceptions that joblib and Python raise on machines without semaphores."""

ANSWERS_WITHIN_S = 20.0
"""Timeout for a Ray cluster's answer, in seconds."""

IDLE_S = 30
"""Seconds after which an idle local worker exits."""

R = TypeVar("R")


class Workers:
    """A context manager for worker processes; with one job, calls run in this process.

    Args:
        jobs: number of processes, locally at most the number of cores or 2, whichever is more; None for one
            per core of this machine or of the cluster.
        executor: ``local`` or ``ray``.
        address: address of a running Ray cluster; None for the one that this process is connected to, the one
            that ``RAY_ADDRESS`` names, or else a new one on this machine.

    Raises:
        PagesimError: an argument is invalid, Ray is not installed, or the cluster cannot be reached.
    """

    def __init__(self, jobs: int | None = None, executor: str = "local", address: str | None = None) -> None:
        if jobs is not None and jobs < 1:
            raise PagesimError(f"jobs is {jobs}; it must be at least 1")
        if executor not in get_args(Executor):
            raise PagesimError(f"executor is {executor!r}; it must be one of {', '.join(get_args(Executor))}")
        if address is not None and executor != "ray":
            raise PagesimError(f"address is {address!r}; it is for executor ray, not {executor}")
        self._jobs = -1 if jobs is None else jobs
        self._executor, self._address = executor, address
        self._open = ExitStack()

    def __enter__(self) -> Self:
        import joblib

        with self._open:
            config: dict[str, Any] = {"backend": "ray", "n_jobs": self._jobs}
            if self._executor == "ray":
                self._open.enter_context(_connected(self._address))
            else:
                # A replay has one thread; if workers started more, they would only slow one another down.
                config |= {"backend": "loky", "inner_max_num_threads": 1, "idle_worker_timeout": IDLE_S}
                config["n_jobs"] = min(self._jobs, max(2, os.cpu_count() or 1))
                config |= {"initializer": _end_with, "initargs": (os.getpid(),)}
            try:
                self._open.enter_context(joblib.parallel_config(**config))
                # One call per batch: each result is returned, and stored, as soon as it is available.
                parallel = joblib.Parallel(return_as="generator_unordered", batch_size=1)
                self._parallel = self._open.enter_context(parallel)
            except NO_PROCESSES:
                raise PagesimError(
                    "no worker process can be started: this machine has no semaphores to give, as where "
                    "/dev/shm is full or missing; free it"
                ) from None
            self._open = self._open.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)

    def call(self, function: Callable[..., R], calls: Iterable[tuple[Any, ...]]) -> Iterator[R]:
        """Yield a function's results for these calls, in the order in which they finish.

        The iterable is consumed a few calls ahead of the workers.

        Raises:
            PagesimError: a worker was killed, perhaps because memory ran out.
        """
        import joblib

        results = self._parallel(joblib.delayed(function)(*arguments) for arguments in calls)
        self._open.callback(_cancel, results)
        try:
            yield from results
        except BrokenProcessPool:
            raise PagesimError(
                "a worker process was killed, perhaps because the machine ran out of memory; what was done "
                "is stored: start again with fewer jobs"
            ) from None


def _cancel(results: Any) -> None:
    """Cancel calls whose results are no longer needed, since they may take hours."""
    with warnings.catch_warnings():  # joblib warns of cancelled calls
        warnings.simplefilter("ignore", UserWarning)
        results.close()


def _end_with(parent: int) -> None:
    """Make a worker exit when the process that started it does, whatever it is doing."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _connected(address: str | None) -> Iterator[None]:
    """Connect to Ray and register it as a joblib backend; a connection opened here is closed on exit."""
    import joblib

    try:
        import ray
        from ray.util.joblib.ray_backend import RayBackend
    except ImportError:
        raise PagesimError("executor ray needs Ray; pip install '.[ray]' in the checkout") from None

    class Streaming(RayBackend):
        """Ray's backend for joblib, returning each result as soon as it is available.

        joblib disables this for process pools, because closing the generator early may hang when
        the pool is torn down; Ray's pool terminates its actors instead.
        """

        supports_return_generator = True

    # As `ray.util.joblib.register_ray` does.
    joblib.register_parallel_backend("ray", Streaming)
    # It warns whenever joblib passes an option of other pools.
    logging.getLogger("ray.util.multiprocessing.pool").setLevel(logging.ERROR)
    if ray.is_initialized():
        yield
        return
    named = address or os.environ.get("RAY_ADDRESS", "local")
    try:
        with nullcontext() if named == "local" else _limited(ANSWERS_WITHIN_S):
            _reach(named)
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError, OverflowError) as error:
        raise PagesimError(f"address is {named!r}; no Ray cluster there ({reason(error)})") from None
    try:
        yield
    finally:
        ray.shutdown()


def _reach(address: str) -> None:
    """Check that ``HOST:PORT`` accepts connections, since Ray itself would retry for minutes.

    Raises:
        OSError, UnicodeError, OverflowError: there is no such host, or nothing listens there.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), ANSWERS_WITHIN_S / 2).close()


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise a `TimeoutError` if the context takes longer; has no effect outside the main thread."""

    def over(*_: object) -> None:
        raise TimeoutError(f"it does not answer within {seconds:g} s")

    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        yield
        return
    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
