"""Requests whose last token is in flight when a batch is scheduled while the previous one runs."""

from __future__ import annotations

from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.request import EngineRequest
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class DrainingScheduler(Scheduler):
    """A scheduler whose requests *drain* once their last token is in flight.

    They keep their slot and their memory in the next plan, but get no further token.
    """

    __slots__ = ("_draining",)

    _draining: dict[int, EngineRequest]  # draining requests, by `SequenceGroup.order`

    def start_draining(self) -> None:
        finishing, memory = self._finishing, self.memory
        while finishing and finishing[0][0] <= memory.steps:
            request = finishing.pop(0)[2]
            self.events.interval_ended(request)
            if self.spans is not None:
                self.spans.leave(request.length_offset)
            memory.stop_decoding(request)
            request.last_step = -1
            self._draining[request.order] = request
            self.draining += 1
            self.draining_context += request.tokens

    def finish_draining(self, now: int) -> list[EngineRequest]:
        """Finish and return the draining requests, whose last token is now known."""
        ending = self._draining
        over = [ending[order] for order in sorted(ending)] if len(ending) > 1 else list(ending.values())
        ending.clear()
        self.draining = self.draining_context = 0
        for request in over:
            request.uncommitted_tokens = 0
            self._over(request, now)
        return over

    def stop_draining(self, request: EngineRequest) -> None:
        """Stop draining a request that loses its slot, if it drains."""
        if self._draining.pop(request.order, None) is not None:
            self.draining -= 1
            self.draining_context -= request.tokens
