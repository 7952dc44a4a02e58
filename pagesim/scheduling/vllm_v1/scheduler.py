"""vLLM's scheduler since v1 (0.11.2 to 0.33.0): prompts in chunks and decodes share a budget of tokens."""

from __future__ import annotations

from typing import ClassVar

from pagesim.errors import PagesimError
from pagesim.kvcache import KVCache
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.chunks import cut
from pagesim.scheduling.dead_ends import DeadEnd
from pagesim.scheduling.options import Machine, Prices
from pagesim.scheduling.priority_queue import PriorityQueue
from pagesim.scheduling.queue import WaitingQueue
from pagesim.scheduling.request import EngineRequest, Status
from pagesim.scheduling.vllm_releases import RELEASES
from pagesim.scheduling.vllm_v1.speculation import Drafts
from pagesim.scheduling.vllm_v1.traits import VllmV1Traits
from pagesim.scheduling.vllm_v1_options import VllmV1Options, resolved
from pagesim.setup.compiled import mypyc_attr

UNLIMITED = 1 << 40
"""A token budget that no prompt exceeds."""


@mypyc_attr(allow_interpreted_subclasses=True)
class VllmV1(VllmV1Traits):
    """vLLM's ``Scheduler``; see `Scheduler` for the contract. `plan` is its ``schedule()``.

    Every step gives tokens to running requests, in the order of their admission, then to waiting ones, until
    the token budget is used up. A request whose prompt has not run whole gets a chunk of it, any other one
    token. A request without a free block preempts the most recently admitted one or, by priority, the least
    urgent, possibly itself; nothing is ever swapped.

    A request that decodes takes its blocks with all others, by ``grow``. Where a step must look at each
    request (`_schedule_running`), all of them rest, are served in turn, and decode again.

    Args:
        memory: empty, without the null block; prompts are looked up in it if it caches prefixes.
        options: see ``Options``; what they leave open is as on a GPU that vLLM does not know.
        max_model_len: tokens; no sequence is longer.
        prices: not looked at.
    """

    __slots__ = (
        "_answering",
        "_in_chunks",
        "_lost",
        "_skipped",
        "_unserved_context",
        "by_priority",
        "chunked_prefill",
        "drafts",
        "full_isl",
        "max_num_batched_tokens",
        "max_num_seqs",
        "release",
        "threshold",
    )

    keeps_in_flight: ClassVar[bool] = False
    """Whether a request keeps its blocks that gets tokens from a batch in flight, because what is copied to
    and from them is not in order with what that batch writes."""

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
        memory.lag = self.in_flight - 1
        self.drafts: Drafts | None = None
        if options.speculative_tokens is not None:
            if not memory.is_plain:
                raise PagesimError("speculative_tokens needs a model of full attention only")
            self.drafts = Drafts(
                options,
                max_model_len=max_model_len,
                in_flight=self.in_flight,
                hash_ahead=self.hash_lookahead(options),
            )
            self.speculation = self.drafts.counts
        # Requests whose prompt has not run whole, and decoding ones that got no token, by `Holder.order`.
        self._in_chunks: dict[int, EngineRequest] = {}
        self._skipped: dict[int, EngineRequest] = {}
        self._ending = {}
        # Requests that lost their place while their last token is in flight.
        self._lost: list[EngineRequest] = []
        self._unserved_context = 0  # tokens of running requests that get none in the step at hand
        self._answering: dict[int, EngineRequest] = {}  # by the name of what they generate

    def accepts(self, prompt_tokens: int, output_tokens: int, samples: int) -> bool:
        return not self.refusal(prompt_tokens, output_tokens, samples)

    def refusal(self, prompt_tokens: int, output_tokens: int, samples: int) -> str:
        # The front end rejects what leaves no room for a token; the check at start-up, a cache that is
        # smaller than the longest sequence.
        if samples > 1:
            return "it is of several samples, which this engine serves as requests of their own"
        if prompt_tokens >= self.max_model_len:
            return (
                f"the prompt leaves no room for an output within max_model_len, {self.max_model_len} tokens"
            )
        if not self.chunked_prefill and prompt_tokens > self.max_num_batched_tokens:
            return (
                f"the prompt exceeds max_num_batched_tokens, {self.max_num_batched_tokens} tokens, and "
                "enable_chunked_prefill is off"
            )
        slots = prompt_tokens + output_tokens - 1
        if self.drafts is not None:
            slots = self.drafts.most_slots(slots)
        return "" if self.memory.blocks_for(slots) <= self.memory.num_blocks else self.no_room()

    def stored_length(self, request: EngineRequest) -> int:
        if self.drafts is not None:
            return self.drafts.of[request.row].stored
        return self.memory.length(request)

    def plan(self, now: int) -> Batch:
        batch = Batch()
        batch.counts_empty = True
        self.memory.new_plan()
        batch.reports, self.unreported = self.unreported, False
        self.must_replan = False
        if self.in_flight > 1:
            self.let_ending_rest()
        budget = self.max_num_batched_tokens
        if not self._schedule_together(batch, budget):
            self._schedule_running(batch, budget)
        if batch.recomputed:
            overtakes = self.release.overtakes and not self.chunked_prefill
            self.must_replan = bool(self.queue.waiting) if overtakes else self._head_fits()
        elif self.queue.waiting or self._has_landed():
            self._admit(batch, budget - batch.batched_tokens)
        if self._in_chunks or self._skipped or self.running_sequences > budget:
            self.must_replan = True
        batch.tokens = batch.batched_tokens
        batch.context_tokens = self.context - self._unserved_context
        batch.sequences = self.running_sequences
        if self.reaches is not None:
            batch.reached, batch.reached_pairs, batch.computed_prompts = self.reaches.close()
        if self.drafts is not None:
            self.drafts.close(batch)
        return batch

    # Running requests

    def _schedule_together(self, batch: Batch, token_budget: int) -> bool:
        """Serve all running requests at once, if the loop of `_schedule_running` would serve them all.

        It would where the budget reaches, prompts in chunks come last, and there are blocks for all. Where
        all decode and memory gives no blocks back in a step, the loop preempts the last request as long as
        the blocks do not suffice; the requests ahead of it have taken every free block by then.

        Returns:
            Whether it did; if not, nothing has changed but requests that the loop preempts, too.
        """
        if self.drafts is not None:
            return False  # what each request computes differs
        memory, in_chunks = self.memory, self._in_chunks
        token_budget -= len(self.running) - len(in_chunks) - self.resting
        if token_budget < 0 or self._skipped:
            return False
        chunks: list[tuple[EngineRequest, int]] = []
        for request in in_chunks.values():
            tokens = self._num_new_tokens(request, request.length - request.tokens, token_budget)
            if tokens <= 0:
                return False
            token_budget -= tokens
            chunks.append((request, tokens))
        if chunks and (
            [*in_chunks] != [*self.running][-len(in_chunks) :]
            or memory.blocks_needed_with(chunks) > memory.free_blocks
        ):
            return False
        while memory.grow_leaving(0) < 0:
            if self.by_priority or memory.releases or (self.keeps_in_flight and self.in_flight > 1):
                return False
            memory.set_aside(memory.free_blocks)
            self.preempt(self.latest(), batch)
        decoding = len(self.running) - len(in_chunks) - self.resting
        self.context += decoding
        self._unserved_context = unserved = self.resting_context
        batch.batched_tokens = batch.decoding = decoding
        batch.decode_context = self.context - unserved
        for request, _ in chunks:
            batch.decode_context -= request.tokens
        for request, tokens in chunks:
            self.events.interval_ended(request)
            self._extend(request, tokens)
            self.context += tokens
            self._compute(request, tokens, batch)
        return True

    def _schedule_running(self, batch: Batch, token_budget: int) -> None:
        """Give running requests tokens and blocks, in their order; who finds no block preempts a victim.

        By priority a victim may have been given its tokens in this very step: it leaves the batch, and they
        return to the budget.

        Source: vLLM 0.33.0, v1/core/sched/scheduler.py, ``schedule``, the loop over ``self.running``.
        """
        self._rest()
        running = list(self.running.values())
        scheduled: dict[EngineRequest, int] = {}
        index = 0
        while index < len(running) and token_budget > 0:
            request = running[index]
            num_new_tokens = self._num_new_tokens(request, self._num_due(request), token_budget)
            if num_new_tokens <= 0:
                index += 1
                continue
            self.events.interval_ended(request)
            while not (is_allocated := self._allocate_slots(request, num_new_tokens)):
                victim = self._victim(running)
                if self.keeps_in_flight and self._is_in_flight(victim):
                    break
                place = running.index(victim) if self.by_priority else len(running) - 1
                del running[place]
                if place < index:
                    index -= 1
                given = scheduled.pop(victim, 0)
                token_budget += given
                self.preempt(victim, batch, given)
                if victim is request:
                    break
            if is_allocated:
                scheduled[request] = num_new_tokens
                token_budget -= num_new_tokens
                index += 1
            elif request.order in self.running:
                break  # no request can make room: the others get nothing either
        self.memory.grow(1)  # all rest: this only counts the step
        self._update_after_schedule(running, scheduled, batch)

    def _rest(self) -> None:
        """Let all running requests rest, so that each takes its blocks when its turn comes."""
        for request in self.running.values():
            if request.decodes:
                self.events.interval_ended(request)
                self._leave_finishing(request)
                self.memory.stop_decoding(request)
        for request in self._skipped.values():
            request.unknown = request.in_flight = 0  # it got no token in the last step

    def _num_due(self, request: EngineRequest) -> int:
        """Return the tokens of a running request that are not computed; none where its last is in flight."""
        if self.drafts is not None:
            return self.drafts.num_due(request)
        if request.order in self._ending:
            return 0
        return max(1, request.length - request.tokens)  # where its prompt has run, the token sampled last

    def _num_new_tokens(
        self, request: EngineRequest, tokens: int, token_budget: int, num_computed_tokens: int = -1
    ) -> int:
        """Return how many tokens of a request the step computes; 0 for none.

        Args:
            request: running or waiting.
            tokens: of it that are not computed.
            token_budget: tokens that are left of the step's.
            num_computed_tokens: those that are, or that are cached; left out, of a request that runs.
        """
        threshold, states = self.threshold, self.memory.state_chunks
        if threshold and not (self.release.spares_single and len(self.running) + self.queue.waiting == 1):
            tokens = min(tokens, threshold)
        tokens = min(tokens, token_budget)
        if states is None or tokens <= 0:
            return tokens
        start = request.tokens if num_computed_tokens < 0 else num_computed_tokens
        most = self.max_num_batched_tokens
        return cut(request, start, tokens, states, min(most, threshold) if threshold else most)

    def _allocate_slots(self, request: EngineRequest, num_new_tokens: int) -> bool:
        """Give a running request blocks for further tokens, if enough are free; say whether they are.

        What no later token attends to is given back first, in any case.

        Source: vLLM 0.33.0, v1/core/kv_cache_manager.py, ``allocate_slots``.
        """
        memory, drafts, slots = self.memory, self.drafts, request.tokens + num_new_tokens
        if drafts is not None:
            computed = drafts.of[request.row].num_computed_tokens + num_new_tokens
            slots = max(request.tokens, drafts.slots(computed))  # those of rejected drafts stay its own
        memory.trim(request)
        if memory.blocks_to_extend(request, slots - request.tokens) > memory.free_blocks:
            return False
        if drafts is not None:
            request.unknown = drafts.uncommitted(request, computed, slots)
        self.context += slots - request.tokens
        self._extend(request, slots - request.tokens)
        return True

    def _victim(self, running: list[EngineRequest]) -> EngineRequest:
        """Return which running request is preempted: the last or, by priority, the least urgent.

        Of several samples of a request that is the one that was admitted first.
        """
        if not self.by_priority:
            return running[-1]
        priority_of = self.queue.arrivals.priority_of
        return max(running, key=lambda request: (priority_of(request.index), request.arrival))

    def _is_in_flight(self, request: EngineRequest) -> bool:
        """Say whether a running request gets tokens from a batch that is in flight when one is planned."""
        if self.in_flight == 1:
            return False
        if request.order in self._in_chunks:
            return request.in_flight > 0
        return request.order not in self._skipped

    def _update_after_schedule(
        self, running: list[EngineRequest], scheduled: dict[EngineRequest, int], batch: Batch
    ) -> None:
        """Let requests go on that were given tokens, and those that decode and were not be skipped."""
        if self.drafts is not None:
            for request, tokens in scheduled.items():
                decodes = request.order not in self._in_chunks
                self._go_on(request, self.drafts.schedule(request, tokens, batch, decodes=decodes), batch)
            return
        memory, before, in_chunks = self.memory, self._skipped, self._in_chunks
        unserved = [each for each in running if each not in scheduled and each.order not in self._ending]
        self._skipped = {each.order: each for each in unserved if each.order not in in_chunks}
        decoding = [each for each in scheduled if each.order not in in_chunks]
        for request in decoding:
            request.in_flight = memory.lag
            self.start_decoding(request)
        batch.skipped = tuple(self._skipped.values())
        batch.caught_up = tuple(each for each in decoding if each.order in before)
        batch.decoding = batch.batched_tokens = len(decoding)
        batch.decode_context = sum([memory.length(each) for each in decoding])
        self._unserved_context = self.resting_context + sum([memory.length(each) for each in unserved])
        for request in in_chunks.values():
            request.in_flight = 0  # for those that go on it is noted with their chunk
        for request, tokens in scheduled.items():
            if request.order in in_chunks:
                self._compute(request, tokens, batch)

    def _extend(self, request: EngineRequest, tokens: int) -> None:
        """Take the blocks for further tokens of a request at rest."""
        if request.content is not None and request.content.follows:
            self._cache_turns_before(request)  # the same blocks of these were there first
        self.memory.extend(request, tokens)

    def _cache_turns_before(self, request: EngineRequest) -> bool:
        """Let what was filled be found of turns before a request that are still answered; say if any are."""
        assert request.content is not None
        before = [self._answering[name] for name in request.content.follows if name in self._answering]
        for turn in before:
            self.memory.cache_full_blocks(turn)
        return bool(before)

    def _compute(self, request: EngineRequest, tokens: int, batch: Batch) -> None:
        """Run a chunk of a prompt, for which blocks were taken; the last one gives the next token."""
        computed = request.tokens - tokens
        batch.batched_tokens += tokens
        batch.query_key_pairs += tokens * computed + tokens * (tokens + 1) // 2
        request.in_flight = tokens * self.memory.lag
        if self.reaches is not None:
            self.reaches.compute(computed, tokens, starts=request.tokens >= request.length)
        if self.memory.releases:
            batch.chunks += ((request, tokens),)
        self._go_on(request, request.tokens >= request.length, batch)

    def _go_on(self, request: EngineRequest, is_whole: bool, batch: Batch) -> None:
        """Let a request decode from now on whose prompt has run whole with this step, or run in chunks."""
        if not is_whole:
            self._in_chunks[request.order] = request
            return
        if self._in_chunks.pop(request.order, None) is not None:
            batch.completed += (request,)
        if self.drafts is None:
            self.start_decoding(request)

    # Waiting requests

    def _admit(self, batch: Batch, budget: int) -> None:
        queue = self.queue
        # Of the requests that were admitted before: whether any computes something, and a chunk of a prompt.
        any_runs, chunk_runs = batch.batched_tokens > 0, batch.query_key_pairs > 0
        overtaken: list[EngineRequest] = []
        while (request := queue.head()) is not None:
            if budget <= 0:
                self.must_replan = True
                break
            if not self.may_join(request):
                break
            found = 0 if request.content is None else self._look_up(request)
            if self.pulls and (started := self._start_load(request, found)) is not None:
                if started:
                    continue
                if self.running or self._waits_elsewhere():
                    break
                queue.pop(request)
                batch.stuck += ((request, DeadEnd.NEVER_ADMITTED),)
                continue
            tokens = request.length - found
            if self.drafts is not None:
                is_padded = not chunk_runs and (any_runs or found > 0)
                tokens = self.drafts.padded(tokens, found, budget, is_padded=is_padded)
            most = budget if self.chunked_prefill else UNLIMITED
            tokens = self._num_new_tokens(request, tokens, most, found)
            if not tokens:
                self.must_replan = True
                break
            too_long = tokens > budget
            if too_long and self.release.overtakes:
                queue.pop(request)
                overtaken.append(request)
                continue
            if too_long or not self._fits(request, found + tokens):
                if self.running or self._waits_elsewhere():
                    self.must_replan = self.must_replan or too_long
                    break
                # No request will ever make room: the real one waits for ever.
                queue.pop(request)
                batch.stuck += ((request, DeadEnd.NEVER_ADMITTED),)
                continue
            self._join(request, found, tokens, batch)
            budget -= tokens
        if overtaken:
            self.must_replan = True
        # In front again, but as in the release the one that was overtaken last before the others.
        for request in overtaken:
            if self.running:
                queue.requeue(request)
            else:
                batch.stuck += ((request, DeadEnd.NEVER_ADMITTED),)

    def _join(self, request: EngineRequest, found: int, tokens: int, batch: Batch) -> None:
        """Let the head of the queue run, which computes so many tokens behind those that were found."""
        drafts = self.drafts
        self.queue.pop(request)
        slots = found + tokens
        if drafts is not None:
            slots = drafts.slots(found + tokens)
            request.unknown = drafts.uncommitted(request, found + tokens, slots)
        self._take_memory(request, slots)
        request.cached = found
        self._enter(request)
        self.context += slots
        batch.prompts += (request,)
        if drafts is None:
            self._compute(request, tokens, batch)
        else:
            drafts.start(request, found, self.queue.arrivals.draw_seed(request.index))
            self._go_on(request, drafts.schedule(request, tokens, batch, decodes=False), batch)
        if request.order in self._in_chunks:
            batch.incomplete += (request,)

    def _has_landed(self) -> bool:
        """Say whether any request may run that is not in the queue."""
        return False

    def _waits_elsewhere(self) -> bool:
        """Say whether there may be room later though no request runs."""
        return False

    def _start_load(self, request: EngineRequest, found: int) -> bool | None:
        """Let the head of the queue hold blocks for what comes from elsewhere, if there is room for them.

        Args:
            request: see there.
            found: its tokens that are cached here.

        Returns:
            Whether there was room; None where nothing of it comes from elsewhere.
        """
        return None

    def _look_up(self, request: EngineRequest) -> int:
        """Return the tokens of a waiting request's prompt that are cached; its content is known."""
        assert request.content is not None
        if request.content.follows and self._cache_turns_before(request):
            self.must_replan = True
        return self.memory.match_prefix(request, request.length)

    def _take_memory(self, request: EngineRequest, tokens: int) -> None:
        """Take the first tokens of a waiting request into memory."""
        self.memory.admit(request, tokens)

    def _fits(self, request: EngineRequest, tokens: int) -> bool:
        memory, spare = self.memory, self.watermark_blocks if self.running else 0
        if self.drafts is not None:
            tokens = self.drafts.slots(tokens)
        if self.full_isl:
            if memory.releases:
                return memory.can_admit_whole(request, tokens, request.length, spare)
            tokens = max(tokens, request.length)  # it is going to hold all of them
        return memory.can_admit(request, tokens, spare)

    def _head_fits(self) -> bool:
        request = self.queue.head()
        if request is None:
            return False
        found = 0 if request.content is None else self._look_up(request)
        return self._fits(request, found + 1)

    def _enter(self, request: EngineRequest) -> None:
        """Let a request run."""
        request.order = order = self._orders
        self._orders = order + 1
        request.last_step = -1
        self.running[order] = request
        self.running_sequences += 1
        if request.content is not None:
            self._answering[request.content.answer] = request

    def preempt(self, request: EngineRequest, batch: Batch, given: int = 0) -> None:
        """Take a running request's place and memory; it is recomputed.

        Args:
            request: which.
            batch: the step at hand.
            given: tokens that it was given in this step, and does not compute now.
        """
        num_tokens = request.length
        if request.order not in self._in_chunks:
            num_tokens = self.memory.length(request) + 1 - given
        if request.order in self._ending:
            self._lost.append(request)
        super().preempt(request, batch)
        request.unknown = request.in_flight = 0
        if self.drafts is not None:
            progress = self.drafts.of[request.row]
            progress.lose()
            num_tokens = progress.num_tokens
        request.length = num_tokens
        self._forget(request)

    # Tokens in flight

    def finish(self, now: int) -> list[EngineRequest]:
        if self.drafts is None:
            return super().finish(now)
        shares, over = self.drafts.next_output(), []
        answered = [each.request for each in shares if each.outputs and each.request.row in self.drafts.of]
        if answered:
            self.events.answered(answered, now)
        for share in shares:
            request = share.request
            runs = request.order == share.order and request.order in self.running
            progress = self.drafts.update_from_output(share, runs=runs)
            if progress is None:
                continue  # it was over before
            if not runs:
                request.length = progress.num_tokens
            elif share.outputs:
                processed = progress.num_computed_tokens - progress.num_inflight_tokens
                request.unknown = request.tokens - processed
                if progress.num_tokens < request.final_length:
                    self.memory.cache_full_blocks(request)
            if progress.num_tokens >= request.final_length:
                if runs:
                    self._over(request, now)
                else:
                    self._over_waiting(request, now)
                over.append(request)
        return over

    def end_in_flight(self, now: int) -> list[EngineRequest]:
        if not (self._ending or self._lost):
            return []
        over = self.end_resting(now)
        lost, self._lost = self._lost, []
        for request in lost:
            self._over_waiting(request, now)
        return over + lost

    def _over_waiting(self, request: EngineRequest, now: int) -> None:
        """Let a request go that lost its place, and then got its last token from a batch in flight."""
        self.queue.abort(request.row)
        self.events.left(request.row, now, Status.FINISHED)
        self.unreported = True
        if self.drafts is not None:
            del self.drafts.of[request.row]

    def _over(self, request: EngineRequest, now: int) -> None:
        super()._over(request, now)
        if self.drafts is not None:
            del self.drafts.of[request.row]

    def arrival_matters(self) -> bool:
        return self.by_priority or not self.queue.waiting

    def may_join(self, request: EngineRequest) -> bool:
        return len(self.running) < self.max_num_seqs

    def abort(self, row: int, now: int) -> int:
        self.unreported = True
        self._lost = [request for request in self._lost if request.row != row]
        generated = super().abort(row, now)
        if self.drafts is not None:
            self.drafts.of.pop(row, None)
        return generated

    def _abort_running(self, request: EngineRequest) -> int:
        chunked = request.order in self._in_chunks
        generated = super()._abort_running(request)
        self._forget(request)
        if self.drafts is not None:
            return self.drafts.of[request.row].num_tokens - request.prompt
        return request.length - request.prompt if chunked else generated

    def _let_go(self, request: EngineRequest) -> None:
        self.unreported = True
        if request.content is not None:
            del self._answering[request.content.answer]
        self.memory.release(request)

    def _forget(self, request: EngineRequest) -> None:
        """Forget what was noted of a request that runs no longer."""
        self._in_chunks.pop(request.order, None)
        self._skipped.pop(request.order, None)
        self.forget_resting(request)
        if request.content is not None:
            del self._answering[request.content.answer]
