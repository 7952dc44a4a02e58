"""KVConnector: the scheduler's side of what moves KV between an engine's blocks and other places."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from pagesim.kvcache import BlockManager, State
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.request import EngineRequest
from pagesim.setup.compiled import mypyc_attr

if TYPE_CHECKING:  # the scheduler imports connectors, too
    from pagesim.scheduling.offload.jobs import Job
    from pagesim.scheduling.vllm_v1.scheduler import VllmV1


@mypyc_attr(allow_interpreted_subclasses=True)
class KVConnector:
    """A connector of `VllmV1` with the hooks of vLLM's connectors; subclasses override what they need.

    A request whose KV comes from elsewhere allocates blocks for it and waits at the front of the queue, like
    vLLM's ``WAITING_FOR_REMOTE_KVS``. Meanwhile it holds its blocks, does not run and cannot be preempted.

    With two batches in flight, copies into blocks are not ordered with the writes of a batch. A request that
    gets tokens from a batch in flight is therefore not preempted. If it is aborted, it keeps its blocks
    until the outcome of that batch is known.

    Source: vLLM 0.33.0, distributed/kv_transfer/kv_connector/v1/base.py; v1/core/sched/scheduler.py,
    ``_update_waiting_for_remote_kv``, ``schedule`` and ``_free_request_blocks``.

    Args:
        memory: the device's block manager.

    Attributes:
        loading: requests that hold blocks into which KV is copied.
        loaded: requests of ``loading`` whose KV has arrived and that were not looked at since.
        leaving: requests that were aborted while their KV was loaded.
        deferred: requests that were aborted or finished on draft tokens and still keep their blocks, as
            (number of plans whose outcome must be known first, request).
        computed: tokens computed before, by request with a chunk in the current plan.
    """

    parks: ClassVar[tuple[str, ...]] = ()
    """Ledger entries for blocks that only requests of `held_without_running` hold."""

    fills_blocks: ClassVar[bool] = True
    """Whether KV is copied into the engine's blocks rather than only out of them."""

    def __init__(self, memory: BlockManager) -> None:
        self.memory = memory
        self.loading: dict[EngineRequest, None] = {}
        self.loaded: set[EngineRequest] = set()
        self.leaving: dict[EngineRequest, None] = {}
        self.deferred: deque[tuple[int, EngineRequest]] = deque()
        self.computed: dict[EngineRequest, int] = {}
        self._plans = self._finishes = 0  # plans so far, and those whose outcome is known

    # Hooks of vLLM's connectors

    def get_num_new_matched_tokens(
        self, request: EngineRequest, num_computed_tokens: int, scheduler: VllmV1
    ) -> int | None:
        """Return how many tokens of a waiting request can be loaded beyond those on the device.

        None means that this is not known yet: the request is skipped and others overtake it.
        """
        return 0

    def update_state_after_alloc(
        self, request: EngineRequest, num_external_tokens: int, scheduler: VllmV1
    ) -> None:
        """Note that a waiting request was given blocks: it is loaded or, with 0 tokens, starts to run."""
        return

    def build_connector_meta(self, batch: Batch, scheduler: VllmV1) -> bool:
        """End a plan; return whether the next one may differ even if no request arrives or leaves."""
        return False

    def update_connector_output(self, jobs: Sequence[Job]) -> None:
        """Note that copies have finished."""
        return

    def preempted(self, request: EngineRequest) -> None:
        """Note that a running request is about to be preempted and to lose its blocks."""
        return

    def request_finished(self, request: EngineRequest, *, is_aborted: bool) -> bool:
        """Note that a request with blocks has finished; return whether it keeps them for now."""
        return False

    # Further queries of the scheduler

    @property
    def has_work(self) -> bool:
        """Whether copies are under way for which the engine must keep planning."""
        return False

    @property
    def awaits(self) -> bool:
        """Whether requests will be loaded, or blocks freed, without any step."""
        return bool(self.loading or self.loaded or self.leaving or self.deferred)

    def next_plan_differs(self) -> bool:
        """Return whether the next plan may decide something even if all requests run and only decode."""
        # In a hybrid memory, what is held only by requests that do not run is counted block by block.
        return bool(self.deferred) or (self.memory.is_hybrid and bool(self.leaving))

    def held_without_running(self, holding: Sequence[EngineRequest]) -> Sequence[Sequence[EngineRequest]]:
        """Return the requests that hold memory without running, grouped by entry of ``parks``.

        Args:
            holding: requests that hold blocks and wait at the front of the queue.
        """
        return [*holding, *self.leaving], [request for _, request in self.deferred]

    def begin_plan(self, now: int) -> None:
        """Note that a plan begins."""
        self.computed = {}

    def blocks_to_reserve(self, chunked: Iterable[EngineRequest], ahead: int = 0) -> int:
        """Return how many blocks chunked prefills and loading requests still need for their full length.

        These are not given to a request that is to be loaded, because it could not be preempted for them.

        Args:
            chunked: requests whose prompt is only partly prefilled.
            ahead: tokens of the step after a prompt, draft tokens and the drafter's slots included; 0
                without draft tokens.
        """
        computed, memory = self.computed, self.memory
        blocks = 0
        for each in (*chunked, *self.loading):
            each.lookahead_tokens = ahead
            start = computed.get(each, each.tokens)
            blocks += memory.blocks_to_extend(each, each.length + ahead - each.tokens, start)
        if ahead:
            kept = [group.block_size for group in memory.groups if not isinstance(group.rule, State)]
            blocks += sum([-(-ahead // size) for size in kept])
        return blocks

    def is_ready(self, request: EngineRequest) -> bool:
        """Return whether a request's KV has been loaded; if so, make its blocks available for prefix hits."""
        if request not in self.loading:
            return True
        if request not in self.loaded:
            return False
        self.loaded.remove(request)
        del self.loading[request]
        request.uncommitted_tokens = 0
        self.memory.cache_full_blocks(request)
        return True

    def finished_recving(self, request: EngineRequest) -> None:
        """Note that a request was loaded; free its blocks if it was aborted meanwhile."""
        if request in self.leaving:
            del self.leaving[request]
            self.memory.release(request)
        else:
            self.loaded.add(request)

    def abort_held(self, request: EngineRequest) -> None:
        """Free the blocks of a request aborted while it waited, as soon as no copy writes to them."""
        self.request_finished(request, is_aborted=True)
        is_filled = request in self.loading and request not in self.loaded
        self.loading.pop(request, None)
        self.loaded.discard(request)
        if is_filled:
            self.leaving[request] = None
        else:
            self.memory.release(request)

    def defer_free(self, request: EngineRequest) -> None:
        """Keep the blocks of a finished request until the batch in flight has finished."""
        if request.decodes:
            self.memory.stop_decoding(request)
        self.memory.cache_full_blocks(request)
        self.deferred.append((self._plans, request))

    def count_plan(self) -> None:
        """Count a plan whose outcome will be known."""
        self._plans += 1

    def advance(self, steps: int, draining: int) -> None:
        """Count steps that ran without plans, with ``draining`` requests draining."""
        self._plans += steps
        # One step is in flight; if some drain, ``finish`` will be called for the one before it.
        self._finishes = self._plans - 1 - (draining > 0)

    def count_finish(self) -> None:
        """Count the outcome of a plan, and free the blocks whose release waited for it."""
        self._finishes += 1
        while self.deferred and self.deferred[0][0] <= self._finishes:
            self.memory.release_together(self.deferred.popleft()[1])
