"""Copies: carries out what is copied to and from the tiers behind a device, beside its iterations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from pagesim.costs.transfers import ChainLinks
from pagesim.kvcache.tiers import DEVICE, ChainBacking, Move
from pagesim.scheduling.arrivals import NEVER
from pagesim.scheduling.offload.jobs import Job, Transfers
from pagesim.setup.compiled import mypyc_attr

CopyTime = Callable[[int], int]
"""Ticks that a copy of so many blocks takes."""


class TierLinks(NamedTuple):
    """The links of a chain, and what goes over them.

    Attributes:
        queues: a queue a direction of each tier.
        block_bytes: of a block on each GPU.
        chunk_blocks: blocks a chunk.
        chunk_bytes: of a chunk in a tier.
        load_times, store_times: of each tier, what a copy of so many blocks takes between it and the device,
            either way.
    """

    queues: ChainLinks
    block_bytes: int
    chunk_blocks: int
    chunk_bytes: int
    load_times: Sequence[CopyTime]
    store_times: Sequence[CopyTime]


@mypyc_attr(allow_interpreted_subclasses=True)
class _Load:
    """A load that is under way.

    Attributes:
        job: that loads.
        order: of its submission.
        ready: when the device is through with what was launched before it.
        hops: its moves from tier to tier that are not over.
        end: of the last of its moves to the device, as far as they were sent.
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

    A job starts when the device is through with what was launched before it. Each of its moves waits for
    those sent before it over its link in its direction, and for those that it comes after; a load is over
    when all of it has come over the last link. What moves from tier to tier takes no turn of the engine: it
    goes on, and the chain is told, while the engine computes or is idle. A job that is copied from several
    tiers copies chunks as a whole.

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
        self._moving: list[tuple[int, int, Move]] = []  # from tier to tier: each with when it is over
        self._ends: dict[Move, int] = {}  # when each of them is over
        self._load_of: dict[Move, _Load] = {}
        self._storing: list[tuple[int, int, Job]] = []  # each job with when it is over
        self._loading: list[tuple[int, int, Job]] = []  # those that are on their last link
        self._sent = 0
        self._unsent: list[Job] = []  # stores of the last iteration

    @property
    def due(self) -> int:
        """When the next copy is over, in ticks; 0 where some wait for an iteration or for another tier."""
        if self._unsent or self._load_of:
            return 0
        ends = [queue[0][0] for queue in (self._storing, self._loading) if queue]
        return min(ends, default=NEVER)

    def advance(self, now: int) -> None:
        """Carry out what moves from tier to tier until an instant, and send what has begun."""
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
            transfers: of the next one.
            now: when it was decided, in ticks.
            busy: when what was launched before it is over.
        """
        self.advance(now)
        flushed = transfers.flushed
        self._store([*self._unsent, *[job for job in transfers.stores if job in flushed]], max(now, busy))
        self._unsent = [job for job in transfers.stores if job not in flushed]
        waits = [end for end, _, job in self._storing if job in flushed] if flushed else ()
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
        """Return the jobs of which an iteration learns that is launched now: all that are over since."""
        over: list[Job] = []
        for queue in (self._storing, self._loading):
            while queue and queue[0][0] <= now:
                over.append(heappop(queue)[2])
        return over

    # Inside

    def _next(self) -> int:
        self._sent += 1
        return self._sent

    def _send(self, move: Move, now: int) -> None:
        """Send a move from tier to tier."""
        ready = max([now, *[self._ends.get(each, now) for each in move.after]])
        queue = self._links.queues.between(move.source, move.target)
        _, end = queue.send(ready, move.chunks * self._links.chunk_bytes)
        self._ends[move] = end
        heappush(self._moving, (end, self._next(), move))

    def _send_load(self, move: Move, load: _Load, now: int) -> None:
        if move.target == DEVICE:
            times = self._links.load_times[move.source]
            load.end = max(load.end, self._occupy(move, load.job, times, max(now, load.ready)))
        else:
            load.hops += 1
            self._load_of[move] = load
            self._send(move, now)

    def _store(self, jobs: Sequence[Job], ready: int) -> None:
        """Start stores, once the device is ready."""
        for job in jobs:
            end = 0
            for move in job.copy.moves:
                begin = max([ready, *[self._ends.get(each, ready) for each in move.after]])
                end = max(end, self._occupy(move, job, self._links.store_times[move.target], begin))
            heappush(self._storing, (end, self._next(), job))

    def _occupy(self, move: Move, job: Job, times: CopyTime, ready: int) -> int:
        links = self._links
        blocks = job.blocks
        if move.chunks < job.copy.chunks:
            blocks = min(blocks, move.chunks * links.chunk_blocks)
        queue = links.queues.between(move.source, move.target)
        return queue.occupy(ready, times(blocks), blocks * links.block_bytes)[1]

    def _settle(self, load: _Load) -> None:
        """Await the end of a load of which all is on its last link."""
        if not load.hops:
            heappush(self._loading, (load.end, load.order, load.job))
