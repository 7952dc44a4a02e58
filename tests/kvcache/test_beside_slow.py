"""Memory that counts by rings says and does what the slow one does, block by block, over random lives."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagesim.allocators import OutOfBlocks
from pagesim.kvcache import (
    RESERVATIONS,
    BlockManager,
    BlockManagerError,
    KVGroup,
    PagedManager,
    Reserved,
    SequenceGroup,
)
from tests.kvcache.slow import SlowManager

Change = tuple[str, int, int]
"""What is done, to which request, and how much of it."""


class Lives:
    """The same requests, changed in the same way, in several kinds of memory: the first is the slow one."""

    def __init__(self, memories: list[BlockManager]) -> None:
        self.memories = memories
        self.alive: list[list[SequenceGroup]] = []  # the twins of each request
        self.away: list[list[SequenceGroup]] = []
        self.admitted = 0

    def change(self, what: str, which: int, much: int) -> None:
        getattr(self, what)(which, much)
        self.compare(much)

    def all(self, call: Callable[[BlockManager, SequenceGroup], Any], twins: list[SequenceGroup]) -> Any:
        """Do the same in each memory; return the answer, which is the same, or the error, which is, too."""
        pairs = zip(self.memories, twins, strict=True)
        return alike([(lambda m=memory, h=request: call(m, h)) for memory, request in pairs])

    def ask(self, question: Callable[[BlockManager], Any]) -> Any:
        """Ask each memory the same; return the answer or the error."""
        return alike([(lambda m=memory: question(m)) for memory in self.memories])

    def pick(self, which: int, *, decodes: bool | None = None) -> list[SequenceGroup] | None:
        fitting = [t for t in self.alive if decodes is None or t[0].decodes == decodes]
        return fitting[which % len(fitting)] if fitting else None

    def admit(self, which: int, much: int) -> None:
        tokens, output = much + 1, which * 3
        samples = 1 + which % 4
        self.admitted += 1
        twins = []
        for _ in self.memories:
            request = SequenceGroup(tokens, output, samples)
            request.order = self.admitted
            twins.append(request)
        spare = much % 3
        self.all(lambda m, h: m.blocks_to_admit(h, tokens), twins)
        self.all(lambda m, h: (m.can_admit(h, tokens, spare), m.could_admit(h, tokens, spare)), twins)
        if self.all(lambda m, h: m.admit(h, tokens), twins) is None:
            self.alive.append(twins)
            if which % 3:
                self.all(lambda m, h: m.start_decoding(h), twins)

    def start(self, which: int, much: int) -> None:
        if twins := self.pick(which, decodes=False):
            self.all(lambda m, h: m.start_decoding(h), twins)

    def stop(self, which: int, much: int) -> None:
        if twins := self.pick(which, decodes=True):
            self.all(lambda m, h: m.stop_decoding(h), twins)

    def extend(self, which: int, much: int) -> None:
        twins = self.pick(which, decodes=False)
        if twins and twins[0].samples == 1 and self.memories[0].grows:
            assert self.all(lambda m, h: m.blocks_to_extend(h, much), twins) is not BlockManagerError
            self.all(lambda m, h: m.extend(h, much), twins)

    def append(self, which: int, much: int) -> None:
        twins = self.pick(which, decodes=False)
        if twins and self.room(twins):
            self.all(lambda m, h: m.append(h), twins)

    def allocate_step(self, which: int, much: int) -> None:
        steps = much % 9
        for twins in self.alive:
            if twins[0].decodes:
                room = self.room(twins)
                if room:
                    steps = min(steps, room)
                else:
                    self.all(lambda m, h: m.stop_decoding(h), twins)
        self.ask(lambda m: m.allocate_step(steps))

    def end(self, which: int, much: int) -> None:
        twins = self.pick(which)
        if twins and twins[0].samples > 1:
            over = [place for place in range(twins[0].samples) if much >> place & 1][: twins[0].samples - 1]
            if over:
                self.all(lambda m, h: m.end_samples(h, over), twins)

    def release(self, which: int, much: int) -> None:
        if twins := self.pick(which):
            self.all(lambda m, h: m.release(h), twins)
            self.alive.remove(twins)

    def swap_out(self, which: int, much: int) -> None:
        twins = self.pick(which)
        if twins and self.all(lambda m, h: m.swap_out(h), twins) is not OutOfBlocks:
            self.alive.remove(twins)
            self.away.append(twins)

    def swap_in(self, which: int, much: int) -> None:
        if not self.away:
            return
        twins = self.away[which % len(self.away)]
        if much % 5 == 0:
            self.all(lambda m, h: m.drop_swapped(h), twins)
            self.away.remove(twins)
        elif self.all(lambda m, h: m.swap_in(h), twins) is not OutOfBlocks:
            self.away.remove(twins)
            self.alive.append(twins)

    def fork(self, which: int, much: int) -> None:
        twins = self.pick(which, decodes=True)
        can = all(not m.shares or m.names_blocks for m in self.memories[1:])
        if twins and twins[0].samples > 1 and can:
            dropped = much % twins[0].samples
            survivor = (dropped + 1 + which % (twins[0].samples - 1)) % twins[0].samples
            self.all(lambda m, h: m.fork(h, dropped, survivor), twins)

    def room(self, twins: list[SequenceGroup]) -> int:
        """Return the tokens that a request may gain without outgrowing a reservation."""
        fast = self.memories[1]
        if fast.grows:
            return 1000
        _, reserved = fast.held_and_reserved(twins[1])  # type: ignore[misc]
        return max(0, reserved - fast.length(twins[1]))

    def compare(self, much: int) -> None:
        slow, *others = self.memories
        for memory in self.memories:
            if isinstance(memory, PagedManager) and memory.names_blocks:
                memory.check_integrity()
        self.ask(lambda m: (m.free_blocks, m.free_cpu_blocks, m.shared_blocks))
        self.ask(lambda m: [m.blocks_needed(steps) for steps in (0, 1, 2, much)])
        for twins in self.alive:
            self.all(lambda m, h: (m.length(h), m.held_blocks(h), h.samples, h.decodes), twins)
            if twins[0].samples == 1 and slow.grows:
                self.all(lambda m, h: m.held_by_group(h), twins)
            if twins[0].decodes:
                self.all(lambda m, h: (m.blocks_to_extend(h, 1), m.copies_due(h)), twins)
        for twins in self.away:
            self.all(lambda m, h: (m.length(h), m.held_blocks(h)), twins)
        for spare in (0, much % 7):
            fit = slow.steps_that_fit(7, spare)
            for memory in others:
                told = memory.steps_that_fit(7, spare)
                assert told == (fit if slow.grows else 7)


def alike(calls: list[Callable[[], Any]]) -> Any:
    """Make calls that answer or fail alike; return the answer, or the type of the error."""
    answers = []
    for call in calls:
        try:
            answers.append(call())
        except (BlockManagerError, OutOfBlocks) as error:
            answers.append(type(error))
    assert all(answer == answers[0] for answer in answers), answers
    return answers[0]


SIZES = st.sampled_from([1, 2, 3, 4, 6, 16, 32])
FULL = st.builds(KVGroup, SIZES)
RULES = st.builds(
    lambda policy, longest: Reserved(RESERVATIONS[policy](longest)),
    st.sampled_from(sorted(RESERVATIONS)),
    st.integers(20, 60),
)
CHANGE = st.tuples(
    st.sampled_from(
        [
            *(
                "admit",
                "admit",
                "admit",
                "allocate_step",
                "allocate_step",
                "allocate_step",
                "start",
                "stop",
                "extend",
                "append",
            ),
            *("end", "release", "swap_out", "swap_in", "fork"),
        ]
    ),
    st.integers(0, 15),
    st.integers(0, 40),
)
# Many short lists: one long one is seldom long.
CHANGES = st.builds(lambda *parts: [*chain(*parts)], *[st.lists(CHANGE)] * 10)
BLOCKS, CPU_BLOCKS = st.sampled_from([3, 8, 20, 47]), st.sampled_from([0, 2, 30])

SINGLE = {
    "full": st.lists(FULL, min_size=1, max_size=1),
    "reserved": st.builds(lambda size, rule: [KVGroup(size, rule)], SIZES, RULES),
}
Groups = st.SearchStrategy[list[KVGroup]]
Make = Callable[[list[KVGroup], int, int, bool], list[BlockManager]]
"""Makes memories that must agree, of groups, blocks, CPU blocks, and what else may differ."""


def paged(*tables: bool) -> Make:
    """Return what makes slow memory, and paged memory with tables or without."""
    return lambda groups, blocks, cpu, shares: [
        SlowManager(blocks, groups, cpu, shares=shares),
        *[PagedManager(blocks, groups, cpu, shares=shares, tables=each) for each in tables],
    ]


CASES = pytest.mark.parametrize(
    ("make", "groups"),
    [
        *((paged(False, True), groups) for groups in SINGLE.values()),
        (paged(True), SINGLE["full"]),
    ],
    ids=[*SINGLE, "beams"],
)


@CASES
@settings(suppress_health_check=list(HealthCheck))
@given(data=st.data(), blocks=BLOCKS, cpu=CPU_BLOCKS, other=st.booleans(), changes=CHANGES)
def test_fast_memory_is_as_the_slow_one(
    make: Make, groups: Groups, data: st.DataObject, blocks: int, cpu: int, other: bool, changes: list[Change]
) -> None:
    lives = Lives(make(data.draw(groups), blocks, cpu, other))
    for change in changes:
        lives.change(*change)
