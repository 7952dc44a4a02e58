"""Every allocator keeps the contract, and an allocator that breaks it is caught."""

from collections.abc import Callable, Iterable
from functools import partial

import pytest

from pagesim.kvcache import (
    RESERVATIONS,
    Allocator,
    BestFit,
    Buddy,
    ContiguousAllocator,
    Copy,
    Extent,
    FirstFit,
    Fit,
    OutOfBlocks,
    PagedAllocator,
    Placement,
    Pool,
    PrefixCachingAllocator,
    contiguous,
)
from pagesim.kvcache.conformance import CHECKS, SHAPES, Make, check_allocator, pools

Maker = Callable[[Pool], Allocator]


def buddy(num_blocks: int) -> Buddy:
    return Buddy(num_blocks, largest=16)


def on_demand(kind: Callable[..., PagedAllocator], **options: bool) -> Maker:
    return lambda pool: kind(pool.num_blocks, pool.block_size, **options)


def paged(pool: Pool) -> Allocator:
    return PagedAllocator(pool.num_blocks, pool.block_size, reservation=pool.reservation)


ALLOCATORS: dict[str, tuple[Maker, str | None]] = {
    "paged on demand": (paged, None),
    "paged without sharing": (on_demand(PagedAllocator, shares=False), None),
    "prefix caching": (on_demand(PrefixCachingAllocator), None),
    "prefix caching, one queue": (on_demand(PrefixCachingAllocator, reuses_unfilled_first=False), None),
}
for _policy in RESERVATIONS:
    ALLOCATORS[f"paged {_policy}"] = (paged, _policy)
    ALLOCATORS[f"first fit {_policy}"] = (contiguous(FirstFit), _policy)
    ALLOCATORS[f"best fit {_policy}"] = (contiguous(BestFit), _policy)
    ALLOCATORS[f"buddy {_policy}"] = (contiguous(buddy), _policy)


@pytest.mark.parametrize("shape", range(len(SHAPES)), ids=[f"{blocks}x{size}" for blocks, size in SHAPES])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(("make", "reservation"), ALLOCATORS.values(), ids=ALLOCATORS.keys())
def test_every_allocator_keeps_the_contract(
    make: Maker, reservation: str | None, check: Callable[[Make], None], shape: int
) -> None:
    check(partial(make, pools(reservation)[shape]))


class WorstFit(Placement):
    """Takes the low end of the longest free run: a third party's placement, from a set of free blocks."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._free = set(range(num_blocks))

    def fits(self, blocks: int, runs: int = 1) -> bool:
        return sum(length // blocks for _, length in self.free_extents()) >= runs

    def take(self, blocks: int) -> int:
        first, length = max(self.free_extents(), key=lambda run: run[1], default=(0, 0))
        if length < blocks:
            raise self._no_room(blocks)
        self._free -= set(range(first, first + blocks))
        return first

    def give_back(self, first: int, blocks: int) -> None:
        self._free |= set(range(first, first + blocks))

    def free_extents(self) -> list[Extent]:
        starts = [block for block in sorted(self._free) if block - 1 not in self._free]
        ends = [block for block in sorted(self._free) if block + 1 not in self._free]
        return [(first, last + 1 - first) for first, last in zip(starts, ends, strict=True)]


def test_a_new_placement_is_thirty_lines_and_one_call() -> None:
    check_allocator(contiguous(WorstFit))


# Allocators that break one rule each


class LosesABlock(PagedAllocator):
    def free(self, sequence: int) -> None:
        super().free(sequence)
        self._free.pop()


class HandsOutABlockTwice(PagedAllocator):
    def allocate(self, sequence: int, tokens: int, output_tokens: int = 0) -> None:
        super().allocate(sequence, tokens, output_tokens)
        self._free[0:0] = self._tables[sequence][:1]


class ForgivesADoubleFree(PagedAllocator):
    def free(self, sequence: int) -> None:
        if sequence in self._tables:
            super().free(sequence)


class SaysKeyError(PagedAllocator):
    def length(self, sequence: int) -> int:
        return self._lengths[sequence] if sequence not in self._bases else super().length(sequence)


class TakesASecondAllocation(PagedAllocator):
    def _check_new(self, sequence: int, tokens: int) -> None:
        if sequence in self._tables:
            self.free(sequence)
        super()._check_new(sequence, tokens)


class CountsBeforeItRaises(PagedAllocator):
    def append(self, sequence: int) -> Copy | None:
        try:
            return super().append(sequence)
        except OutOfBlocks:
            self._lengths[sequence] += 1
            raise


class PromisesTooMuch(PagedAllocator):
    def probe(self, tokens: int, output_tokens: int, sequences: int = 1, spare: int = 0) -> Fit:
        return super().probe(max(1, tokens - 1), output_tokens, sequences, spare)


class PromisesTooLittle(PagedAllocator):
    def probe(self, tokens: int, output_tokens: int, sequences: int = 1, spare: int = 0) -> Fit:
        return super().probe(tokens, output_tokens, sequences, spare + 1)


class GivesUpTooEarly(PagedAllocator):
    def probe(self, tokens: int, output_tokens: int, sequences: int = 1, spare: int = 0) -> Fit:
        fit = super().probe(tokens, output_tokens, sequences, spare)
        return Fit.NOW if fit is Fit.NOW else Fit.NEVER


class SaysThatItCannotShare(PagedAllocator):
    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.shares = False

    def fork(self, parent: int, child: int) -> None:
        self.shares = True
        super().fork(parent, child)
        self.shares = False


class CountsOneSampleOnly(PagedAllocator):
    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size, shares=False)

    def probe(self, tokens: int, output_tokens: int, sequences: int = 1, spare: int = 0) -> Fit:
        return super().probe(tokens, output_tokens, 1, spare)


class WritesWhatItShares(PagedAllocator):
    def _own(self, table: list[int], index: int) -> Copy | None:
        return None


class ForgetsCopiesInItsDemand(PagedAllocator):
    def copies_due(self, sequences: Iterable[int]) -> int:
        return 0


class GrowsABlockTooMany(PagedAllocator):
    def grow(self, steps: int = 1) -> list[Copy]:
        copies = super().grow(steps)
        for sequence in self._bases if self._free else ():
            self._tables[sequence].append(self._free.pop())
            break
        return copies


class LeapsTooFar(PagedAllocator):
    def growable(self, steps: int, spare: int) -> int:
        return super().growable(steps, spare - 1)


class LeapsOneStepAtATime(PagedAllocator):
    def growable(self, steps: int, spare: int) -> int:
        return min(super().growable(steps, spare), 1)


class ForgetsAStepAtRest(PagedAllocator):
    def stop_growing(self, sequence: int) -> None:
        super().stop_growing(sequence)
        self._lengths[sequence] -= 1


class NeverMerges(Buddy):
    def give_back(self, first: int, blocks: int) -> None:
        self._free[self.rounded(blocks)].append(first)


class SplitsWithoutKeepingTheRest(Buddy):
    def take(self, blocks: int) -> int:
        first = super().take(blocks)
        self._free[self.rounded(blocks)] = self._free[self.rounded(blocks)][:-1]
        return first


class JoinsOnlyUpwards(FirstFit):
    def give_back(self, first: int, blocks: int) -> None:
        self._free = sorted([*self._free, (first, blocks)])


class CountsAForkThatFails(ContiguousAllocator):
    def fork(self, parent: int, child: int) -> None:
        self._free_blocks -= 1
        super().fork(parent, child)
        self._free_blocks += 1


class OutgrowsItsReservation(ContiguousAllocator):
    def append(self, sequence: int) -> Copy | None:
        self._lengths[sequence] = self._pop_resting(sequence) + 1
        return None


BROKEN: dict[type, str] = {
    LosesABlock: "free or held|owned twice or lost|free returns every block",
    HandsOutABlockTwice: "free returns every block|owned twice or lost",
    ForgivesADoubleFree: "free of a sequence that is not here raises AllocatorError",
    SaysKeyError: "length of a sequence that is not here raises AllocatorError, not KeyError",
    TakesASecondAllocation: "a second allocation of a sequence raises AllocatorError",
    CountsBeforeItRaises: "leaves everything as it was",
    PromisesTooMuch: "what the contract allows was refused: 65 blocks are needed, 64 are free",
    PromisesTooLittle: "probe says NOW exactly when allocation succeeds",
    GivesUpTooEarly: "NEVER is final",
    SaysThatItCannotShare: "memory that cannot share takes as many blocks as the parent holds",
    CountsOneSampleOnly: "probe says NOW exactly when allocation succeeds",
    WritesWhatItShares: "growing sequences took|demand is what growing takes|does not read its own tokens",
    ForgetsCopiesInItsDemand: "a block for each block_size tokens|demand is what growing takes",
    GrowsABlockTooMany: "growing sequences took|demand is what growing takes|table is off|was refused",
    LeapsTooFar: "growable is the most steps that fit",
    LeapsOneStepAtATime: "growable is the most steps that fit",
    ForgetsAStepAtRest: "start_growing together change nothing|a block for each block_size tokens",
}


@pytest.mark.parametrize(("broken", "rule"), BROKEN.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_allocator_is_caught(broken: type[PagedAllocator], rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        check_allocator(on_demand(broken))


@pytest.mark.parametrize("broken", [NeverMerges, SplitsWithoutKeepingTheRest])
def test_a_broken_buddy_is_caught(broken: type[Buddy]) -> None:
    with pytest.raises(AssertionError):
        check_allocator(contiguous(partial(broken, largest=16)))


def test_a_placement_that_does_not_join_its_free_runs_is_caught() -> None:
    with pytest.raises(AssertionError, match="free returns every block"):
        check_allocator(contiguous(JoinsOnlyUpwards))


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (CountsAForkThatFails, "a fork without room leaves everything"),
        (OutgrowsItsReservation, "append past a reservation raises OutOfBlocks"),
    ],
)
def test_a_broken_contiguous_allocator_is_caught(broken: type[ContiguousAllocator], rule: str) -> None:
    def make(pool: Pool) -> Allocator:
        assert pool.reservation is not None
        return broken(FirstFit(pool.num_blocks), pool.block_size, pool.reservation)

    with pytest.raises(AssertionError, match=rule):
        check_allocator(make)
