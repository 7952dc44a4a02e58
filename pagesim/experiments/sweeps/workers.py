"""Workers: the processes that replay, on this machine or on a Ray cluster, both through joblib."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeVar, get_args

import joblib
from joblib.externals.loky.process_executor import BrokenProcessPool

from pagesim.errors import PagesimError
from pagesim.experiments.sweeps.traces import KEPT, StoredTrace
from pagesim.workloads.trace import Trace

Executor = Literal["local", "ray"]

IDLE_S = 30
"""Seconds after which a local worker without work ends, also when the process that started it was killed."""

R = TypeVar("R")


class SharedTrace(Protocol):
    """A trace that is cheap to send to a worker, which gets it by `load`."""

    def load(self) -> Trace:
        """Return the trace; a process that calls this again gets the same one."""


class Workers:
    """Processes that calls are handed to, as a context.

    Args:
        jobs: how many; None for one a core, of this machine or of the cluster.
        executor: ``local`` or ``ray``.
        address: of a running Ray cluster; None for the one that this process is connected to, that
            ``RAY_ADDRESS`` names, or else one of this machine's cores.

    Raises:
        PagesimError: an argument is off, Ray is not installed, or the cluster cannot be reached.
    """

    def __init__(self, jobs: int | None = None, executor: str = "local", address: str | None = None) -> None:
        if jobs is not None and jobs < 1:
            raise PagesimError(f"jobs is {jobs}; it must be at least 1")
        if executor not in get_args(Executor):
            raise PagesimError(f"executor is {executor!r}; it must be one of {', '.join(get_args(Executor))}")
        if address is not None and executor != "ray":
            raise PagesimError(f"address is {address!r}; it is for executor ray, not {executor}")
        self._jobs, self._executor, self._address = jobs, executor, address
        self._open = ExitStack()

    def __enter__(self) -> Self:
        with self._open:
            if self._executor == "ray":
                self._open.enter_context(_Connection(self._address))
                config = {"backend": "ray", "n_jobs": self._jobs or -1}
            else:
                jobs = self._jobs or joblib.cpu_count()
                # A replay is one thread; a worker that starts more only gets in the others' way.
                config = {"backend": "loky", "n_jobs": jobs, "inner_max_num_threads": 1}
                config["idle_worker_timeout"] = IDLE_S
            try:
                self._open.enter_context(joblib.parallel_config(**config))
            except AssertionError:  # joblib would fall back to threads, which know no such option
                raise PagesimError(
                    "no worker process can be started: this machine has no semaphores to give, as where "
                    "/dev/shm is full or missing; free it"
                ) from None
            # One call a batch: each result is handed over, and stored, as soon as it is there.
            parallel = joblib.Parallel(return_as="generator_unordered", batch_size=1)
            self._parallel = self._open.enter_context(parallel)
            self._open = self._open.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)

    def call(self, function: Callable[..., R], calls: Iterable[tuple[Any, ...]]) -> Iterator[R]:
        """Yield what a function returns for each of these arguments, in the order in which it is done.

        The arguments are taken from the iterable when workers are about to be free, not before.

        Raises:
            PagesimError: a worker was killed, for want of memory perhaps.
        """
        try:
            yield from self._parallel(joblib.delayed(function)(*arguments) for arguments in calls)
        except BrokenProcessPool:
            raise PagesimError(
                "a worker process was killed, perhaps because the machine ran out of memory; what was done "
                "is stored: start again with fewer jobs"
            ) from None

    def call_here(self, function: Callable[..., R], calls: Sequence[tuple[Any, ...]]) -> Iterator[R]:
        """Do as `call`, but only where this machine's files are: a cluster's nodes may have others."""
        if calls and self._executor == "local":
            return self.call(function, calls)
        return (function(*arguments) for arguments in calls)

    def share(self, trace: StoredTrace) -> SharedTrace:
        """Return a trace in a form that every worker can get at."""
        if self._executor == "local":
            return trace
        # The nodes of a cluster need not share a disk.
        import ray

        return _ObjectStore(ray.put(trace.load()))


@dataclass(frozen=True)
class _ObjectStore:
    """A trace in Ray's object store: one copy a node."""

    reference: Any

    def load(self) -> Trace:
        return _fetch(self.reference)


@lru_cache(maxsize=KEPT)
def _fetch(reference: Any) -> Trace:
    import ray

    trace: Trace = ray.get(reference)
    return trace


class _Connection:
    """A connection to Ray, closed at the end if it was opened here."""

    def __init__(self, address: str | None) -> None:
        self._address = address

    def __enter__(self) -> None:
        try:
            import ray
            from ray.util.joblib.ray_backend import RayBackend
        except ImportError:
            raise PagesimError("executor ray needs Ray; pip install 'pagesim[ray]'") from None

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
                ray.init(address=self._address, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, ValueError, RuntimeError) as error:
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                raise PagesimError(f"address is {self._address!r}; no Ray cluster there ({reason})") from None

    def __exit__(self, *_: object) -> None:
        if self._opened:
            import ray

            ray.shutdown()
