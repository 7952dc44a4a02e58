"""SGLang's scheduler, release 0.5.23: prompts first, admission by an estimate, retraction, a radix tree."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pagesim.kvcache import KVCache
from pagesim.kvcache.radix import RadixKV, WindowedRadixKV, WindowPool
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.options import Machine, MemoryKind, Prices
from pagesim.scheduling.request import EngineRequest
from pagesim.scheduling.sglang.admission import AdmittingSglang
from pagesim.scheduling.sglang.defaults import most_running, page_size, resolved
from pagesim.scheduling.sglang.options import CACHE_AWARE, SglangOptions
from pagesim.scheduling.sglang.order import QueueOrder
from pagesim.scheduling.sglang.pools import OnePool, TwoPools
from pagesim.scheduling.sglang.queue import SglangQueue
from pagesim.scheduling.sglang.request import Limits, SglangRequest
from pagesim.scheduling.traits import need_pages
from pagesim.setup.compiled import mypyc_attr
from pagesim.workloads.trace import IntColumn


@mypyc_attr(allow_interpreted_subclasses=True)
class Sglang(AdmittingSglang):
    """See `Scheduler` for the contract.

    An iteration is one of prompts or one of decodes; with ``enable_mixed_chunk`` it may be both. Prompts
    come first. Which request runs next follows from what is free, less a share of what running ones may still
    generate; that share falls with every decode and rises when requests are retracted for want of memory.

    Args:
        memory: empty; a `RadixKV` where prefixes are cached, a `WindowedRadixKV` where layers with a window
            have a pool of their own.
        options: see ``Options``.
        max_model_len: tokens of the model's context.
        prices: not looked at.
    """

    __slots__ = ("_asks_for", "_left_chunk", "_only_prompts", "_ran_prompts", "limits", "options")

    Options = SglangOptions
    samples = "one"
    has_beams = False
    drops_last_token = True
    loses_in_flight = True
    empty_turns = False
    sizing = "sglang"

    @classmethod
    def check_memory(cls, memory: MemoryKind) -> None:
        need_pages("sglang", memory, "it takes pages as requests grow")

    @classmethod
    def most_output(
        cls, prompt: IntColumn, max_model_len: int, num_blocks: int, block_size: int
    ) -> IntColumn:
        limits = Limits(max_model_len, num_blocks * block_size, block_size)
        return np.maximum(1, np.minimum(*limits.rooms(prompt)))

    @classmethod
    def takes_in(cls, prompt: IntColumn, output: IntColumn, max_model_len: int) -> npt.NDArray[np.bool_]:
        return np.ones(len(prompt), bool)  # what is too long is answered with one token

    @classmethod
    def caches_prefixes(cls, options: SglangOptions) -> bool:
        return options.caches

    @classmethod
    def memory_for(
        cls, options: SglangOptions, num_blocks: int, block_size: int, windows: WindowPool | None = None
    ) -> KVCache | None:
        policy = options.radix_eviction_policy
        if windows is not None:
            return WindowedRadixKV(num_blocks, block_size, windows, policy=policy, caches=options.caches)
        return RadixKV(num_blocks, block_size, policy=policy) if options.caches else None

    @classmethod
    def resolve(cls, options: SglangOptions, machine: Machine) -> SglangOptions:
        return resolved(options, machine)

    @classmethod
    def default_block_size(cls, machine: Machine) -> int | None:
        return page_size(machine)

    @classmethod
    def schedules_ahead(cls, options: SglangOptions) -> bool:
        return not options.disable_overlap_schedule

    @classmethod
    def graphs_to(cls, options: SglangOptions) -> int:
        return (options.cuda_graph_max_bs_prefill or 0) if options.graphs_prompts else 0

    def __init__(
        self,
        memory: KVCache,
        options: SglangOptions,
        *,
        max_model_len: int,
        prices: Prices | None = None,
    ) -> None:
        options = resolved(options, Machine("", 0, max_model_len))
        queue = SglangQueue(self._prepare, looks_at_all=options.schedule_policy in CACHE_AWARE)
        super().__init__(memory, queue, options, max_model_len=max_model_len, prices=prices)
        self.entries = queue
        self.options = options
        self.tree = memory if options.caches and isinstance(memory, RadixKV) else None
        capacity, page = memory.num_blocks * memory.block_size, memory.block_size
        self.limits = Limits(max_model_len, capacity, page)
        self.max_running_requests = most_running(options, capacity, max_model_len)
        assert options.chunked_prefill_size is not None
        self.chunk = options.chunked_prefill_size if options.chunked_prefill_size > 0 else None
        self.mixes = options.enable_mixed_chunk and self.chunk is not None
        self.max_prefill_tokens = options.max_prefill_tokens
        self.most_prompts = options.prefill_max_requests
        self.spares_shorter = options.schedule_policy == "shortest-prefill-first"
        self.ignores_stops = options.ignore_eos
        self._asks_for = 0 if options.ignore_eos else options.max_new_tokens or 0
        self.overlaps = not options.disable_overlap_schedule
        self.in_flight = 2 if self.overlaps else 1
        memory.lag = self.in_flight - 1
        self.pools = TwoPools(self, memory, self.chunk) if isinstance(memory, WindowedRadixKV) else OnePool()
        self.order = QueueOrder(
            options.schedule_policy, self.tree, queue, touches=options.radix_eviction_policy == "lru"
        )
        self.set_ratio(options.schedule_conservativeness)
        self.batch, self.joining = [], []
        self.chunked = None
        self.is_full = False
        self._in_flight, self._pending = [], []
        self._ending = {}
        self._asked = 0
        self._lags = frozenset()
        self._stale = self._joining_stale = 0
        self._joining_only = False
        self._lingers = False
        self._left_chunk = False  # whether a prompt in chunks ran in the iteration before, and goes on
        self._ran_prompts = False  # whether prompts ran in the iteration before
        self._only_prompts = False  # whether the running batch has only requests that may generate nothing

    def accepts(self, prompt_tokens: int, output_tokens: int, samples: int) -> bool:
        return samples == 1

    def refusal(self, prompt_tokens: int, output_tokens: int, samples: int) -> str:
        if samples > 1:
            return "it is of several samples, which this engine serves as requests of their own"
        return self.limits.refusal(prompt_tokens)

    def never_fits(self, prompt_tokens: int) -> bool:
        if self.limits.refuses(prompt_tokens):
            return False
        page = self.memory.block_size
        capacity = self.memory.num_blocks * page
        if self.tree is None and self.ignores_stops:
            return -(-prompt_tokens // page) * page + page > capacity
        return prompt_tokens + page >= capacity  # as `Budget.has_room` asks, where no other request runs

    def _prepare(self, request: SglangRequest) -> None:
        """Clip what a request asks for, or refuse it, as the front end does."""
        asked, limits = request.output, self.limits
        if asked < self._asks_for:
            asked = self._asks_for
        request.max_new = limits.clip(asked, request.prompt)
        if limits.refuses(request.prompt):
            request.refuse()

    # Decisions

    def plan(self, now: int) -> Batch:
        batch = Batch()
        if self.chunked is not None:
            if self.tree is not None and self.chunked.end > self.chunked.start:
                self.tree.cache_tokens(self.chunked, self.chunked.end)
            self.chunked.start = self.chunked.end
        if self.overlaps:
            self.note_ending()
        if self._left_chunk or self.joining:
            self._join()
        self._lingers = False
        self._ran_prompts = self.prefill(batch)
        if self._ran_prompts:
            self.entries.processed += batch.tokens
            self._left_chunk = self.chunked is not None
        elif self.batch and not self._only_prompts:
            self.decode(batch)
            # The prompts of an iteration are counted again with each decode of those that began in it alone.
            self.entries.processed += self._stale if batch.tokens else 0
        if not batch.tokens:
            self._lags = frozenset()
        batch.sequences = self.running_sequences
        return batch

    def _join(self) -> None:
        """Let those join the running batch whose prompt ran in the iteration before."""
        if self._left_chunk:
            self._left_chunk = self.is_full = False  # one of them stays behind
        joining, only = self.joining, self._joining_only
        if not joining:
            return
        self.joining = []
        if self.batch or self._lingers:
            self.batch += joining
            self._only_prompts = self._only_prompts and only
        else:
            self.batch, self.is_full = list(joining), False
            self._stale, self._only_prompts = self._joining_stale, only

    def finish(self, now: int) -> list[EngineRequest]:
        if not self.overlaps:
            self.note_ending()
        return list(self.learn(now))

    def let_ending_rest(self) -> None:
        self.note_ending()
        if self.drop_ending():
            self.is_full = False

    def ran_dry(self) -> None:
        if not (self.running or self.queue.waiting):
            self.new_token_ratio = self._most_ratio

    # Fast-forward

    def steps_until_next_decision(self) -> int:
        finishing = self._finishing
        self.must_replan = True
        if not finishing or self._pending or self.chunked is not None:
            return 0
        if self.queue.waiting and not self.is_full:
            return 0
        ending = self._ending
        if ending and len(ending) > self.resting:
            return 0
        steps = finishing[0][0] - self.memory.steps
        if self._ran_prompts and (steps <= 0 or not self._joins_quietly()):
            return 0
        if steps > 0:
            steps = self.pools.steps_alike(self, steps)
            self.must_replan = not steps
            return steps
        # They can rest in a step, if that is known of all of them.
        self.must_replan = bool(ending) or not self._end_by_length()
        return 0

    def _end_by_length(self) -> bool:
        """Say whether the requests whose last token is in flight are known to end with it."""
        now = self.memory.steps
        for step, _, request in self._finishing:
            if step > now:
                return True
            assert isinstance(request, SglangRequest)
            if request.output < request.max_new:
                return False
        return True

    def _joins_quietly(self) -> bool:
        """Say whether nothing is decided where those join whose prompt ran in the iteration before.

        Nothing is, if the batch that they join stays as full as it is, and what is cached of their prompts
        while the step after it runs changes no count of memory.
        """
        if self._left_chunk or self._ending or self.pools.retries or (self.is_full and not self.batch):
            return False
        tree = self.tree
        return tree is None or tree.caches_apart(self._in_flight)

    def _join_quietly(self, steps: int) -> None:
        """Do what the plan of the first of some steps would, and what becomes known while it runs."""
        self._ran_prompts = False
        self._pending, self._in_flight = self._in_flight, []
        self._join()
        self._lingers = False
        if steps > 1 or not self.overlaps:
            # What the first step evicts, it evicts first; but none of it is on the way to what is cached.
            self.cache_prompts()

    def advance(self, steps: int) -> None:
        if self._ran_prompts:
            self._join_quietly(steps)
        if self.tree is not None:
            self.tree.evict_ahead(steps, len(self.batch))
        super().advance(steps)
        if self.new_token_ratio != self._least_ratio:
            self.decay_ratio(steps)
        if self._stale:
            self.entries.processed += self._stale * steps
        self._lags = None if self.overlaps else frozenset()

    def arrival_matters(self) -> bool:
        return not self.is_full or self.pools.retries or self.order.policy == "hrrn"

    def may_join(self, request: EngineRequest) -> bool:
        return len(self.running) < self.max_running_requests

    def abort(self, row: int, now: int) -> int:
        for request in self.running.values():
            if request.row == row:
                return self._abort_running(request)
        waiting = self.queue.abort(row)
        return 0 if waiting is None else waiting.generated_waiting

    def _abort_running(self, request: EngineRequest) -> int:
        assert isinstance(request, SglangRequest)
        if request in self._ending:
            del self._ending[request]
            if not request.decodes:
                self.resting -= 1
                self.resting_context -= request.tokens
        self._asked -= request.prompt + request.max_new
        generated = super()._abort_running(request)
        request.is_over, request.holds_place = True, False
        if request is self.chunked:
            self.chunked = None
        self.batch = [each for each in self.batch if each is not request]
        self.joining = [each for each in self.joining if each is not request]
        self._in_flight = [each for each in self._in_flight if each is not request]
        self.is_full = False
        return generated

    def _drop(self, request: EngineRequest) -> None:
        self._let_go(request)
