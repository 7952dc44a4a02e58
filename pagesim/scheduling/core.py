"""The scheduling core: which requests run, finish and are preempted, and when to decide again.

Each scheduler is a subclass that defines how an iteration is planned and which requests are admitted.
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

if TYPE_CHECKING:  # both modules import requests, too
    from pagesim.scheduling.kv_connector import KVConnector
    from pagesim.scheduling.offload.jobs import Job

_ORDER = attrgetter("order")


@mypyc_attr(allow_interpreted_subclasses=True)
class Scheduler(SchedulerTraits):
    """Decides in each iteration which requests run, and applies every decision to memory at once.

    Facts about its engine that are known in advance are its `SchedulerTraits`.

    Decisions within an iteration depend on what the earlier ones left free. A scheduler therefore changes
    memory directly, as the real ones do, and reports what it did in a `Batch`.

    The engine's loop calls ``plan(now)``; if that yields an iteration, time passes.
    ``steps_until_next_decision()`` returns how many further iterations need no decision, and
    ``advance(steps)`` runs them at once. ``finish(now)`` releases requests that have their last token.

    Args:
        memory: empty block manager.
        queue: empty waiting queue; it decides where preempted requests go.
        options: instance of the class's ``Options``.
        max_model_len: maximum length of a request in tokens.
        watermark: share of the blocks, null blocks included, that an admission must leave free.
        prices: costs of swapping and of recomputing, for preemption ``auto``.

    Attributes:
        running: running requests in scheduling order, keyed by `SequenceGroup.order`.
        running_sequences: samples of the running requests.
        context: tokens held by these samples.
        draining: running sequences that get no further token, because their last one is in flight.
        draining_context: tokens held by the draining sequences.
        in_flight: batches that are scheduled before the outcome of the first of them is known.
        swap_space: swap space on the host; its requests are also available as ``swapped``.
        spare_blocks: blocks that must be free after a step for all running requests to need no decision.
        widest: largest number of samples of any expected request.
        must_replan: whether the next iteration must be planned in any case.
        parks: ledger entries for blocks that only requests of `held_without_running` hold.
        unreported: whether finished requests are still to be reported to the workers, in an engine that
            makes an empty plan just for that.
        connector: KV connector that moves KV to and from other places; None without one.
        forks: requests whose beams fork.
        events: observers, called for changes that no batch records.
        spans: tokens read by layers with a limited attention span, if the cost model needs them.
        speculation: outcome of the draft tokens under speculative decoding.
        decodes_apart: whether each request decodes by itself. The tokens of a step are then known only at
            its end, and observers learn of them through ``answered``.
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
        # Decoding requests, sorted by the step at which their next sample finishes.
        self._finishing: list[tuple[int, int, EngineRequest]] = []
        self.forks = Forks()
        self._orders = 0
        self._out_of_order = False  # whether the running order may differ from the order of admission
        self.widest = 1

    # What the engine asks

    @abstractmethod
    def plan(self, now: int) -> Batch:
        """Plan the next iteration; requests that have arrived by ``now`` are already in the queue."""

    @abstractmethod
    def refusal(self, prompt_tokens: int, output_tokens: int, samples: int) -> str:
        """Return which limit such a request exceeds, with the option's name and value, or an empty string.

        It is empty if an idle system could serve the request. All requests that exceed the same limit get
        the same sentence.
        """

    def later_refusal(self, prompt_tokens: int, output_tokens: int, samples: int) -> str:
        """Return the limit for which the engine accepts such a request but ignores it when its turn comes.

        The string is empty if the engine serves the request.
        """
        return ""

    def never_fits(self, prompt_tokens: int) -> bool:
        """Whether such a prompt is accepted but never fits, so that it blocks all requests behind it."""
        return False

    def expect(self, arrivals: Arrivals) -> None:
        """Set the requests that will arrive; called once, before anything else.

        Raises:
            PagesimError: the scheduler cannot serve such requests under its options.
        """
        self.queue.expect(arrivals)
        self.widest = arrivals.widest
        self.swap_space.expect(self.widest)

    @property
    def has_work(self) -> bool:
        """Whether any request runs, waits or is swapped out, or a plan must report finished requests."""
        if self.running or self.queue.waiting or self.swapped or self.unreported:
            return True
        return self.connector is not None and self.connector.has_work

    def arrival_matters(self) -> bool:
        """Whether the next arrival could change a decision before a request finishes.

        A blocked head of the queue stays blocked until then, and no other request overtakes it.
        """
        return not (self.queue.waiting or self.swapped)

    def steps_until_next_decision(self) -> int:
        """Return for how many iterations from now no decision is needed, provided that no request arrives."""
        if self.must_replan or not self._finishing:
            return 0
        memory, forks = self.memory, self.forks
        steps = self._finishing[0][0] - memory.steps
        if forks.heap:
            steps = min(steps, forks.next_step() - memory.steps)
        if steps <= 0 or forks.copied:
            return 0
        if memory.releases:  # blocks that running requests free may allow an admission
            head = self.queue.head()
            if self.swapped or (head is not None and self.may_join(head)):
                return 0
        if self.connector is not None and (self.queue.waiting or self.connector.next_plan_differs()):
            return 0  # the connector's answer for a waiting request may differ in each plan
        return memory.steps_that_fit(steps, self.spare_blocks)

    def ran_dry(self) -> None:
        """Note that nothing runs or is in flight; called before the engine waits for an arrival."""

    def transferred(self, jobs: Sequence[Job]) -> None:
        """Note that jobs of `Batch.transfers` have finished; called after ``finish``."""
        if self.connector is not None:
            self.connector.update_connector_output(jobs)

    def start_draining(self) -> None:
        """Drain requests whose last token is in flight: they keep slot and memory until it is there.

        Only an engine that schedules ahead calls this.
        """

    def advance(self, steps: int) -> None:
        """Run ``steps`` decode-only iterations, at most ``steps_until_next_decision``."""
        self.memory.allocate_step(steps)
        self.context += steps * (self.running_sequences - self.draining)
        if self.connector is not None:
            self.connector.advance(steps, self.draining)

    def finish(self, now: int) -> list[EngineRequest]:
        """End the iteration: release samples that have their last token, and fork beams.

        Returns:
            The requests of these samples, in running order; those without samples left have finished.
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
        """Finish the oldest of several batches in flight; return requests that now have their last token."""
        return []

    def abort(self, row: int, now: int) -> int:
        """Abort a request whose client has disconnected, wherever it is, and free its memory.

        Args:
            row: the request's row in the trace; it has arrived and has not finished.
            now: time in ticks, between two iterations.

        Returns:
            Number of tokens that were generated for it in vain.

        Raises:
            PagesimError: the scheduler cannot abort requests.
        """
        for request in self.running.values():
            if request.row == row:
                return self._abort_running(request)
        left = self.swap_space.abort(row) or self.queue.abort(row)
        return 0 if left is None else left.generated_waiting

    def blocked_externally(self) -> bool:
        """Return whether the head of the queue cannot be placed although enough blocks are free."""
        return False

    def held_without_running(self) -> Sequence[Sequence[EngineRequest]]:
        """Return the requests that hold memory without running, grouped by entry of ``parks``."""
        return () if self.connector is None else self.connector.held_without_running(self.queue.holding)

    def stored_length(self, request: EngineRequest) -> int:
        """Return how many tokens of each sample of a running request have stored KV, padding included."""
        return self.memory.length(request)

    # The running set

    def start_decoding(self, request: EngineRequest) -> None:
        """Start decoding a request whose tokens are all in memory."""
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
        """Run a request that was just admitted whole; it goes last, or to its position by arrival."""
        # New requests come in order of arrival; one that comes back may belong further ahead.
        again = request.length != request.prompt and len(self.running) > 0
        out_of_order = again and self.latest().arrival > request.arrival
        self.enter(request)
        self.start_decoding(request)
        if out_of_order:
            self.reorder(lambda request: request.arrival)
        self.context += request.samples * request.tokens

    def enter(self, request: EngineRequest) -> None:
        """Append a request to the running ones."""
        request.order = order = self._orders
        self._orders = order + 1
        request.last_step = -1
        self.running[order] = request
        self.running_sequences += request.samples

    def reorder(self, key: Callable[[EngineRequest], int]) -> None:
        """Sort the running requests by a key, in place of their order of admission."""
        self.running = dict(sorted(self.running.items(), key=lambda item: key(item[1])))
        self._out_of_order = True

    def admit(self, request: EngineRequest, batch: Batch) -> None:
        """Allocate memory for all tokens of the head of the queue, and run it."""
        self.queue.pop(request)
        self.memory.admit(request, request.length)
        batch.prompts += (request,)
        if self.memory.releases:
            batch.chunks += ((request, request.length),)
        self.start(request)

    def latest(self) -> EngineRequest:
        """Return the request that is preempted first: the last of the running ones."""
        return self.running[next(reversed(self.running))]

    def preempt(self, request: EngineRequest, batch: Batch) -> None:
        """Preempt a running request: it loses its slot and memory, and is recomputed or swapped out."""
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
        """Return how many tokens of a running request are known, given that its memory holds ``held``."""
        return held + 1

    @abstractmethod
    def may_join(self, request: EngineRequest) -> bool:
        """Return whether the limits let a request run together with the running ones.

        A subclass may add conditions. If one fails while no request runs, the request is given up as
        unschedulable. For fast-forward to stay exact, a condition that fails may become true only when a
        request leaves.
        """

    # Internal

    def _stop(self, request: EngineRequest) -> None:
        """Remove a request from the running ones; it keeps its memory."""
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
        """Finish a request that has its last token."""
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
        """Free the memory of a running request that was aborted."""
        self._let_go(request)

    def _let_go(self, request: EngineRequest) -> None:
        """Free the memory of a request that has its last token."""
        self.memory.release(request)

    def _end_some(self, request: EngineRequest, now: int) -> None:
        """Finish the samples of a request that have their last token."""
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
