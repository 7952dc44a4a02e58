"""Copies between the device and a tier: two queues, one a direction, each carried out in its order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from pagesim.scheduling.arrivals import NEVER
from pagesim.scheduling.offload.jobs import Job, Transfers
from pagesim.setup.compiled import mypyc_attr

CopyTime = Callable[[int], int]
"""Ticks that a copy of so many blocks takes."""


@mypyc_attr(allow_interpreted_subclasses=True)
class CopyEngine:
    """Carries out the jobs of iterations, beside them.

    A job starts when the device is through with what was launched before it, and the job before it of its
    direction is over.

    Source: vLLM 0.33.0, v1/kv_offload/cpu/gpu_worker.py, and the order of calls in its model runner.

    Args:
        load_time: from the tier to the device.
        store_time: the other way.
    """

    __slots__ = ("_load_time", "_loading", "_loads_end", "_store_time", "_stores_end", "_storing", "_unsent")

    def __init__(self, load_time: CopyTime, store_time: CopyTime) -> None:
        self._load_time = load_time
        self._store_time = store_time
        self._loading: deque[tuple[int, Job]] = deque()  # each job with the instant at which it is over
        self._storing: deque[tuple[int, Job]] = deque()
        self._loads_end = self._stores_end = 0  # of the last of either
        self._unsent: list[Job] = []  # stores of the last iteration

    @property
    def due(self) -> int:
        """When the next copy is over, in ticks; 0 where some wait for an iteration, ``NEVER`` without any."""
        if self._unsent:
            return 0
        ends = [queue[0][0] for queue in (self._storing, self._loading) if queue]
        return min(ends, default=NEVER)

    def before(self, transfers: Transfers, now: int, busy: int) -> int:
        """Start the stores of the last iteration; return when the next one can be launched.

        Args:
            transfers: of the next one.
            now: when it was decided, in ticks.
            busy: when what was launched before it is over.
        """
        flushed, stores = transfers.flushed, transfers.stores
        if stores or self._unsent:
            flushed_now = [job for job in stores if job in flushed] if flushed else ()
            if self._unsent or flushed_now:
                self._store([*self._unsent, *flushed_now], max(now, busy))
            self._unsent = [job for job in stores if job not in flushed] if flushed else stores
        waits = [end for end, job in self._storing if job in flushed] if flushed else ()
        return max(now, *waits) if waits else now

    def after(self, transfers: Transfers, now: int, busy: int, *, naps: bool) -> list[Job]:
        """Start the loads of an iteration that was just launched; return the jobs that are over.

        The next one is launched by the time that this one is over, and starts this one's stores then. Where
        the engine naps between them that time is not known yet.

        Args:
            transfers: of it.
            now: when it was launched.
            busy: when it is over.
            naps: whether it computes nothing, so that the engine may nap before the next one.
        """
        for job in transfers.loads:
            start = max(now, busy, self._loads_end)
            self._loads_end = start + self._load_time(job.blocks)
            self._loading.append((self._loads_end, job))
        over = self.over_by(now)
        if not naps and self._unsent:
            self._store(self._unsent, busy)
            self._unsent = []
        return over

    def over_by(self, now: int) -> list[Job]:
        """Return the jobs of which an iteration learns that is launched now: all that are over since."""
        over: list[Job] = []
        if not (self._storing or self._loading):
            return over
        for queue in (self._storing, self._loading):
            while queue and queue[0][0] <= now:
                over.append(queue.popleft()[1])
        return over

    def _store(self, jobs: Sequence[Job], ready: int) -> None:
        """Start stores, once the device is ready and those before them are over."""
        for job in jobs:
            self._stores_end = max(ready, self._stores_end) + self._store_time(job.blocks)
            self._storing.append((self._stores_end, job))


def at_once(blocks: int) -> int:
    """Return the ticks of a copy that takes no time, a `CopyTime`."""
    return 0
