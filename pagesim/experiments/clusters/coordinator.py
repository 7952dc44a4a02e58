"""vLLM's data-parallel coordinator: it reports the ranks' load to the API servers and tracks waves."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import simpy

from pagesim.experiments.clusters.messages import Messages, ToCoordinator, ToRank, ToServer
from pagesim.sim.clock import TICKS_PER_SECOND

MILLISECOND: Final = TICKS_PER_SECOND // 1000
CHANGED_MS, UNCHANGED_MS, LEAST_MS = 100, 5000, 50


class Counts(NamedTuple):
    """A rank's load: waiting requests, running requests, and the fraction of its blocks that is in use."""

    waiting: int = 0
    running: int = 0
    usage: float = 0.0


class Publication(NamedTuple):
    """One message that the coordinator published.

    Attributes:
        now: time of publication, in ticks.
        counts: load of every rank, ``[R]``; None if only the wave is published.
        wave, running: the current wave and whether ranks are running it; None if a wave is being started.
        start_wave, exclude: the wave that ranks must start, and the rank that already has; None otherwise.
    """

    now: int
    counts: Sequence[Counts] | None = None
    wave: int | None = None
    running: bool | None = None
    start_wave: int | None = None
    exclude: int | None = None


class Coordinator:
    """Collects the ranks' counts and publishes them at most every 100 ms.

    With ``lock_step`` it publishes the counts as of the end of a step, and tracks the current wave.

    Source: vLLM 0.33.0, v1/engine/coordinator.py, ``process_input_socket``.

    Args:
        messages: transport for everything that is sent.
        ranks: number of ranks.
        lock_step: whether ranks run their steps together.

    Attributes:
        publish: called for API servers with the counts of all ranks (or None) and the wave.
        start_wave: called for ranks with the wave and the rank that started it.
        published: everything that was published.
    """

    def __init__(self, messages: Messages, ranks: int, *, lock_step: bool) -> None:
        self.publish: Callable[[Sequence[Counts] | None, int], None] = lambda counts, wave: None
        self.start_wave: Callable[[int, int], None] = lambda wave, exclude: None
        self.published: list[Publication] = []
        self._messages = messages
        self._environment = messages.environment
        self._lock_step = lock_step
        self._counts = [Counts()] * ranks
        self._snapshot: list[Counts] | None = None  # counts when the last step ended
        self._changed = False
        self._last_step = (-1, -1)
        self._last_publish = 0  # ms
        self._wave = 0
        self._running = False
        self._inbox: deque[Callable[[], None]] = deque()
        self._timer: simpy.Event | None = None
        self._set_timer()

    # Messages from ranks

    def report(self, rank: int, counts: Counts, wave: int, step: int) -> None:
        """Receive a rank's load in a step of a wave."""
        self._receive(lambda: self._count(rank, counts, (wave, step)))

    def wave_started(self, rank: int, wave: int) -> None:
        """Receive that an idle rank got a request, which belongs to a wave."""
        self._receive(lambda: self._begin(rank, wave))

    def wave_complete(self, wave: int) -> None:
        """Receive that no rank has any work left."""
        self._receive(lambda: self._complete(wave))

    # Internals

    def _receive(self, handle: Callable[[], None]) -> None:
        def arrive() -> None:
            self._inbox.append(handle)
            if len(self._inbox) == 1:
                ToCoordinator(self._environment, 0).callbacks.append(lambda _: self._handle())

        self._messages.send(ToCoordinator, arrive)

    def _handle(self) -> None:
        while self._inbox:
            self._inbox.popleft()()
        self._set_timer()

    def _set_timer(self) -> None:
        elapsed = int(self._environment.now) // MILLISECOND - self._last_publish
        wait = CHANGED_MS if self._changed else UNCHANGED_MS
        least = LEAST_MS if self._lock_step and self._snapshot is None else 0
        self._timer = ToCoordinator(self._environment, max(least, wait - elapsed) * MILLISECOND)
        self._timer.callbacks.append(self._time_out)

    def _time_out(self, timer: simpy.Event) -> None:
        if timer is not self._timer:
            return  # superseded: a message arrived first
        if self._inbox:
            self._handle()
            return
        if self._snapshot is not None:
            counts, self._snapshot = self._snapshot, None
        elif not self._changed and self._environment.peek() == float("inf"):
            return  # nothing else will ever happen
        else:
            counts, self._changed = list(self._counts), False
        self._tell(counts)
        self._last_publish = int(self._environment.now) // MILLISECOND
        self._set_timer()

    def _count(self, rank: int, counts: Counts, step: tuple[int, int]) -> None:
        if self._lock_step and step > self._last_step:
            if self._changed:
                self._snapshot = list(self._counts)
            self._last_step = step
        self._counts[rank] = counts
        self._changed = True

    def _begin(self, rank: int, wave: int) -> None:
        if wave > self._wave or (wave == self._wave and not self._running):
            self._wave, self._running = wave, True
            now = int(self._environment.now)
            self.published.append(Publication(now, start_wave=wave, exclude=rank))
            self._messages.send(ToRank, lambda: self.start_wave(wave, rank))
            self._tell(None)

    def _complete(self, wave: int) -> None:
        if self._wave <= wave:
            self._wave, self._running = wave + 1, False
            self._tell(None)

    def _tell(self, counts: Sequence[Counts] | None) -> None:
        wave = self._wave
        self.published.append(Publication(int(self._environment.now), counts, wave, self._running))
        self._messages.send(ToServer, lambda: self.publish(counts, wave))
