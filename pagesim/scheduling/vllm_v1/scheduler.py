"""vLLM's scheduler since v1 (0.11.2 to 0.33.0): chunked prefills and decodes share a token budget."""

from __future__ import annotations

from typing import Final

from pagesim.scheduling.batch import Batch
from pagesim.scheduling.chunks import cut
from pagesim.scheduling.failure_modes import FailureMode
from pagesim.scheduling.request import EngineRequest
from pagesim.scheduling.vllm_v1.lifecycle import VllmV1Base
from pagesim.setup.compiled import mypyc_attr

UNLIMITED: Final = 1 << 40
"""A token budget that no prompt exceeds."""


@mypyc_attr(allow_interpreted_subclasses=True)
class VllmV1(VllmV1Base):
    """vLLM's ``Scheduler``; `plan` is its ``schedule()``.

    Every step gives tokens to running requests in order of admission, then to waiting ones, until the token
    budget is used up. A request with an unfinished prefill gets a chunk of its prompt, any other one token.
    If no block is free for a request, the most recently admitted one is preempted or, by priority, the least
    urgent; that may be the request itself. Nothing is ever swapped.

    Decoding requests normally allocate their blocks all at once. If a step must look at each request
    (`_schedule_running`), joint decoding stops, requests are served one by one, and decoding resumes.

    Its arguments are those of `VllmV1Base`.
    """

    __slots__ = ()

    def plan(self, now: int) -> Batch:
        batch, connector = Batch(), self.connector
        batch.counts_empty = True
        if connector is not None:
            self.events.held_without_running_changes(now)  # before any block is freed
            connector.begin_plan(now)
        self.memory.new_plan()
        batch.reports, self.unreported = self.unreported, False
        self.must_replan = False
        if self.in_flight > 1 and self._finishing and self._finishing[0][0] <= self.memory.steps:
            self.start_draining()
        cadence, drafts, budget = self.cadence, self.drafts, self.max_num_batched_tokens
        if drafts is not None:
            budget -= drafts.rules.draft_slots
        if cadence is not None:
            cadence.begin(self.memory.steps, decodes=len(self.running) > len(self._in_chunks))
        if not self._schedule_together(batch, budget):
            self._schedule_running(batch, budget)
        if batch.recomputed:
            overtakes = self.release.overtakes and not self.chunked_prefill
            self.must_replan = bool(self.queue.waiting) if overtakes else self._head_fits()
        elif self.queue.waiting:
            taken = batch.batched_tokens + (0 if drafts is None else drafts.slots_taken)
            self._schedule_waiting(batch, budget - taken)
        elif cadence is not None:
            cadence.looked_at_waiting(0)
        if cadence is not None:
            cadence.end(self.memory.steps, batch.batched_tokens)
        if drafts is not None and drafts.may_starve and not batch.batched_tokens:
            self._give_up_starved(drafts, batch, now)
        if self._in_chunks or self._skipped or self.running_sequences > budget:
            self.must_replan = True
        batch.tokens = batch.batched_tokens
        batch.context_tokens = self.context - self._unserved_context
        batch.sequences = self.running_sequences
        if self.spans is not None:
            batch.reached, batch.reached_pairs, batch.computed_prompts = self.spans.close()
        if drafts is not None:
            drafts.close(batch)
        if connector is not None:
            if batch.tokens or not batch.unschedulable:
                connector.count_plan()  # otherwise another plan follows at once
            if connector.build_connector_meta(batch, self):
                self.must_replan = True
        return batch

    # Running requests

    def _schedule_together(self, batch: Batch, token_budget: int) -> bool:
        """Serve all running requests at once, if the loop of `_schedule_running` would serve them all.

        It would if the budget suffices, chunked prefills come last, and there are blocks for all. If all
        requests decode and memory frees no blocks during a step, the loop preempts the last request while
        blocks are short; by then the requests ahead of it have allocated every free block.

        Returns:
            Whether all were served; if not, nothing has changed.
        """
        if self.drafts is not None:
            return False  # each request computes a different number of tokens
        memory, in_chunks = self.memory, self._in_chunks
        if in_chunks and self.cadence is not None and self.cadence.holds:
            return False
        token_budget -= len(self.running) - len(in_chunks) - self.draining
        if token_budget < 0 or self._skipped:
            return False
        chunks: list[tuple[EngineRequest, int]] = []
        for request in in_chunks.values():
            tokens = self._num_new_tokens(request, request.tokens, self._num_due(request), token_budget)
            if tokens <= 0:
                return False
            token_budget -= tokens
            chunks.append((request, tokens))
        if chunks:
            if [*in_chunks] != [*self.running][-len(in_chunks) :] or not memory.equal_blocks:
                return False  # if groups' blocks differ, a sum does not show which group is short
            blocks = [memory.blocks_to_extend(request, tokens) for request, tokens in chunks]
            if memory.blocks_needed(1) + sum(blocks) > memory.free_blocks:
                return False
        while memory.try_allocate_step(0) < 0:
            if self.by_priority or memory.releases or self._defers_frees:
                return False
            memory.reserve_free()
            self.preempt(self.latest(), batch)
        decoding = len(self.running) - len(in_chunks) - self.draining
        self.context += decoding
        self._unserved_context = unserved = self.draining_context
        batch.batched_tokens = batch.decoding = decoding
        batch.decode_context = self.context - unserved
        for request, tokens in chunks:
            batch.decode_context -= request.tokens
            self.events.interval_ended(request)
            self.kv_cache_manager.extend(request, tokens)
            self.context += tokens
            self._compute(request, tokens, batch)
        return True

    def _schedule_running(self, batch: Batch, token_budget: int) -> None:
        """Give running requests tokens and blocks in order, preempting victims when no block is free.

        By priority, a victim may already have been given tokens in this step. It then leaves the batch, and
        its tokens return to the budget.

        Source: vLLM 0.33.0, v1/core/sched/scheduler.py, ``schedule``, 793 to 1004.
        """
        drafts, allocate_slots = self.drafts, self.kv_cache_manager.allocate_slots
        draft_slots = 0 if drafts is None else drafts.rules.draft_slots
        self._stop_decoding()
        running = list(self.running.values())
        scheduled: dict[EngineRequest, int] = {}
        index = 0
        while index < len(running) and token_budget > 0:
            request = running[index]
            held = computed = request.tokens
            if drafts is not None:
                computed = drafts.of[request.row].num_computed_tokens
            num_new_tokens = self._num_new_tokens(request, computed, self._num_due(request), token_budget)
            if drafts is not None:
                num_new_tokens = drafts.within_chunk(request, computed, num_new_tokens)
            if num_new_tokens <= 0:
                index += 1
                continue
            self.events.interval_ended(request)
            while not (is_allocated := allocate_slots(request, computed + num_new_tokens)):
                victim = self._victim(running)
                if self._defers_frees and self._is_in_flight(victim):
                    break
                place = running.index(victim) if self.by_priority else len(running) - 1
                del running[place]
                if place < index:
                    index -= 1
                given = scheduled.pop(victim, 0)
                token_budget += given + (draft_slots if given else 0)
                self.preempt(victim, batch, given)
                if victim is request:
                    break
            if is_allocated:
                self.context += request.tokens - held
                scheduled[request] = num_new_tokens
                token_budget -= num_new_tokens + draft_slots
                index += 1
            elif request.order in self.running:
                break  # nothing can be preempted, so the others get nothing either
        self.memory.allocate_step(1)  # no request decodes now, so this only counts the step
        self._update_after_schedule(running, scheduled, batch)

    def _stop_decoding(self) -> None:
        """Stop joint decoding, so that each request allocates its blocks when its turn comes."""
        for request in self.running.values():
            if request.decodes:
                self.events.interval_ended(request)
                self._leave_finishing(request)
                self.memory.stop_decoding(request)
        for request in self._skipped.values():
            request.uncommitted_tokens = request.inflight_tokens = 0  # it got no token in the last step

    def _num_due(self, request: EngineRequest) -> int:
        """Return how many tokens of a running request may be computed; none if its last is in flight."""
        if self.cadence is not None and self.cadence.holds and request.order in self._in_chunks:
            return 0
        if self.drafts is not None:
            return self.drafts.num_due(request)
        if request.order in self._draining:
            return 0
        return max(1, request.length - request.tokens)  # after its prefill, the token sampled last

    def _num_new_tokens(
        self, request: EngineRequest, num_computed_tokens: int, tokens: int, token_budget: int
    ) -> int:
        """Return how many tokens of a request the step computes; 0 for none.

        Args:
            request: running or waiting request.
            num_computed_tokens: its tokens that are already computed or cached.
            tokens: its tokens that remain to be computed.
            token_budget: tokens left in the step's budget.
        """
        threshold, states = self.threshold, self.memory.state_chunks
        if threshold and not (self.release.spares_single and len(self.running) + self.queue.waiting == 1):
            tokens = min(tokens, threshold)
        if tokens > token_budget:
            tokens = token_budget
        if states is None or tokens <= 0:
            return tokens
        most = self.max_num_batched_tokens
        most = min(most, threshold) if threshold else most
        return cut(request, num_computed_tokens, tokens, states, most)

    def _victim(self, running: list[EngineRequest]) -> EngineRequest:
        """Return the running request to preempt: the last one or, by priority, the least urgent.

        Among several samples of a request, it is the one that was admitted first.
        """
        if not self.by_priority:
            return running[-1]
        priority_of = self.queue.arrivals.priority_of
        return max(running, key=lambda request: (priority_of(request.index), request.arrival))

    def _update_after_schedule(
        self, running: list[EngineRequest], scheduled: dict[EngineRequest, int], batch: Batch
    ) -> None:
        """Run the requests that were given tokens, and mark the decoding ones without any as skipped."""
        if self.drafts is not None:
            for request, tokens in scheduled.items():
                self._compute_apart(request, tokens, batch, decodes=request.order not in self._in_chunks)
            return
        memory, before, in_chunks = self.memory, self._skipped, self._in_chunks
        unserved = [each for each in running if each not in scheduled and each.order not in self._draining]
        self._skipped = {each.order: each for each in unserved if each.order not in in_chunks}
        decoding = [each for each in scheduled if each.order not in in_chunks]
        for request in decoding:
            request.inflight_tokens = memory.steps_in_flight
            self.start_decoding(request)
        batch.skipped = tuple(self._skipped.values())
        batch.served_again = tuple(each for each in decoding if each.order in before)
        batch.decoding = batch.batched_tokens = len(decoding)
        batch.decode_context = sum([memory.length(each) for each in decoding])
        self._unserved_context = self.draining_context + sum([memory.length(each) for each in unserved])
        for request in in_chunks.values():
            request.inflight_tokens = 0  # set again below for requests that get a chunk
        for request, tokens in scheduled.items():
            if request.order in in_chunks:
                self._compute(request, tokens, batch)

    def _compute(self, request: EngineRequest, tokens: int, batch: Batch) -> None:
        """Run a chunk of a prompt whose blocks are allocated; the last chunk yields the next token."""
        computed = request.tokens - tokens
        batch.batched_tokens += tokens
        batch.query_key_pairs += tokens * computed + tokens * (tokens + 1) // 2
        request.inflight_tokens = tokens * self.memory.steps_in_flight
        if self.connector is not None:
            self.connector.computed[request] = computed
        if self.spans is not None:
            self.spans.compute(computed, tokens, starts=request.tokens >= request.length)
        if self.memory.releases:
            batch.chunks += ((request, tokens),)
        self._note_prefill(request, request.tokens >= request.length, batch)

    def _compute_apart(self, request: EngineRequest, tokens: int, batch: Batch, *, decodes: bool) -> None:
        """Run tokens of a request that decodes apart from others, or a chunk of its prompt."""
        drafts, spans = self.drafts, self.spans
        assert drafts is not None
        computed = drafts.of[request.row].num_computed_tokens
        is_whole = drafts.schedule(request, tokens, batch, decodes=decodes)
        if spans is not None and decodes:
            spans.decode(computed + tokens)
        elif spans is not None:
            spans.compute(computed, tokens, starts=False)
        self._note_prefill(request, is_whole, batch)

    def _note_prefill(self, request: EngineRequest, is_whole: bool, batch: Batch) -> None:
        """Start decoding a request whose prefill ends with this step; otherwise keep it among the chunked."""
        if self.cadence is not None and request.order in self._in_chunks:
            self.cadence.prefills = True
        if not is_whole:
            self._in_chunks[request.order] = request
            return
        if self._in_chunks.pop(request.order, None) is not None:
            batch.completed += (request,)
        if self.drafts is None:
            self.start_decoding(request)

    # Waiting requests

    def _schedule_waiting(self, batch: Batch, token_budget: int) -> None:
        """Admit waiting requests in order, as long as token budget, slots and blocks last.

        Source: vLLM 0.33.0, v1/core/sched/scheduler.py, ``schedule``, 1049 to 1610.
        """
        queue, connector, drafts, manager = self.queue, self.connector, self.drafts, self.kv_cache_manager
        # Whether any request admitted earlier computes something, and whether any computes a prompt chunk.
        any_runs, chunk_runs = batch.batched_tokens > 0, batch.query_key_pairs > 0
        cadence, draft_slots = self.cadence, 0 if drafts is None else drafts.rules.draft_slots
        holding: list[EngineRequest] = []  # skipped requests that hold blocks
        others: list[EngineRequest] = []  # skipped requests that hold none
        overtaken: list[EngineRequest] = []  # requests that exceed the budget
        while (request := queue.head()) is not None:
            if token_budget <= 0:
                self.must_replan = True
                break
            if not self.may_join(request):
                break
            if drafts is not None and drafts.is_stale(request):
                queue.pop(request)
                others.append(request)
                continue
            holds, spare = bool(queue.holding), self.watermark_blocks if self.running else 0
            if holds:  # if all of it was loaded, the last token is recomputed to get the next one
                found = min(request.tokens, request.length - 1)
            else:
                found = 0 if request.content is None else self._num_cached(request)
            external = 0 if connector is None else self._num_external(request, found)
            if external is None:
                queue.pop(request)
                (holding if holds else others).append(request)
                continue
            is_short = False  # whether the token budget is the limit, regardless of memory
            if external:
                assert connector is not None
                ahead = 0
                if drafts is not None:
                    ahead = 1 + drafts.rules.num_speculative_tokens + drafts.rules.lookahead
                    drafts.note_computed(self._in_chunks.values(), connector.computed)
                tokens, reserved = 0, connector.blocks_to_reserve(self._in_chunks.values(), ahead)
                is_allocated = manager.admit(request, found + external, spare, external, reserved)
            else:
                tokens = request.length - found
                if cadence is not None and cadence.holds and tokens > 1:
                    self.must_replan = True
                    break
                if drafts is not None:
                    is_padded = not chunk_runs and (any_runs or found > 0)
                    tokens = drafts.padded(tokens, found, token_budget, is_padded=is_padded)
                most = token_budget if self.chunked_prefill else UNLIMITED
                tokens = self._num_new_tokens(request, found, tokens, most)
                if drafts is not None and tokens:
                    tokens = drafts.within_chunk(request, found, drafts.clipped(tokens))
                    if not tokens:
                        queue.pop(request)
                        (holding if holds else others).append(request)
                        continue
                is_short = not tokens or tokens > token_budget
                if is_short:
                    is_allocated = False
                elif holds:
                    is_allocated = manager.allocate_slots(request, found + tokens, spare, is_waiting=True)
                else:
                    is_allocated = manager.admit(request, found + tokens, spare)
            if is_allocated:
                queue.pop(request)
                if external:
                    assert connector is not None
                    connector.update_state_after_alloc(request, external, self)
                    connector.loading[request] = None
                    holding.append(request)
                    batch.loading += (request,)
                else:
                    self._join(request, found, tokens, batch, holds=holds)
                    token_budget -= tokens + draft_slots
            elif tokens > token_budget and self.release.overtakes:
                queue.pop(request)
                overtaken.append(request)
            elif self.running or holding or others or self.awaits:
                self.must_replan = self.must_replan or is_short
                break
            else:  # no request will ever make room; the real engine waits forever
                queue.pop(request)
                if connector is not None and holds:
                    connector.abort_held(request)
                batch.unschedulable += ((request, FailureMode.NEVER_ADMITTED),)
        if holding or others:
            queue.put_back(holding, others)
        if cadence is not None:
            cadence.deferred.update([request.row for request in (*holding, *others)])
            cadence.looked_at_waiting(queue.waiting)
        if overtaken:
            self.must_replan = True
        # They go to the front again but, as in that release, in reverse order.
        for request in overtaken:
            if self.running:
                queue.requeue(request)
            else:
                batch.unschedulable += ((request, FailureMode.NEVER_ADMITTED),)

    def _num_cached(self, request: EngineRequest) -> int:
        """Return how many tokens of a waiting request are cached; its content must be known."""
        assert request.content is not None
        if request.content.follows and self.kv_cache_manager.cache_turns_before(request):
            self.must_replan = True
        return self.memory.match_prefix(request, request.length)

    def _num_external(self, request: EngineRequest, found: int) -> int | None:
        """Return how many tokens after the first ``found`` are loaded; None if the request must wait."""
        connector = self.connector
        assert connector is not None
        if self.queue.holding:
            return 0 if connector.is_ready(request) else None
        return connector.get_num_new_matched_tokens(request, found, self)

    def _head_fits(self) -> bool:
        request = self.queue.head()
        if request is None or self.queue.holding:
            return request is not None
        tokens = slots = 1 + (0 if request.content is None else self._num_cached(request))
        if self.drafts is not None:
            slots = self.drafts.slots(tokens)
            request.lookahead_tokens = slots - tokens
        return self.kv_cache_manager.can_admit(request, slots, self.watermark_blocks if self.running else 0)

    def _join(self, request: EngineRequest, found: int, tokens: int, batch: Batch, *, holds: bool) -> None:
        """Run a request that was given blocks; it computes ``tokens`` after the ``found`` cached ones."""
        drafts = self.drafts
        if self.cadence is not None:
            self.cadence.deferred.discard(request.row)
            self.cadence.prefills |= found < request.length - 1
        if not holds or request.loaded:
            request.cached = found
        self.enter(request)
        self.kv_cache_manager.runs(request)
        self.context += request.tokens
        batch.prompts += (request,)
        if drafts is None:
            self._compute(request, tokens, batch)
        else:
            drafts.start(request, found, self.queue.arrivals.draw_seed(request.index))
            self._compute_apart(request, tokens, batch, decodes=False)
        if request.order in self._in_chunks:
            batch.incomplete += (request,)
        if self.connector is not None:
            self.connector.update_state_after_alloc(request, 0, self)
