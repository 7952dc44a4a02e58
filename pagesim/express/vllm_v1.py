"""The lane of `VllmV1`, as long as every prompt runs whole."""

from __future__ import annotations

from itertools import chain

from pagesim.cost import CostModel
from pagesim.express.lane import Lane
from pagesim.records import Recorder
from pagesim.scheduling import Preemptive, VllmV1


class VllmV1Lane(Lane):
    """See `Lane`."""

    __slots__ = ("full_isl", "most_sequences", "threshold")

    preempted_first = True

    def __init__(self, scheduler: Preemptive, recorder: Recorder, cost: CostModel, until: int) -> None:
        super().__init__(scheduler, recorder, cost, until)
        assert isinstance(scheduler, VllmV1)
        self.full_isl = scheduler.full_isl
        self.most_sequences = scheduler.max_num_seqs
        self.most_decoding = scheduler.max_num_batched_tokens
        self.threshold = scheduler.threshold or self.most_decoding

    @classmethod
    def carries(cls, scheduler: Preemptive) -> bool:
        assert isinstance(scheduler, VllmV1)
        return scheduler.chunked_prefill and super().carries(scheduler)

    def _plan(self, now: int) -> list[int] | None:
        running, size = self.running, self.size
        if len(running) > self.most_decoding:
            return None
        due = (self.steps + 1) % size
        if self.due[due] > self.free:
            while self.due[due] > self.free:
                self._preempt(now)
            self._grow()
            self.restless = self._head_fits()
            return []
        self.restless = False
        entered = self._joining(self.free - self.due[due]) if self.waiting else []
        if entered is None:
            return None
        self._grow()
        for index in entered:
            length = self._length(index)
            self.batched += length
            self.pairs += length * (length + 1) // 2
            self._admit(index, length, -(-length // size))
        self.tokens = self.batched
        self.context_tokens = self.context
        return entered

    def _joining(self, free: int) -> list[int] | None:
        """Choose who joins, with so many blocks free; None if a prompt would not run whole."""
        size = self.size
        running = len(self.running)
        budget = self.most_decoding - running
        entered: list[int] = []
        for index in chain(self.lost, range(self.fresh, self.arrived)):
            if budget <= 0:
                self.restless = True
                break
            if running >= self.most_sequences:
                break
            length = self._length(index)
            tokens = min(length, budget, self.threshold)
            spare = self.watermark if running else 0
            if -(-(length if self.full_isl else tokens) // size) + spare > free:
                if not running:
                    return None  # nobody will ever make room for it
                break
            if tokens < length:
                return None
            free -= -(-length // size)
            budget -= length
            running += 1
            entered.append(index)
        return entered

    def _head_fits(self) -> bool:
        wanted = self._length(self._head()) if self.full_isl else 1
        spare = self.watermark if self.running else 0
        return -(-wanted // self.size) + spare <= self.free
