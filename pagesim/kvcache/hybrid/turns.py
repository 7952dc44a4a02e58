"""Turns: at which steps decoding sequences take or give back blocks, so that no other step looks at them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import lcm

from pagesim.kvcache.groups import NEVER, ChunkedLocal, KVGroup, SlidingWindow, State
from pagesim.kvcache.ring import Buckets
from pagesim.kvcache.sequence_group import SequenceGroup
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Turns:
    """The decoding requests of a memory, by the steps, modulo a period, at which one of their groups changes.

    Args:
        groups: of the memory.
        registers: whether a request also has its turn where all blocks whose tokens are known end together.

    Attributes:
        alignment: the least common multiple of all groups' block sizes, in tokens.
        period: the least common multiple of the sizes of those that take blocks as a sequence grows.
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
        # By step: requests of whose prompt some was in flight just before: they give back more at once.
        self._fresh: dict[int, list[SequenceGroup]] = {}
        self._newest = -1  # the first step of those that entered last and may give something back in it
        # Tokens below which nothing is given back.
        gives_back = [
            0 if isinstance(g.rule, State) else g.rule.processed_at(g.block_size) for g in self._groups
        ]
        self._safe = min(gives_back, default=NEVER)

    def enter(self, request: SequenceGroup, steps: int, steps_in_flight: int) -> None:
        """Let a request take its turns, which begins to decode.

        Args:
            request: resting until now.
            steps: decode steps that were taken before.
            steps_in_flight: steps that are in flight when another one is planned.
        """
        lengths = self._changes.get(steps_in_flight) or self._lengths(steps_in_flight)
        turns = tuple([(length - request.length_offset) % self.period for length in lengths])
        self._buckets.enter(request, turns)
        if request.tokens >= self._safe:
            self._newest = steps + 1
        for step in (steps + 1, steps + 2):
            self._fresh.setdefault(step, []).append(request)

    def leave(self, request: SequenceGroup) -> None:
        """Let a request take no further turns."""
        self._buckets.leave(request)
        for requests in self._fresh.values():
            if request in requests:
                requests.remove(request)

    def due(self, step: int) -> Collection[SequenceGroup]:
        """Return the requests of which a group changes at a step, in order; a step is asked for once."""
        bucket = self._buckets.at(step)
        fresh = self._fresh.pop(step, None)
        if not fresh:
            return bucket
        return sorted({*bucket, *fresh}, key=lambda request: request.order)

    def begins(self, step: int) -> bool:
        """Say whether some request that may give blocks back decodes for the first time at a step."""
        return self._newest == step

    def _lengths(self, steps_in_flight: int) -> tuple[int, ...]:
        """Return at which lengths, modulo the period, a group changes with so many tokens in flight."""
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
