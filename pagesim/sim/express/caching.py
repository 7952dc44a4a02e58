"""The lane of `VllmV1` with prefix caching: memory is the cache's own."""

from __future__ import annotations

from pagesim.accounting.records import Recorder, Status
from pagesim.costs import CostModel
from pagesim.kvcache import PrefixCachingAllocator
from pagesim.scheduling import Group, Preemptive, VllmV1
from pagesim.sim.express.lane import LEAP, NOBODY
from pagesim.sim.express.notes import CACHING_FIELDS
from pagesim.sim.express.vllm_v1 import VllmV1Lane


class CachingLane(VllmV1Lane):
    """See `Lane`. What is found and lost in the cache no number stands for, so blocks are held in memory.

    Attributes:
        cache: the memory.
        groups: of those who run, and of those who wait and were looked at, by index.
        answering: the sequence of everybody who runs, by the name of what it generates.
    """

    __slots__ = ("answering", "cache", "groups")

    counts_memory = False
    fields = CACHING_FIELDS

    def __init__(self, scheduler: Preemptive, recorder: Recorder, cost: CostModel, until: int) -> None:
        super().__init__(scheduler, recorder, cost, until)
        assert isinstance(scheduler.memory, PrefixCachingAllocator)
        self.cache = scheduler.memory
        self.due = self.cache.due
        self.groups: dict[int, Group] = {}
        self.answering: dict[int, int] = {}

    @classmethod
    def carries(cls, scheduler: Preemptive) -> bool:
        assert isinstance(scheduler, VllmV1)
        return (
            type(scheduler.memory) is PrefixCachingAllocator
            and scheduler.queue.arrivals.widest == 1
            and scheduler.chunked_prefill
        )

    # As `Lane`

    def begin(self, now: int) -> int:
        over_at = super().begin(now)
        if over_at >= 0:
            self._decision[LEAP:LEAP] = self.cache.accounts(self.lead)[2:]
        return over_at

    def end(self, now: int) -> list[int]:
        recorder, running, ending = self.recorder, self.running, self.ending
        leapt = self._decision[LEAP]
        steps = self.lead + leapt
        if steps:
            self.cache.grow(steps)
            self.steps += steps
            self.context += steps * len(running)
            self.free = self.cache.free_blocks
        self._decisions.fromlist(self._decision)
        recorder.iterations += 1 + leapt
        if not ending or ending[-1][0] + self.steps < 0:
            return NOBODY
        over = []
        while ending and ending[-1][0] + self.steps >= 0:
            over.append(ending.pop()[1])
        if len(over) > 1:  # whose blocks are given back first matters here
            order = list(running)
            over.sort(key=lambda index: (self.ticks[index], order.index(index)))
        rows = []
        for index in over:
            base, first, last = running.pop(index)
            held = base + last
            self.context -= held
            group = self.groups.pop(index)
            assert group.content is not None
            self.cache.free(group.sequences[0])
            del self.answering[group.content.answer]
            self._stays.fromlist([first, recorder.iterations - 1, base, held + 1])
            recorder.finish[group.row] = now
            recorder.status[group.row] = Status.FINISHED
            rows.append(group.row)
        self.free = self.cache.free_blocks
        return rows

    def borrow(self, index: int, group: Group) -> None:
        super().borrow(index, group)
        assert group.content is not None
        self.groups[index] = group
        self.answering[group.content.answer] = group.sequences[0]

    def give_back(self, index: int) -> Group:
        group = self.groups.pop(index)
        assert group.content is not None
        del self.answering[group.content.answer]
        group.base, _, group.last_step = self.running[index]
        group.length = self.targets.pop(index, group.length)
        group.computed = self.chunks.pop(index, group.length)
        self.scheduler.readmit(group)
        return group

    def keep(self, index: int, group: Group) -> None:
        self.groups[index] = group

    def kept(self, index: int) -> Group | None:
        return self.groups.pop(index, None)

    def _grow(self, left: int) -> None:
        self.cache.grow(1)
        super()._grow(left)

    def _release(self, index: int, base: int, held: int) -> None:
        group, cache = self.groups[index], self.cache
        assert group.content is not None
        # Those before it have taken theirs, and what they took is lost to the cache.
        cache.set_aside(cache.free_blocks)
        cache.free(group.sequences[0])
        self.free = cache.free_blocks
        del self.answering[group.content.answer]
        group.length = held + 1

    # As `VllmV1Lane`

    def _step(self) -> None:
        self.cache.grow(1)
        self.steps += 1
        self.free = self.cache.free_blocks

    def _joining(self, index: int, budget: int) -> tuple[int, int] | None:
        cache, group = self.cache, self._group(index)
        content, length = group.content, group.length
        assert content is not None
        for name in content.follows:
            before = self.answering.get(name)
            if before is not None:
                # The round before is still being answered: what it fills can be found as it goes on.
                cache.publish(before)
                self.restless = True
        hits = cache.hits(content, length)
        found = hits * self.size
        tokens = self._capped(length - found, budget)
        wanted = length if self.full_isl else found + tokens
        spare = self.watermark if self.running else 0
        if cache.blocks_wanted(content, hits, wanted) + spare > self.free:
            return None
        return found, tokens

    def _hold(self, index: int, found: int, tokens: int) -> None:
        group, recorder = self.groups[index], self.recorder
        sequence, content = group.sequences[0], group.content
        assert content is not None
        self.cache.allocate_cached(sequence, content, found // self.size, found + tokens)
        self.free = self.cache.free_blocks
        self.answering[content.answer] = sequence
        if found and recorder.first_scheduled[group.row] < 0:
            recorder.cached_tokens[group.row] = found

    def _extend(self, index: int, computed: int, tokens: int) -> None:
        self.cache.extend(self.groups[index].sequences[0], tokens)
        self.free = self.cache.free_blocks

    def _start_growing(self, index: int, base: int) -> None:
        self.cache.start_growing(self.groups[index].sequences[0])

    # Inside

    def _group(self, index: int) -> Group:
        """Return the group of a request that waits."""
        group = self.groups.get(index)
        if group is None:
            group = self.groups[index] = self.scheduler.queue.group_of(index)
        return group
