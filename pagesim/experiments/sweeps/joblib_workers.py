"""Joblib's workers: processes of this machine where they cannot be forked, and those of a Ray cluster."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import TracebackType
from typing import Any, Self, TypeVar

from pagesim.errors import PagesimError, reason

ANSWERS_WITHIN_S = 20.0
"""Seconds in which a Ray cluster must answer."""

IDLE_S = 30
"""Seconds after which a local worker without work ends, also when the process that started it was killed."""

R = TypeVar("R")


def cpu_count() -> int:
    """Return the cores that this process may use."""
    import joblib

    return int(joblib.cpu_count())


def _reach(address: str) -> None:
    """Open a connection to ``HOST:PORT`` and close it: Ray itself tries for minutes.

    Raises:
        OSError, UnicodeError, OverflowError: there is no such host, or nothing listens there.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), ANSWERS_WITHIN_S / 2).close()


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise a `TimeoutError` when what is done here takes longer; in a thread but the first, nothing does."""

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


class JoblibWorkers:
    """Processes that calls are handed to, as a context; one is this process itself.

    Args:
        jobs: how many.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._open = ExitStack()

    def __enter__(self) -> Self:
        # A replay is one thread; a worker that starts more only gets in the others' way.
        self._begin(backend="loky", n_jobs=self._jobs, inner_max_num_threads=1, idle_worker_timeout=IDLE_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)

    def call(self, function: Callable[..., R], calls: Iterable[tuple[Any, ...]]) -> Iterator[R]:
        """Yield what a function returns for each of these arguments, in the order in which it is done.

        Raises:
            BrokenProcessPool: a worker was killed.
        """
        import joblib

        results: Iterator[R] = self._parallel(joblib.delayed(function)(*arguments) for arguments in calls)
        return results

    def _begin(self, **config: Any) -> None:
        """Start the processes that joblib has by this configuration.

        Raises:
            AssertionError: there are no semaphores; threads, which joblib would have instead, know no such
                option.
        """
        import joblib

        with self._open:
            self._open.enter_context(joblib.parallel_config(**config))
            # One call a batch: each result is handed over, and stored, as soon as it is there.
            parallel = joblib.Parallel(return_as="generator_unordered", batch_size=1)
            self._parallel = self._open.enter_context(parallel)
            self._open = self._open.pop_all()


class RayWorkers(JoblibWorkers):
    """Processes of a Ray cluster.

    Args:
        jobs: how many; None for one a core of the cluster.
        address: of the cluster, see `Workers`.
    """

    def __init__(self, jobs: int | None, address: str | None) -> None:
        super().__init__(jobs or -1)
        self._address = address

    def __enter__(self) -> Self:
        with self._open:
            self._open.enter_context(_Connection(self._address))
            self._open = self._open.pop_all()
        self._begin(backend="ray", n_jobs=self._jobs)
        return self


class _Connection:
    """A connection to Ray, closed at the end if it was opened here."""

    def __init__(self, address: str | None) -> None:
        self._address = address

    def __enter__(self) -> None:
        import joblib

        try:
            import ray
            from ray.util.joblib.ray_backend import RayBackend
        except ImportError:
            raise PagesimError("executor ray needs Ray; pip install '.[ray]' in the checkout") from None

        class Streaming(RayBackend):
            """Ray's backend for joblib, handing over each result when it is there.

            joblib switches that off for process pools, because leaving such a generator early may hang when
            the pool is torn down; Ray's pool ends its actors instead.
            """

            supports_return_generator = True

        # As `ray.util.joblib.register_ray` does.
        joblib.register_parallel_backend("ray", Streaming)
        # It warns each time that joblib passes an option of other pools.
        logging.getLogger("ray.util.multiprocessing.pool").setLevel(logging.ERROR)
        self._opened = not ray.is_initialized()
        if self._opened:
            try:
                address = self._address or os.environ.get("RAY_ADDRESS", "local")
                with nullcontext() if address == "local" else _limited(ANSWERS_WITHIN_S):
                    _reach(address)
                    ray.init(address=self._address, log_to_driver=False, logging_level=logging.ERROR)
            except (OSError, ValueError, RuntimeError, OverflowError) as error:
                raise PagesimError(
                    f"address is {address!r}; no Ray cluster there ({reason(error)})"
                ) from None

    def __exit__(self, *_: object) -> None:
        if self._opened:
            import ray

            ray.shutdown()
