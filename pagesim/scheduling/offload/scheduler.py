"""vLLM v1 with a tier on the host: prompts are stored as they are computed, and loaded when they return."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from pagesim.errors import PagesimError
from pagesim.kvcache import ChunkedLocal, KVCache, State
from pagesim.kvcache.tiers import Arc, ChainBacking, ChunkStore, LruByRequest, Tier, TierChain
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.dead_ends import DeadEnd
from pagesim.scheduling.holding import HoldingV1
from pagesim.scheduling.offload.connector import Connector
from pagesim.scheduling.offload.jobs import Job
from pagesim.scheduling.offload.queue import HoldingPriorityQueue, HoldingQueue
from pagesim.scheduling.options import Prices, ReturnPrices
from pagesim.scheduling.request import EngineRequest
from pagesim.scheduling.vllm_v1_options import VllmV1Options
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class OffloadingV1(HoldingV1):
    """As `HoldingV1`, with `Connector`.

    A request of which the tier has more than the device takes the blocks for it and waits until they are
    loaded. It does not run meanwhile, holds its blocks, and cannot be preempted. Where it is not known yet
    whether something can be loaded, a request is passed over, and others overtake it. With two batches in
    flight a request that gets tokens from one of them cannot be preempted either.

    Source: vLLM 0.33.0, v1/core/sched/scheduler.py.

    Args:
        memory: empty; its blocks have numbers or can be watched.
        options: with the size of vLLM's tier in chunks, where there is no chain.
        max_model_len: tokens; no sequence is longer.
        chain: of tiers, in place of vLLM's one.
        prices: as of `VllmV1`.
    """

    __slots__ = (
        "_awaits",
        "_chooses",
        "_computed",
        "_leaving",
        "_loaded",
        "_loading",
        "_losing",
        "connector",
        "holding_queue",
    )

    parks = ("loading", "fenced")

    holding_queue: HoldingQueue | HoldingPriorityQueue

    def __init__(
        self,
        memory: KVCache,
        options: VllmV1Options,
        *,
        max_model_len: int,
        chain: TierChain | None = None,
        prices: Prices | None = None,
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
        super().__init__(memory, options, max_model_len=max_model_len, prices=prices)
        self.queue = self.holding_queue = HoldingPriorityQueue() if self.by_priority else HoldingQueue()
        blocks, prompt_only = options.kv_offloading_chunk_blocks, options.kv_offloading_prompt_only
        assert blocks is not None
        assert prompt_only is not None
        self.connector = Connector(
            memory,
            ChainBacking(_one_tier(options) if chain is None else chain),
            blocks_per_chunk=blocks,
            prompt_only=prompt_only,
        )
        self._chooses = options.kv_offloading_load == "auto"
        self._loading: dict[EngineRequest, None] = {}  # those whose loads are not over
        self._loaded: set[EngineRequest] = set()  # those whose loads are, and that were not looked at since
        self._leaving: set[EngineRequest] = set()  # those that were aborted, and are being loaded
        self._computed: list[tuple[EngineRequest, int]] = []  # chunks of the plan at hand
        # Requests of the last plan that were passed over or found no room, and of which the device may evict
        # what it has while others decode: what is found of them then, in either place, is another thing.
        self._losing: list[EngineRequest] = []
        # Whether any request of the last plan waits for a copy, its own or another's.
        self._awaits = False

    @property
    def waiting_for_load(self) -> int:
        """Requests that hold blocks and wait until they are loaded."""
        return len(self._loading) - len(self._leaving)

    @property
    def has_work(self) -> bool:
        return super().has_work or bool(self.connector.jobs)

    def plan(self, now: int) -> Batch:
        self._computed = []
        self._losing = []
        self._awaits = bool(self._leaving)
        batch = super().plan(now)
        batch.transfers = self.connector.close(partial(self._served, batch), batch.recomputed)
        connector = self.connector
        if connector.waits or (connector.jobs and self.queue.waiting and self._awaits_copies()):
            self.must_replan = True
        return batch

    def steps_until_next_decision(self) -> int:
        if self.must_replan:
            return 0
        # A hybrid memory is looked at block by block to tell what only requests hold that do not run.
        looks = (self.holding_queue.holding or self._leaving) and self.memory.is_hybrid
        if self.connector.waits or looks:
            return 0
        steps = super().steps_until_next_decision()
        return 0 if steps and any(self.connector.knows(each) for each in self._losing) else steps

    def advance(self, steps: int) -> None:
        super().advance(steps)
        self.connector.close_empty()

    def blocks_for_head(self) -> int | None:
        return 0 if self.holding_queue.holding else super().blocks_for_head()

    def arrival_matters(self) -> bool:
        # What waits for a copy is passed over.
        return bool(self.connector.jobs and self._awaits_copies()) or super().arrival_matters()

    def transferred(self, jobs: Sequence[Job]) -> None:
        loaded = self.connector.over(jobs)
        if loaded or self._awaits_copies():
            self.must_replan = True
        for request in loaded:
            if request in self._leaving:
                self._leaving.remove(request)
                del self._loading[request]
                self.memory.release(request)
            else:
                self._loaded.add(request)

    def parked(self) -> Sequence[Sequence[EngineRequest]]:
        holding = self.holding_queue.holding
        return [*holding, *self._leaving] if self._leaving else holding, self.fenced if self._fenced else ()

    # Waiting requests

    def _admit(self, batch: Batch, budget: int) -> None:
        queue = self.holding_queue
        holding: list[EngineRequest] = []
        others: list[EngineRequest] = []
        while (request := queue.head()) is not None:
            if budget <= 0:
                self.must_replan = True
                break
            if not self.may_join(request):
                break
            if request in self._loading and not self._settle(request):
                queue.pop(request)
                holding.append(request)
                continue
            holds = bool(queue.holding)
            found, external = self._loaded_tokens(request), 0
            if not holds:
                found = 0 if request.content is None else self._look_up(request)
                gained = self.connector.match(request, found)
                if gained is None:
                    queue.pop(request)
                    others.append(request)
                    self._note_losing(request, found)
                    continue
                external = gained if gained and self._pays_to_load(request, gained, found) else 0
            if external:
                if not self._start_loading(request, found, external):
                    self._note_losing(request, found)
                    break
                batch.loading += (request,)
                holding.append(request)
                continue
            tokens = self._chunk(request, found, budget, not self.chunked_prefill)
            if not tokens:
                self.must_replan = True
                break
            if tokens > budget or not self._fits(request, found + tokens):
                if self.running or self.connector.jobs or holding or others:
                    self.must_replan = self.must_replan or tokens > budget
                    if not holds:
                        self._note_losing(request, found)
                    break
                queue.pop(request)
                if holds:
                    self.connector.finished(request)
                    self.memory.release(request)
                batch.stuck += ((request, DeadEnd.NEVER_ADMITTED),)
                continue
            self._join(request, found, tokens, batch)
            self.connector.admitted(request, stores=self._pays_to_store(request))
            budget -= tokens
        if holding or others:
            self._awaits = True
            queue.put_back(holding, others)

    def _awaits_copies(self) -> bool:
        """Say whether what becomes of requests may be another thing in each plan while there are copies.

        What was found of a request that is written or loaded by no copy does not depend on any. One that
        found no room finds none when a store is over.
        """
        return self._awaits or self._chooses or self.in_flight > 1

    def _note_losing(self, request: EngineRequest, found: int) -> None:
        """Note a request that is not admitted, if nothing else holds some of what the device has of it."""
        if found and self.memory.blocks_to_admit(request, found):
            self._losing.append(request)

    def _pays_to_load(self, request: EngineRequest, tokens: int, history: int) -> bool:
        """Say whether so many tokens of a request are loaded, rather than computed after others."""
        if not self._chooses:
            return True
        return self._pays(tokens, history, self.connector.blocks_by_tier(request, history, tokens))

    def _pays_to_store(self, request: EngineRequest) -> bool:
        """Say whether a prompt is stored: whether it would be loaded from any tier beside the device."""
        if not self._chooses:
            return True
        tokens = request.prompt
        return any(self._pays(tokens, 0, blocks) for blocks in self.connector.blocks_stored(tokens))

    def _pays(self, tokens: int, history: int, blocks: Sequence[int]) -> bool:
        prices: Any = self.prices
        assert isinstance(prices, ReturnPrices)
        load, compute = prices.returning(tokens, history, blocks, self.running_sequences, self.context)
        return load < compute

    def _settle(self, request: EngineRequest) -> bool:
        """Let what was loaded for a request be found; say whether it was loaded."""
        if request not in self._loaded:
            return False
        self._loaded.remove(request)
        del self._loading[request]
        self._settle_load(request)
        return True

    def _start_loading(self, request: EngineRequest, found: int, external: int) -> bool:
        """Give a request the blocks into which its tokens are loaded, if there is room for them."""
        others = [each for each in self._loading if each not in self._leaving]
        if not self._take_for_load(request, found + external, external, others, dict(self._computed)):
            return False
        request.loaded = external
        self.connector.admitted(request, external)
        self._loading[request] = None
        return True

    def _fits(self, request: EngineRequest, tokens: int) -> bool:
        if not self.holding_queue.holding:
            return super()._fits(request, tokens)
        memory = self.memory
        spare = self.watermark_blocks if self.running else 0
        whole = memory.blocks_to_complete(request, request.length, request.tokens)
        if self.full_isl and whole + spare > memory.free_blocks:
            return False
        memory.trim(request)
        return memory.blocks_to_extend(request, tokens - request.tokens) + spare <= memory.free_blocks

    def _take_memory(self, request: EngineRequest, tokens: int) -> None:
        if request.loaded:
            self.memory.extend(request, tokens - request.tokens)
        else:
            super()._take_memory(request, tokens)

    def _head_fits(self) -> bool:
        return True  # what a look at the head says may be another thing in the next plan

    # Running requests

    def _compute(self, request: EngineRequest, computed: int, tokens: int, batch: Batch) -> None:
        super()._compute(request, computed, tokens, batch)
        self._computed.append((request, computed))

    def _served(
        self, batch: Batch, among: Collection[EngineRequest] | None
    ) -> list[tuple[EngineRequest, int, int]]:
        """Return the requests that get tokens in the plan at hand, as `Connector.close` asks for them."""
        memory, computed, running = self.memory, dict(self._computed), self.running
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
                unknown = 0 if request in batch.caught_up else request.unknown
                served.append((request, length - 1, length - unknown))
        return served

    # Those that leave

    def preempt(self, request: EngineRequest, batch: Batch) -> None:
        self.connector.gives_back(request)
        super().preempt(request, batch)
        request.loaded = 0

    def abort(self, row: int, now: int) -> int:
        request = next((each for each in self.holding_queue.holding if each.row == row), None)
        generated = super().abort(row, now)
        if request is not None:
            self.events.parked_changes(now)
            self.connector.finished(request)
            if request in self._loading:
                self._leaving.add(request)
            else:
                self.memory.release(request)
        return generated

    def _drop(self, request: EngineRequest) -> None:
        self.connector.finished(request)
        super()._drop(request)

    def _over(self, request: EngineRequest, now: int) -> None:
        self.connector.finished(request)
        super()._over(request, now)

    def _let_go(self, request: EngineRequest) -> None:
        request.in_flight = 0
        self.memory.trim(request)
        super()._let_go(request)


_order = attrgetter("order")


def _one_tier(options: VllmV1Options) -> TierChain:
    """Return vLLM's one tier, in memory of the host, as a chain."""
    chunks = options.kv_offloading_chunks
    assert chunks is not None
    eviction = Arc(chunks) if options.kv_offloading_eviction == "arc" else LruByRequest()
    store = ChunkStore(chunks, eviction, threshold=options.kv_offloading_threshold or 0)
    return TierChain([Tier("host", store)])
