"""What the scheduler knows of requests that have a token in flight.

Source: SGLang 0.5.23, ``Scheduler.event_loop_overlap``, ``process_batch_result``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagesim.scheduling.request import EngineRequest
from pagesim.scheduling.sglang.pool import TokenPool
from pagesim.scheduling.sglang.request import SglangRequest
from pagesim.setup.compiled import mypyc_attr

if TYPE_CHECKING:  # it holds these results
    from pagesim.scheduling.sglang.scheduler import Sglang


@mypyc_attr(allow_interpreted_subclasses=True)
class PendingResults:
    """The pending results of the iteration in flight and, with overlap, of the one before it.

    Args:
        pool: the token pool, which caches prompts when their results arrive.

    Attributes:
        launched: requests whose prompt, or its last chunk, runs in the iteration in flight.
        computed: requests whose prompt, or its last chunk, ran in the iteration whose result comes next.
        ending: requests whose last token comes with that result, in batch order.
        decodes: whether one token of each running request is unknown when the next iteration is decided.
    """

    def __init__(self, pool: TokenPool) -> None:
        self._pool = pool
        self._memory = pool.memory
        self.launched: list[SglangRequest] = []
        self.computed: list[SglangRequest] = []
        self.ending: dict[SglangRequest, None] = {}
        self.decodes = False

    def known_outputs(self, req: SglangRequest) -> int:
        """Return how many of a request's generated tokens are known when an iteration is decided."""
        if not req.decodes:
            return req.length - req.prompt
        late = self.decodes or req in self.computed
        return req.length_offset + self._memory.steps - req.prompt + 1 - late

    def tokens_to_come(self, reqs: Sequence[SglangRequest]) -> list[int]:
        """Return how many tokens each of the given decoding requests may still generate."""
        late, computed, known = self.decodes, set(self.computed), self._memory.steps + 1
        return [req.final_step - known + (late or req in computed) for req in reqs]

    def launch(self) -> None:
        """Make the result of the iteration in flight the next one to be processed."""
        if self.computed:  # after a fast-forward of one step
            self.cache_computed()
        self.computed, self.launched = self.launched, []

    def note_ending(
        self, finishing: list[tuple[int, int, EngineRequest]], running: Sequence[SglangRequest]
    ) -> None:
        """Note which requests have their last token in the iteration in flight.

        Args:
            finishing: decoding requests by the step of their last token; those whose step has been reached
                are noted and removed.
            running: running requests, in the order of their batches.
        """
        ending: list[SglangRequest] = []
        while finishing and finishing[0][0] <= self._memory.steps:
            req = finishing.pop(0)[2]
            assert isinstance(req, SglangRequest)
            req.last_step = -1
            ending.append(req)
        if len(ending) > 1:
            ending = [req for req in running if req in ending]
        self.ending = dict.fromkeys(ending)

    def process(self, scheduler: Sglang, now: int) -> list[EngineRequest]:
        """Process the oldest result in flight: cache its prompts, and return the finished requests."""
        ending = self.ending
        if not ending:
            self.cache_computed()
            return []
        # In batch order: prompts first, if the batch had any.
        for req in [*self.computed, *ending]:
            if req not in ending:
                self._pool.cache_unfinished_req(req)
            elif req.order in scheduler.running and req.is_refused:
                scheduler.give_up(req, now)
            elif req.order in scheduler.running:
                scheduler._over(req, now)
        self.computed, self.ending = [], {}
        scheduler.draining = scheduler.draining_context = 0
        scheduler.drop_from_running(ending)
        return list(ending)

    def cache_computed(self) -> None:
        """Cache the prompts whose results have arrived, for requests that continue."""
        computed, self.computed = self.computed, []
        for req in computed:
            self._pool.cache_unfinished_req(req)

    def forget(self, req: SglangRequest) -> None:
        """Drop the pending results of a request that lost its slot."""
        self.ending.pop(req, None)
        if req in self.launched:
            self.launched.remove(req)
        if req in self.computed:
            self.computed.remove(req)
