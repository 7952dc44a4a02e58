"""Running requests under SGLang: who decodes, who is retracted, and what is known of whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from pagesim.kvcache.radix import RadixKV
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.dead_ends import DeadEnd
from pagesim.scheduling.request import EngineRequest, Status
from pagesim.scheduling.sglang.budget import CLIP
from pagesim.scheduling.sglang.pools import OnePool
from pagesim.scheduling.sglang.request import SglangRequest
from pagesim.setup.compiled import mypyc_attr

RETRACT_STEPS = 20
"""Tokens that are left free for every request that goes on where one is retracted."""


@mypyc_attr(allow_interpreted_subclasses=True)
class DecodingSglang(Scheduler):
    """What `Sglang` does for requests that run.

    Attributes:
        tree: memory with a radix tree; None where no prefix is cached.
        new_token_ratio: the share of the tokens to come for which an admission leaves room.
        overlaps: whether an iteration is decided while the one before it runs.
        ignores_stops: whether requests generate all that they ask for.
        is_full: whether no request is tried until one leaves.
        batch: the running batch, in its order; a request whose prompt runs joins it in the next iteration.
        joining: those that do.
        pools: what is done otherwise where layers with a window have a pool of their own.
    """

    __slots__ = (
        "_asked",
        "_decay",
        "_ending",
        "_in_flight",
        "_joining_only",
        "_joining_stale",
        "_lags",
        "_least_ratio",
        "_lingers",
        "_most_ratio",
        "_pending",
        "_stale",
        "batch",
        "chunked",
        "ignores_stops",
        "is_full",
        "joining",
        "max_running_requests",
        "new_token_ratio",
        "overlaps",
        "pools",
        "tree",
    )

    batch: list[SglangRequest]
    joining: list[SglangRequest]
    chunked: SglangRequest | None
    tree: RadixKV | None
    pools: OnePool
    is_full: bool
    overlaps: bool
    ignores_stops: bool
    new_token_ratio: float
    max_running_requests: int
    # Requests whose prompt, or its last chunk, runs in the iteration in flight, and in the one before it.
    _in_flight: list[SglangRequest]
    _pending: list[SglangRequest]
    _ending: dict[SglangRequest, None]  # whose last token comes with what is pending
    # Who is in the iteration in flight, so that a token less of theirs is known; None for the whole batch.
    _lags: frozenset[SglangRequest] | None
    # Whether what joins next joins the batch that there was, though all of it may be over by now.
    _lingers: bool
    _asked: int  # tokens that those that run have in the end if they generate all that they may
    _stale: int  # tokens of the prompts with which the running batch began
    _joining_stale: int  # the same of those that join
    _joining_only: bool  # whether these may generate nothing
    _most_ratio: float
    _least_ratio: float
    _decay: float

    def set_ratio(self, conservativeness: float) -> None:
        """Set where the ratio begins, how far it falls, and by how much in a step."""
        self._most_ratio = min(0.7 * conservativeness, 1.0)
        self._least_ratio = min(self._most_ratio * 0.14, 1.0)
        self._decay = (self._most_ratio - self._least_ratio) / 600
        self.new_token_ratio = self._most_ratio

    def generated(self, request: SglangRequest) -> int:
        """Return the tokens of a request that are known when an iteration is decided."""
        if not request.decodes:
            return request.length - request.prompt
        lags = self._lags
        late = lags is None or request in lags
        return request.base + self.memory.steps - request.prompt + 1 - late

    def promised(self, ratio: float) -> float:
        """Return the share of what the running batch may still generate, summed up in its order."""
        lags, known = self._lags, self.memory.steps + 1
        if lags is None:
            left = [request.limit - known + 1 for request in self.batch]
        else:
            left = [request.limit - known + (request in lags) for request in self.batch]
        total = 0.0  # not by ``sum``, which some Pythons let round otherwise
        for to_come in left:
            total += (to_come if to_come < CLIP else CLIP) * ratio
        return total

    def most_promised(self, ratio: float) -> float:
        """Return no less than ``promised``, without a look at each request.

        One whose tokens are all there may count for less than nothing, and each addition of floats rounds.
        """
        to_come = max(0, self._asked - self.context + 2 * len(self.running))
        return to_come * ratio * (1 + 1e-9) + 1

    # An iteration of decodes

    def decode(self, batch: Batch) -> None:
        """Let the running batch decode, if anything is left of it; retract requests where memory is short."""
        ended = self.drop_ending()
        if not self.batch:
            self.is_full = False
            return
        if not self.fits():
            if ended:
                self.is_full = False  # what they hold comes back before the next turn
                return
            self._retract(batch)
        else:
            self.decay_ratio(1)
        if ended or batch.recomputed or batch.stuck:
            self.is_full = False
        if self.batch:
            self.step(batch)
            batch.tokens = batch.batched_tokens = batch.decoding
            batch.context_tokens = batch.decode_context

    def drop_ending(self) -> int:
        """Let those rest whose last token is known to be in flight; return how many do."""
        resting = [request for request in self._ending if request.ends_by_length and request.decodes]
        if not resting:
            return self.resting
        memory = self.memory
        for request in resting:
            self.events.interval_ended(request)
            memory.stop_decoding(request)
            self.resting += 1
            self.resting_context += request.tokens
            self.batch.remove(request)
        return self.resting

    def fits(self) -> bool:
        """Say whether the next step of the running batch finds its pages; evict for it."""
        needed = self.memory.blocks_needed(1)
        return self.make_blank(needed) >= needed

    def make_blank(self, pages: int) -> int:
        """Evict until so many pages are blank, as far as that can be; return how many are."""
        memory = self.memory
        return memory.make_blank(pages) if isinstance(memory, RadixKV) else memory.free_blocks

    def step(self, batch: Batch) -> None:
        """Give every request of the running batch a token."""
        decoding = len(self.batch)
        self.pools.before_decodes(self.batch)
        self.make_blank(decoding)  # more than is taken
        self.memory.grow(1)
        self.context += decoding
        batch.decoding = decoding
        batch.discarded = sum([request.decodes for request in self._ending])
        batch.decode_context = self.context - self.resting_context
        if self.chunked is not None:  # which waits
            batch.decode_context -= self.chunked.tokens
        self._lags = None if self.overlaps else frozenset()

    def decay_ratio(self, steps: int) -> None:
        """Let the ratio fall, as it does in every decode; a lower one that was set rises to the least."""
        ratio, decay, least = self.new_token_ratio, self._decay, self._least_ratio
        while steps and ratio != least:
            ratio = max(ratio - decay, least)
            steps -= 1
        self.new_token_ratio = ratio

    def ratios_of(self, steps: int) -> list[float]:
        """Return what the ratio is going to be in so many further decodes."""
        found, now = [], self.new_token_ratio
        for _ in range(steps):
            self.decay_ratio(1)
            found.append(self.new_token_ratio)
        self.new_token_ratio = now
        return found

    def _retract(self, batch: Batch) -> None:
        """Take requests out of the running batch until the others fit: those with the fewest tokens."""
        keep = sorted(self.batch, key=lambda each: (self.generated(each), -each.prompt), reverse=True)
        gone: list[SglangRequest] = []
        page = self.memory.block_size
        while len(keep) > 1:
            request = keep.pop()
            gone.append(request)
            self._lose_place(request)
            self.make_blank(-(-len(keep) * RETRACT_STEPS // page))
            if self.fits():
                break
        if len(keep) == 1 and not self.fits():
            request = keep.pop()
            self._lose_place(request)
            batch.stuck += ((request, DeadEnd.NEVER_ADMITTED),)
        self.batch = keep
        known = sum([self.generated(request) for request in keep])
        asked = sum([request.max_new for request in keep])
        self.new_token_ratio = min(1.0, (known + RETRACT_STEPS * len(keep)) / (asked + 1))
        for request in gone:
            self.queue.requeue(request)
        batch.recomputed += tuple(gone)

    def _lose_place(self, request: SglangRequest) -> None:
        """Take a running request's memory; nothing of it is cached."""
        known = self.generated(request)
        self._asked -= request.prompt + request.max_new
        self.context -= self.memory.length(request)
        self._stop(request)
        self._drop_pages(request)
        request.length = request.prompt + known
        request.was_retracted, request.holds_place = True, False
        self._ending.pop(request, None)

    def _drop_pages(self, request: EngineRequest) -> None:
        if self.tree is None:
            self.memory.release(request)
        else:
            self.tree.drop(request)
        request.kv = None

    # What becomes known

    def note_ending(self) -> None:
        """Note which requests have their last token in the iteration that is in flight, in its order."""
        finishing, steps = self._finishing, self.memory.steps
        if self._pending:
            self.cache_prompts()  # which were computed when the fast-forward of one step was over
        self._pending = self._in_flight
        if self._in_flight:
            self._in_flight = []
        if not finishing or finishing[0][0] > steps:
            return
        request = finishing.pop(0)[2]
        request.last_step = -1
        ending = {request: None}
        while finishing and finishing[0][0] <= steps:
            request = finishing.pop(0)[2]
            request.last_step = -1
            ending[request] = None
        if len(ending) > 1:
            ending = dict.fromkeys(each for each in (*self.batch, *self.joining) if each in ending)
        self._ending = cast(dict[SglangRequest, None], ending)

    def learn(self, now: int) -> Sequence[EngineRequest]:
        """Take in what the oldest iteration in flight gave: cache its prompts, let those go that are over."""
        ending = self._ending
        if not ending:
            if self._pending:
                self.cache_prompts()
            return ()
        pending, rested = self._pending, self.resting
        self._pending, self._ending = [], {}
        self.resting = self.resting_context = 0
        for request in pending:
            if request in ending and request.holds_place and not request.was_retracted:
                self._end(request, now)
            else:
                self._cache_prompt(request)
        for request in ending:
            if not request.is_over:
                self._end(request, now)
        self.is_full = False
        self._lingers = bool(self.batch)
        if len(ending) > rested:  # what rests is in neither
            self.batch = [request for request in self.batch if not request.is_over]
            self.joining = [request for request in self.joining if not request.is_over]
        return tuple(ending)

    def cache_prompts(self) -> None:
        """Cache the prompts that ran in the oldest iteration in flight."""
        pending, self._pending = self._pending, []
        if self.tree is not None:
            for request in pending:
                self._cache_prompt(request)

    def _cache_prompt(self, request: SglangRequest) -> None:
        if self.tree is not None and request.holds_place and not request.was_retracted:
            self.tree.cache_tokens(request, request.end)

    def _end(self, request: SglangRequest, now: int) -> None:
        """Let a request go whose last token is known."""
        request.is_over, request.holds_place = True, False
        self._asked -= request.prompt + request.max_new
        if not request.is_refused:
            self._over(request, now)
            return
        self.context -= self.memory.length(request)
        self._stop(request)
        self._let_go(request)
        self.events.left(request.row, now, Status.IGNORED)

    def _let_go(self, request: EngineRequest) -> None:
        assert isinstance(request, SglangRequest)
        if self.tree is None:
            self.memory.release(request)
        else:
            known = self.memory.length(request)
            if known > request.final_length and not request.is_refused:
                known = request.final_length
            self.tree.end(request, known)
        request.kv = None
