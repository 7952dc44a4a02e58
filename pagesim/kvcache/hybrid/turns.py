"""Turns: the steps at which a decoding sequence allocates or frees blocks; other steps can skip it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import lcm

from pagesim.kvcache.groups import NEVER, ChunkedLocal, KVGroup, SlidingWindow, State
from pagesim.kvcache.ring import Buckets
from pagesim.kvcache.sequence_group import SequenceGroup
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Turns:
    """A manager's decoding requests by the steps, modulo a period, at which one of their groups changes.

    Args:
        groups: KV groups of the block manager.
        registers: whether a request also has a turn when blocks of all groups end at its last known token.

    Attributes:
        alignment: least common multiple of all groups' block sizes, in tokens.
        period: least common multiple of the block sizes of the groups that allocate blocks during decoding.
    """

    __slots__ = (
        "_buckets",
        "_changes",
        "_fresh",
        "_groups",
        "_newest",
        "_registers",
        "_safe",
        "alignment",
        "period",
    )

    def __init__(self, groups: Sequence[KVGroup], *, registers: bool = False) -> None:
        self._registers = registers
        self._groups = [group for group in groups if not group.is_one_block]
        self.alignment = lcm(*(group.block_size for group in groups))
        self.period = lcm(*(group.block_size for group in self._groups))
        self._buckets = Buckets(self.period)
        self._changes: dict[int, tuple[int, ...]] = {}
        # By step: requests whose prompt was partly in flight just before; they free more blocks at once.
        self._fresh: dict[int, list[SequenceGroup]] = {}
        self._newest = -1  # the first step of the newest requests that may free blocks in it
        # Tokens below which no block is freed.
        gives_back = [
            0 if isinstance(g.rule, State) else g.rule.processed_at(g.block_size) for g in self._groups
        ]
        self._safe = min(gives_back, default=NEVER)

    def enter(self, request: SequenceGroup, steps: int, steps_in_flight: int) -> None:
        """Add a request that begins to decode.

        Args:
            request: request that has been resting until now.
            steps: decode steps run so far.
            steps_in_flight: steps in flight when the next one is planned.
        """
        lengths = self._changes.get(steps_in_flight) or self._lengths(steps_in_flight)
        turns = tuple([(length - request.length_offset) % self.period for length in lengths])
        self._buckets.enter(request, turns)
        if request.tokens >= self._safe:
            self._newest = steps + 1
        for step in (steps + 1, steps + 2):
            self._fresh.setdefault(step, []).append(request)

    def leave(self, request: SequenceGroup) -> None:
        """Remove a request."""
        self._buckets.leave(request)
        for requests in self._fresh.values():
            if request in requests:
                requests.remove(request)

    def due(self, step: int) -> Collection[SequenceGroup]:
        """Return the requests with a changing group at a step, in order; call this once per step."""
        bucket = self._buckets.at(step)
        fresh = self._fresh.pop(step, None)
        if not fresh:
            return bucket
        return sorted({*bucket, *fresh}, key=lambda request: request.order)

    def begins(self, step: int) -> bool:
        """Return whether a step is the first decode step of a request that may free blocks in it."""
        return self._newest == step

    def _lengths(self, steps_in_flight: int) -> tuple[int, ...]:
        """Return the lengths, modulo the period, at which a group changes, given the steps in flight."""
        lengths = {steps_in_flight % self.period} if self._registers else set()
        for group in self._groups:
            size, rule = group.block_size, group.rule
            changes = {1}
            if isinstance(rule, SlidingWindow):
                changes.add(rule.window + steps_in_flight)
            elif isinstance(rule, ChunkedLocal):
                changes |= {1 + steps_in_flight} if rule.chunk % size == 0 else set(range(size))
            elif isinstance(rule, State):
                changes.add(2 + steps_in_flight)
            lengths.update(at for change in changes for at in range(change % size, self.period, size))
        self._changes[steps_in_flight] = found = tuple(sorted(lengths))
        return found
