"""Observer: callbacks for what happens in an engine; they never influence a decision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagesim.scheduling.arrivals import NEVER
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.request import EngineRequest, Status
from pagesim.setup.compiled import mypyc_attr

if TYPE_CHECKING:  # a scheduler imports observers, too
    from pagesim.scheduling.core import Scheduler


class FastForward:
    """A run of decode-only iterations with the same requests and without decisions.

    Attributes:
        start: start of the first iteration, in ticks.
        end: end of the last iteration, in ticks.
        steps: number of iterations.
        first: duration of the first iteration, in ticks.
        increment: ticks by which each iteration is longer than the previous one.
        context: context tokens in the first iteration.
        sequences: decoding sequences.
        draining: sequences that run without decoding because their last token is in flight; nonzero only
            for a single iteration.
        decided: when the scheduler last looked at the queue before them, in ticks.
    """

    __slots__ = ("context", "decided", "draining", "end", "first", "increment", "sequences", "start", "steps")

    def __init__(self) -> None:
        self.start = self.steps = self.first = self.increment = self.context = self.sequences = 0
        self.decided = self.end = self.draining = 0


@mypyc_attr(allow_interpreted_subclasses=True)
class Observer:
    """The callbacks of an engine; only those that a subclass overrides are called.

    Times are in ticks. Requests passed to a callback are the engine's own objects and must not be changed.
    """

    __slots__ = ()

    def begun(self, scheduler: Scheduler) -> None:
        """An engine was created; its scheduler and memory, still empty, may be inspected from now on."""

    def planned(self, batch: Batch, now: int, start: int, ticks: int) -> None:
        """An iteration was planned at ``now`` and runs from ``start`` for ``ticks`` ticks.

        Memory is in the state that it has while the iteration runs.
        """

    def departed(self, batch: Batch, now: int) -> None:
        """Requests were preempted or given up at ``now``, whether or not an iteration follows.

        Called before `planned` of the same batch.
        """

    def held_up(self, end: int, until: int) -> None:
        """The output of an iteration that ended at ``end`` is returned only at ``until``.

        Meanwhile the host waits for a copy. Called after `planned` of that iteration and before the next.
        """

    def fast_forwarded(self, run: FastForward) -> None:
        """Iterations passed without a decision; called at their end, before memory has grown."""

    def advanced(self, run: FastForward) -> None:
        """Memory has grown by the iterations that `fast_forwarded` just reported."""

    def interval_ended(self, request: EngineRequest) -> None:
        """From this iteration on, a request's memory follows from its length in a different way."""

    def answered(self, requests: Sequence[EngineRequest], now: int) -> None:
        """Requests get one or more tokens each at ``now``; called only with `Scheduler.decodes_apart`."""

    def forked(self, request: EngineRequest, dropped: int, survivor: int) -> None:
        """A dropped beam is replaced by a fork of a survivor; called between two iterations."""

    def finished(self, request: EngineRequest, now: int) -> None:
        """A request gets its last token at ``now``; it still holds its memory, and its interval ends."""

    def samples_finished(self, request: EngineRequest, now: int) -> None:
        """Some samples of a request, `Family.ended`, have their last tokens; the others continue."""

    def left(self, row: int, now: int, status: Status) -> None:
        """A request left the engine without a call of `finished`, such as one given up or aborted."""

    def held_without_running_changes(self, now: int) -> None:
        """The requests in `Scheduler.held_without_running`, or their memory, are about to change."""

    def idle(self, now: int, until: int) -> None:
        """No request runs or waits from ``now`` to ``until`` (``NEVER``: until the end)."""

    def next_look(self) -> int:
        """Return the time at which an iteration must be planned so that this observer sees it.

        ``NEVER`` asks for none; a time in the past asks for every iteration to be planned.
        """
        return NEVER
