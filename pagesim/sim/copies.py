"""Carries out copies between a device and the tiers behind it while iterations run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from pagesim.costs.transfers import ChainLinks
from pagesim.kvcache.tiers import DEVICE, ChainBacking, ChunkCopy
from pagesim.scheduling.arrivals import NEVER
from pagesim.scheduling.offload.jobs import Job, Transfers
from pagesim.setup.compiled import mypyc_attr

CopyTime = Callable[[int], int]
"""Returns the ticks that a copy of a given number of blocks takes."""


class TierLinks(NamedTuple):
    """The links of a chain of tiers, and the sizes of what they carry.

    Attributes:
        queues: one queue per direction of each tier.
        block_bytes: bytes of a block on each GPU.
        chunk_blocks: blocks per chunk.
        chunk_bytes: bytes of a chunk in a tier.
        load_times, store_times: one function per tier, for the time to copy blocks from it to the device, or
            from the device to it.
    """

    queues: ChainLinks
    block_bytes: int
    chunk_blocks: int
    chunk_bytes: int
    load_times: Sequence[CopyTime]
    store_times: Sequence[CopyTime]


@mypyc_attr(allow_interpreted_subclasses=True)
class _Load:
    """A load in progress.

    Attributes:
        job: the job that loads.
        order: its position in the order of submission.
        ready: when the device finishes what was launched before it, in ticks.
        hops: number of its moves between tiers that have not finished.
        end: when the last of its moves to the device sent so far ends, in ticks.
    """

    __slots__ = ("end", "hops", "job", "order", "ready")

    def __init__(self, job: Job, order: int, ready: int) -> None:
        self.job = job
        self.order = order
        self.ready = ready
        self.hops = 0
        self.end = 0


@mypyc_attr(allow_interpreted_subclasses=True)
class TierCopies:
    """Copies blocks between the device and a chain of tiers while iterations run.

    A job starts when the device has finished what was launched before it. Each of its moves waits for the
    moves sent earlier over the same link in the same direction, and for the moves that it depends on. A load
    has finished when all of it has crossed the last link. Moves between tiers need no turn of the engine:
    they proceed, and the chain is notified, while the engine computes or is idle. A job that is copied from
    several tiers copies whole chunks.

    Source: vLLM 0.33.0, v1/kv_offload/cpu/gpu_worker.py, and the order of calls in its model runner.

    Args:
        backing: the chain whose moves are carried out.
        links: the links of its tiers.
    """

    __slots__ = (
        "_backing",
        "_ends",
        "_links",
        "_load_of",
        "_loading",
        "_moving",
        "_sent",
        "_storing",
        "_unsent",
    )

    def __init__(self, backing: ChainBacking, links: TierLinks) -> None:
        self._backing = backing
        self._links = links
        self._moving: list[tuple[int, int, ChunkCopy]] = []  # heap of moves between tiers: (end, order, move)
        self._ends: dict[ChunkCopy, int] = {}  # when each of these moves ends
        self._load_of: dict[ChunkCopy, _Load] = {}
        self._storing: list[tuple[int, int, Job]] = []  # heap of stores: (end, order, job)
        self._loading: list[tuple[int, int, Job]] = []  # the same for loads that are on their last link
        self._sent = 0
        self._unsent: list[Job] = []  # stores of the last iteration

    @property
    def due(self) -> int:
        """When the next copy ends, in ticks; 0 if any copy waits for an iteration or for another tier."""
        if self._unsent or self._load_of:
            return 0
        ends = [queue[0][0] for queue in (self._storing, self._loading) if queue]
        return min(ends, default=NEVER)

    def advance(self, now: int) -> None:
        """Finish the moves between tiers that end by an instant, and send the moves that are now due."""
        moving, chain = self._moving, self._backing.chain
        while moving and moving[0][0] <= now:
            end, _, move = heappop(moving)
            del self._ends[move]
            found, load = chain.over(move), self._load_of.pop(move, None)
            if load is None:
                for each in found:
                    self._send(each, end)
                continue
            load.job.copy.moves.remove(move)
            for each in found:
                if each.loads:
                    load.job.copy.moves.append(each)
                    self._send_load(each, load, end)
                else:
                    self._send(each, end)
            load.hops -= 1
            self._settle(load)
        for move in self._backing.take_moves():
            self._send(move, now)

    def before(self, transfers: Transfers, now: int, busy: int) -> int:
        """Start the stores of the last iteration; return when the next one can be launched.

        Args:
            transfers: the transfers of the next iteration.
            now: when that iteration was decided, in ticks.
            busy: when what was launched before it ends, in ticks.
        """
        self.advance(now)
        flushed = transfers.flushed
        self._store([*self._unsent, *[job for job in transfers.stores if job in flushed]], max(now, busy))
        self._unsent = [job for job in transfers.stores if job not in flushed]
        waits = [end for end, _, job in self._storing if job in flushed] if flushed else ()
        return max(now, *waits) if waits else now

    def after(self, transfers: Transfers, now: int, busy: int, *, naps: bool) -> list[Job]:
        """Start the loads of an iteration that was just launched; return the jobs that have finished.

        The next iteration is launched by the time this one ends, and starts this one's stores then. If the
        engine naps in between, that time is not known yet.

        Args:
            transfers: the transfers of this iteration.
            now: when it was launched, in ticks.
            busy: when it ends, in ticks.
            naps: whether it computes nothing, so that the engine may nap before the next one.
        """
        self.advance(now)
        for job in transfers.loads:
            load = _Load(job, self._next(), max(now, busy))
            for move in job.copy.moves:
                self._send_load(move, load, now)
            self._settle(load)
        self.advance(now)  # over links that take no time
        over = self.finished_by(now)
        if not naps:
            self._store(self._unsent, busy)
            self._unsent = []
        return over

    def finished_by(self, now: int) -> list[Job]:
        """Return the newly finished jobs, of which an iteration launched now learns."""
        over: list[Job] = []
        for queue in (self._storing, self._loading):
            while queue and queue[0][0] <= now:
                over.append(heappop(queue)[2])
        return over

    # Inside

    def _next(self) -> int:
        self._sent += 1
        return self._sent

    def _send(self, move: ChunkCopy, now: int) -> None:
        """Send a move between two tiers."""
        ready = max([now, *[self._ends.get(each, now) for each in move.after]])
        queue = self._links.queues.between(move.source, move.target)
        _, end = queue.send(ready, move.chunks * self._links.chunk_bytes)
        self._ends[move] = end
        heappush(self._moving, (end, self._next(), move))

    def _send_load(self, move: ChunkCopy, load: _Load, now: int) -> None:
        if move.target == DEVICE:
            times = self._links.load_times[move.source]
            load.end = max(load.end, self._occupy(move, load.job, times, max(now, load.ready)))
        else:
            load.hops += 1
            self._load_of[move] = load
            self._send(move, now)

    def _store(self, jobs: Sequence[Job], ready: int) -> None:
        """Start stores as soon as the device is ready."""
        for job in jobs:
            end = 0
            for move in job.copy.moves:
                begin = max([ready, *[self._ends.get(each, ready) for each in move.after]])
                end = max(end, self._occupy(move, job, self._links.store_times[move.target], begin))
            heappush(self._storing, (end, self._next(), job))

    def _occupy(self, move: ChunkCopy, job: Job, times: CopyTime, ready: int) -> int:
        links = self._links
        blocks = job.blocks
        if move.chunks < job.copy.chunks:
            blocks = min(blocks, move.chunks * links.chunk_blocks)
        queue = links.queues.between(move.source, move.target)
        return queue.occupy(ready, times(blocks), blocks * links.block_bytes)[1]

    def _settle(self, load: _Load) -> None:
        """Queue a load for its end once all of it is on its last link."""
        if not load.hops:
            heappush(self._loading, (load.end, load.order, load.job))
