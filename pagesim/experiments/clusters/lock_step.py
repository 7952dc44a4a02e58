"""Lock-step execution: ranks of an MoE model run each forward pass together; idle ones run a dummy batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import simpy

from pagesim.accounting.pass_recorder import PassRecorder
from pagesim.experiments.clusters.coordinator import Counts
from pagesim.experiments.clusters.messages import ToRank
from pagesim.experiments.clusters.ranks import Rank
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.vllm_v1 import VllmV1
from pagesim.sim.process import Events

Inbox = deque[Callable[[], None]]


class Pass:
    """A forward pass of all ranks.

    Attributes:
        launched: time at which each rank submitted its batch, in ticks, ``[R]``; -1 if it has not yet.
        tokens: tokens in each rank's batch, ``[R]``.
        dummies: whether each rank's batch is a dummy, ``[R]``.
        wave, step: wave and step of rank 0 at that time.
        ticks: duration on the slowest rank.
        meet: time at which the last rank submitted its batch, in ticks.
        start, end: when the pass is executed, in ticks.
        met: event that fires at ``meet``.
    """

    def __init__(self, environment: simpy.Environment, ranks: int) -> None:
        self.launched = [-1] * ranks
        self.tokens = [0] * ranks
        self.dummies = [False] * ranks
        self.wave = self.step = self.ticks = 0
        self.meet = self.start = self.end = -1
        self.met = environment.event()


class LockStep:
    """The forward passes and all-reduces of all ranks.

    Args:
        environment: the ranks' clock.
        size: number of ranks.
        sync_interval: steps between the ranks' agreements on whether any of them has work.

    Attributes:
        passes: all forward passes so far.
        launches: number of passes for which each rank has submitted a batch, ``[R]``.
    """

    def __init__(self, environment: simpy.Environment, size: int, sync_interval: int) -> None:
        self.sync_interval = sync_interval
        self.passes: list[Pass] = []
        self._environment = environment
        self._size = size
        self.launches = [0] * size
        self._reductions: dict[int, tuple[list[bool], simpy.Event]] = {}
        self._reduced = [0] * size
        self._recorders: dict[int, PassRecorder] = {}

    def join(self, rank: int, recorder: PassRecorder) -> None:
        """Register the recorder to notify when a pass with a batch of this rank is executed."""
        self._recorders[rank] = recorder

    def launch(self, rank: LockStepRank, ticks: int, tokens: int, *, dummy: bool) -> Pass:
        """Submit a rank's batch; return the pass it belongs to."""
        number, now = rank.number, int(self._environment.now)
        place = self.launches[number]
        self.launches[number] += 1
        if place == len(self.passes):
            self.passes.append(Pass(self._environment, self._size))
        found = self.passes[place]
        found.launched[number] = now
        found.tokens[number], found.dummies[number] = tokens, dummy
        found.ticks = max(found.ticks, ticks)
        if number == 0:
            found.wave, found.step = rank.wave, rank.step
        if min(found.launched) >= 0:
            self._begin(place)
        return found

    def close(self) -> None:
        """Execute the passes that only some ranks have joined, once the others have stopped."""
        for place, each in enumerate(self.passes):
            if each.meet < 0:
                self._begin(place)

    def all_reduce(self, rank: LockStepRank, value: bool) -> Any:
        """Wait for all ranks; return whether any of them passed True."""
        number = self._reduced[rank.number]
        self._reduced[rank.number] += 1
        if number not in self._reductions:
            self._reductions[number] = [], self._environment.event()
        values, complete = self._reductions[number]
        values.append(value)
        if len(values) == self._size:
            del self._reductions[number]
            complete.succeed()
        yield complete
        yield from rank.take_turn()
        return any(values)

    def _begin(self, place: int) -> None:
        """Schedule a pass right after the previous one, once all ranks have submitted their batches."""
        found = self.passes[place]
        found.meet = max(found.launched)
        found.start = max(found.meet, self.passes[place - 1].end if place else 0)
        found.end = found.start + found.ticks
        for number, recorder in self._recorders.items():
            if found.launched[number] >= 0 and not found.dummies[number]:
                recorder.timed(found.start, found.ticks)
        found.met.succeed()


class LockStepRank(Rank):
    """Runs one rank of an MoE model.

    Source: vLLM 0.33.0, v1/engine/core.py, ``DPEngineCoreProc``.

    Args:
        others: as `Rank`.
        lock_step: state shared by all ranks.
        of_group: as `Rank`.

    Attributes:
        number: index of the rank.
        lock_step: state shared by all ranks.
        wave, step: the rank's current wave, and the number of steps completed in it.
    """

    def __init__(self, *others: Any, lock_step: LockStep, **of_group: Any) -> None:
        super().__init__(*others, **of_group)
        self.number = self._turn
        self.wave = self.step = 0
        self.lock_step = lock_step
        self._is_running = False
        self._inbox: Inbox = deque()
        self._in_flight: deque[Pass | None] = deque()  # the pass of each batch; None for an empty batch
        self._launched = (0, 0)  # tokens and ticks of the last planned batch

    def start(self, environment: simpy.Environment, engine: Any) -> simpy.Process:
        process = super().start(environment, engine)
        assert isinstance(engine.recorder, PassRecorder)
        self._recorder = engine.recorder
        self.lock_step.join(self.number, engine.recorder)
        return process

    def end(self) -> None:
        self.lock_step.close()
        over = [each.end for each in self._in_flight if each is not None]
        self.engine.end([*over, *over[-1:] * (len(self._in_flight) - len(over))])
        super().end()

    def planned(self, batch: Batch, now: int, start: int, ticks: int) -> None:
        super().planned(batch, now, start, ticks)
        self._launched = batch.tokens, ticks

    # Inputs of the rank

    def submit(self, index: int, row: int, now: int, abort: int | None) -> None:
        balancer = self.group.balancer
        wave = 0 if balancer is None else balancer.wave
        self.group.messages.send(ToRank, lambda: self._inbox.append(lambda: self._add(wave)))
        super().submit(index, row, now, abort)

    def start_wave(self, wave: int, exclude: int) -> None:
        """Receive the start of a wave; ignore it if this rank started it."""

        def begin() -> None:
            if exclude != self.number and wave >= self.wave:
                self.wave, self._is_running = wave, True

        self._inbox.append(begin)
        self._wake()

    def _add(self, wave: int) -> None:
        """Start a wave for a request, unless the rank is already in one."""
        self.wave = max(self.wave, wave)
        if not self._is_running:
            self._is_running = True
            self.group.coordinator.wave_started(self.number, self.wave)

    def _take_inputs(self, now: int) -> None:
        while self._inbox:
            self._inbox.popleft()()
        super()._take_inputs(now)

    def _send_counts(self, counts: Counts) -> None:
        self.group.coordinator.report(self.number, counts, self.wave, self.step)

    # The rank's main loop

    def _run(self) -> Events:
        engine, environment = self.engine, self._environment
        while environment.now <= engine.until:
            was_running = self._is_running
            self._take_inputs(int(environment.now))
            computes = yield from self._engine_step()
            if computes is None and not self._is_running:
                self._busy = False
                yield from self._wait(int(environment.now))
                continue
            self._report()
            if not computes:
                if not (self._is_unfinished or self._is_running):
                    continue
                yield from self._dummy_step()
            self.step += 1
            self._is_running = True
            if self.step == 1 or self.step % self.lock_step.sync_interval == 0:
                self._is_running = yield from self.lock_step.all_reduce(self, self._is_unfinished)
            if not self._is_running:
                if self.number == 0:
                    self.group.coordinator.wave_complete(self.wave)
                self.wave, self.step = self.wave + 1, 0
            elif not was_running and self.number == 0:
                self.group.coordinator.wave_started(0, self.wave)
            if engine.recorder.iterations >= engine.recorder.full_at and not self._recorder.untimed:
                engine.recorder.flush()

    @property
    def _is_unfinished(self) -> bool:
        scheduler = self.engine.scheduler
        return bool(scheduler.running or scheduler.queue.waiting)

    def take_turn(self) -> Events:
        """Wait for this rank's turn at the current instant."""
        yield from self._turns_at(int(self._environment.now))

    def _engine_step(self) -> Any:
        """Run one engine step; return whether it launched a batch, or None if there was nothing to do."""
        engine, scheduler = self.engine, self.engine.scheduler
        if isinstance(scheduler, VllmV1) and scheduler.cadence is not None:
            scheduler.cadence.shared_step = self.step
        iterations = engine.recorder.iterations
        self._busy = engine.decide(int(self._environment.now))
        if not self._busy:
            return None
        computes = False
        if engine.recorder.iterations > iterations:
            tokens, ticks = self._launched
            computes = tokens > 0
            launched = self.lock_step.launch(self, ticks, tokens, dummy=False) if computes else None
            self._in_flight.append(launched)
        if engine.waits:
            yield from self._until_over(self._in_flight.popleft())
        now = int(self._environment.now)
        again_at = engine.complete(now)
        if again_at > now:
            yield from self._turns_at(again_at)
        return computes

    def _until_over(self, launched: Pass | None) -> Events:
        """Wait until a batch has finished; an empty batch finishes as soon as it is launched."""
        if launched is not None:
            yield from self._until_met(launched)
            if launched.end > self._environment.now:
                yield from self._turns_at(launched.end)

    def _until_met(self, launched: Pass) -> Events:
        """Wait until all ranks have submitted their batches for a pass."""
        if not launched.met.triggered:
            yield launched.met
            yield from self.take_turn()

    def _dummy_step(self) -> Events:
        """Run a dummy batch so that the other ranks can proceed."""
        batch = Batch()
        batch.tokens = batch.batched_tokens = batch.decoding = batch.sequences = 1
        launched = self.lock_step.launch(self, self.engine.executor.execute(batch), 1, dummy=True)
        for each in self._in_flight:
            yield from self._until_over(each)
        yield from self._until_met(launched)
