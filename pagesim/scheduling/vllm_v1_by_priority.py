"""Running requests by priority: where blocks are short, the least urgent of all loses its place."""

from __future__ import annotations

from pagesim.scheduling.batch import Batch
from pagesim.scheduling.request import EngineRequest
from pagesim.scheduling.vllm_v1_running import RunningV1
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class RunningByPriorityV1(RunningV1):
    """As `RunningV1`; ``by_priority`` says whether a request's priority decides who is preempted.

    Source: vLLM 0.33.0, v1/core/sched/scheduler.py, ``Scheduler.schedule``.
    """

    __slots__ = ("by_priority",)

    by_priority: bool

    def _run_one_by_one(self, batch: Batch, budget: int) -> None:
        if self.by_priority:
            self._run_by_priority(batch, budget)
        else:
            super()._run_one_by_one(batch, budget)

    def _run_by_priority(self, batch: Batch, budget: int) -> None:
        """As `_run_one_by_one`, where the least urgent of all requests is preempted.

        It may be one that was given its tokens in this very plan: it leaves the batch, and the budget is
        higher by them. So every request takes its blocks as its turn comes, at rest.
        """
        memory = self.memory
        for request in self.running.values():
            if request.decodes:
                self.events.interval_ended(request)
                self._leave_finishing(request)
                memory.stop_decoding(request)
        self._settle_skipped()
        order = list(self.running.values())
        served: dict[EngineRequest, int] = {}
        place = 0
        while place < len(order) and budget > 0:
            request = order[place]
            if request.order in self._ending:
                place += 1
                continue
            chunked = request.order in self._in_chunks
            tokens = self._chunk(request, request.tokens, budget) if chunked else 1
            if tokens <= 0:
                place += 1
                continue
            if chunked or request.order in self._skipped:
                self.events.interval_ended(request)
            memory.trim(request)
            while memory.blocks_to_extend(request, tokens) > memory.free_blocks:
                victim = self._least_urgent(order)
                if not self._may_lose_place(victim):
                    place = len(order)  # the others get nothing either
                    break
                at = order.index(victim)
                del order[at]
                if at < place:
                    place -= 1
                budget += self._take_back(victim, served.pop(victim, 0), batch)
                if victim is request:
                    break
            else:
                self._make_room(request, tokens)
                served[request] = tokens
                budget -= tokens
                place += 1
        memory.grow(1)  # those that decode have taken theirs
        self._note_served(served, [each for each in order if each not in served], batch)

    def _least_urgent(self, order: list[EngineRequest]) -> EngineRequest:
        """Return which running request is preempted: of several samples the one that was admitted first."""
        priority_of = self.queue.arrivals.priority_of
        return max(order, key=lambda request: (priority_of(request.index), request.arrival))

    def _take_back(self, victim: EngineRequest, tokens: int, batch: Batch) -> int:
        """Preempt a request that was given so many tokens in this plan; return them."""
        self.context += tokens
        self.preempt(victim, batch)
        if victim.length == victim.tokens + 1:
            victim.length -= tokens
        return tokens

    def _note_served(
        self, served: dict[EngineRequest, int], unserved: list[EngineRequest], batch: Batch
    ) -> None:
        """Let requests go on that were given their tokens, and those that decode and were not be skipped."""
        memory, before = self.memory, self._skipped
        at_rest = {**self._in_chunks, **self._ending}
        self._skipped = {each.order: each for each in unserved if each.order not in at_rest}
        decoding = [request for request in served if request.order not in self._in_chunks]
        for request in decoding:
            request.in_flight = memory.lag
            self.start_decoding(request)
        self._note_decoding(decoding, unserved, before, batch)
        for request, tokens in served.items():
            if request.order in self._in_chunks:
                self._compute(request, request.tokens - tokens, tokens, batch)
                if request.order not in self._in_chunks:
                    batch.completed += (request,)
