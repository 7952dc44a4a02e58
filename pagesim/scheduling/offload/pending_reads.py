"""Pending reads: blocks of the device that a store still reads though nothing else holds them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from pagesim.scheduling.offload.jobs import Job
from pagesim.scheduling.offload.tracked import Tracked
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class PendingReads:
    """Which jobs read which blocks, and which of these are taken.

    Args:
        memory: of the device; its blocks have numbers.

    Attributes:
        jobs: of each block that is being read the jobs that read it.
    """

    __slots__ = ("_memory", "jobs")

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self.jobs: dict[int, dict[Job, None]] = {}

    def gives_back(self, tracked: Tracked) -> None:
        """Say that a request is about to give its blocks back, which its jobs read by their places."""
        for job in tracked.jobs:
            for number, first, end in job.places:
                job.read_when_over += self._memory.block_table(tracked.request, group=number)[first:end]
            job.places = []

    def finished(self, tracked: Tracked, offers: Sequence[int]) -> None:
        """Note what the jobs of a request read that is over; it still has its blocks.

        Args:
            tracked: the request.
            offers: KV groups of which further chunks may be offered.
        """
        self.gives_back(tracked)
        for number in offers:
            tracked.tables[number] = self._memory.block_table(tracked.request, group=number)
        for job in tracked.jobs:
            if job.read_when_over:
                self._put(job, job.read_when_over)

    def begun(self, job: Job) -> None:
        """Note what a job reads that must not be taken from now on."""
        if job.read_at_once:
            self._put(job, job.read_at_once)

    def begun_late(self, job: Job, taken: Collection[int]) -> bool:
        """Note what a job reads of a request that is over; say if any was taken in this plan."""
        tables = job.tracked.tables
        job.read_when_over = [
            block for number, first, end in job.places for block in tables[number][first:end]
        ]
        job.places = []
        self._put(job, job.read_when_over)
        return any(block in taken for block in job.read_when_over)

    def of(self, taken: Collection[int]) -> list[Job]:
        """Return the jobs that read any block that was taken in this plan."""
        readers = self.jobs
        return [job for block in taken if block in readers for job in readers[block]]

    def lift(self, job: Job) -> None:
        """Forget what a job reads, which is over."""
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
