"""SGLang's speculative decoding: a step yields the accepted draft tokens and one more.

Source: SGLang 0.5.23, ``srt/speculative/eagle_utils.py``, ``srt/mem_cache/allocation_sizing.py``,
``srt/managers/scheduler_components/batch_result_processor.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pagesim.kvcache import BlockManager
from pagesim.scheduling.batch import Batch, Share
from pagesim.scheduling.drafts import Speculation
from pagesim.scheduling.request import EngineRequest
from pagesim.scheduling.sglang.options import SglangOptions
from pagesim.scheduling.sglang.pool import TokenPool
from pagesim.scheduling.sglang.request import SglangRequest
from pagesim.scheduling.sglang.results import PendingResults
from pagesim.setup.compiled import mypyc_attr

if TYPE_CHECKING:  # it holds these results
    from pagesim.scheduling.sglang.scheduler import Sglang


def written_by_step(options: SglangOptions, page: int) -> int:
    """Return how many tokens of KV a step may write for a request, while drafting or while verifying.

    With pages, each branch of a draft tree begins with a copy of the partly filled page.

    Args:
        options: resolved options with a ``speculative_algorithm``.
        page: tokens per page.
    """
    steps, topk, drafts = (
        options.speculative_num_steps or 1,  # it is 0 with NGRAM and few drafts
        options.speculative_eagle_topk,
        options.speculative_num_draft_tokens,
    )
    assert topk is not None
    assert drafts is not None
    branch = steps
    if page > 1 and topk > 1 and options.speculative_algorithm != "NGRAM":
        branch = -(-(page - 1 + steps) // page) * page
    return max(branch * topk, drafts)


def is_right(row: int, position: int, rate: float, seed: int) -> bool:
    """Draw whether a draft token is what the model would have generated.

    For a given seed and rate it depends only on the request and the draft's position. A request thus gets the
    same result at the same position, whatever runs with it.

    Args:
        row: the request's row in the trace.
        position: the draft's position among the request's generated tokens.
        rate: the probability.
        seed: the seed of the run.
    """
    mixed = (row * 1000003 + position * 7919 + 12345 + seed * 0x9E3779B1) & 0xFFFFFFFF
    for _ in range(2):
        mixed = ((mixed ^ (mixed >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    return (mixed ^ (mixed >> 16)) / 4294967296.0 < rate


@mypyc_attr(allow_interpreted_subclasses=True)
class SpeculativePool(TokenPool):
    """A token pool in which requests hold, beyond committed tokens, twice what a step may write.

    The next step therefore finds its slots, too, although it is decided before it is known how many tokens
    the step in flight yields. A request's ``tokens`` is the number of slots that it holds.

    Args:
        memory: the block manager, empty.
        options: resolved options with a ``speculative_algorithm``.

    Attributes:
        ahead: tokens beyond the committed ones for which a request holds slots.
    """

    def __init__(self, memory: BlockManager, options: SglangOptions) -> None:
        super().__init__(memory, options)
        self.ahead = 2 * written_by_step(options, memory.block_size)

    def check_decode_mem(self, reqs: Sequence[SglangRequest]) -> bool:
        page, needed = self.page_size, 0
        for req in reqs:
            held = -(-req.tokens // page)
            needed += max(0, -(-(req.committed + self.ahead) // page) - held)
        return self.evict(needed) >= needed

    def alloc_for_decode(self, reqs: Sequence[SglangRequest]) -> int:
        """Allocate whole pages for the requests' next step; return the number of new token slots."""
        page, taken = self.page_size, []
        for req in reqs:
            pages = -(-(req.committed + self.ahead) // page)
            taken.append(max(0, pages * page - req.tokens))
        tokens = sum(taken)
        if tokens:
            more = len(reqs) * page if page > 1 else 0  # than is allocated
            self.evict(-(-(tokens + more) // page))
            for req, slots in zip(reqs, taken, strict=True):
                if slots:
                    self.memory.extend(req, slots)
        return tokens

    def cached_tokens(self, req: SglangRequest) -> int:
        return min(req.committed, req.final_length)


class Flight(NamedTuple):
    """An iteration in flight.

    Attributes:
        shares: what each request computes, in batch order.
        prompts: number of shares that are prompts or chunks of prompts; they come first.
        verifies: whether the other shares verify drafts; if not, they generate one token each.
    """

    shares: list[Share]
    prompts: int
    verifies: bool


@mypyc_attr(allow_interpreted_subclasses=True)
class PendingDrafts(PendingResults):
    """The pending results with speculative decoding, where the number of tokens of a step is known late.

    A running request's ``length`` counts its known tokens. ``committed`` follows when a result is processed,
    one step late under overlap. Tokens beyond a request's last one are discarded then.

    Args:
        pool: the token pool of these requests.
        options: resolved options with a ``speculative_algorithm``.

    Attributes:
        pool: the token pool of these requests.
        counts: counts of accepted and rejected draft tokens.
        num_draft_tokens: tokens that a step verifies per request, its last one included.
        most_accepted: most draft tokens that a step can accept: those of the longest branch.
    """

    def __init__(self, pool: SpeculativePool, options: SglangOptions) -> None:
        super().__init__(pool)
        speculation = options.speculation
        assert speculation is not None
        assert options.speculative_num_draft_tokens is not None
        self.pool = pool
        self.counts = Speculation()
        self.num_draft_tokens = options.speculative_num_draft_tokens
        self.most_accepted = speculation.tokens
        self._rates = speculation.acceptance(options.acceptance)
        self._flights: deque[Flight] = deque()
        self._decodes: list[Share] = []  # decodes of the current batch
        self._verifies = False  # whether these verify drafts

    def tokens_to_come(self, reqs: Sequence[SglangRequest]) -> list[int]:
        return [req.max_new_tokens - self.known_outputs(req) for req in reqs]

    def launch(self) -> None:
        return  # `close` does this instead

    def forget(self, req: SglangRequest) -> None:
        req.generated = 0

    # An iteration

    def stored(self, req: SglangRequest) -> int:
        """Return a running request's tokens with valid KV once nothing is in flight any more."""
        if not req.generated:
            return req.tokens
        return min(req.prompt + req.generated, req.final_length) - 1

    def filter_ending(self, scheduler: Sglang) -> int:
        """Remove requests known to end with the result in flight from the running batch; return how many."""
        if not self._flights:
            return 0
        flying = {share.request for share in self._flights[0].shares}
        running = scheduler.running_batch
        before = len(running.reqs)
        running.reqs = [
            req
            for req in running.reqs
            if self.known_outputs(req) + 1 < req.max_new_tokens or req not in flying
        ]
        return before - len(running.reqs)

    def start(self, reqs: Sequence[SglangRequest]) -> None:
        """Mark as decoding the requests whose prompt, or its last chunk, runs in the current batch."""
        for req in reqs:
            req.committed = req.extend_end
            req.generated = self.known_outputs(req) + 1

    def verify(self, scheduler: Sglang, batch: Batch) -> None:
        """Allocate slots for the running batch and let it verify drafts."""
        reqs, verified = scheduler.running_batch.reqs, self.num_draft_tokens
        self._take_slots(scheduler, reqs)
        seed = scheduler.queue.arrivals.draw_seed(0) >> 64  # of the run
        for req in reqs:
            known = req.prompt + req.generated
            batch.decode_context += known - 1 + verified
            outputs = 1 + self._accepted(req, seed)
            share = Share(req, req.order, known - 1, verified, verified - 1, outputs, outputs - 1)
            self._decodes.append(share)
            req.generated += outputs
        self._verifies = True
        batch.decoding = len(reqs)
        batch.drafts = (verified - 1) * len(reqs)

    def decode_beside(self, scheduler: Sglang, batch: Batch) -> None:
        """Decode one token per request together with prompts; slots are allocated as for drafts."""
        reqs = scheduler.running_batch.reqs
        self._take_slots(scheduler, reqs)
        for req in reqs:
            self._decodes.append(Share(req, req.order, req.length - 1, 1, 0, 1, 0))
            batch.decode_context += req.length
            if self.pool.states is not None:
                self.pool.states.skip_step(req, req.prompt + req.generated)
            req.generated += 1
        batch.decoding = len(reqs)

    def close(self, batch: Batch, chunked: SglangRequest | None) -> None:
        """End a plan: record what each request computes and yields.

        Args:
            batch: the planned batch.
            chunked: the request whose chunked prefill continues later; None without one.
        """
        if not batch.tokens:
            return
        prompts = [
            Share(req, req.order, req.tokens - tokens, tokens, 0, int(req is not chunked), 0)
            for req, tokens in batch.chunks
        ]
        shares = batch.shares = [*prompts, *self._decodes]
        self._flights.append(Flight(shares, len(prompts), self._verifies))
        self._decodes, self._verifies = [], False

    def launch_nothing(self) -> None:
        """Record an iteration that computes nothing while other attention ranks compute."""
        self._flights.append(Flight([], 0, False))

    def process(self, scheduler: Sglang, now: int) -> list[EngineRequest]:
        if not self._flights:
            return []
        shares, prompts, verifies = self._flights.popleft()
        running, over = scheduler.running, []
        answered = [share.request for share in shares if share.outputs and share.order in running]
        if answered:
            scheduler.events.answered(answered, now)
        for place, share in enumerate(shares):
            req, outputs = share.request, share.outputs
            assert isinstance(req, SglangRequest)
            runs = share.order in running
            useful = min(outputs, req.final_length - req.length) if runs else 0
            self.counts.note(share.drafts, max(0, useful - 1))
            if not (runs and outputs):
                continue
            self.counts.outputs += useful
            req.length += outputs
            ends = req.length >= req.final_length
            if place >= prompts and (verifies or not ends):
                req.committed += outputs
            if not ends:
                if place < prompts:
                    self.pool.cache_unfinished_req(req)
                continue
            over.append(req)
            if req.is_refused:
                scheduler.give_up(req, now)
            else:
                scheduler._over(req, now)
        if over:
            scheduler.drop_from_running(over)
        return list(over)

    def _take_slots(self, scheduler: Sglang, reqs: Sequence[SglangRequest]) -> None:
        for req in reqs:
            scheduler.events.interval_ended(req)
            self.pool.evict_swa(req, req.length)
        scheduler.context += self.pool.alloc_for_decode(reqs)

    def _accepted(self, req: SglangRequest, seed: int) -> int:
        """Draw how many draft tokens of a request's next step are accepted."""
        rates, last = self._rates, len(self._rates) - 1
        accepted = 0
        while accepted < self.most_accepted and is_right(
            req.row, req.generated + accepted, rates[min(accepted, last)], seed
        ):
            accepted += 1
        return accepted
