"""The scheduling core: which requests run, finish and are preempted, and when to decide again.

A scheduler is a subclass that says in which phases an iteration is planned and which requests are admitted.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, ClassVar

from pagesim.kvcache import BlockManager
from pagesim.scheduling.arrivals import Arrivals
from pagesim.scheduling.attention_spans import AttentionSpans
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.drafts import Speculation
from pagesim.scheduling.forks import Forks
from pagesim.scheduling.observer import Observer
from pagesim.scheduling.options import Prices, SchedulerOptions
from pagesim.scheduling.queue import WaitingQueue
from pagesim.scheduling.request import EngineRequest
from pagesim.scheduling.swapping import SwapSpace
from pagesim.scheduling.traits import SchedulerTraits
from pagesim.setup.compiled import mypyc_attr

if TYPE_CHECKING:  # both are of requests, too
    from pagesim.scheduling.kv_connector import KVConnector
    from pagesim.scheduling.offload.jobs import Job

_ORDER = attrgetter("order")


@mypyc_attr(allow_interpreted_subclasses=True)
class Scheduler(SchedulerTraits):
    """Decides, iteration by iteration, which requests run; applies its decisions to memory as it takes them.

    What it says of its engine beforehand are its `SchedulerTraits`.

    Decisions within an iteration depend on what the earlier ones left free, so a scheduler works on memory
    itself, as the real ones do, and reports in a `Batch` what it did.

    The engine's loop is: ``plan(now)``; if that is an iteration, time passes; ``steps_until_next_decision()``
    says for how many further iterations nothing would be decided, and ``advance(steps)`` takes them at once;
    ``finish(now)`` lets the requests go that have their last token.

    Args:
        memory: empty.
        queue: empty; where preempted requests go is its affair.
        options: an instance of its ``Options``.
        max_model_len: tokens; no request is longer.
        watermark: share of the blocks, null blocks included, that an admission must leave free.
        prices: for preemption ``auto``.

    Attributes:
        running: the running requests in their order, by `SequenceGroup.order`.
        running_sequences: their samples.
        context: tokens that those hold.
        draining: sequences that run and get no further token, because their last one is in flight.
        draining_context: tokens that those hold.
        in_flight: batches that are scheduled before the outcome of the first of them is known.
        swap_space: the requests that are swapped out, which are ``swapped``.
        spare_blocks: that must be free after a step for every running request to go on without a decision.
        widest: samples of the widest request that is expected.
        must_replan: whether the next iteration must be planned, whatever it does.
        parks: entries of the ledger for blocks that only requests of `held_without_running` hold.
        unreported: whether requests are over of which no plan has told the workers, where an engine makes one
            for that alone, an empty one.
        connector: what moves KV between its blocks and other places; None where nothing does.
        forks: the requests whose beams fork.
        events: the observers, called for changes that no batch holds.
        spans: what layers read that look back on some tokens only, where costs ask for it.
        speculation: what became of drafts, where a request's step verifies some.
        decodes_apart: whether each request decodes by itself; it is then known when a step is over which
            tokens it gives, and observers are told by ``answered``.
    """

    MUST_OVERRIDE: ClassVar[tuple[str, ...]] = ("plan", "refusal", "may_join")
    __slots__ = (
        "_finishing",
        "_orders",
        "_out_of_order",
        "connector",
        "context",
        "decodes_apart",
        "draining",
        "draining_context",
        "events",
        "forks",
        "in_flight",
        "max_model_len",
        "memory",
        "must_replan",
        "parks",
        "queue",
        "running",
        "running_sequences",
        "spans",
        "spare_blocks",
        "speculation",
        "swap_space",
        "swapped",
        "unreported",
        "watermark_blocks",
        "widest",
    )

    def __init__(
        self,
        memory: BlockManager,
        queue: WaitingQueue,
        options: SchedulerOptions,
        *,
        max_model_len: int,
        watermark: float = 0.0,
        prices: Prices | None = None,
    ) -> None:
        self.memory = memory
        self.queue = queue
        self.max_model_len = max_model_len
        self.watermark_blocks = int(watermark * (memory.num_blocks + self.null_blocks))
        self.swap_space = SwapSpace(memory, getattr(options, "preemption", "default"), prices)
        self.in_flight = 1
        self.connector: KVConnector | None = None
        self.events = Observer()
        self.spans: AttentionSpans | None = None
        self.speculation: Speculation | None = None
        self.decodes_apart = False
        self.running: dict[int, EngineRequest] = {}
        self.running_sequences = 0
        self.context = 0
        self.draining = self.draining_context = 0
        self.spare_blocks = 0
        self.must_replan = False
        self.parks: tuple[str, ...] = ()
        self.unreported = False
        self.swapped = self.swap_space.requests
        # Decoding requests by the step at which one of their samples is over.
        self._finishing: list[tuple[int, int, EngineRequest]] = []
        self.forks = Forks()
        self._orders = 0
        self._out_of_order = False  # whether requests may run in another order than that of admission
        self.widest = 1

    # What the engine asks

    @abstractmethod
    def plan(self, now: int) -> Batch:
        """Decide the next iteration; the requests that have arrived by ``now`` are in the queue."""

    @abstractmethod
    def refusal(self, prompt_tokens: int, output_tokens: int, samples: int) -> str:
        """Return which limit such a request exceeds, with its option and its value; empty where it is served.

        Empty where an empty system could serve it. The sentence is the same for all requests that exceed the
        same limit.
        """

    def later_refusal(self, prompt_tokens: int, output_tokens: int, samples: int) -> str:
        """Return the limit by which the engine ignores, in its turn, such a request that it took in.

        Empty where it serves the request.
        """
        return ""

    def never_fits(self, prompt_tokens: int) -> bool:
        """Whether the engine takes such a prompt in, never has room for it, and serves none behind it."""
        return False

    def expect(self, arrivals: Arrivals) -> None:
        """Say, once and before anything else happens, which requests are going to arrive.

        Raises:
            PagesimError: the scheduler does not serve such requests under its options.
        """
        self.queue.expect(arrivals)
        self.widest = arrivals.widest
        self.swap_space.expect(self.widest)

    @property
    def has_work(self) -> bool:
        """Whether any request runs, waits or is swapped out, or a plan is due for those that are over."""
        if self.running or self.queue.waiting or self.swapped or self.unreported:
            return True
        return self.connector is not None and self.connector.has_work

    def arrival_matters(self) -> bool:
        """Whether the next arrival could change a decision before a request finishes.

        A head that is blocked stays blocked until then, and no other request overtakes it.
        """
        return not (self.queue.waiting or self.swapped)

    def steps_until_next_decision(self) -> int:
        """Return for how many iterations from here no decision can differ, if no request arrives."""
        if self.must_replan or not self._finishing:
            return 0
        memory, forks = self.memory, self.forks
        steps = self._finishing[0][0] - memory.steps
        if forks.heap:
            steps = min(steps, forks.next_step() - memory.steps)
        if steps <= 0 or forks.copied:
            return 0
        if memory.releases:  # blocks that running requests give back might let one in
            head = self.queue.head()
            if self.swapped or (head is not None and self.may_join(head)):
                return 0
        if self.connector is not None and (self.queue.waiting or self.connector.next_plan_differs()):
            return 0  # what a look at a request that waits says may differ in each plan
        return memory.steps_that_fit(steps, self.spare_blocks)

    def ran_dry(self) -> None:
        """Learn that nothing runs and nothing is in flight; told before the engine waits for an arrival."""

    def transferred(self, jobs: Sequence[Job]) -> None:
        """Learn that jobs of `Batch.transfers` are over; told after ``finish``."""
        if self.connector is not None:
            self.connector.update_connector_output(jobs)

    def start_draining(self) -> None:
        """Let requests drain whose last token is in flight: they keep place and memory until it is there.

        Only an engine that schedules ahead asks.
        """

    def advance(self, steps: int) -> None:
        """Run so many iterations that only decode, at most ``steps_until_next_decision``."""
        self.memory.allocate_step(steps)
        self.context += steps * (self.running_sequences - self.draining)
        if self.connector is not None:
            self.connector.advance(steps, self.draining)

    def finish(self, now: int) -> list[EngineRequest]:
        """End the iteration: let the samples go whose last token was generated, and fork beams.

        Returns:
            The requests of these samples, in running order; those without samples are over.
        """
        if self.connector is not None:
            self.connector.count_finish()
        if self.in_flight > 1 or self.decodes_apart:
            return self.end_in_flight(now)
        finishing, step = self._finishing, self.memory.steps
        done: list[EngineRequest] = []
        while finishing and finishing[0][0] <= step:
            done.append(finishing.pop(0)[2])
        if self._out_of_order and len(done) > 1:
            over = {request.order for request in done}
            done = [request for order, request in self.running.items() if order in over]
        else:
            done.sort(key=_ORDER)
        for request in done:
            if request.family is None or request.family.alike:
                self._over(request, now)
            else:
                self._end_some(request, now)
        if self.forks.heap:
            self.forks.fork(step, self.memory, self.events)
        return done

    def end_in_flight(self, now: int) -> list[EngineRequest]:
        """Finish the oldest batch in flight, where several are: let requests go whose last token is known."""
        return []

    def abort(self, row: int, now: int) -> int:
        """Free what a request holds whose client went away, and forget it, wherever it is.

        Args:
            row: of the trace; the request has arrived and is not over.
            now: ticks; between two iterations.

        Returns:
            Tokens that were generated for it in vain.

        Raises:
            PagesimError: the scheduler cannot let a request go.
        """
        for request in self.running.values():
            if request.row == row:
                return self._abort_running(request)
        left = self.swap_space.abort(row) or self.queue.abort(row)
        return 0 if left is None else left.generated_waiting

    def blocked_externally(self) -> bool:
        """Say whether the head of the queue cannot be placed though enough blocks are free."""
        return False

    def held_without_running(self) -> Sequence[Sequence[EngineRequest]]:
        """Return the requests that hold memory and do not run, for each entry of ``parks``."""
        return () if self.connector is None else self.connector.held_without_running(self.queue.holding)

    def stored_length(self, request: EngineRequest) -> int:
        """Return the tokens of each sample of a running request whose KV is stored, padded ones included."""
        return self.memory.length(request)

    # The running set

    def start_decoding(self, request: EngineRequest) -> None:
        """Let a request that holds its tokens decode from now on."""
        memory = self.memory
        memory.start_decoding(request)
        if self.in_flight > 1:
            request.uncommitted_tokens = 1
        if self.spans is not None:
            self.spans.enter(request.length_offset)
        family = request.family
        final = request.prompt + request.output if family is None else min(family.finals)
        last = final - request.tokens - 1  # the last token's KV is never stored
        request.last_step = last = memory.steps + last
        insort(self._finishing, (last, request.order, request))
        if family is not None and family.beams is not None:
            self.forks.expect(request)

    def start(self, request: EngineRequest) -> None:
        """Let a request run that was just admitted whole, behind those that run or in order of arrival."""
        # What never ran joins in order of arrival; what comes back may belong further ahead.
        again = request.length != request.prompt and len(self.running) > 0
        out_of_order = again and self.latest().arrival > request.arrival
        self.enter(request)
        self.start_decoding(request)
        if out_of_order:
            self.reorder(lambda request: request.arrival)
        self.context += request.samples * request.tokens

    def enter(self, request: EngineRequest) -> None:
        """Give a request a place behind those that run."""
        request.order = order = self._orders
        self._orders = order + 1
        request.last_step = -1
        self.running[order] = request
        self.running_sequences += request.samples

    def reorder(self, key: Callable[[EngineRequest], int]) -> None:
        """Let requests run in the order of a key, and no longer in that in which they were admitted."""
        self.running = dict(sorted(self.running.items(), key=lambda item: key(item[1])))
        self._out_of_order = True

    def admit(self, request: EngineRequest, batch: Batch) -> None:
        """Give the head of the queue memory for all its tokens, and let it run."""
        self.queue.pop(request)
        self.memory.admit(request, request.length)
        batch.prompts += (request,)
        if self.memory.releases:
            batch.chunks += ((request, request.length),)
        self.start(request)

    def latest(self) -> EngineRequest:
        """Return the request that is preempted first: the last of those that run."""
        return self.running[next(reversed(self.running))]

    def preempt(self, request: EngineRequest, batch: Batch) -> None:
        """Take a running request's place, and its memory: it is recomputed or swapped out."""
        memory = self.memory
        held = memory.length(request)
        self.context -= request.samples * held
        self._stop(request)
        request.length = self.length_known(request, held)
        if self.swap_space.takes(request, batch, self.running_sequences, self.context):
            self.swap_space.swap_out(request, batch)
        else:
            memory.release(request)
            self.queue.requeue(request)
            batch.recomputed += (request,)

    def length_known(self, request: EngineRequest, held: int) -> int:
        """Return the tokens of a running request that are known, where its memory has so many."""
        return held + 1

    @abstractmethod
    def may_join(self, request: EngineRequest) -> bool:
        """Say whether the limits let a request run beside those that do.

        A subclass may add conditions. While no request runs they must all hold, or the request is given up as
        unschedulable; and for fast-forward to stay exact, one that fails may begin to hold only when a
        request leaves.
        """

    # Inside

    def _stop(self, request: EngineRequest) -> None:
        """Take a request out of those that run; it still has its memory."""
        self.events.interval_ended(request)
        del self.running[request.order]
        self.running_sequences -= request.samples
        if request.last_step >= 0:
            self._leave_finishing(request)

    def _leave_finishing(self, request: EngineRequest) -> None:
        del self._finishing[bisect_left(self._finishing, (request.last_step, request.order))]
        request.last_step = -1
        if self.spans is not None:
            self.spans.leave(request.length_offset)

    def _over(self, request: EngineRequest, now: int) -> None:
        """Let a request go that has its last token."""
        memory, samples = self.memory, request.samples
        held = memory.length(request)
        self.context -= samples * held
        self.running_sequences -= samples
        del self.running[request.order]
        request.last_step = -1
        if self.spans is not None and request.decodes:
            self.spans.leave(request.length_offset)
        self.events.finished(request, now)
        self._let_go(request)
        request.length = held + 1

    def _drop(self, request: EngineRequest) -> None:
        """Take back what a request holds whose client went away while it ran."""
        self._let_go(request)

    def _let_go(self, request: EngineRequest) -> None:
        """Take back what a request holds that has its last token."""
        self.memory.release(request)

    def _end_some(self, request: EngineRequest, now: int) -> None:
        """Let those samples of a request go whose last token was generated."""
        family, memory = request.family, self.memory
        assert family is not None
        held = memory.length(request)
        self.events.interval_ended(request)
        places = family.over_at(held + 1)
        family.end(places, held + 1 - request.prompt)
        self.events.samples_finished(request, now)
        if len(places) == request.samples:
            self._over(request, now)
            return
        self.context -= len(places) * held
        self.running_sequences -= len(places)
        memory.end_samples(request, places)
        missing = min(family.finals) - held - 1
        request.last_step = memory.steps + missing
        insort(self._finishing, (request.last_step, request.order, request))

    def _abort_running(self, request: EngineRequest) -> int:
        held, samples = self.memory.length(request), request.samples
        self.context -= samples * held
        self._stop(request)
        self._drop(request)
        # The token sampled last has no KV yet.
        return request.generated_before + samples * max(0, held + 1 - request.prompt)
