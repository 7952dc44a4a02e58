"""check_integrity sees what it should: each corruption of an allocator's bookkeeping fails it."""

from collections.abc import Callable

import pytest

from pagesim.kvcache import BestFit, Buddy, ContiguousAllocator, FirstFit, PagedAllocator, Placement
from pagesim.kvcache.reservation import reserve_oracle


def paged() -> PagedAllocator:
    """Return a memory of two samples that share two blocks."""
    memory = PagedAllocator(8, 4, cpu_blocks=2)
    memory.allocate(0, 6)
    memory.fork(0, 1)
    return memory


def contiguous(pool: Placement) -> ContiguousAllocator:
    """Return a memory of one sequence of 6 tokens in 3 blocks."""
    memory = ContiguousAllocator(pool, 4, reserve_oracle(100))
    memory.allocate(0, 6, 5)
    return memory


def lose_a_block(memory: PagedAllocator) -> None:
    memory._free.pop()


def free_a_held_block(memory: PagedAllocator) -> None:
    memory._free.append(memory.block_table(0)[0])


def forget_a_reference(memory: PagedAllocator) -> None:
    memory._references.clear()


def name_a_block_twice(memory: PagedAllocator) -> None:
    memory._tables[0][1] = memory._tables[0][0]


def outgrow_the_table(memory: PagedAllocator) -> None:
    memory._lengths[0] += 3


def lose_a_cpu_block(memory: PagedAllocator) -> None:
    memory._free_cpu.pop()


def stay_behind_a_swap(memory: PagedAllocator) -> None:
    table = list(memory._tables[0])
    memory.swap_out([0, 1])
    memory._tables[0], memory._lengths[0] = table, 6
    memory._free = [block for block in memory._free if block not in table]


def forget_who_grows(memory: PagedAllocator) -> None:
    memory.start_growing(0)
    memory.due = [0] * len(memory.due)


@pytest.mark.parametrize(
    "corrupt",
    [
        lose_a_block,
        free_a_held_block,
        forget_a_reference,
        name_a_block_twice,
        outgrow_the_table,
        lose_a_cpu_block,
        stay_behind_a_swap,
        forget_who_grows,
    ],
)
def test_paged_memory_notices(corrupt: Callable[[PagedAllocator], None]) -> None:
    memory = paged()
    memory.check_integrity()
    corrupt(memory)
    with pytest.raises(AssertionError):
        memory.check_integrity()


def give_back_what_is_held(memory: ContiguousAllocator) -> None:
    memory.placement.give_back(*memory._held[0][:2])


def take_what_nobody_holds(memory: ContiguousAllocator) -> None:
    memory.placement.take(1)


def miscount(memory: ContiguousAllocator) -> None:
    memory._free_blocks += 1


def outgrow_the_reservation(memory: ContiguousAllocator) -> None:
    memory._lengths[0] = 13


def forget_a_sequence(memory: ContiguousAllocator) -> None:
    del memory._lengths[0]


@pytest.mark.parametrize(
    "pool", [FirstFit, BestFit, lambda blocks: Buddy(blocks, 8)], ids=["first", "best", "buddy"]
)
@pytest.mark.parametrize(
    "corrupt",
    [
        give_back_what_is_held,
        take_what_nobody_holds,
        miscount,
        outgrow_the_reservation,
        forget_a_sequence,
    ],
)
def test_contiguous_memory_notices(
    corrupt: Callable[[ContiguousAllocator], None], pool: Callable[[int], Placement]
) -> None:
    memory = contiguous(pool(8))
    memory.check_integrity()
    corrupt(memory)
    with pytest.raises(AssertionError):
        memory.check_integrity()


@pytest.mark.parametrize("runs", [[(0, 2), (1, 2)], [(0, 2), (2, 2)], [(3, 1), (0, 1)], [(6, 3)], [(2, 0)]])
def test_a_placement_notices_free_runs_that_overlap_touch_or_leave_the_pool(
    runs: list[tuple[int, int]],
) -> None:
    pool = FirstFit(8)
    pool.check_integrity()
    pool._free = runs
    with pytest.raises(AssertionError):
        pool.check_integrity()
