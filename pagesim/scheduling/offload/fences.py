"""Fences: blocks of the device that a store still reads though nothing else holds them."""

from __future__ import annotations

from collections.abc import Iterable

from pagesim.scheduling.offload.jobs import Job


class Fences:
    """Which jobs read which blocks."""

    __slots__ = ("_jobs",)

    def __init__(self) -> None:
        self._jobs: dict[int, dict[Job, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def put(self, job: Job, blocks: Iterable[int]) -> None:
        """Put a fence around blocks until a job is over."""
        for block in blocks:
            self._jobs.setdefault(block, {})[job] = None

    def lift(self, job: Job) -> None:
        """Take the fences of a job away."""
        if not self._jobs:
            return
        for block in (*job.read_at_once, *job.read_when_over):
            jobs = self._jobs.get(block)
            if jobs is not None:
                jobs.pop(job, None)
                if not jobs:
                    del self._jobs[block]

    def of(self, blocks: Iterable[int]) -> list[Job]:
        """Return the jobs with a fence around any of these blocks."""
        fenced = self._jobs
        return [job for block in blocks if block in fenced for job in fenced[block]]
