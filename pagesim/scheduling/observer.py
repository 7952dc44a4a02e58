"""Observer: callbacks for what happens in an engine; they change no decision and no path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagesim.scheduling.arrivals import NEVER
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.request import EngineRequest, Status
from pagesim.setup.compiled import mypyc_attr

if TYPE_CHECKING:  # a scheduler tells observers, too
    from pagesim.scheduling.core import Scheduler


class FastForward:
    """Iterations that only decode, with the same requests, and decide nothing.

    Attributes:
        start: when the first of them is carried out, in ticks.
        end: when the last of them is over.
        steps: how many there are.
        first: ticks of the first.
        increment: ticks that each takes more than the one before.
        context: tokens of context in the first.
        sequences: that decode.
        draining: sequences that run and do not decode, their last token being in flight; only a single step
            has any.
        decided: when the scheduler looked at the queue for the last time before them.
    """

    __slots__ = ("context", "decided", "draining", "end", "first", "increment", "sequences", "start", "steps")

    def __init__(self) -> None:
        self.start = self.steps = self.first = self.increment = self.context = self.sequences = 0
        self.decided = self.end = self.draining = 0


@mypyc_attr(allow_interpreted_subclasses=True)
class Observer:
    """The callbacks of an engine. A subclass overrides those that it needs; only these are called.

    Times are in ticks. A request that is passed on is the engine's own: it is looked at, never changed.
    """

    __slots__ = ()

    def begun(self, scheduler: Scheduler) -> None:
        """An engine is made; its scheduler and their memory, still empty, may be looked at from now on."""

    def planned(self, batch: Batch, now: int, start: int, ticks: int) -> None:
        """An iteration was decided at ``now`` and is carried out from ``start`` for so many ticks.

        Memory is as it will be while the iteration runs.
        """

    def departed(self, batch: Batch, now: int) -> None:
        """Requests lost their place or were given up at ``now``, whether or not an iteration follows.

        Told before `planned` of the same batch.
        """

    def held_up(self, end: int, until: int) -> None:
        """What an iteration computed that was over at ``end`` is answered at ``until`` only.

        The host waits for a copy meanwhile. Told after that iteration was `planned`, and before the next one.
        """

    def fast_forwarded(self, run: FastForward) -> None:
        """Iterations passed without a decision; told when they are over, before memory has grown."""

    def advanced(self, run: FastForward) -> None:
        """Memory has grown by the iterations of which `fast_forwarded` told just before."""

    def interval_ended(self, request: EngineRequest) -> None:
        """From this iteration on a request's memory does not follow from its length as it did."""

    def answered(self, requests: Sequence[EngineRequest], now: int) -> None:
        """Requests get one or several tokens each at ``now``; told only where each `decodes_apart`."""

    def forked(self, request: EngineRequest, dropped: int, survivor: int) -> None:
        """A beam of a request goes on from what another one holds; told between two iterations."""

    def finished(self, request: EngineRequest, now: int) -> None:
        """A request has its last token at ``now``; it still has its memory, and its interval ends."""

    def samples_finished(self, request: EngineRequest, now: int) -> None:
        """Some samples of a request, `Family.ended`, have their last tokens; the others go on."""

    def left(self, row: int, now: int, status: Status) -> None:
        """A request is over without being finished: given up, ignored or aborted."""

    def held_without_running_changes(self, now: int) -> None:
        """What `Scheduler.held_without_running` returns, or what it holds, is about to change at ``now``."""

    def idle(self, now: int, until: int) -> None:
        """No request runs or waits from ``now`` to ``until`` (``NEVER``: for good)."""

    def next_look(self) -> int:
        """Return the instant at which an iteration must be planned, so that this observer sees it.

        ``NEVER`` if none is; an instant that has passed asks for every iteration.
        """
        return NEVER
