"""TensorRT-LLM's two capacity policies: who fits, and who is paused.

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
    """A request starts if the blocks suffice for all that it may ever hold; no request is paused.

    The policy that is the default; it gives way to `MaxUtilization` where that is chosen.
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
    """A request starts if its prompt fits; where blocks run short, those that arrived last are paused.

    One that is paused is recomputed, with what it generated.
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
        """Return who fits where a request that has started is behind one that has not.

        That comes of a prompt that was so short that it took what was left of an iteration's tokens. The one
        ahead of it, too, gets room at its cost.
        """
        memory, queue = self.memory, self.queue
        started = [each for each in self.running.values() if each.order not in self._draining]
        waiting: list[EngineRequest] = []
        taken = place = 0
        end: int | None = None  # the index of the one that was paused last: no request behind it is looked at
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
        """Return the last request that runs and does not drain; a step that needs a block has one."""
        return next(each for each in reversed(self.running.values()) if each.order not in self._draining)

    def _free(self) -> int:
        """Return the free blocks, less those of prompts whose chunks have not all run."""
        memory = self.memory
        return memory.free_blocks - sum(
            [memory.blocks_to_extend(each, each.length - each.tokens) for each in self.in_chunks.values()]
        )
