"""vLLM's scheduler since v1 (0.11.2 to 0.33.0): prompts in chunks and decodes share a budget of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagesim.kvcache import KVCache
from pagesim.kvcache.tiers import TierChain
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.chunks import cut
from pagesim.scheduling.core import Pool
from pagesim.scheduling.dead_ends import DeadEnd
from pagesim.scheduling.options import Prices
from pagesim.scheduling.request import EngineRequest, Status
from pagesim.scheduling.vllm_v1.connectors import make_connector
from pagesim.scheduling.vllm_v1.speculation import Drafts, make_drafts
from pagesim.scheduling.vllm_v1.traits import VllmV1Traits
from pagesim.scheduling.vllm_v1_options import VllmV1Options
from pagesim.setup.compiled import mypyc_attr

if TYPE_CHECKING:  # which are of requests, too
    from pagesim.scheduling.offload.jobs import Job

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
        prices: what it costs to load and to compute, where a tier's connector chooses.
        chain: of tiers behind the device, in place of the one that vLLM has.
        pool: what the engine does where prefill is apart from decode; None where it does both.

    Attributes:
        drafts: what it knows of requests under speculative decoding; None without.
        connector: what moves KV to and from elsewhere; None where nothing does.
    """

    __slots__ = (
        "_answering",
        "_in_chunks",
        "_lost",
        "_skipped",
        "_unserved_context",
        "connector",
        "drafts",
    )

    def __init__(
        self,
        memory: KVCache,
        options: VllmV1Options,
        *,
        max_model_len: int,
        prices: Prices | None = None,
        chain: TierChain | None = None,
        pool: Pool | None = None,
    ) -> None:
        super().__init__(memory, options, max_model_len=max_model_len, prices=prices)
        self.drafts: Drafts | None = make_drafts(self.options, memory, max_model_len)
        if self.drafts is not None:
            self.speculation = self.drafts.counts
        self.connector = make_connector(self.options, memory, chain=chain, pool=pool, prices=prices)
        if self.connector is not None:
            self.parks = self.connector.parks
        # Requests whose prompt has not run whole, and decoding ones that got no token, by `Holder.order`.
        self._in_chunks: dict[int, EngineRequest] = {}
        self._skipped: dict[int, EngineRequest] = {}
        self._draining = {}
        # Requests that lost their place while their last token is in flight.
        self._lost: list[EngineRequest] = []
        self._unserved_context = 0  # tokens of running requests that get none in the step at hand
        self._answering: dict[int, EngineRequest] = {}  # by the name of what they generate

    def most_slots(self, tokens: int) -> int:
        return tokens if self.drafts is None else self.drafts.most_slots(tokens)

    def stored_length(self, request: EngineRequest) -> int:
        if self.drafts is not None:
            return self.drafts.of[request.row].stored
        return self.memory.length(request)

    def plan(self, now: int) -> Batch:
        batch, connector = Batch(), self.connector
        batch.counts_empty = True
        if connector is not None:
            self.events.parked_changes(now)  # before anything is given back
            connector.begin_plan(now)
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
        elif self.queue.waiting:
            self._schedule_waiting(batch, budget - batch.batched_tokens)
        if self._in_chunks or self._skipped or self.running_sequences > budget:
            self.must_replan = True
        batch.tokens = batch.batched_tokens
        batch.context_tokens = self.context - self._unserved_context
        batch.sequences = self.running_sequences
        if self.reaches is not None:
            batch.reached, batch.reached_pairs, batch.computed_prompts = self.reaches.close()
        if self.drafts is not None:
            self.drafts.close(batch)
        if connector is not None:
            if batch.tokens or not batch.stuck:
                connector.count_plan()  # else another plan is made at once
            if connector.build_connector_meta(batch, self):
                self.must_replan = True
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
            tokens = self._num_new_tokens(request, request.tokens, self._num_due(request), token_budget)
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
            if self.by_priority or memory.releases or self._defers_frees:
                return False
            memory.reserve_free()
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
            num_new_tokens = self._num_new_tokens(
                request, request.tokens, self._num_due(request), token_budget
            )
            if num_new_tokens <= 0:
                index += 1
                continue
            self.events.interval_ended(request)
            while not (is_allocated := self._allocate_slots(request, num_new_tokens)):
                victim = self._victim(running)
                if self._defers_frees and self._is_in_flight(victim):
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
        if request.order in self._draining:
            return 0
        return max(1, request.length - request.tokens)  # where its prompt has run, the token sampled last

    def _num_new_tokens(
        self, request: EngineRequest, num_computed_tokens: int, tokens: int, token_budget: int
    ) -> int:
        """Return how many tokens of a request the step computes; 0 for none.

        Args:
            request: running or waiting.
            num_computed_tokens: its tokens that are computed, or cached.
            tokens: those that are not.
            token_budget: tokens that are left of the step's.
        """
        threshold, states = self.threshold, self.memory.state_chunks
        if threshold and not (self.release.spares_single and len(self.running) + self.queue.waiting == 1):
            tokens = min(tokens, threshold)
        tokens = min(tokens, token_budget)
        if states is None or tokens <= 0:
            return tokens
        most = self.max_num_batched_tokens
        most = min(most, threshold) if threshold else most
        return cut(request, num_computed_tokens, tokens, states, most)

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

    @property
    def _defers_frees(self) -> bool:
        """Whether blocks are not given back that a batch in flight writes, because copies fill others."""
        return self.in_flight > 1 and self.connector is not None and self.connector.fills_blocks

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
        unserved = [each for each in running if each not in scheduled and each.order not in self._draining]
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
        if self.connector is not None:
            self.connector.computed[request] = computed
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

    def _schedule_waiting(self, batch: Batch, token_budget: int) -> None:
        """Admit waiting requests, in their order, as long as budget, places and blocks last.

        Source: vLLM 0.33.0, v1/core/sched/scheduler.py, ``schedule``, the loop over ``self.waiting``.
        """
        queue, connector, drafts = self.queue, self.connector, self.drafts
        # Of the requests that were admitted before: whether any computes something, and a chunk of a prompt.
        any_runs, chunk_runs = batch.batched_tokens > 0, batch.query_key_pairs > 0
        # Requests that are passed over: those that hold blocks, and those that hold none.
        holding: list[EngineRequest] = []
        others: list[EngineRequest] = []
        overtaken: list[EngineRequest] = []
        while (request := queue.head()) is not None:
            if token_budget <= 0:
                self.must_replan = True
                break
            if not self.may_join(request):
                break
            holds = bool(queue.holding)
            found, external = self._num_matched(request, holds=holds)
            if external is None:
                queue.pop(request)
                (holding if holds else others).append(request)
                continue
            tokens = request.length - found
            if external:
                tokens = 0
            elif drafts is not None:
                is_padded = not chunk_runs and (any_runs or found > 0)
                tokens = drafts.padded(tokens, found, token_budget, is_padded=is_padded)
            if not external:
                most = token_budget if self.chunked_prefill else UNLIMITED
                tokens = self._num_new_tokens(request, found, tokens, most)
                if not tokens:
                    self.must_replan = True
                    break
            too_long = tokens > token_budget
            if too_long and self.release.overtakes:
                queue.pop(request)
                overtaken.append(request)
                continue
            if external:
                is_allocated = self._allocate_for_load(request, found + external, external)
            else:
                is_allocated = not too_long and self._fits(request, found + tokens, holds=holds)
            if not is_allocated:
                if self.running or holding or others or self.awaits:
                    self.must_replan = self.must_replan or too_long
                    if connector is not None and not holds:
                        connector.not_admitted(request, found)
                    break
                # No request will ever make room: the real one waits for ever.
                queue.pop(request)
                if holds:
                    self._drop(request)
                batch.stuck += ((request, DeadEnd.NEVER_ADMITTED),)
                continue
            if external:
                holding.append(request)
                batch.loading += (request,)
                continue
            self._join(request, found, tokens, batch, holds=holds)
            token_budget -= tokens
        if holding or others:
            assert connector is not None
            connector.passes_over = True
            queue.put_back(holding, others)
        if overtaken:
            self.must_replan = True
        # In front again, but as in the release the one that was overtaken last before the others.
        for request in overtaken:
            if self.running:
                queue.requeue(request)
            else:
                batch.stuck += ((request, DeadEnd.NEVER_ADMITTED),)

    def _num_matched(self, request: EngineRequest, *, holds: bool) -> tuple[int, int | None]:
        """Return the tokens of a waiting request that need not be computed, and how many more are loaded.

        Args:
            request: which.
            holds: whether it holds blocks, into which it was or is being loaded.

        Returns:
            The tokens; and those behind them that are loaded, None where that is not known yet.
        """
        connector = self.connector
        if holds:
            assert connector is not None
            # Where all of them were loaded, the last one is computed again, for what comes next.
            return min(request.tokens, request.length - 1), 0 if connector.is_ready(request) else None
        found = 0 if request.content is None else self._look_up(request)
        if connector is None:
            return found, 0
        external = connector.get_num_new_matched_tokens(request, found, self)
        if external is None:
            connector.not_admitted(request, found)
        return found, external

    def _look_up(self, request: EngineRequest) -> int:
        """Return the tokens of a waiting request's prompt that are cached; its content is known."""
        assert request.content is not None
        if request.content.follows and self._cache_turns_before(request):
            self.must_replan = True
        return self.memory.match_prefix(request, request.length)

    def _allocate_for_load(self, request: EngineRequest, tokens: int, external: int) -> bool:
        """Give the head of the queue blocks for its first tokens, some of which are loaded, if there is room.

        There must be room for its whole length, and for what prompts in chunks and other loads still miss.
        """
        memory, connector = self.memory, self.connector
        assert connector is not None
        spare = self.watermark_blocks if self.running else 0
        reserved = connector.blocks_to_reserve(self._in_chunks.values())
        request.unknown = external  # its blocks cannot be found before
        fits = not self.full_isl or memory.can_admit_whole(request, tokens, request.length, spare)
        if not fits or not memory.can_admit(request, tokens, spare + reserved):
            request.unknown = 0
            return False
        self.queue.pop(request)
        memory.admit(request, tokens)
        connector.update_state_after_alloc(request, external, self)
        connector.loading[request] = None
        return True

    def _fits(self, request: EngineRequest, tokens: int, *, holds: bool) -> bool:
        """Say whether there is room for the first tokens of a waiting request, and for its whole length."""
        memory, spare = self.memory, self.watermark_blocks if self.running else 0
        if holds:
            whole = memory.blocks_to_complete(request, request.length, request.tokens)
            if self.full_isl and whole + spare > memory.free_blocks:
                return False
            memory.trim(request)
            return memory.blocks_to_extend(request, tokens - request.tokens) + spare <= memory.free_blocks
        if self.drafts is not None:
            tokens = self.drafts.slots(tokens)
        if self.full_isl:
            if memory.releases:
                return memory.can_admit_whole(request, tokens, request.length, spare)
            tokens = max(tokens, request.length)  # it is going to hold all of them
        return memory.can_admit(request, tokens, spare)

    def _head_fits(self) -> bool:
        request = self.queue.head()
        if request is None or self.queue.holding:
            return request is not None
        found = 0 if request.content is None else self._look_up(request)
        return self._fits(request, found + 1, holds=False)

    def _join(self, request: EngineRequest, found: int, tokens: int, batch: Batch, *, holds: bool) -> None:
        """Let the head of the queue run, which computes so many tokens behind those that were found."""
        memory, drafts = self.memory, self.drafts
        self.queue.pop(request)
        slots = found + tokens
        if drafts is not None:
            slots = drafts.slots(found + tokens)
            request.unknown = drafts.uncommitted(request, found + tokens, slots)
        if holds:
            memory.extend(request, slots - request.tokens)
        else:
            memory.admit(request, slots)
        if not holds or request.loaded:
            request.cached = found
        request.order = order = self._orders
        self._orders = order + 1
        request.last_step = -1
        self.running[order] = request
        self.running_sequences += 1
        if request.content is not None:
            self._answering[request.content.answer] = request
        self.context += slots
        batch.prompts += (request,)
        if drafts is None:
            self._compute(request, tokens, batch)
        else:
            drafts.start(request, found, self.queue.arrivals.draw_seed(request.index))
            self._go_on(request, drafts.schedule(request, tokens, batch, decodes=False), batch)
        if request.order in self._in_chunks:
            batch.incomplete += (request,)
        if self.connector is not None:
            self.connector.update_state_after_alloc(request, 0, self)

    # Those that leave

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
        if request.order in self._draining:
            self._lost.append(request)
        if self.connector is not None:
            self.connector.preempted(request)
        super().preempt(request, batch)
        request.unknown = request.in_flight = request.loaded = 0
        if self.drafts is not None:
            progress = self.drafts.of[request.row]
            progress.lose()
            num_tokens = progress.num_tokens
        request.length = num_tokens
        self._forget(request)

    def abort(self, row: int, now: int) -> int:
        self.unreported = True
        self._lost = [request for request in self._lost if request.row != row]
        held = next((request for request in self.queue.holding if request.row == row), None)
        generated = super().abort(row, now)
        if held is not None and self.connector is not None:
            self.events.parked_changes(now)
            self.connector.abort_held(held)
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

    def _drop(self, request: EngineRequest) -> None:
        connector = self.connector
        if connector is not None:
            connector.request_finished(request, is_aborted=True)
            if self._defers_frees and self._is_in_flight(request):
                connector.defer_free(request)
                return
        self.memory.release(request)

    def _let_go(self, request: EngineRequest) -> None:
        self.unreported = True
        connector = self.connector
        if request.content is not None:
            del self._answering[request.content.answer]
        if connector is not None:
            if connector.request_finished(request, is_aborted=False):
                if request.decodes:
                    self.memory.stop_decoding(request)
                return
            request.in_flight = 0
            self.memory.trim(request)
        self.memory.release(request)

    def _forget(self, request: EngineRequest) -> None:
        """Forget what was noted of a request that runs no longer."""
        self._in_chunks.pop(request.order, None)
        self._skipped.pop(request.order, None)
        self.forget_resting(request)
        if request.content is not None:
            del self._answering[request.content.answer]

    # What comes of a step

    def finish(self, now: int) -> list[EngineRequest]:
        if self.connector is not None and self.connector.count_finish():
            self.must_replan = True  # there may be room for one that waits
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
        if not (self._draining or self._lost):
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

    def transferred(self, jobs: Sequence[Job]) -> None:
        if self.connector is not None and self.connector.update_connector_output(jobs):
            self.must_replan = True

    # What the engine asks

    @property
    def has_work(self) -> bool:
        return super().has_work or (self.connector is not None and self.connector.has_work)

    @property
    def awaits(self) -> bool:
        """Whether requests are loaded, or blocks are going to be free, without any step."""
        return self.connector is not None and self.connector.awaits

    def parked(self) -> Sequence[Sequence[EngineRequest]]:
        return () if self.connector is None else self.connector.parked(self.queue.holding)

    def arrival_matters(self) -> bool:
        if self.by_priority or not self.queue.waiting:
            return True
        return self.connector is not None and self.connector.arrival_matters

    def steps_until_next_decision(self) -> int:
        steps, connector = super().steps_until_next_decision(), self.connector
        if steps and connector is not None:
            # A hybrid memory is looked at block by block to tell what only requests hold that do not run.
            looks = bool(self.queue.holding or connector.leaving) and self.memory.is_hybrid
            if looks or connector.next_plan_differs:
                return 0
        return steps

    def advance(self, steps: int) -> None:
        super().advance(steps)
        if self.connector is not None:
            self.connector.advance(steps, self.resting)
