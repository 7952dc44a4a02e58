"""Pending reads: device blocks that a store still reads although nothing else holds them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from pagesim.scheduling.offload.jobs import Job
from pagesim.scheduling.offload.tracked import Tracked
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class PendingReads:
    """Tracks which jobs read which blocks, to detect blocks that are reused too early.

    Args:
        memory: the device's block manager, with numbered blocks.

    Attributes:
        jobs: for each block being read, the jobs that read it.
    """

    __slots__ = ("_memory", "jobs")

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self.jobs: dict[int, dict[Job, None]] = {}

    def gives_back(self, tracked: Tracked) -> None:
        """Record by number the blocks that a request's jobs read, because it is about to free them."""
        for job in tracked.jobs:
            for number, first, end in job.places:
                job.read_when_over += self._memory.block_table(tracked.request, group=number)[first:end]
            job.places = []

    def finished(self, tracked: Tracked, offers: Sequence[int]) -> None:
        """Register the reads of a finished request's jobs; the request still has its blocks.

        Args:
            tracked: the request.
            offers: KV cache groups of which further chunks may be offered.
        """
        self.gives_back(tracked)
        for number in offers:
            tracked.tables[number] = self._memory.block_table(tracked.request, group=number)
        for job in tracked.jobs:
            if job.read_when_over:
                self._put(job, job.read_when_over)

    def begun(self, job: Job) -> None:
        """Register the blocks of a new job that must not be reused from now on."""
        if job.read_at_once:
            self._put(job, job.read_at_once)

    def begun_late(self, job: Job, taken: Collection[int]) -> bool:
        """Register the reads of a finished request's job; return whether this plan reused any of them."""
        tables = job.tracked.tables
        job.read_when_over = [
            block for number, first, end in job.places for block in tables[number][first:end]
        ]
        job.places = []
        self._put(job, job.read_when_over)
        return any(block in taken for block in job.read_when_over)

    def of(self, taken: Collection[int]) -> list[Job]:
        """Return the jobs that read any block allocated in this plan."""
        readers = self.jobs
        return [job for block in taken if block in readers for job in readers[block]]

    def lift(self, job: Job) -> None:
        """Forget the reads of a finished job."""
        if not self.jobs:
            return
        for block in (*job.read_at_once, *job.read_when_over):
            jobs = self.jobs.get(block)
            if jobs is not None:
                jobs.pop(job, None)
                if not jobs:
                    del self.jobs[block]

    def _put(self, job: Job, blocks: Iterable[int]) -> None:
        for block in blocks:
            self.jobs.setdefault(block, {})[job] = None
