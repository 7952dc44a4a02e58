"""Workers: the processes that replay, on this machine or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeVar, get_args

from pagesim.errors import PagesimError
from pagesim.experiments.sweeps.forked import ForkedWorkers, can_fork
from pagesim.experiments.sweeps.joblib_workers import JoblibWorkers, RayWorkers, cpu_count
from pagesim.experiments.sweeps.traces import KEPT, StoredTrace
from pagesim.workloads.trace import Trace

Executor = Literal["local", "ray"]

NO_PROCESSES = AssertionError, OSError, ImportError, NotImplementedError
"""What is raised where there are no semaphores, by joblib and by Python itself."""

R = TypeVar("R")


class SharedTrace(Protocol):
    """A trace that is cheap to send to a worker, which gets it by `load`."""

    def load(self) -> Trace:
        """Return the trace; a process that calls this again gets the same one."""


class Workers:
    """Processes that calls are handed to, as a context.

    Those of this machine are forked where that is safe, and else joblib's, as those of a cluster are.

    Args:
        jobs: how many, and of this machine's never more than calls; None for one a core, of this machine or
            of the cluster.
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
        self._executor = executor
        self._pool: ForkedWorkers | JoblibWorkers
        if executor == "ray":
            self._pool = RayWorkers(jobs, address)
        elif can_fork() and jobs != 1:
            self._pool = ForkedWorkers(jobs or cpu_count())
        else:
            self._pool = JoblibWorkers(jobs or cpu_count())

    def __enter__(self) -> Self:
        try:
            self._pool.__enter__()
        except NO_PROCESSES:
            raise PagesimError(
                "no worker process can be started: this machine has no semaphores to give, as where "
                "/dev/shm is full or missing; free it"
            ) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.__exit__(kind, error, trace)

    def call(self, function: Callable[..., R], calls: Iterable[tuple[Any, ...]]) -> Iterator[R]:
        """Begin what a function does for each of these arguments; yield what it returns as it is done.

        The arguments are taken from the iterable some calls before workers are free for them.

        Raises:
            PagesimError: a worker was killed, for want of memory perhaps; or one cannot be started.
        """
        try:
            return self._done(self._pool.call(function, calls))
        except OSError as error:  # no process or no memory left to fork
            raise PagesimError(
                f"a worker process cannot be started ({error.strerror}); ask for fewer jobs"
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

    def _done(self, results: Iterator[R]) -> Iterator[R]:
        try:
            yield from results
        except BrokenProcessPool:
            raise PagesimError(
                "a worker process was killed, perhaps because the machine ran out of memory; what was done "
                "is stored: start again with fewer jobs"
            ) from None


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
