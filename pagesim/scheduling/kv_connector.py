"""KVConnector: what moves KV between an engine's blocks and another place, as its scheduler sees it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from pagesim.kvcache import BlockManager, State
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.request import EngineRequest
from pagesim.setup.compiled import mypyc_attr

if TYPE_CHECKING:  # which asks connectors
    from pagesim.scheduling.offload.jobs import Job
    from pagesim.scheduling.vllm_v1.scheduler import VllmV1


@mypyc_attr(allow_interpreted_subclasses=True)
class KVConnector:
    """A connector of `VllmV1`, with the hooks of vLLM's; a subclass overrides those that it needs.

    A request whose KV comes from elsewhere takes blocks for it and waits in front of the queue, as vLLM's
    ``WAITING_FOR_REMOTE_KVS``: it does not run meanwhile, holds its blocks, and cannot be preempted.

    With two batches in flight, a copy into blocks is not in order with what a batch writes to them. So a
    request that gets tokens from a batch in flight is not preempted, and one that is aborted keeps its blocks
    until the outcome of that batch is known.

    Source: vLLM 0.33.0, distributed/kv_transfer/kv_connector/v1/base.py; v1/core/sched/scheduler.py,
    ``_update_waiting_for_remote_kv``, ``schedule`` and ``_free_request_blocks``.

    Args:
        memory: the device's.

    Attributes:
        loading: requests that hold blocks into which something is copied.
        loaded: those whose KV is there and that were not looked at since.
        leaving: requests that were aborted while they were loaded.
        deferred: requests that were aborted, or ended on drafts, and keep their blocks, each until the
            outcome of so many plans is known.
        computed: of requests with a chunk in the plan at hand the tokens that were computed before.
    """

    parks: ClassVar[tuple[str, ...]] = ()
    """Entries of the ledger for blocks that only requests of `held_without_running` hold."""

    fills_blocks: ClassVar[bool] = True
    """Whether KV is copied into the engine's blocks, and not only out of them."""

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
        """Return how many tokens of a waiting request are loaded behind those that the device has.

        None where that is not known yet: the request is passed over, and others overtake it.
        """
        return 0

    def update_state_after_alloc(
        self, request: EngineRequest, num_external_tokens: int, scheduler: VllmV1
    ) -> None:
        """Learn that a waiting request was given blocks: it is loaded, or (0 tokens) runs from now on."""
        return

    def build_connector_meta(self, batch: Batch, scheduler: VllmV1) -> bool:
        """End a plan; say whether the next one may differ though no request comes or goes."""
        return False

    def update_connector_output(self, jobs: Sequence[Job]) -> None:
        """Learn that copies are over."""
        return

    def preempted(self, request: EngineRequest) -> None:
        """Learn that a running request is about to lose its place and its blocks."""
        return

    def request_finished(self, request: EngineRequest, *, is_aborted: bool) -> bool:
        """Learn that a request is over, which still has its blocks; say whether it keeps them for now."""
        return False

    # What the scheduler asks beside

    @property
    def has_work(self) -> bool:
        """Whether something is copied for which the engine makes plans."""
        return False

    @property
    def awaits(self) -> bool:
        """Whether requests are loaded, or blocks are going to be free, without any step."""
        return bool(self.loading or self.loaded or self.leaving or self.deferred)

    def next_plan_differs(self) -> bool:
        """Say whether the next plan may decide something though all requests run and only decode."""
        # A hybrid memory is looked at block by block to tell what only requests hold that do not run.
        return bool(self.deferred) or (self.memory.is_hybrid and bool(self.leaving))

    def held_without_running(self, holding: Sequence[EngineRequest]) -> Sequence[Sequence[EngineRequest]]:
        """Return the requests that hold memory and do not run, for each entry of ``parks``.

        Args:
            holding: those that wait in front of the queue.
        """
        return [*holding, *self.leaving], [request for _, request in self.deferred]

    def begin_plan(self, now: int) -> None:
        """Learn that a plan begins."""
        self.computed = {}

    def blocks_to_reserve(self, chunked: Iterable[EngineRequest], ahead: int = 0) -> int:
        """Return the blocks that prompts in chunks and requests that are loaded still miss for their length.

        They are not given to a request that is loaded, because such a one cannot make room.

        Args:
            chunked: requests whose prompt has not run whole.
            ahead: tokens of the step after their prompts, its drafts and the slots of the drafter included,
                where there are drafts.
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
        """Say whether nothing is copied any more into what a request holds; then it can be found, too."""
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
        """Note that a request was loaded; one that was aborted meanwhile gives its blocks back."""
        if request in self.leaving:
            del self.leaving[request]
            self.memory.release(request)
        else:
            self.loaded.add(request)

    def abort_held(self, request: EngineRequest) -> None:
        """Take back what a request holds that was aborted while it waited, as soon as no copy fills it."""
        self.request_finished(request, is_aborted=True)
        is_filled = request in self.loading and request not in self.loaded
        self.loading.pop(request, None)
        self.loaded.discard(request)
        if is_filled:
            self.leaving[request] = None
        else:
            self.memory.release(request)

    def defer_free(self, request: EngineRequest) -> None:
        """Let a request that is over keep its blocks until the batch in flight is over."""
        if request.decodes:
            self.memory.stop_decoding(request)
        self.memory.cache_full_blocks(request)
        self.deferred.append((self._plans, request))

    def count_plan(self) -> None:
        """Count a plan whose outcome is going to be known."""
        self._plans += 1

    def advance(self, steps: int, draining: int) -> None:
        """Count steps that were taken without plans, beside so many requests that drain."""
        self._plans += steps
        # One step is in flight; where some drain ``finish`` is going to be called for the one before it.
        self._finishes = self._plans - 1 - (draining > 0)

    def count_finish(self) -> None:
        """Count the outcome of a plan, and free the blocks that waited for it."""
        self._finishes += 1
        while self.deferred and self.deferred[0][0] <= self._finishes:
            self.memory.release_together(self.deferred.popleft()[1])
