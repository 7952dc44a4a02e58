"""check_integrity sees what it should: each corruption of a memory's bookkeeping fails it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pagesim.allocators import Allocator, BestFit, Buddy, FirstFit
from pagesim.kvcache import (
    ContiguousManager,
    KVGroup,
    NumberedPrefixManager,
    PagedManager,
    PagedTables,
    SequenceGroup,
)
from pagesim.kvcache.reservation import reserve_oracle
from tests.kvcache.text import Reader


def noticed(
    memory: PagedManager | ContiguousManager | NumberedPrefixManager, corrupt: Callable[..., None]
) -> None:
    """Check that integrity is lost with a corruption."""
    (request,) = memory._requests if isinstance(memory, ContiguousManager) else memory.requests
    memory.check_integrity()
    corrupt(memory, request)
    with pytest.raises(AssertionError):
        memory.check_integrity()


def of(memory: PagedManager) -> PagedTables:
    assert memory.tables is not None
    return memory.tables


def lose_a_block(memory: PagedManager, request: SequenceGroup) -> None:
    of(memory).device.free.pop()


def free_a_held_block(memory: PagedManager, request: SequenceGroup) -> None:
    of(memory).device.free.append(memory.block_table(request)[0])


def forget_a_reference(memory: PagedManager, request: SequenceGroup) -> None:
    of(memory).device.references[of(memory).on_device[request][0][0]] -= 1


def name_a_block_of_no_other_sample(memory: PagedManager, request: SequenceGroup) -> None:
    of(memory).on_device[request][1][0] = 0


def name_a_block_twice(memory: PagedManager, request: SequenceGroup) -> None:
    table = of(memory).on_device[request][0]
    table[1] = table[0]


def outgrow_the_table(memory: PagedManager, request: SequenceGroup) -> None:
    request.tokens += 3


def lose_a_cpu_block(memory: PagedManager, request: SequenceGroup) -> None:
    of(memory).host.free.pop()


def stay_behind_a_swap(memory: PagedManager, request: SequenceGroup) -> None:
    here = of(memory).on_device[request]
    memory.swap_out(request)
    of(memory).on_device[request] = here


def miscount_what_is_shared(memory: PagedManager, request: SequenceGroup) -> None:
    memory.shared_blocks -= 1


def decode_after_release(memory: PagedManager, request: SequenceGroup) -> None:
    memory.start_decoding(request)
    request.decodes = False
    memory.release(request)


@pytest.mark.parametrize(
    "corrupt",
    [
        lose_a_block,
        free_a_held_block,
        forget_a_reference,
        name_a_block_of_no_other_sample,
        name_a_block_twice,
        outgrow_the_table,
        lose_a_cpu_block,
        stay_behind_a_swap,
        miscount_what_is_shared,
        decode_after_release,
    ],
)
def test_paged_memory_notices(corrupt: Callable[[PagedManager, SequenceGroup], None]) -> None:
    memory = PagedManager(8, [KVGroup(4)], 2, tables=True)
    memory.admit(SequenceGroup(6, samples=2), 6)  # two samples that share two blocks
    noticed(memory, corrupt)


def give_back_what_is_held(memory: ContiguousManager, request: SequenceGroup) -> None:
    memory.allocator.free(request.block_state.of[0])


def take_what_no_holder_has(memory: ContiguousManager, request: SequenceGroup) -> None:
    memory.allocator.allocate(1)


def miscount(memory: ContiguousManager, request: SequenceGroup) -> None:
    memory.free_blocks += 1


def outgrow_the_reservation(memory: ContiguousManager, request: SequenceGroup) -> None:
    request.tokens = 13


def forget_a_holder(memory: ContiguousManager, request: SequenceGroup) -> None:
    memory._requests.clear()


@pytest.mark.parametrize(
    "pool", [FirstFit, BestFit, lambda blocks: Buddy(blocks, 8)], ids=["first", "best", "buddy"]
)
@pytest.mark.parametrize(
    "corrupt",
    [give_back_what_is_held, take_what_no_holder_has, miscount, outgrow_the_reservation, forget_a_holder],
)
def test_contiguous_memory_notices(
    corrupt: Callable[[ContiguousManager, SequenceGroup], None], pool: Callable[[int], Allocator]
) -> None:
    memory = ContiguousManager(pool(8), 4, reserve_oracle(100))
    memory.admit(SequenceGroup(6, output=5), 6)
    noticed(memory, corrupt)


def lose_a_run(memory: NumberedPrefixManager, request: Reader) -> None:
    memory.release(request)
    memory._queue.remove(memory._queue.end.behind)


def miscount_the_cached(memory: NumberedPrefixManager, request: Reader) -> None:
    memory.cached_blocks += 1


def forget_what_can_be_found(memory: NumberedPrefixManager, request: Reader) -> None:
    memory._index.found.clear()


def queue_what_is_held(memory: NumberedPrefixManager, request: Reader) -> None:
    request.block_state.runs[0].holders.append(request)
    memory._queue.append(request.block_state.runs[0])


def hash_under_a_key_not_its_own(memory: NumberedPrefixManager, request: Reader) -> None:
    request.block_state.runs[0].start += 1


@pytest.mark.parametrize(
    "corrupt",
    [
        lose_a_run,
        miscount_the_cached,
        forget_what_can_be_found,
        queue_what_is_held,
        hash_under_a_key_not_its_own,
    ],
)
def test_a_prefix_cache_notices(corrupt: Callable[[NumberedPrefixManager, Reader], None]) -> None:
    memory = NumberedPrefixManager(8, 4)
    memory.admit(Reader(range(9), 4), 9)
    noticed(memory, corrupt)


@pytest.mark.parametrize("runs", [[(0, 2), (1, 2)], [(0, 2), (2, 2)], [(3, 1), (0, 1)], [(6, 3)], [(2, 0)]])
def test_an_allocator_notices_free_runs_that_overlap_touch_or_leave_the_pool(
    runs: list[tuple[int, int]],
) -> None:
    pool = FirstFit(8)
    pool.check_integrity()
    pool._free = runs
    with pytest.raises(AssertionError):
        pool.check_integrity()
