"""vLLM v1 whose blocks are filled by copies as well: which requests wait, and what is not given back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from pagesim.kvcache import KVCache
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.options import Prices
from pagesim.scheduling.request import EngineRequest
from pagesim.scheduling.vllm_v1 import VllmV1
from pagesim.scheduling.vllm_v1_options import VllmV1Options
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class HoldingV1(VllmV1):
    """What schedulers share whose requests hold blocks that are filled from elsewhere, and wait for that.

    With two batches in flight, a copy into blocks is not in order with what a batch writes to them. So a
    request that gets tokens from a batch in flight is not preempted, and one that is aborted keeps its blocks
    until the outcome of that batch is known.

    Source: vLLM 0.33.0, v1/core/sched/scheduler.py, ``_update_waiting_for_remote_kv``, ``schedule`` and
    ``_free_request_blocks``.
    """

    __slots__ = ("_fenced", "_finishes", "_plans")

    keeps_in_flight = True

    def __init__(
        self,
        memory: KVCache,
        options: VllmV1Options,
        *,
        max_model_len: int,
        prices: Prices | None = None,
    ) -> None:
        super().__init__(memory, options, max_model_len=max_model_len, prices=prices)
        # Plans so far, those whose outcome is known, and the requests that keep their blocks though they were
        # aborted, each until the outcome of so many plans is known.
        self._plans = self._finishes = 0
        self._fenced: deque[tuple[int, EngineRequest]] = deque()

    @property
    def fenced(self) -> list[EngineRequest]:
        """The requests that were aborted and keep their blocks until a batch is over."""
        return [request for _, request in self._fenced]

    def plan(self, now: int) -> Batch:
        self.events.parked_changes(now)
        batch = super().plan(now)
        if batch.tokens or not batch.stuck:
            self._plans += 1  # else another plan is made at once
        return batch

    def steps_until_next_decision(self) -> int:
        return 0 if self._fenced else super().steps_until_next_decision()

    def advance(self, steps: int) -> None:
        super().advance(steps)
        self._plans += steps
        # One step is in flight; where some rest ``finish`` is going to be called for the one before it.
        self._finishes = self._plans - 1 - (self.resting > 0)

    def finish(self, now: int) -> list[EngineRequest]:
        self._finishes += 1
        while self._fenced and self._fenced[0][0] <= self._finishes:
            self.memory.release(self._fenced.popleft()[1])
            self.must_replan = True  # there may be room for one that waits
        return super().finish(now)

    def _drop(self, request: EngineRequest) -> None:
        if not self._is_in_flight(request):
            super()._drop(request)
            return
        memory = self.memory
        if request.decodes:
            memory.stop_decoding(request)
        memory.cache_full_blocks(request)
        self._fenced.append((self._plans, request))

    def _take_for_load(
        self,
        request: EngineRequest,
        tokens: int,
        loaded: int,
        others: Iterable[EngineRequest],
        computed: Mapping[EngineRequest, int],
    ) -> bool:
        """Give the head of the queue blocks for its first tokens, some of which come from elsewhere.

        There must be room for its whole length, and what prompts in chunks and other loads still miss is not
        given away: a request that waits for a load cannot make room.

        Args:
            request: the head of the queue.
            tokens: what it has cached and what is loaded.
            loaded: those of them that are loaded; their blocks cannot be found before.
            others: requests that wait for loads.
            computed: tokens before the plan at hand, of requests that got a chunk in it.

        Returns:
            Whether there was room.
        """
        memory = self.memory
        spare = self.watermark_blocks if self.running else 0
        reserved = sum(
            [
                memory.blocks_to_complete(each, each.length, computed.get(each, each.tokens))
                for each in (*self._in_chunks.values(), *others)
            ]
        )
        request.unknown = loaded
        fits = not self.full_isl or memory.can_admit_whole(request, tokens, request.length, spare)
        if not fits or not memory.can_admit(request, tokens, spare + reserved):
            request.unknown = 0
            return False
        self.queue.pop(request)
        memory.admit(request, tokens)
        return True

    def _settle_load(self, request: EngineRequest) -> None:
        """Let what was loaded for a request be found."""
        request.unknown = 0
        self.memory.cache_full_blocks(request)

    def _loaded_tokens(self, request: EngineRequest) -> int:
        """Return the tokens that a request need not compute that holds blocks and does not run.

        Where all of them were loaded, the last one is computed again, for what comes next.
        """
        return min(request.tokens, request.length - 1)
