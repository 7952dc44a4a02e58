"""Every kind of memory keeps the contract, and memory that breaks it is caught."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import get_args

import pytest

from pagesim.allocators import FirstFit, OutOfBlocks
from pagesim.kvcache import (
    RESERVATIONS,
    BlockManager,
    ChunkedLocal,
    ContiguousManager,
    Full,
    HybridManager,
    JengaManager,
    KVGroup,
    NumberedPrefixManager,
    PagedManager,
    PagedTables,
    Pool,
    PooledManager,
    PrefixManager,
    Rule,
    SequenceGroup,
    SlidingWindow,
    State,
    contiguous,
)
from pagesim.kvcache.radix import EvictionPolicy, RadixManager, WindowedRadixManager, WindowPool
from pagesim.testing import check_block_manager
from tests.kvcache.slow import SlowManager

Maker = Callable[[Pool], BlockManager]
Kind = type[PagedManager] | type[SlowManager]
Hybrid = type[HybridManager]


def paged(kind: Kind, **options: bool) -> Maker:
    return lambda pool: kind(pool.num_blocks, pool.groups, pool.cpu_blocks, **options)


def grouped(kind: Hybrid, *groups: tuple[int, Rule], steps_in_flight: int = 0, **options: object) -> Maker:
    """Return what makes memory of several groups, whose blocks are so many times the pool's."""

    def make(pool: Pool) -> BlockManager:
        sizes = [KVGroup(times * pool.block_size, rule) for times, rule in groups]
        memory = kind(pool.num_blocks, sizes, longest=10_000, in_flight=20, **options)
        memory.steps_in_flight = steps_in_flight
        return memory

    return make


def cached(kind: type[PrefixManager], **options: bool) -> Maker:
    return lambda pool: kind(pool.num_blocks, pool.block_size, **options)


def radix(policy: EvictionPolicy) -> Maker:
    return lambda pool: RadixManager(pool.num_blocks, pool.block_size, policy=policy)


def windowed(window: int) -> Maker:
    """Return what makes a radix tree over two pools, of as many pages each: free are those of the first."""
    return lambda pool: WindowedRadixManager(
        pool.num_blocks, pool.block_size, WindowPool(window, pool.num_blocks)
    )


def two_level(*groups: tuple[int, Rule], steps_in_flight: int = 0) -> Maker:
    """Return what makes Jenga's memory of several groups, of which every page is a large one."""

    def make(pool: Pool) -> BlockManager:
        page = 60_000 * pool.block_size  # a multiple of all of them
        sizes = [KVGroup(times * pool.block_size, rule, page_bytes=page) for times, rule in groups]
        memory = JengaManager(pool.num_blocks, sizes, longest=10_000, in_flight=20)
        memory.steps_in_flight = steps_in_flight
        return memory

    return make


def single_pool(pool: Pool) -> BlockManager:
    window = KVGroup(pool.block_size, SlidingWindow(9))
    return PooledManager([pool.num_blocks], [window], longest=10_000, in_flight=20)


MEMORIES: dict[str, tuple[Maker, str | None]] = {
    "prefix cache": (cached(PrefixManager), None),
    "prefix cache, one queue": (cached(PrefixManager, reuses_unhashed_first=False), None),
    "prefix cache with numbers": (cached(NumberedPrefixManager), None),
    "prefix cache with numbers, one queue": (
        cached(NumberedPrefixManager, reuses_unhashed_first=False),
        None,
    ),
    "the slow one": (paged(SlowManager), None),
    "pool of one type": (single_pool, None),
}
for _name, _tables in {"paged": False, "paged and numbered": True}.items():
    MEMORIES |= {
        f"{_name} on demand": (paged(PagedManager, tables=_tables), None),
        f"{_name} without sharing": (paged(PagedManager, shares=False, tables=_tables), None),
        f"{_name} oracle": (paged(PagedManager, tables=_tables), "oracle"),
    }
_MIXES: dict[str, tuple[tuple[int, Rule], ...]] = {
    "window": ((1, SlidingWindow(9)),),
    "full and window": ((1, Full()), (2, SlidingWindow(20))),
    "two windows": ((2, SlidingWindow(7)), (3, SlidingWindow(31))),
    "full and chunks": ((1, Full()), (2, ChunkedLocal(24)), (1, ChunkedLocal(5))),
    "full and state": ((1, Full()), (10_000, State())),
    "full and windows": ((1, Full()), (1, SlidingWindow(20)), (1, SlidingWindow(20)), (1, SlidingWindow(7))),
}
for _mix, _groups in _MIXES.items():
    MEMORIES |= {
        f"tabled {_mix}": (grouped(HybridManager, *_groups), None),
        f"tabled {_mix}, ahead": (grouped(HybridManager, *_groups, steps_in_flight=1), None),
        f"two-level {_mix}": (two_level(*_groups), None),
        f"two-level {_mix}, ahead": (two_level(*_groups, steps_in_flight=1), None),
        f"cached {_mix}": (grouped(HybridManager, *_groups, caches=True), None),
    }
for _eviction in get_args(EvictionPolicy):
    MEMORIES[f"radix tree, {_eviction}"] = (radix(_eviction), None)
for _window in (3, 40):
    MEMORIES[f"radix tree, window {_window}"] = (windowed(_window), None)
for _policy in RESERVATIONS:
    MEMORIES[f"first fit {_policy}"] = (contiguous(FirstFit), _policy)


@pytest.mark.slow_but(
    "prefix cache",
    "radix tree, lru",
    "radix tree, window 3",
    "paged on demand",
    "paged and numbered on demand",
    "two-level full and window, ahead",
    "tabled full and window, ahead",
    "cached full and chunks",
    "paged and numbered oracle",
    "first fit oracle",
)
@pytest.mark.parametrize(("make", "reservation"), MEMORIES.values(), ids=MEMORIES)
def test_every_memory_keeps_the_contract(make: Maker, reservation: str | None) -> None:
    check_block_manager(make, reservation)


# Memory that breaks one rule


class Numbered(PagedManager):
    """Paged memory with block tables."""

    def __init__(
        self, num_blocks: int, groups: Sequence[KVGroup], cpu_blocks: int = 0, *, shares: bool = True
    ) -> None:
        super().__init__(num_blocks, groups, cpu_blocks, shares=shares, tables=True)

    @property
    def numbers(self) -> PagedTables:
        assert self.tables is not None
        return self.tables


class LosesABlock(Numbered):
    def release(self, request: SequenceGroup) -> None:
        super().release(request)
        self.numbers.device.free.pop()


class LosesACount(PagedManager):
    def release(self, request: SequenceGroup) -> None:
        super().release(request)
        self.free_blocks -= 1


class HandsOutABlockTwice(Numbered):
    def admit(self, request: SequenceGroup, tokens: int) -> None:
        super().admit(request, tokens)
        self.numbers.device.free.insert(0, self.numbers.on_device[request][0][0])


class CountsBeforeItRaises(PagedManager):
    def admit(self, request: SequenceGroup, tokens: int) -> None:
        try:
            super().admit(request, tokens)
        except OutOfBlocks:
            self.free_blocks -= 1
            raise


class RefusesNoChunk(PagedManager):
    def extend(self, request: SequenceGroup, tokens: int) -> None:
        self.free_blocks -= self.blocks_to_extend(request, tokens)
        request.tokens += tokens


class GrowsBeforeItRaises(PagedManager):
    def allocate_step(self, steps: int = 1) -> int:
        try:
            return super().allocate_step(steps)
        except OutOfBlocks:
            self.steps += steps
            raise


class PromisesTooMuch(PagedManager):
    def can_admit(self, request: SequenceGroup, tokens: int, spare: int = 0, length: int = 0) -> bool:
        return super().can_admit(request, tokens, spare - 1, length)


class PromisesTooLittle(PagedManager):
    def can_admit(self, request: SequenceGroup, tokens: int, spare: int = 0, length: int = 0) -> bool:
        return super().can_admit(request, tokens, spare + 1, length)


class GivesUpTooEarly(PagedManager):
    def could_admit(self, request: SequenceGroup, tokens: int, spare: int = 0) -> bool:
        return self.can_admit(request, tokens, spare)


class ForgetsSamples(PagedManager):
    def blocks_to_admit(self, request: SequenceGroup, tokens: int) -> int:
        return self.blocks_for(tokens)


class WritesWhatItShares(Numbered):
    def start_decoding(self, request: SequenceGroup) -> None:
        request.tail_shared = False
        super().start_decoding(request)


class ForgetsCopies(PagedManager):
    def blocks_needed(self, steps: int = 1) -> int:
        return self._ring.total(self.steps, steps)


class CopiesNothing(Numbered):
    def allocate_step(self, steps: int = 1) -> int:
        super().allocate_step(steps)
        return 0


class GrowsABlockTooMany(Numbered):
    def allocate_step(self, steps: int = 1) -> int:
        copies = super().allocate_step(steps)
        for request in self.numbers.on_device if self.free_blocks else ():
            self._take(request, 1)
            break
        return copies


class GrowsFourStepsAtMost(PagedManager):
    def allocate_step(self, steps: int = 1) -> int:
        return super().allocate_step(min(steps, 4))


class LeapsTooFar(PagedManager):
    def steps_that_fit(self, steps: int, spare: int) -> int:
        return super().steps_that_fit(steps, spare - 1)


class LeapsOneStepAtATime(PagedManager):
    def steps_that_fit(self, steps: int, spare: int) -> int:
        return min(super().steps_that_fit(steps, spare), 1)


class ForgetsAStepAtRest(PagedManager):
    def stop_decoding(self, request: SequenceGroup) -> None:
        super().stop_decoding(request)
        request.tokens -= 1


class StaysInTheRing(PagedManager):
    def stop_decoding(self, request: SequenceGroup) -> None:
        request.tokens = self.length(request)
        request.decodes = False


class MovesSharedBlocksTwice(Numbered):
    def swap_out(self, request: SequenceGroup) -> int:
        super().swap_out(request)
        return sum(len(table) for table in self.numbers.swapped[request])


class DropsHalfOfASwap(PagedManager):
    def drop_swapped(self, request: SequenceGroup) -> None:
        self.free_cpu_blocks += self.held_blocks(request) // 2


class MixesSamplesUp(Numbered):
    def end_samples(self, request: SequenceGroup, samples: Sequence[int]) -> None:
        super().end_samples(request, [request.samples - 1 - place for place in reversed(samples)])


class ForksTheWrongWay(Numbered):
    def fork(self, request: SequenceGroup, dropped: int, survivor: int) -> int:
        return super().fork(request, survivor, dropped)


BROKEN: dict[type[PagedManager], str] = {
    LosesABlock: "owned twice or lost|free or held",
    LosesACount: "release gives everything back|a swap frees what was held",
    HandsOutABlockTwice: "owned twice or lost",
    CountsBeforeItRaises: "admission without room leaves everything as it was",
    RefusesNoChunk: "a chunk without room raises OutOfBlocks",
    GrowsBeforeItRaises: "decode steps without blocks leaves everything as it was",
    PromisesTooMuch: "what the contract allows was refused|can_admit says whether",
    PromisesTooLittle: "can_admit says whether admission succeeds",
    GivesUpTooEarly: "could_admit denies what empty memory can",
    ForgetsSamples: "free or held|a request of several|blocks_to_admit",
    WritesWhatItShares: "does not read its own tokens",
    ForgetsCopies: "blocks_needed is the sum",
    CopiesNothing: "copies_due says what a step copies",
    GrowsABlockTooMany: "blocks_needed says what decode steps take",
    GrowsFourStepsAtMost: "blocks_needed says what decode steps take|leaves what 5 times",
    LeapsTooFar: "more steps than fit|all steps fit",
    LeapsOneStepAtATime: "fewer steps than fit",
    ForgetsAStepAtRest: "stop_decoding leaves length|free or held|a swap frees what was held",
    StaysInTheRing: "no block is needed|sum over the decoding requests|blocks_needed",
    MovesSharedBlocksTwice: "a swap moves each distinct block once",
    DropsHalfOfASwap: "drop_swapped gives everything back",
    MixesSamplesUp: "does not read its own tokens",
    ForksTheWrongWay: "does not read its own tokens",
}


@pytest.mark.parametrize(("broken", "rule"), BROKEN.items(), ids=[broken.__name__ for broken in BROKEN])
def test_broken_memory_is_caught(broken: Kind, rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        check_block_manager(paged(broken, shares=broken is not ForgetsSamples), None)


class NeverTrims(HybridManager):
    def free_skipped_blocks(self, request: SequenceGroup) -> None:
        return


class ReleasesTooMuch(HybridManager):
    def _release_skipped(self, request: SequenceGroup, processed: int) -> None:
        super()._release_skipped(request, processed + 2 * self.block_size)


class ForgetsWhatItTrimmed(HybridManager):
    def free_skipped_blocks(self, request: SequenceGroup) -> None:
        free = self.free_blocks
        super().free_skipped_blocks(request)
        self.free_blocks = free


class StaysInTheRing(HybridManager):
    def _enter_ring(self, request: SequenceGroup, times: int) -> None:
        super()._enter_ring(request, max(times, 0))


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (NeverTrims, "free_skipped_blocks releases the blocks that no later token attends to"),
        (ReleasesTooMuch, "that a later token attends to"),
        (ForgetsWhatItTrimmed, "free or held"),
        (StaysInTheRing, "blocks_needed is the sum over the decoding requests"),
    ],
)
def test_a_broken_window_is_caught(broken: Hybrid, rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        check_block_manager(grouped(broken, (1, SlidingWindow(9))), None)


class OutgrowsItsReservation(ContiguousManager):
    def held_and_reserved(self, request: SequenceGroup) -> tuple[int, int]:
        blocks, reserved = super().held_and_reserved(request)
        return blocks, reserved + self.block_size * 16


def test_a_reservation_that_is_not_there_is_caught() -> None:
    def make(pool: Pool) -> BlockManager:
        assert pool.reservation is not None
        return OutgrowsItsReservation(FirstFit(pool.num_blocks), pool.block_size, pool.reservation)

    with pytest.raises(AssertionError, match=r"a reservation was outgrown|tokens is full"):
        check_block_manager(make)
