"""Offloading under vLLM v1: prompts are stored in tiers as they are computed, and loaded when they return."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pagesim.errors import PagesimError
from pagesim.kvcache import BlockManager, ChunkedLocal, State
from pagesim.kvcache.tiers import Arc, ChainBacking, ChunkStore, LruByRequest, Tier, TierChain, TierCounts
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.kv_connector import KVConnector
from pagesim.scheduling.offload.connector import Connector
from pagesim.scheduling.offload.jobs import Job
from pagesim.scheduling.options import Prices, ReturnPrices
from pagesim.scheduling.request import EngineRequest
from pagesim.scheduling.vllm_v1_options import VllmV1Options
from pagesim.setup.compiled import mypyc_attr

if TYPE_CHECKING:  # which asks connectors
    from pagesim.scheduling.core import Scheduler
    from pagesim.scheduling.vllm_v1.scheduler import VllmV1

_order = attrgetter("order")


@mypyc_attr(allow_interpreted_subclasses=True)
class OffloadingConnector(KVConnector):
    """The connector of an engine with a tier on the host, or a chain of tiers.

    What is stored and loaded is decided by ``connector_scheduler``. This class says what is loaded or stored
    where that is worth its time only.

    Args:
        memory: empty; its blocks have numbers.
        options: with the size of vLLM's tier in chunks, where there is no chain.
        chain: of tiers, in place of vLLM's one.
        prices: what it costs to load and to compute, where the cheaper is chosen.

    Attributes:
        connector_scheduler: as vLLM's of that name.
        backing: where chunks are stored.
        jobs: copies that are not over, or of which the scheduler does not know that they are.
    """

    parks = ("loading", "fenced")

    def __init__(
        self,
        memory: BlockManager,
        options: VllmV1Options,
        *,
        chain: TierChain | None,
        prices: Prices | None,
    ) -> None:
        for group in memory.groups:
            rule = group.rule
            if isinstance(rule, ChunkedLocal) or (isinstance(rule, State) and not rule.aligned):
                remedy = "enable prefix caching"
                if isinstance(rule, ChunkedLocal):
                    remedy = "give disable_hybrid_kv_cache_manager"
                raise PagesimError(
                    f"{options.tier_option} with layers of {group.kind} is in no log of vLLM's decisions; "
                    f"leave it out, or {remedy}"
                )
        super().__init__(memory)
        blocks, prompt_only = options.kv_offloading_chunk_blocks, options.kv_offloading_prompt_only
        assert blocks is not None
        assert prompt_only is not None
        self.backing = ChainBacking(_one_tier(options) if chain is None else chain)
        self.connector_scheduler = Connector(
            memory, self.backing, blocks_per_chunk=blocks, prompt_only=prompt_only
        )
        self.jobs = self.connector_scheduler.jobs
        self._prices = prices
        self._chooses = options.kv_offloading_load == "auto"

    def tiers(self) -> Sequence[TierCounts]:
        """Return what is counted of the tiers, that next to the device first."""
        return self.connector_scheduler.tiers()

    # Hooks of vLLM's connectors

    def get_num_new_matched_tokens(
        self, request: EngineRequest, num_computed_tokens: int, scheduler: VllmV1
    ) -> int | None:
        connector = self.connector_scheduler
        tokens = connector.match(request, num_computed_tokens)
        if not tokens or not self._chooses:
            return tokens
        blocks = connector.blocks_by_tier(request, num_computed_tokens, tokens)
        return tokens if self._pays(tokens, num_computed_tokens, blocks, scheduler) else 0

    def update_state_after_alloc(
        self, request: EngineRequest, num_external_tokens: int, scheduler: VllmV1
    ) -> None:
        connector, stores = self.connector_scheduler, True
        if num_external_tokens:
            request.loaded = num_external_tokens
        elif self._chooses:  # a prompt is stored if it would be loaded from any tier beside the device
            tokens = request.prompt
            stored = connector.blocks_stored(tokens)
            stores = any(self._pays(tokens, 0, blocks, scheduler) for blocks in stored)
        connector.admitted(request, num_external_tokens, stores=stores)

    def _pays(self, tokens: int, history: int, blocks: Sequence[int], scheduler: VllmV1) -> bool:
        """Say whether so many tokens are loaded, rather than computed after others."""
        prices: Any = self._prices
        assert isinstance(prices, ReturnPrices)
        load, compute = prices.returning(
            tokens, history, blocks, scheduler.running_sequences, scheduler.context
        )
        return load < compute

    def build_connector_meta(self, batch: Batch, scheduler: VllmV1) -> bool:
        served = partial(self._served, batch, scheduler.running)
        batch.transfers = self.connector_scheduler.close(served, batch.recomputed)
        return self.connector_scheduler.waits

    def update_connector_output(self, jobs: Sequence[Job]) -> None:
        for request in self.connector_scheduler.over(jobs):
            self.finished_recving(request)

    def preempted(self, request: EngineRequest) -> None:
        self.connector_scheduler.gives_back(request)

    def request_finished(self, request: EngineRequest, *, is_aborted: bool) -> bool:
        self.connector_scheduler.finished(request)
        if not is_aborted:
            if request.decodes:
                self.memory.stop_decoding(request)
            self.memory.free_skipped_blocks(request)
        return False

    # What the scheduler asks beside

    @property
    def has_work(self) -> bool:
        return bool(self.jobs)

    @property
    def awaits(self) -> bool:
        return bool(self.jobs) or super().awaits

    def next_plan_differs(self) -> bool:
        return self.connector_scheduler.waits or super().next_plan_differs()

    def advance(self, steps: int, draining: int) -> None:
        super().advance(steps, draining)
        self.connector_scheduler.close_empty()

    def _served(
        self, batch: Batch, running: dict[int, EngineRequest], among: Collection[EngineRequest] | None
    ) -> list[tuple[EngineRequest, int, int]]:
        """Return the requests that get tokens in the plan at hand: request, tokens before, tokens known."""
        memory, computed = self.memory, self.computed
        if batch.shares is not None:
            return [
                (each.request, each.computed, min(each.computed + each.tokens, each.request.length))
                for each in batch.shares
                if among is None or each.request in among
            ]
        served: list[tuple[EngineRequest, int, int]] = []
        if among is None:
            requests = list(running.values())
        else:  # which are few
            requests = [each for each in among if running.get(each.order) is each]
            if len(requests) > 1:
                requests.sort(key=_order)
        for request in requests:
            length = memory.length(request)
            if request in computed:
                served.append((request, computed[request], length))
            elif request.decodes:
                # Of one that comes back nothing was in flight, so that the token that it computes is known.
                unknown = 0 if request in batch.served_again else request.uncommitted_tokens
                served.append((request, length - 1, length - unknown))
        return served


def offloading_of(scheduler: Scheduler) -> OffloadingConnector | None:
    """Return the connector of a scheduler that offloads; None of another one."""
    connector = getattr(scheduler, "connector", None)
    return connector if isinstance(connector, OffloadingConnector) else None


def _one_tier(options: VllmV1Options) -> TierChain:
    """Return vLLM's one tier, in memory of the host, as a chain."""
    chunks = options.kv_offloading_chunks
    assert chunks is not None
    eviction = Arc(chunks) if options.kv_offloading_eviction == "arc" else LruByRequest()
    store = ChunkStore(chunks, eviction, threshold=options.kv_offloading_threshold or 0)
    return TierChain([Tier("host", store)])
