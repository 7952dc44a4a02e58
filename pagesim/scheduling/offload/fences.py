"""Fences: blocks of the device that a store still reads though nothing else holds them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from pagesim.kvcache import Watch
from pagesim.scheduling.offload.jobs import Job
from pagesim.scheduling.offload.tracked import Tracked
from pagesim.scheduling.request import EngineRequest
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Fences(ABC):
    """Which jobs read which blocks, and which of these are taken."""

    __slots__ = ()

    names_taken: bool
    """Whether the numbers of the blocks that are taken in a plan are asked for."""

    @property
    @abstractmethod
    def stand(self) -> bool:
        """Whether there is a fence."""

    @abstractmethod
    def gives_back(self, tracked: Tracked) -> None:
        """Say that a request is about to give its blocks back, which its jobs read by their places."""

    @abstractmethod
    def finished(self, tracked: Tracked, offers: Sequence[int]) -> None:
        """Put fences around what the jobs of a request read that is over; it still has its blocks.

        Args:
            tracked: the request.
            offers: KV groups of which further chunks may be offered.
        """

    def joins(self, request: EngineRequest) -> None:
        """Say that a request that was loaded runs from this plan on: its blocks count as taken in it."""
        return

    @abstractmethod
    def begun(self, job: Job) -> None:
        """Put fences around what a job reads that must not be taken from now on."""

    @abstractmethod
    def begun_late(self, job: Job, taken: Collection[int]) -> bool:
        """Put fences around what a job reads of a request that is over; say if any was taken in this plan."""

    @abstractmethod
    def of(self, taken: Collection[int]) -> list[Job]:
        """Return the jobs with a fence around any block that was taken in this plan."""

    @abstractmethod
    def lift(self, job: Job) -> None:
        """Take the fences of a job away."""

    def close(self) -> None:
        """Say that a plan is over."""
        return


@mypyc_attr(allow_interpreted_subclasses=True)
class NumberedFences(Fences):
    """See `Fences`: around blocks that have numbers.

    Args:
        memory: of the device.

    Attributes:
        jobs: of each block that has a fence the jobs that read it.
    """

    __slots__ = ("_memory", "jobs")

    names_taken = True

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self.jobs: dict[int, dict[Job, None]] = {}

    @property
    def stand(self) -> bool:
        return bool(self.jobs)

    def gives_back(self, tracked: Tracked) -> None:
        for job in tracked.jobs:
            for number, first, end in job.places:
                job.read_when_over += self._memory.block_table(tracked.request, group=number)[first:end]
            job.places = []

    def finished(self, tracked: Tracked, offers: Sequence[int]) -> None:
        self.gives_back(tracked)
        for number in offers:
            tracked.tables[number] = self._memory.block_table(tracked.request, group=number)
        for job in tracked.jobs:
            if job.read_when_over:
                self._put(job, job.read_when_over)

    def begun(self, job: Job) -> None:
        if job.read_at_once:
            self._put(job, job.read_at_once)

    def begun_late(self, job: Job, taken: Collection[int]) -> bool:
        tables = job.tracked.tables
        job.read_when_over = [
            block for number, first, end in job.places for block in tables[number][first:end]
        ]
        job.places = []
        self._put(job, job.read_when_over)
        return any(block in taken for block in job.read_when_over)

    def of(self, taken: Collection[int]) -> list[Job]:
        fenced = self.jobs
        return [job for block in taken if block in fenced for job in fenced[block]]

    def lift(self, job: Job) -> None:
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


@mypyc_attr(allow_interpreted_subclasses=True)
class WatchedFences(Fences):
    """See `Fences`: around blocks that memory watches; they have no numbers, and all are of one KV group.

    Args:
        memory: of the device.
    """

    __slots__ = ("_fresh", "_memory", "_watches")

    names_taken = False

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self._watches: dict[Tracked, Watch] = {}
        self._fresh: list[Tracked] = []  # over since the last plan: they may offer something in the next one

    @property
    def stand(self) -> bool:
        return bool(self._watches)

    def gives_back(self, tracked: Tracked) -> None:
        for job in tracked.jobs:
            job.places = []  # it is waited for in this plan

    def finished(self, tracked: Tracked, offers: Sequence[int]) -> None:
        if offers:
            tracked.tables[0] = list(range(self._memory.held_blocks(tracked.request)))  # places
        if offers or any(job.places for job in tracked.jobs):
            self._watches[tracked] = self._memory.watch(tracked.request)
            self._fresh.append(tracked)

    def joins(self, request: EngineRequest) -> None:
        if self._watches:
            self._memory.take_over(request)

    def begun(self, job: Job) -> None:
        return

    def begun_late(self, job: Job, taken: Collection[int]) -> bool:
        return self._meets(job)

    def of(self, taken: Collection[int]) -> list[Job]:
        return [
            job
            for tracked, watch in self._watches.items()
            if watch.taken
            for job in tracked.jobs
            if self._meets(job)
        ]

    def lift(self, job: Job) -> None:
        tracked = job.tracked
        if tracked in self._watches and not tracked.jobs and tracked not in self._fresh:
            self._end(tracked)

    def close(self) -> None:
        for watch in self._watches.values():
            watch.taken.clear()
        for tracked in self._fresh:
            if not tracked.jobs:
                self._end(tracked)
        self._fresh = []

    def _meets(self, job: Job) -> bool:
        watch = self._watches[job.tracked]
        return any(watch.meets(first, end) for _, first, end in job.places)

    def _end(self, tracked: Tracked) -> None:
        self._memory.end_watch(self._watches.pop(tracked))


def fences_for(memory: Any) -> Fences:
    """Return the fences for the memory of a device."""
    return NumberedFences(memory) if memory.names_blocks else WatchedFences(memory)
