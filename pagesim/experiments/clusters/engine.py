"""The engine of a replica: it learns of its requests only when they are routed to it."""

from __future__ import annotations

from bisect import insort
from collections.abc import Generator, Sequence
from typing import Any

import simpy

from pagesim.experiments.clusters.replicas import Replicas, Says
from pagesim.scheduling import Arrivals, BeamSearch, Content, Plan
from pagesim.sim.clock import span_of, steps_before
from pagesim.sim.engine import STAY, Engine


class Routed(Arrivals):
    """The requests that were routed to one replica, a row more for each.

    Args:
        whole: those of all replicas.
    """

    def __init__(self, whole: Arrivals) -> None:
        self._whole = whole
        self._index: list[int] = []
        self._content: dict[int, Content] = {}
        self.row, self.ticks, self.prompt, self.output, self.samples = (
            column[:0] for column in (whole.row, whole.ticks, whole.prompt, whole.output, whole.samples)
        )
        self.widest = whole.widest

    def add(self, index: int) -> None:
        """A request is routed here; all are asked about in the order in which they arrive."""
        whole = self._whole
        self.row.append(whole.row[index])
        self.ticks.append(whole.ticks[index])
        self.prompt.append(whole.prompt[index])
        self.output.append(whole.output[index])
        self.samples.append(whole.samples[index])
        content = whole.content_of(index)
        if content is not None:
            self._content[len(self._index)] = content
        self._index.append(index)

    def outputs_of(self, index: int) -> tuple[int, ...] | None:
        return self._whole.outputs_of(self._index[index])

    def content_of(self, index: int) -> Content | None:
        return self._content.get(index)

    def beams_of(self, index: int) -> BeamSearch | None:
        return self._whole.beams_of(self._index[index])


class ReplicaEngine(Engine):
    """An engine that goes on leaping until a request is routed to it, and then cuts the leap short.

    A leap is carried out when its time has passed, so cutting it costs nothing.
    """

    can_be_cut = True

    _environment: simpy.Environment
    _alarm: simpy.Event  # rings when the time that passes is over

    def join(self, replicas: Replicas, number: int, routed: Routed, prompts: Sequence[int]) -> None:
        """Become one replica of a cluster.

        Args:
            replicas: where it says what it does.
            number: its own.
            routed: what its scheduler expects.
            prompts: prompt tokens of every row of the trace.
        """
        self._replicas = replicas
        self._number = number
        replicas.ask[number] = self._says
        self._routed = routed
        self._prompts = prompts
        self.counts_over = True
        self._wake: simpy.Event | None = None  # while it has nothing to do
        self._passing = False
        self._closed = False
        if self.lane is not None:
            self.lane.welcome = self._welcome

    def start(self, environment: simpy.Environment) -> None:
        """Begin to serve."""
        self._environment = environment
        environment.process(self.serve(environment))

    def route(self, index: int, row: int, now: int, abort: int | None) -> None:
        """Take a request that arrives now.

        Args:
            index: of the request among those of all replicas.
            row: of the trace.
            now: ticks.
            abort: when its client goes away, if it does.
        """
        matters = self.front.arrival_matters
        self._routed.add(index)
        self.front.announce()
        self._replicas.outstanding[self._number] += 1
        self._replicas.waiting_tokens[self._number] += self._prompts[row]
        if abort is not None:
            insort(self.aborts, (abort, row), lo=self._abort)
        if self._wake is not None:
            self._wake.succeed()
            self._wake = None
        elif self._passing:
            if matters:
                self._cut(now)
            if abort is not None:
                self._cut(abort)

    def close(self) -> None:
        """Nothing more will be routed."""
        self._closed = True
        if self._wake is not None:
            self._wake.succeed()
            self._wake = None

    def _cut(self, instant: int) -> None:
        """Let no step of the leap start at or after an instant."""
        turn = self.turn
        steps, first, increment, _ = turn.ahead
        kept = steps_before(first, increment, instant - turn.ahead_start) if steps else 0
        if kept < steps:
            turn.cut(kept)
            over_at = turn.ahead_start + span_of(first, increment, kept)
            # Whoever waits for the alarm waits for an earlier one now; the first rings for nobody.
            earlier = self._environment.event()
            earlier.callbacks, self._alarm.callbacks = self._alarm.callbacks, []
            self._ring(earlier, over_at)

    def _ring(self, alarm: simpy.Event, at: int) -> None:
        """Say what it does until an instant, at which the alarm rings."""
        self._replicas.changed.add(self._number)
        self._alarm = alarm
        alarm._ok, alarm._value = True, None
        self._environment.schedule(alarm, delay=at - self._environment.now)

    def _pass(self, environment: simpy.Environment, ticks: int) -> Generator[simpy.Event, Any, None]:
        self._ring(environment.event(), int(environment.now) + ticks)
        self._passing = True
        yield self._alarm
        self._passing = False

    def _idle(self, environment: simpy.Environment) -> Generator[simpy.Event, Any, None]:
        if not self._closed:
            self._wake = environment.event()
            self._replicas.changed.add(self._number)
            yield self._wake
        elif self.front.next_arrival is None:
            self._replicas.changed.add(self._number)

    def _iterate(self, plan: Plan, now: int) -> int:
        began = self.recorder.first_scheduled
        for group in plan.prompts:
            if began[group.row] < 0:
                self._welcome(group.row)
        return super()._iterate(plan, now)

    def _welcome(self, row: int) -> None:
        """A request runs for the first time."""
        self._replicas.waiting_tokens[self._number] -= self._prompts[row]

    def _count_over(self, rows: Sequence[int]) -> None:
        super()._count_over(rows)
        self._replicas.outstanding[self._number] -= len(rows)
        for row in rows:
            if self.recorder.first_scheduled[row] < 0:
                self._welcome(row)  # it waits no longer either

    def _says(self) -> Says:
        if not self._passing:  # it has nothing to do
            return Says(0, int(self._environment.now), STAY, 0)
        turn = self.turn
        return Says(turn.held, turn.ahead_start, turn.ahead, self.front.running_sequences)
