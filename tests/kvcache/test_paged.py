"""Paged memory as in the paper: the free list, sharing, copy-on-write, swaps; exact blocks and copies."""

import pytest

from pagesim.kvcache import AllocatorError, Fit, OutOfBlocks, PagedAllocator, UnknownSequence
from pagesim.kvcache.reservation import reserve_oracle


def samples(memory: PagedAllocator, prompt: int, n: int) -> PagedAllocator:
    """Put ``n`` samples of one prompt, 0 to n−1, into memory."""
    memory.allocate(0, prompt)
    for sample in range(1, n):
        memory.fork(0, sample)
    return memory


def tables(memory: PagedAllocator) -> dict[int, list[int]]:
    return {sequence: memory.block_table(sequence) for sequence in memory.sequences()}


def test_the_first_block_of_an_empty_pool_of_8_is_7() -> None:
    memory = PagedAllocator(8, 4)
    memory.allocate(0, 1)
    memory.allocate(1, 9)
    assert tables(memory) == {0: [7], 1: [6, 5, 4]}


def test_the_free_list_is_a_stack() -> None:
    memory = PagedAllocator(8, 4)
    memory.allocate(0, 12)
    memory.free(0)
    memory.allocate(1, 12)
    assert memory.block_table(1) == [5, 6, 7]


def test_a_block_is_taken_with_the_first_token_that_needs_it() -> None:
    memory = PagedAllocator(8, 4)
    memory.allocate(0, 3)
    memory.append(0)
    assert memory.block_table(0) == [7]
    memory.append(0)
    assert memory.block_table(0) == [7, 6]


def test_samples_share_the_prompt() -> None:
    memory = samples(PagedAllocator(8, 4), prompt=6, n=4)
    assert tables(memory) == {0: [7, 6], 1: [7, 6], 2: [7, 6], 3: [7, 6]}
    assert (memory.free_blocks, memory.references(7), memory.distinct_blocks(range(4))) == (6, 4, 2)


def test_4_samples_of_a_partly_filled_block_make_3_copies_and_the_last_keeps_it() -> None:
    memory = samples(PagedAllocator(8, 4), prompt=6, n=4)
    for sample in range(4):
        memory.start_growing(sample)
    assert memory.demand(1) == 3
    assert memory.grow(1) == [(6, 5), (6, 4), (6, 3)]
    assert tables(memory) == {0: [7, 5], 1: [7, 4], 2: [7, 3], 3: [7, 6]}
    assert (memory.references(7), memory.references(6)) == (4, 1)


def test_4_samples_of_a_full_block_take_4_blocks_and_copy_nothing() -> None:
    memory = samples(PagedAllocator(8, 4), prompt=8, n=4)
    for sample in range(4):
        memory.start_growing(sample)
    assert memory.demand(1) == 4
    assert memory.grow(1) == []
    assert tables(memory) == {0: [7, 6, 5], 1: [7, 6, 4], 2: [7, 6, 3], 3: [7, 6, 2]}


def test_copies_go_by_the_order_in_which_the_samples_started_to_grow() -> None:
    memory = samples(PagedAllocator(8, 4), prompt=3, n=3)
    for sample in (2, 0, 1):
        memory.start_growing(sample)
    assert memory.grow(1) == [(7, 6), (7, 5)]
    assert tables(memory) == {2: [6], 0: [5], 1: [7]}


def test_a_sample_that_rests_keeps_the_block_that_the_others_leave() -> None:
    memory = samples(PagedAllocator(8, 4), prompt=3, n=3)
    memory.start_growing(0)
    memory.start_growing(1)
    assert memory.demand(1) == 2
    assert memory.grow(1) == [(7, 6), (7, 5)]
    assert memory.append(2) is None


def test_single_appends_make_the_same_copies() -> None:
    memory = samples(PagedAllocator(8, 4), prompt=6, n=4)
    assert [memory.append(sample) for sample in range(4)] == [(6, 5), (6, 4), (6, 3), None]


def test_a_fork_of_a_growing_sequence_makes_it_copy() -> None:
    memory = PagedAllocator(8, 4)
    memory.allocate(0, 5)
    memory.start_growing(0)
    memory.grow(1)
    memory.fork(0, 1)
    assert memory.demand(1) == 1
    assert memory.grow(1) == [(6, 5)]
    assert tables(memory) == {1: [7, 6], 0: [7, 5]}


def test_forks_of_forks_share_one_block_until_each_writes() -> None:
    memory = PagedAllocator(8, 4)
    memory.allocate(0, 2)
    memory.fork(0, 1)
    assert memory.append(1) == (7, 6)
    memory.fork(1, 2)
    memory.fork(2, 3)
    assert (memory.references(7), memory.references(6)) == (1, 3)
    assert [memory.append(sequence) for sequence in (1, 2, 3)] == [(6, 5), (6, 4), None]


def test_a_copy_ends_a_leap() -> None:
    memory = samples(PagedAllocator(8, 4), prompt=3, n=2)
    memory.start_growing(0)
    assert memory.growable(4, spare=0) == 1
    memory.grow(1)
    assert memory.growable(4, spare=0) == 4


def test_a_sharer_that_has_left_ends_no_leap() -> None:
    memory = samples(PagedAllocator(8, 4), prompt=3, n=2)
    memory.start_growing(0)
    memory.free(1)
    assert memory.growable(4, spare=0) == 4


def test_growable_leaves_the_spare_blocks() -> None:
    memory = PagedAllocator(8, 4)
    memory.allocate(0, 4)
    memory.start_growing(0)
    assert [memory.growable(100, spare) for spare in (0, 5, 6, 7, 8)] == [28, 8, 4, 0, 0]


def test_prompts_that_share_need_room_once_and_a_watermark_on_top() -> None:
    memory = PagedAllocator(8, 4)
    assert memory.probe(32, 0, sequences=5) is Fit.NOW
    assert memory.probe(32, 0, spare=1) is Fit.NEVER
    memory.allocate(0, 5)
    assert memory.probe(24, 0) is Fit.NOW
    assert memory.probe(24, 0, spare=1) is Fit.LATER
    assert memory.probe(33, 0) is Fit.NEVER


# Without sharing, as memory that is mapped in pages


def test_without_sharing_every_sample_has_blocks_of_its_own() -> None:
    memory = samples(PagedAllocator(8, 4, shares=False), prompt=6, n=3)
    assert tables(memory) == {0: [7, 6], 1: [5, 4], 2: [3, 2]}
    assert (memory.free_blocks, memory.shared_blocks) == (2, 0)


def test_without_sharing_every_sample_needs_room_of_its_own() -> None:
    memory = PagedAllocator(8, 4, shares=False)
    assert memory.probe(6, 0, sequences=4) is Fit.NOW
    assert memory.probe(6, 0, sequences=4, spare=1) is Fit.NEVER
    assert memory.probe(6, 0, sequences=5) is Fit.NEVER
    memory.allocate(0, 1)
    assert memory.probe(6, 0, sequences=4) is Fit.LATER


def test_without_sharing_nothing_is_copied_on_write() -> None:
    memory = samples(PagedAllocator(8, 4, shares=False), prompt=3, n=2)
    for sample in range(2):
        memory.start_growing(sample)
    assert memory.growable(100, spare=0) == 13
    assert memory.grow(2) == []
    assert tables(memory) == {0: [7, 5], 1: [6, 4]}


def test_without_sharing_a_fork_needs_room_and_a_fork_that_has_none_changes_nothing() -> None:
    memory = samples(PagedAllocator(3, 4, shares=False), prompt=6, n=1)
    with pytest.raises(OutOfBlocks, match="2 blocks are needed, 1 are free"):
        memory.fork(0, 1)
    assert tables(memory) == {0: [2, 1]}
    memory.check_integrity()


def test_without_sharing_a_beam_becomes_another_by_copies_of_all_its_blocks() -> None:
    memory = samples(PagedAllocator(8, 4, shares=False), prompt=6, n=2)
    assert memory.adopt(1, 0) == [(7, 5), (6, 4)]
    assert tables(memory) == {0: [7, 6], 1: [5, 4]}


# Swaps


def test_a_swap_moves_each_distinct_block_once_and_back() -> None:
    memory = samples(PagedAllocator(8, 4, cpu_blocks=5), prompt=6, n=2)
    memory.append(0)
    assert tables(memory) == {0: [7, 5], 1: [7, 6]}
    assert memory.swap_out([0, 1]) == [(7, 4), (5, 3), (6, 2)]
    assert (memory.free_blocks, memory.free_cpu_blocks, list(memory.sequences())) == (8, 2, [])
    assert memory.swap_in([0, 1]) == [(4, 6), (3, 7), (2, 5)]
    assert tables(memory) == {0: [6, 7], 1: [6, 5]}
    assert (memory.references(6), memory.free_cpu_blocks) == (2, 5)
    assert (memory.length(0), memory.length(1)) == (7, 6)


def test_a_block_shared_before_the_swap_is_copied_on_write_after_it() -> None:
    memory = samples(PagedAllocator(8, 4, cpu_blocks=2), prompt=6, n=2)
    memory.swap_out([0, 1])
    memory.swap_in([0, 1])
    shared = memory.block_table(0)[-1]
    copy = memory.append(0)
    assert copy == (shared, memory.block_table(0)[-1])
    assert memory.append(1) is None


def test_one_of_two_sharers_can_be_swapped_alone() -> None:
    memory = samples(PagedAllocator(8, 4, cpu_blocks=2), prompt=6, n=2)
    assert memory.swap_out([0]) == [(7, 1), (6, 0)]
    assert (memory.free_blocks, memory.references(7)) == (6, 1)
    assert memory.append(1) is None
    memory.swap_in([0])
    assert memory.distinct_blocks([0, 1]) == 4


def test_a_growing_sequence_comes_back_at_rest() -> None:
    memory = PagedAllocator(8, 4, cpu_blocks=2)
    memory.allocate(0, 3)
    memory.start_growing(0)
    memory.grow(2)
    memory.swap_out([0])
    assert memory.demand(4) == 0
    memory.grow(3)
    memory.swap_in([0])
    assert memory.length(0) == 5


def test_distinct_blocks_tells_the_two_pools_apart() -> None:
    memory = PagedAllocator(1, 4, cpu_blocks=1)
    memory.allocate(0, 4)
    memory.swap_out([0])
    memory.allocate(1, 4)
    assert memory.distinct_blocks([0, 1]) == 2


def test_a_full_swap_space_refuses_and_nothing_moves() -> None:
    memory = samples(PagedAllocator(8, 4, cpu_blocks=1), prompt=6, n=2)
    with pytest.raises(OutOfBlocks, match="swapping out takes 2 blocks, 1 are free"):
        memory.swap_out([0, 1])
    assert tables(memory) == {0: [7, 6], 1: [7, 6]}
    assert memory.free_cpu_blocks == 1


def test_a_full_device_refuses_and_nothing_moves() -> None:
    memory = PagedAllocator(2, 4, cpu_blocks=2)
    memory.allocate(0, 8)
    memory.swap_out([0])
    memory.allocate(1, 1)
    with pytest.raises(OutOfBlocks):
        memory.swap_in([0])
    memory.check_integrity()
    memory.free(1)
    memory.swap_in([0])
    assert memory.length(0) == 8


def test_a_swapped_sequence_is_not_on_the_device_and_not_new() -> None:
    memory = samples(PagedAllocator(8, 4, cpu_blocks=2), prompt=6, n=2)
    memory.swap_out([0])
    for call in (memory.length, memory.append, memory.free, memory.start_growing, memory.block_table):
        with pytest.raises(UnknownSequence):
            call(0)
    with pytest.raises(AllocatorError, match="sequence 0 is in the swap space"):
        memory.allocate(0, 1)
    with pytest.raises(AllocatorError, match="sequence 0 is in the swap space"):
        memory.fork(1, 0)
    memory.check_integrity()


def test_what_is_not_in_the_swap_space_can_neither_come_back_nor_be_dropped() -> None:
    memory = samples(PagedAllocator(8, 4, cpu_blocks=2), prompt=6, n=2)
    memory.swap_out([0])
    with pytest.raises(UnknownSequence, match="sequence 1 is not in the swap space"):
        memory.swap_in([0, 1])
    with pytest.raises(UnknownSequence, match="sequence 1 is not in the swap space"):
        memory.drop_swapped(1)
    assert (memory.free_blocks, memory.free_cpu_blocks) == (6, 0)
    memory.drop_swapped(0)
    assert memory.free_cpu_blocks == 2


def test_a_sequence_named_twice_is_refused_and_nothing_moves() -> None:
    memory = samples(PagedAllocator(8, 4, cpu_blocks=4), prompt=6, n=1)
    with pytest.raises(AllocatorError, match="named twice"):
        memory.swap_out([0, 0])
    memory.swap_out([0])
    with pytest.raises(AllocatorError, match="named twice"):
        memory.swap_in([0, 0])
    assert (memory.free_blocks, memory.free_cpu_blocks) == (8, 2)


def test_a_reservation_survives_a_swap() -> None:
    memory = PagedAllocator(8, 4, cpu_blocks=4, reservation=reserve_oracle(32))
    memory.allocate(0, 5, output_tokens=6)
    memory.swap_out([0])
    memory.swap_in([0])
    assert (memory.reserved_tokens(0), memory.held_blocks(0)) == (11, 3)
    memory.fork(0, 1)
    assert memory.reserved_tokens(1) == 11


@pytest.mark.parametrize("leap", [True, False])
def test_blocks_named_at_once_are_those_of_an_engine_that_steps(leap: bool) -> None:
    memory = PagedAllocator(12, 4)
    memory.names_at_once = True
    memory.allocate(0, 4)
    memory.allocate(1, 2)
    for sequence in (0, 1):
        memory.start_growing(sequence)
    for steps in [9] if leap else [1] * 9:
        memory.grow(steps)
    # The first needs a block at steps 1, 5 and 9, the second at 3 and 7.
    assert tables(memory) == {0: [11, 9, 7, 5], 1: [10, 8, 6]}
    memory.check_integrity()


def test_where_sequences_are_in_the_swap_space_can_be_asked() -> None:
    memory = samples(PagedAllocator(8, 4, cpu_blocks=6), prompt=6, n=2)
    memory.append(0)
    memory.swap_out([0, 1])
    shared, first, second = 5, 4, 3
    assert memory.swapped_tables() == {0: [shared, first], 1: [shared, second]}
    memory.swap_in([0, 1])
    assert memory.swapped_tables() == {}
