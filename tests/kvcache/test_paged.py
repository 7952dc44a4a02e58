"""Paged memory as in the paper: the free list, sharing, copy-on-write, swaps; exact blocks and copies."""

from __future__ import annotations

import pytest

from pagesim.kvcache import (
    RESERVATIONS,
    BlockManager,
    BlockManagerError,
    ChunkedLocal,
    Full,
    KVGroup,
    PagedManager,
    PagedTables,
    Reserved,
    SequenceGroup,
    SlidingWindow,
)


def memory(num_blocks: int = 8, cpu_blocks: int = 0, *, shares: bool = True) -> PagedManager:
    kv = PagedManager(num_blocks, [KVGroup(4)], cpu_blocks, shares=shares, tables=True)
    of(kv).notes_moves = True
    return kv


def of(kv: PagedManager) -> PagedTables:
    assert kv.tables is not None
    return kv.tables


def admit(
    kv: BlockManager, tokens: int, samples: int = 1, *, decodes: bool = False, order: int = 0
) -> SequenceGroup:
    request = SequenceGroup(tokens, samples=samples)
    request.order = order
    kv.admit(request, tokens)
    if decodes:
        kv.start_decoding(request)
    return request


def tables(kv: PagedManager, request: SequenceGroup) -> list[list[int]]:
    return [kv.block_table(request, sample) for sample in range(request.samples)]


def test_the_first_block_of_an_empty_pool_of_8_is_7() -> None:
    kv = memory()
    assert tables(kv, admit(kv, 1)) == [[7]]
    assert tables(kv, admit(kv, 9)) == [[6, 5, 4]]


def test_the_free_list_is_a_stack() -> None:
    kv = memory()
    kv.release(admit(kv, 12))
    assert tables(kv, admit(kv, 12)) == [[5, 6, 7]]


def test_a_block_is_taken_with_the_first_token_that_needs_it() -> None:
    kv = memory()
    request = admit(kv, 3)
    kv.append(request)
    assert tables(kv, request) == [[7]]
    kv.append(request)
    assert tables(kv, request) == [[7, 6]]


def test_samples_share_the_prompt() -> None:
    kv = memory()
    request = admit(kv, 6, samples=4)
    assert tables(kv, request) == [[7, 6]] * 4
    assert (kv.free_blocks, kv.held_blocks(request), kv.shared_blocks) == (6, 2, 6)


def test_4_samples_of_a_partly_filled_block_make_3_copies_and_the_last_keeps_it() -> None:
    kv = memory()
    request = admit(kv, 6, samples=4, decodes=True)
    assert (kv.blocks_needed(1), kv.copies_due(request)) == (3, 3)
    assert kv.allocate_step(1) == 3
    assert of(kv).copies == [(6, 5), (6, 4), (6, 3)]
    assert tables(kv, request) == [[7, 5], [7, 4], [7, 3], [7, 6]]


def test_4_samples_of_a_full_block_take_4_blocks_and_copy_nothing() -> None:
    kv = memory()
    request = admit(kv, 8, samples=4, decodes=True)
    assert kv.blocks_needed(1) == 4
    assert kv.allocate_step(1) == 0
    assert tables(kv, request) == [[7, 6, 5], [7, 6, 4], [7, 6, 3], [7, 6, 2]]


def test_a_resting_holder_makes_the_same_copies() -> None:
    kv = memory()
    request = admit(kv, 6, samples=4)
    assert kv.append(request) == 3
    assert of(kv).copies == [(6, 5), (6, 4), (6, 3)]


def test_a_sample_that_is_over_leaves_its_block_to_the_others() -> None:
    kv = memory()
    request = admit(kv, 6, samples=3, decodes=True)
    kv.end_samples(request, [1])
    assert kv.allocate_step(1) == 1
    kv.end_samples(request, [0])
    assert tables(kv, request) == [[7, 6]]
    assert (kv.free_blocks, kv.shared_blocks) == (6, 0)


def test_holders_take_blocks_in_their_order_however_they_started() -> None:
    kv = memory()
    second, first = admit(kv, 4, order=2, decodes=True), admit(kv, 4, order=1, decodes=True)
    kv.allocate_step(1)
    assert [tables(kv, first), tables(kv, second)] == [[[6, 5]], [[7, 4]]]


@pytest.mark.parametrize("steps", [[9], [1] * 9])
def test_blocks_are_taken_in_the_order_of_the_steps(steps: list[int]) -> None:
    kv = memory(12)
    first, second = admit(kv, 4, order=1, decodes=True), admit(kv, 2, order=2, decodes=True)
    for each in steps:
        kv.allocate_step(each)
    # The first needs a block at steps 1, 5 and 9, the second at 3 and 7.
    assert [tables(kv, first), tables(kv, second)] == [[[11, 9, 7, 5]], [[10, 8, 6]]]


def test_a_fork_shares_and_the_next_step_copies() -> None:
    kv = memory()
    request = admit(kv, 6, samples=2, decodes=True)
    kv.allocate_step(1)
    assert tables(kv, request) == [[7, 5], [7, 6]]
    assert kv.fork(request, dropped=0, survivor=1) == 0
    assert tables(kv, request) == [[7, 6], [7, 6]]
    of(kv).copies.clear()
    assert kv.allocate_step(1) == 1
    assert of(kv).copies == [(6, 5)]


def test_memory_without_tables_cannot_fork_what_is_shared_and_has_no_numbers() -> None:
    kv = PagedManager(8, [KVGroup(4)])
    request = admit(kv, 6, samples=2, decodes=True)
    with pytest.raises(BlockManagerError, match="beams need block tables"):
        kv.fork(request, 0, 1)
    with pytest.raises(BlockManagerError, match="gives them no numbers"):
        kv.block_table(request)


# Without sharing, as memory that is mapped in pages


def test_without_sharing_every_sample_has_blocks_of_its_own() -> None:
    kv = memory(shares=False)
    assert tables(kv, admit(kv, 6, samples=3)) == [[7, 6], [5, 4], [3, 2]]
    assert (kv.free_blocks, kv.shared_blocks) == (2, 0)


# Swaps


def test_a_swap_moves_each_distinct_block_once_and_back() -> None:
    kv = memory(cpu_blocks=5)
    request = admit(kv, 6, samples=2)
    kv.append(request)
    assert tables(kv, request) == [[7, 5], [7, 6]]
    assert kv.swap_out(request) == 3
    assert of(kv).swaps_out == [(7, 4), (5, 3), (6, 2)]
    assert (kv.free_blocks, kv.free_cpu_blocks, kv.shared_blocks) == (8, 2, 0)
    assert [kv.blocks_of(request, sample) for sample in (0, 1)] == [[4, 3], [4, 2]]
    assert kv.swap_in(request) == 3
    assert of(kv).swaps_in == [(4, 6), (3, 7), (2, 5)]
    assert (kv.free_cpu_blocks, kv.shared_blocks, kv.length(request)) == (5, 1, 7)
    kv.check_integrity()


def test_a_block_shared_before_the_swap_is_copied_on_write_after_it() -> None:
    kv = memory(cpu_blocks=2)
    request = admit(kv, 6, samples=2)
    kv.swap_out(request)
    kv.swap_in(request)
    shared = kv.block_table(request)[-1]
    assert kv.append(request) == 1
    assert of(kv).copies == [(shared, kv.block_table(request)[-1])]


# Groups


@pytest.mark.parametrize(
    "groups", [[KVGroup(4), KVGroup(4)], [KVGroup(4, SlidingWindow(6))], [KVGroup(4, ChunkedLocal(8))]]
)
def test_memory_of_one_group_takes_no_others(groups: list[KVGroup]) -> None:
    with pytest.raises(ValueError, match="others need a HybridManager"):
        PagedManager(8, groups)


def test_groups_of_one_pool_all_reserve_or_all_grow() -> None:
    with pytest.raises(ValueError, match="all must do the same"):
        PagedManager(8, [KVGroup(4, Full()), KVGroup(4, Reserved(RESERVATIONS["max"](8)))])
