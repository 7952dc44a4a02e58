"""Running requests under vLLM v1: which of them get tokens and blocks in an iteration, and who makes room."""

from __future__ import annotations

from typing import ClassVar

from pagesim.scheduling.batch import Batch
from pagesim.scheduling.chunks import cut
from pagesim.scheduling.request import EngineRequest
from pagesim.scheduling.resting import RestingScheduler
from pagesim.scheduling.vllm_releases import Release
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class RunningV1(RestingScheduler):
    """What `VllmV1` does for requests that run, in the order of their admission.

    Attributes:
        max_num_batched_tokens: the budget of an iteration.
        release: whose decisions.
        threshold: tokens of a request in an iteration at most; 0 for no limit.
    """

    __slots__ = (
        "_answering",
        "_in_chunks",
        "_latest_makes_room",
        "_skipped",
        "_unserved_context",
        "max_num_batched_tokens",
        "release",
        "threshold",
    )

    keeps_in_flight: ClassVar[bool] = False
    """Whether a request keeps its blocks that gets tokens from a batch in flight, because what is copied to
    and from them is not in order with what that batch writes."""

    max_num_batched_tokens: int
    release: Release
    threshold: int
    # Requests whose prompt has not run whole, and decoding ones that got no token, by `Holder.order`.
    _in_chunks: dict[int, EngineRequest]
    _skipped: dict[int, EngineRequest]
    _unserved_context: int  # tokens of running requests that get none in the iteration at hand
    _answering: dict[int, EngineRequest]  # by the name of what they generate
    _latest_makes_room: bool  # whether nothing but its place among those that run decides who is preempted

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
            if not (self._latest_makes_room and self._grow_without_latest(batch)):
                return False
            decoding = len(self.running) - self.resting
        self.context += decoding
        self._unserved_context = unserved = self.resting_context
        batch.batched_tokens = batch.decoding = decoding
        batch.decode_context = self.context - unserved
        for request, tokens in chunks:
            batch.decode_context -= request.tokens
            self._go_on(request, tokens, batch)
        return True

    def _grow_without_latest(self, batch: Batch) -> bool:
        """Preempt the latest of requests that all decode until the others find the blocks that are due.

        To be asked where fewer are free than are due.

        Returns:
            Whether that is known without a look at each of them.
        """
        memory = self.memory
        # Where nothing is given back in turn, that is known already.
        grown = memory.grow_in_turn(self.running.values()) if memory.releases else False
        while not grown:
            if grown is None:
                return False
            self.preempt(self.latest(), batch)
            grown = memory.grow_in_turn(self.running.values())
        return True

    def _share_out(self, budget: int) -> list[tuple[EngineRequest, int]] | None:
        """Return the tokens of each prompt in chunks; None if they do not come last or something is short."""
        memory = self.memory
        for order, other in zip(reversed(self._in_chunks), reversed(self.running), strict=False):
            if order != other:
                return None
        chunks: list[tuple[EngineRequest, int]] = []
        for request in self._in_chunks.values():
            tokens = self._chunk(request, request.tokens, budget)
            if tokens <= 0:
                return None
            budget -= tokens
            chunks.append((request, tokens))
        return None if memory.blocks_needed_with(chunks) > memory.free_blocks else chunks

    def _run_one_by_one(self, batch: Batch, budget: int) -> None:
        """Share out budget and blocks where not every request simply gets a token."""
        memory = self.memory
        self._settle_skipped()
        order = list(self.running.values())
        place = 0
        served: list[EngineRequest] = []
        chunks: list[tuple[EngineRequest, int, int]] = []
        while place < len(order) and budget > 0:
            request = order[place]
            place += 1
            if request.order in self._ending:
                continue
            chunked = request.order in self._in_chunks
            tokens = self._chunk(request, request.tokens, budget) if chunked else 1
            if tokens <= 0:
                continue
            if memory.releases:
                if not request.decodes:
                    self.events.interval_ended(request)
                memory.trim(request)
            if not self._make_way(request, tokens if chunked else None, order, batch):
                break
            if chunked:
                self.events.interval_ended(request)
                chunks.append((request, request.tokens, tokens))
                self._make_room(request, tokens)
            else:
                memory.take(request)
                served.append(request)
            budget -= tokens
        given = {each.order for each in served} | {each.order for each, _, _ in chunks}
        self._decode(served, [each for each in order if each.order not in given], batch)
        for request, computed, tokens in chunks:
            self._went_on(request, computed, tokens, batch)

    def _make_way(
        self, request: EngineRequest, tokens: int | None, order: list[EngineRequest], batch: Batch
    ) -> bool:
        """Preempt the latest requests until a request finds its blocks; say whether it does.

        Args:
            request: see there.
            tokens: of the next chunk of its prompt; None for one token.
            order: the running requests; those that are preempted are taken out.
            batch: in which that is noted.
        """
        while self._lacks_blocks(request, tokens):
            if not self._may_lose_place(order[-1]):
                return False
            self.preempt(victim := order.pop(), batch)
            if victim is request:
                return False
        return True

    def _may_lose_place(self, request: EngineRequest) -> bool:
        """Say whether a request can be preempted now."""
        return not (self.keeps_in_flight and self._is_in_flight(request))

    def _is_in_flight(self, request: EngineRequest) -> bool:
        """Say whether a running request gets tokens from a batch that is in flight when one is planned."""
        if self.in_flight == 1:
            return False
        if request.order in self._in_chunks:
            return request.in_flight > 0
        return request.order not in self._skipped

    def _lacks_blocks(self, request: EngineRequest, tokens: int | None) -> bool:
        """Say whether too few blocks are free for the next chunk of a prompt, or (None) for one token."""
        memory = self.memory
        needed = (
            memory.blocks_needed_by(request) if tokens is None else memory.blocks_to_extend(request, tokens)
        )
        return needed > memory.free_blocks

    def _settle_skipped(self) -> None:
        """Note that requests that got no token in the last iteration have none in flight."""
        for request in self._skipped.values():
            request.unknown = request.in_flight = 0

    def _decode(self, decoding: list[EngineRequest], unserved: list[EngineRequest], batch: Batch) -> None:
        """Give a token to requests that have room for it, and none to those beyond the budget."""
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
        memory.close_step()
        if self.in_flight > 1:
            for request in again:
                if request.order in self.running:
                    # Nothing of it was in flight, so that the token that it computes now is known.
                    request.unknown = 0
                    memory.cache_full_blocks(request)
                    request.unknown = 1
        self._note_decoding(decoding, unserved, before, batch)

    def _note_decoding(
        self,
        decoding: list[EngineRequest],
        unserved: list[EngineRequest],
        before: dict[int, EngineRequest],
        batch: Batch,
    ) -> None:
        """Note who got a token, and who none.

        Args:
            decoding: those that decode and got one.
            unserved: those that got nothing.
            before: those that decode and got none in the iteration before, by their order.
            batch: to which this is added.
        """
        memory = self.memory
        batch.skipped = tuple(self._skipped.values())
        batch.caught_up = tuple(each for each in decoding if each.order in before)
        self.context += len(decoding)
        batch.decoding = batch.batched_tokens = len(decoding)
        batch.decode_context = sum([memory.length(each) for each in decoding])
        unserved = [each for each in unserved if each.order not in self._ending]
        self._unserved_context = self.resting_context + sum([memory.length(each) for each in unserved])
        for request in self._in_chunks.values():
            request.in_flight = 0  # for those that go on it is noted with their chunk

    def _go_on(self, request: EngineRequest, tokens: int, batch: Batch) -> None:
        """Run the next chunk of a prompt, for which there is room."""
        self.events.interval_ended(request)
        computed = request.tokens
        self._make_room(request, tokens)
        self._went_on(request, computed, tokens, batch)

    def _went_on(self, request: EngineRequest, computed: int, tokens: int, batch: Batch) -> None:
        """Note the chunk of a prompt, for which room was made."""
        self._compute(request, computed, tokens, batch)
        if request.order not in self._in_chunks:
            batch.completed += (request,)

    def _chunk(self, request: EngineRequest, start: int, budget: int, whole: bool = False) -> int:
        """Return the tokens of the next chunk of a request's prompt; 0 for none in this iteration.

        Args:
            request: see there.
            start: its tokens that are computed, or cached.
            budget: tokens that are left of the iteration's.
            whole: whether the prompt must run whole, even beyond the budget.
        """
        tokens = request.length - start
        if self.threshold:
            tokens = self._capped(tokens, tokens if whole else budget)
        elif tokens > budget and not whole:
            tokens = budget
        return tokens if self.memory.state_chunks is None else self._cut(request, start, tokens)

    def _cut(self, request: EngineRequest, start: int, tokens: int) -> int:
        """Return how many of so many tokens a chunk has whose end must be at a certain place."""
        states = self.memory.state_chunks
        assert states is not None
        most = self.max_num_batched_tokens
        return cut(request, start, tokens, states, min(most, self.threshold) if self.threshold else most)

    def _capped(self, tokens: int, budget: int) -> int:
        threshold = self.threshold
        if threshold and not (self.release.spares_single and len(self.running) + self.queue.waiting == 1):
            tokens = min(tokens, threshold)
        return tokens if tokens < budget else budget

    def _make_room(self, request: EngineRequest, tokens: int) -> None:
        """Make room for further tokens of a request at rest."""
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

    def _compute(self, request: EngineRequest, computed: int, tokens: int, batch: Batch) -> None:
        """Run a chunk that memory has room for; the last one gives the next token."""
        batch.batched_tokens += tokens
        batch.query_key_pairs += tokens * computed + tokens * (tokens + 1) // 2
        self.context += tokens
        request.in_flight = tokens * self.memory.lag
        if self.reaches is not None:
            self.reaches.compute(computed, tokens, starts=request.tokens >= request.length)
        if self.memory.releases:
            batch.chunks += ((request, tokens),)
        if request.tokens < request.length:
            self._in_chunks[request.order] = request
            return
        if self._in_chunks:
            self._in_chunks.pop(request.order, None)
        self.start_decoding(request)
