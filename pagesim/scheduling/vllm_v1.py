"""vLLM's scheduler since v1 (0.11.2 to 0.33.0): prompts in chunks and decodes share a budget of tokens."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pagesim.kvcache import KVCache
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.dead_ends import DeadEnd
from pagesim.scheduling.options import Machine, MemoryKind, Prices
from pagesim.scheduling.priority_queue import PriorityQueue
from pagesim.scheduling.queue import WaitingQueue
from pagesim.scheduling.request import EngineRequest, Status
from pagesim.scheduling.vllm_releases import RELEASES
from pagesim.scheduling.vllm_v0 import check_paged
from pagesim.scheduling.vllm_v1_options import VllmV1Options, resolved
from pagesim.workloads.trace import IntColumn


class VllmV1(Scheduler):
    """See `Scheduler` for the contract.

    Every iteration gives tokens to running requests, in the order of their admission, then to waiting ones,
    until the budget is used up. A request whose prompt has not run whole gets a chunk of it, any other one
    token. A request without a free block preempts the most recently admitted one, possibly itself; nothing is
    ever swapped.

    Args:
        memory: empty, without the null block; prompts are looked up in it if it caches prefixes.
        options: see ``Options``; what they leave open is as on a GPU that vLLM does not know.
        max_model_len: tokens; no sequence is longer.
        prices: not looked at.
    """

    __slots__ = (
        "_answering",
        "_ending",
        "_in_chunks",
        "_lost",
        "_skipped",
        "_unserved_context",
        "by_priority",
        "chunked_prefill",
        "full_isl",
        "max_num_batched_tokens",
        "max_num_seqs",
        "release",
        "threshold",
    )

    Options = VllmV1Options
    samples = "requests"
    needs_sharing = True
    has_beams = False
    null_blocks = 1
    sizing = "vllm"
    # Source: 0.33.0, v1/engine/core.py 690 and 792, ``_process_aborts_queue`` before ``update_from_output``.
    drops_last_token = True

    @classmethod
    def check_memory(cls, memory: MemoryKind) -> None:
        check_paged("vllm-v1", memory)

    @classmethod
    def longest_sequence(cls, max_model_len: int) -> int:
        return max_model_len

    @classmethod
    def takes_in(cls, prompt: IntColumn, output: IntColumn, max_model_len: int) -> npt.NDArray[np.bool_]:
        return prompt < max_model_len  # its front end looks at the prompt

    @classmethod
    def caches_prefixes(cls, options: VllmV1Options) -> bool:
        return options.enable_prefix_caching

    @classmethod
    def hash_lookahead(cls, options: VllmV1Options) -> int:
        return int(options.enable_prefix_caching and options.speculative_method == "eagle3")

    @classmethod
    def kind_for(cls, options: VllmV1Options) -> type[Scheduler]:
        if options.speculative_tokens is None:
            return cls
        from pagesim.scheduling.speculation import SpeculativeV1  # which is one of these

        return SpeculativeV1

    @classmethod
    def resolve(cls, options: VllmV1Options, machine: Machine) -> VllmV1Options:
        return resolved(options, machine)

    @classmethod
    def gpu_memory_utilization(cls, options: VllmV1Options) -> float:
        return RELEASES[options.vllm_version].gpu_memory_utilization

    @classmethod
    def counts_cuda_graphs(cls, options: VllmV1Options) -> bool:
        return RELEASES[options.vllm_version].counts_cuda_graphs

    @classmethod
    def reuses_unhashed_first(cls, options: VllmV1Options) -> bool:
        return RELEASES[options.vllm_version].reuses_unhashed_first

    def __init__(
        self,
        memory: KVCache,
        options: VllmV1Options,
        *,
        max_model_len: int,
        prices: Prices | None = None,
    ) -> None:
        options = resolved(options, Machine("", 0, max_model_len))
        tokens, sequences = options.max_num_batched_tokens, options.max_num_seqs
        assert tokens is not None
        assert sequences is not None
        self.release = RELEASES[options.vllm_version]
        by_priority = options.scheduling_policy == "priority"
        super().__init__(
            memory,
            PriorityQueue() if by_priority else WaitingQueue(preempted_first=True),
            options,
            max_model_len=max_model_len,
            watermark=options.watermark or 0.0,
            prices=prices,
        )
        self.by_priority = by_priority
        self.max_num_seqs = sequences
        self.max_num_batched_tokens = tokens
        self.chunked_prefill = options.enable_chunked_prefill
        self.threshold = options.long_prefill_token_threshold
        self.full_isl = bool(options.scheduler_reserve_full_isl)
        self.in_flight = 2 if options.async_scheduling else 1
        # Requests whose prompt has not run whole, and decoding ones that got no token, by `Holder.order`.
        self._in_chunks: dict[int, EngineRequest] = {}
        self._skipped: dict[int, EngineRequest] = {}
        # Where two batches are in flight: requests whose last token is, and those that lost their place so.
        self._ending: dict[int, EngineRequest] = {}
        self._lost: list[EngineRequest] = []
        self._unserved_context = 0  # tokens of running requests that get none in the iteration at hand
        self._answering: dict[int, EngineRequest] = {}  # by the name of what they generate

    def accepts(self, prompt_tokens: int, output_tokens: int, samples: int) -> bool:
        # The front end rejects what leaves no room for a token; the check at start-up, a cache that is
        # smaller than the longest sequence.
        if samples > 1 or prompt_tokens >= self.max_model_len:
            return False
        if not self.chunked_prefill and prompt_tokens > self.max_num_batched_tokens:
            return False
        return self.memory.blocks_for(prompt_tokens + output_tokens - 1) <= self.memory.num_blocks

    def plan(self, now: int) -> Batch:
        batch = Batch()
        batch.counts_empty = True
        batch.reports, self.unreported = self.unreported, False
        self.must_replan = False
        if self.in_flight > 1:
            self.let_ending_rest()
        budget = self.max_num_batched_tokens
        self._serve_running(batch, budget)
        if batch.recomputed:
            overtakes = self.release.overtakes and not self.chunked_prefill
            self.must_replan = bool(self.queue.waiting) if overtakes else self._head_fits()
        elif self.queue.waiting:
            self._admit(batch, budget - batch.batched_tokens)
        if self._in_chunks or self._skipped or self.running_sequences > budget:
            self.must_replan = True
        batch.tokens = batch.batched_tokens
        batch.context_tokens = self.context - self._unserved_context
        batch.sequences = self.running_sequences
        return batch

    # Running requests, in the order of their admission

    def _serve_running(self, batch: Batch, budget: int) -> None:
        """Share out budget and blocks among the running requests."""
        if not self._run_together(batch, budget):
            if self.by_priority:
                self._run_by_priority(batch, budget)
            else:
                self._run_one_by_one(batch, budget)

    def _run_together(self, batch: Batch, budget: int) -> bool:
        """Share out budget and blocks if prompts in chunks come last and there is enough for all.

        That is the ordinary case of what `_run_one_by_one` does, without a look at those that decode.
        """
        memory, in_chunks = self.memory, self._in_chunks
        decoding = len(self.running) - len(in_chunks) - self.resting
        budget -= decoding
        if budget < 0 or self._skipped:
            return False
        chunks: list[tuple[EngineRequest, int]] = []
        if in_chunks:
            shared_out = self._share_out(budget)
            if shared_out is None:
                return False
            chunks = shared_out
            memory.grow(1)
        elif memory.grow_leaving(0) < 0:
            if memory.releases or self.by_priority:
                return False
            # All decode: the latest are preempted until the others find the blocks that are due.
            while memory.blocks_needed(1) > memory.free_blocks:
                memory.set_aside(memory.free_blocks)
                self.preempt(self.latest(), batch)
            memory.grow(1)
            decoding = len(self.running) - self.resting
        self.context += decoding
        self._unserved_context = unserved = self.resting_context
        batch.batched_tokens = batch.decoding = decoding
        batch.decode_context = self.context - unserved
        if chunks:
            batch.decode_context -= sum([request.tokens for request in in_chunks.values()])
            for request, tokens in chunks:
                self._go_on(request, tokens, batch)
        return True

    def _share_out(self, budget: int) -> list[tuple[EngineRequest, int]] | None:
        """Return the tokens of each prompt in chunks; None if they do not come last or something is short."""
        memory = self.memory
        for order, other in zip(reversed(self._in_chunks), reversed(self.running), strict=False):
            if order != other:
                return None
        blocks = memory.blocks_needed(1)
        chunks: list[tuple[EngineRequest, int]] = []
        for request in self._in_chunks.values():
            tokens = self._capped(request.length - request.tokens, budget)
            if tokens <= 0:
                return None
            budget -= tokens
            blocks += memory.blocks_to_extend(request, tokens)
            chunks.append((request, tokens))
        return None if blocks > memory.free_blocks else chunks

    def _run_one_by_one(self, batch: Batch, budget: int) -> None:
        """Share out budget and blocks where not every request simply gets a token."""
        memory = self.memory
        for request in self._skipped.values():
            request.unknown = 0  # what was in flight is there
        order = list(self.running.values())
        taken, place = 0, 0
        chunks: list[tuple[EngineRequest, int]] = []
        while place < len(order) and budget > 0:
            request = order[place]
            if memory.releases:
                if not request.decodes:
                    self.events.interval_ended(request)
                memory.trim(request)
            if request.order in self._ending:
                place += 1
                continue
            chunked = request.order in self._in_chunks
            if chunked:
                tokens = self._capped(request.length - request.tokens, budget)
                needed = memory.blocks_to_extend(request, tokens)
            else:
                tokens, needed = 1, memory.blocks_needed_by(request)
            while taken + needed > memory.free_blocks and len(order) > place:
                memory.set_aside(taken)
                self.preempt(order.pop(), batch)
            if place == len(order):
                break  # it preempted itself
            taken += needed
            budget -= tokens
            if chunked:
                chunks.append((request, tokens))
            place += 1
        self._decode(order[:place], order[place:], batch)
        for request, tokens in chunks:
            self._go_on(request, tokens, batch)

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
        for request in self._skipped.values():
            request.unknown = 0  # what was in flight is there
        order = list(self.running.values())
        served: dict[EngineRequest, int] = {}
        place = 0
        while place < len(order) and budget > 0:
            request = order[place]
            if request.order in self._ending:
                place += 1
                continue
            chunked = request.order in self._in_chunks
            tokens = self._capped(request.length - request.tokens, budget) if chunked else 1
            while memory.blocks_to_extend(request, tokens) > memory.free_blocks:
                victim = self._least_urgent(order)
                at = order.index(victim)
                del order[at]
                if at < place:
                    place -= 1
                budget += self._take_back(victim, served.pop(victim, 0), batch)
                if victim is request:
                    break
            else:
                if chunked:
                    self.events.interval_ended(request)
                memory.extend(request, tokens)
                served[request] = tokens
                budget -= tokens
                place += 1
        memory.grow(1)  # those that decode have taken theirs
        self._note_served(served, order[place:], batch)

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
        batch.skipped = tuple(self._skipped.values())
        decoding = [request for request in served if request.order not in self._in_chunks]
        batch.caught_up = tuple(each for each in decoding if each.order in before)
        for request in decoding:
            self.start_decoding(request)
        self.context += len(decoding)
        batch.decoding = batch.batched_tokens = len(decoding)
        batch.decode_context = sum([memory.length(each) for each in decoding])
        unserved = [each for each in unserved if each.order not in self._ending]
        self._unserved_context = self.resting_context + sum([memory.length(each) for each in unserved])
        for request, tokens in served.items():
            if request.order in self._in_chunks:
                self._compute(request, request.tokens - tokens, tokens, batch)
                if request.order not in self._in_chunks:
                    batch.completed += (request,)

    def _decode(self, served: list[EngineRequest], unserved: list[EngineRequest], batch: Batch) -> None:
        """Give a token to every request that decodes, except those for which the budget did not reach."""
        memory, before, at_rest = self.memory, self._skipped, {**self._in_chunks, **self._ending}
        self._skipped = {each.order: each for each in unserved if each.order not in at_rest}
        for order, request in self._skipped.items():
            if order not in before:
                self.events.interval_ended(request)
                self._leave_finishing(request)
                memory.stop_decoding(request)
        again = tuple(request for order, request in before.items() if order not in self._skipped)
        for request in again:
            if request.order in self.running:
                self.events.interval_ended(request)
                self.start_decoding(request)
        memory.grow(1)
        batch.skipped = tuple(self._skipped.values())
        decoding = [each for each in served if each.order not in at_rest]
        batch.caught_up = tuple(each for each in decoding if each.order in before)
        self.context += len(decoding)
        batch.decoding = batch.batched_tokens = len(decoding)
        batch.decode_context = sum([memory.length(each) for each in decoding])
        unserved = [each for each in unserved if each.order not in self._ending]
        self._unserved_context = self.resting_context + sum([memory.length(each) for each in unserved])

    def _go_on(self, request: EngineRequest, tokens: int, batch: Batch) -> None:
        """Run the next chunk of a prompt, for which there is room."""
        self.events.interval_ended(request)
        computed = request.tokens
        self.memory.extend(request, tokens)
        self._compute(request, computed, tokens, batch)
        if request.order not in self._in_chunks:
            batch.completed += (request,)

    # Waiting requests

    def _admit(self, batch: Batch, budget: int) -> None:
        queue = self.queue
        overtaken: list[EngineRequest] = []
        while (request := queue.head()) is not None:
            if budget <= 0:
                self.must_replan = True
                break
            if not self.may_join(request):
                break
            found = 0 if request.content is None else self._look_up(request)
            rest = self._to_compute(request, found, budget)
            if rest is None:
                break
            tokens = self._capped(rest, budget if self.chunked_prefill else rest)
            too_long = tokens > budget
            if too_long and self.release.overtakes:
                queue.pop(request)
                overtaken.append(request)
                continue
            if too_long or not self._fits(request, found + tokens):
                if self.running:
                    self.must_replan = self.must_replan or too_long
                    break
                # No request will ever make room: the real one waits for ever.
                queue.pop(request)
                batch.stuck += ((request, DeadEnd.NEVER_ADMITTED),)
                continue
            queue.pop(request)
            self._take_memory(request, found + tokens)
            request.cached = found
            self._enter(request)
            self.context += found
            batch.prompts += (request,)
            self._compute(request, found, tokens, batch)
            if request.order in self._in_chunks:
                batch.incomplete += (request,)
            budget -= tokens
        if overtaken:
            self.must_replan = True
        # In front again, but as in the release the one that was overtaken last before the others.
        for request in overtaken:
            if self.running:
                queue.requeue(request)
            else:
                batch.stuck += ((request, DeadEnd.NEVER_ADMITTED),)

    def _look_up(self, request: EngineRequest) -> int:
        """Return the tokens of a waiting request's prompt that are cached."""
        if request.content is None:
            return 0
        for name in request.content.follows:
            before = self._answering.get(name)
            if before is not None:
                # The turn before is still being answered: what it fills can be found as it goes on.
                self.memory.cache_full_blocks(before)
                self.must_replan = True
        return self.memory.match_prefix(request, request.length)

    def _to_compute(self, request: EngineRequest, found: int, budget: int) -> int | None:
        """Return what a waiting request has to compute; None where no request is admitted any more."""
        return request.length - found

    def _take_memory(self, request: EngineRequest, tokens: int) -> None:
        """Take the first tokens of a waiting request into memory."""
        self.memory.admit(request, tokens)

    def _fits(self, request: EngineRequest, tokens: int) -> bool:
        spare = self.watermark_blocks if self.running else 0
        return self.memory.can_admit(request, request.length if self.full_isl else tokens, spare)

    def _head_fits(self) -> bool:
        request = self.queue.head()
        return request is not None and self._fits(request, self._look_up(request) + 1)

    def _capped(self, tokens: int, budget: int) -> int:
        threshold = self.threshold
        if threshold and not (self.release.spares_single and len(self.running) + self.queue.waiting == 1):
            tokens = min(tokens, threshold)
        return tokens if tokens < budget else budget

    def _enter(self, request: EngineRequest) -> None:
        """Let a request run."""
        request.unknown = 0
        request.order = order = self._orders
        self._orders = order + 1
        request.last_step = -1
        self.running[order] = request
        self.running_sequences += 1
        if request.content is not None:
            self._answering[request.content.answer] = request

    def _compute(self, request: EngineRequest, computed: int, tokens: int, batch: Batch) -> None:
        """Run a chunk that memory has room for; the last one gives the next token."""
        batch.batched_tokens += tokens
        batch.query_key_pairs += tokens * computed + tokens * (tokens + 1) // 2
        self.context += tokens
        if request.tokens < request.length:
            self._in_chunks[request.order] = request
            return
        if self._in_chunks:
            self._in_chunks.pop(request.order, None)
        self.start_decoding(request)

    def preempt(self, request: EngineRequest, batch: Batch) -> None:
        chunked = request.order in self._in_chunks
        length = request.length
        if request.order in self._ending:
            self._lost.append(request)
        super().preempt(request, batch)
        self._forget(request)
        if chunked:
            request.length = length

    # Tokens in flight

    def finish(self, now: int) -> list[EngineRequest]:
        if self.in_flight == 1:
            return super().finish(now)
        if not (self._ending or self._lost):
            return []
        # Known now: what was in flight before the last plan.
        ending = self._ending
        over = [ending[order] for order in sorted(ending)] if len(ending) > 1 else list(ending.values())
        ending.clear()
        self.resting = self.resting_context = 0
        for request in over:
            request.unknown = 0
            self._over(request, now)
        for request in self._lost:
            self.queue.abort(request.row)
            self.events.left(request.row, now, Status.FINISHED)
        self.unreported = self.unreported or bool(self._lost)
        over += self._lost
        self._lost = []
        return over

    def let_ending_rest(self) -> None:
        finishing, memory = self._finishing, self.memory
        while finishing and finishing[0][0] <= memory.steps:
            request = finishing.pop(0)[2]
            self.events.interval_ended(request)
            memory.stop_decoding(request)
            request.last_step = -1
            self._ending[request.order] = request
            self.resting += 1
            self.resting_context += request.tokens

    def start_decoding(self, request: EngineRequest) -> None:
        super().start_decoding(request)
        if self.in_flight > 1:
            request.unknown = 1

    def arrival_matters(self) -> bool:
        return self.by_priority or super().arrival_matters()

    def may_join(self, request: EngineRequest) -> bool:
        return len(self.running) < self.max_num_seqs

    def _swaps(self, request: EngineRequest, batch: Batch) -> bool:
        return False

    def abort(self, row: int, now: int) -> int:
        self.unreported = True
        self._lost = [request for request in self._lost if request.row != row]
        return super().abort(row, now)

    def _abort_running(self, request: EngineRequest) -> int:
        chunked = request.order in self._in_chunks
        generated = super()._abort_running(request)
        self._forget(request)
        return request.length - request.prompt if chunked else generated

    def _over(self, request: EngineRequest, now: int) -> None:
        super()._over(request, now)
        self.unreported = True
        if request.content is not None:
            del self._answering[request.content.answer]

    def _forget(self, request: EngineRequest) -> None:
        """Forget what was noted of a request that runs no longer."""
        if self._in_chunks or self._skipped or self._ending:
            self._in_chunks.pop(request.order, None)
            self._skipped.pop(request.order, None)
            if self._ending.pop(request.order, None) is not None:
                self.resting -= 1
                self.resting_context -= request.tokens
        if request.content is not None:
            del self._answering[request.content.answer]
