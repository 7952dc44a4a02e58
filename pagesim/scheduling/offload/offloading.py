"""vLLM v1's offloading: prompts are stored in tiers as they are computed, and loaded when they recur."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pagesim.errors import PagesimError
from pagesim.kvcache import BlockManager, ChunkedLocal, State
from pagesim.kvcache.tiers import ChainBacking, ChunkStore, LruByRequest, Tier, TierArc, TierChain, TierCounts
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.kv_connector import KVConnector
from pagesim.scheduling.offload.connector import Connector
from pagesim.scheduling.offload.jobs import Job
from pagesim.scheduling.options import Prices, ReturnPrices
from pagesim.scheduling.request import EngineRequest
from pagesim.scheduling.vllm_v1_options import VllmV1Options
from pagesim.setup.compiled import mypyc_attr

if TYPE_CHECKING:  # it calls connectors
    from pagesim.scheduling.core import Scheduler
    from pagesim.scheduling.vllm_v1.scheduler import VllmV1

_order = attrgetter("order")


@mypyc_attr(allow_interpreted_subclasses=True)
class OffloadingConnector(KVConnector):
    """The connector of an engine with a host tier or a chain of tiers.

    ``connector_scheduler`` decides what is stored and loaded. With ``kv_offloading_load`` at ``auto``, this
    class skips loads that are slower than recomputing, and stores of prompts that would not be loaded.

    Args:
        memory: the block manager, empty, with numbered blocks.
        options: options, including the size of vLLM's tier in chunks if there is no chain.
        chain: the chain of tiers in place of vLLM's single tier; None for the latter.
        prices: times to load and to compute, for choosing the faster; None if there is no choice.

    Attributes:
        connector_scheduler: the counterpart of vLLM's attribute of that name.
        backing: the chain of tiers in which chunks are stored.
        jobs: copies that have not finished, or of whose end the scheduler does not know yet.
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
        """Return each tier's name, capacity and entries, the tier closest to the device first."""
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
        elif self._chooses:  # store a prompt if it would be loaded from any tier linked to the device
            tokens = request.prompt
            stored = connector.blocks_stored(tokens)
            stores = any(self._pays(tokens, 0, blocks, scheduler) for blocks in stored)
        connector.admitted(request, num_external_tokens, stores=stores)

    def _pays(self, tokens: int, history: int, blocks: Sequence[int], scheduler: VllmV1) -> bool:
        """Return whether loading ``tokens`` tokens is faster than computing them after ``history`` others."""
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

    # Further queries by the scheduler

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
        """Return the requests scheduled in the current plan: request, tokens before, known tokens after."""
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
        else:  # only a few requests
            requests = [each for each in among if running.get(each.order) is each]
            if len(requests) > 1:
                requests.sort(key=_order)
        for request in requests:
            length = memory.length(request)
            if request in computed:
                served.append((request, computed[request], length))
            elif request.decodes:
                # A resumed request had nothing in flight, so the token that it computes is known.
                unknown = 0 if request in batch.served_again else request.uncommitted_tokens
                served.append((request, length - 1, length - unknown))
        return served


def offloading_of(scheduler: Scheduler) -> OffloadingConnector | None:
    """Return a scheduler's offloading connector; None if it has none."""
    connector = getattr(scheduler, "connector", None)
    return connector if isinstance(connector, OffloadingConnector) else None


def _one_tier(options: VllmV1Options) -> TierChain:
    """Return vLLM's single tier in host memory, as a chain."""
    chunks = options.kv_offloading_chunks
    assert chunks is not None
    eviction = TierArc(chunks) if options.kv_offloading_eviction == "arc" else LruByRequest()
    store = ChunkStore(chunks, eviction, threshold=options.kv_offloading_threshold or 0)
    return TierChain([Tier("host", store)])
