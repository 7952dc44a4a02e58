"""TensorRT-LLM's two capacity policies, which decide which requests fit and which are paused.

Source: TensorRT-LLM, ``GuaranteedNoEvictPolicy`` and ``MaxUtilizationPolicy``
(docs/explanation/trtllm.md).
"""

from __future__ import annotations

from pagesim.scheduling.batch import Batch
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.request import EngineRequest
from pagesim.scheduling.trtllm.options import TrtllmOptions
from pagesim.scheduling.trtllm.scheduler import Trtllm


class GuaranteedNoEvict(Trtllm):
    """A request starts only if the blocks suffice for its maximum length; no request is ever paused.

    This is the default policy; `kind_for` returns `MaxUtilization` if the options choose that one.
    """

    __slots__ = ()

    @classmethod
    def kind_for(cls, options: TrtllmOptions) -> type[Scheduler]:
        return MaxUtilization if options.capacity_scheduler_policy == "MAX_UTILIZATION" else cls

    def fit(self, batch: Batch) -> list[EngineRequest]:
        promised = sum([self.blocks_to_start(each) for each in self.running.values()])
        return self.take_heads(self.memory.num_blocks - promised, batch)

    def blocks_to_start(self, request: EngineRequest) -> int:
        most = min(self.options.max_new_tokens or 0, self.longest - request.prompt)
        return self.memory.blocks_for(request.prompt + max(request.output, most))


class MaxUtilization(Trtllm):
    """A request starts if its prompt fits; when blocks run short, the latest arrivals are paused.

    A paused request is recomputed, including its generated tokens.
    """

    __slots__ = ()

    def fit(self, batch: Batch) -> list[EngineRequest]:
        if self.running and (head := self.queue.head()) is not None and head.index < self.latest().index:
            return self._fit_in_turn(batch)
        while (free := self._free() - self.memory.blocks_needed(1)) < 0:
            self.preempt(self._latest_at_work(), batch)
        return [] if batch.recomputed else self.take_heads(free, batch)

    def blocks_to_start(self, request: EngineRequest) -> int:
        return self.memory.blocks_for(request.length)

    def _fit_in_turn(self, batch: Batch) -> list[EngineRequest]:
        """Return the requests that fit when a started request is behind one that has not started.

        This happens if a prompt was short enough to use the rest of an iteration's tokens. The started one
        may then be paused to make room for the one ahead of it.
        """
        memory, queue = self.memory, self.queue
        started = [each for each in self.running.values() if each.order not in self._draining]
        waiting: list[EngineRequest] = []
        taken = place = 0
        end: int | None = None  # index of the request paused last; no request from it on is considered
        while True:
            head = queue.head() if self.seats_left(waiting) else None
            if head is not None and end is not None and head.index >= end:
                head = None
            own = started[place] if place < len(started) else None
            if own is not None and (head is None or own.index < head.index):
                head, needed = None, memory.blocks_to_extend(own, 1) if own.decodes else 0
            elif head is not None:
                needed = self.blocks_to_start(head)
            else:
                return waiting
            if taken + needed > self._free():
                if own is None:
                    return waiting
                victim = started.pop()
                end = victim.index
                self.preempt(victim, batch)
                continue
            taken += needed
            if head is None:
                place += 1
            else:
                queue.pop(head)
                waiting.append(head)

    def _latest_at_work(self) -> EngineRequest:
        """Return the last running request that does not drain; it exists whenever a step needs a block."""
        return next(each for each in reversed(self.running.values()) if each.order not in self._draining)

    def _free(self) -> int:
        """Return the free blocks, minus those that unfinished chunked prefills still need."""
        memory = self.memory
        return memory.free_blocks - sum(
            [memory.blocks_to_extend(each, each.length - each.tokens) for each in self.in_chunks.values()]
        )
