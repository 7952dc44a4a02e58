"""Fences: blocks of the device that a store still reads though nothing else holds them."""

from __future__ import annotations

from collections.abc import Iterable

from pagesim.scheduling.offload.jobs import Job


class Fences:
    """Which jobs read which blocks.

    Attributes:
        jobs: of each block that has a fence the jobs that read it.
    """

    __slots__ = ("jobs",)

    def __init__(self) -> None:
        self.jobs: dict[int, dict[Job, None]] = {}

    def put(self, job: Job, blocks: Iterable[int]) -> None:
        """Put a fence around blocks until a job is over."""
        for block in blocks:
            self.jobs.setdefault(block, {})[job] = None

    def lift(self, job: Job) -> None:
        """Take the fences of a job away."""
        if not self.jobs:
            return
        for block in (*job.read_at_once, *job.read_when_over):
            jobs = self.jobs.get(block)
            if jobs is not None:
                jobs.pop(job, None)
                if not jobs:
                    del self.jobs[block]

    def of(self, blocks: Iterable[int]) -> list[Job]:
        """Return the jobs with a fence around any of these blocks."""
        fenced = self.jobs
        return [job for block in blocks if block in fenced for job in fenced[block]]
