"""How many tokens each policy reserves, and what the reservation then means in blocks."""

from collections.abc import Callable

import pytest

from pagesim.allocators import FirstFit, OutOfBlocks
from pagesim.kvcache import (
    BlockManager,
    BlockManagerError,
    ContiguousManager,
    KVGroup,
    PagedManager,
    Reserved,
    SequenceGroup,
)
from pagesim.kvcache.reservation import RESERVATIONS, reserve_max, reserve_oracle, reserve_pow2


@pytest.mark.parametrize(("output", "guess"), [(0, 0), (1, 1), (2, 2), (3, 4), (1024, 1024), (1025, 2048)])
def test_pow2_rounds_the_output_up_to_a_power_of_two(output: int, guess: int) -> None:
    assert reserve_pow2(1 << 20).tokens(10, output) == 10 + guess


def test_max_reserves_the_longest_sequence_whatever_comes() -> None:
    assert {reserve_max(2048).tokens(prompt, output) for prompt in (1, 2048) for output in (1, 999)} == {2048}


def test_an_oracle_reserves_what_comes() -> None:
    assert reserve_oracle(2048).tokens(100, 33) == 133


@pytest.mark.parametrize("policy", RESERVATIONS)
def test_no_policy_reserves_more_than_the_model_length(policy: str) -> None:
    assert RESERVATIONS[policy](2048).tokens(1500, 1025) == 2048


@pytest.mark.parametrize("policy", RESERVATIONS)
def test_every_policy_reserves_at_least_the_prompt(policy: str) -> None:
    assert RESERVATIONS[policy](2048).tokens(3000, 10) == 3000


def contiguous() -> BlockManager:
    return ContiguousManager(FirstFit(8), 4, reserve_oracle(100))


def counted() -> BlockManager:
    return PagedManager(8, [KVGroup(4, Reserved(reserve_oracle(100)))])


def numbered() -> BlockManager:
    return PagedManager(8, [KVGroup(4, Reserved(reserve_oracle(100)))], tables=True)


Make = Callable[[], BlockManager]
EACH = pytest.mark.parametrize("make", [contiguous, counted, numbered])


@EACH
def test_a_reservation_is_taken_at_once_and_filled_later(make: Make) -> None:
    memory, request = make(), SequenceGroup(5, output=6)
    memory.admit(request, 5)
    assert (memory.length(request), memory.held_blocks(request)) == (5, 3)
    assert memory.held_and_reserved(request) == (3, 11)
    for _ in range(6):
        assert memory.append(request) == 0
    assert (memory.length(request), memory.free_blocks) == (11, 5)
    # The reservation was rounded up to whole blocks, and their slots are there to be used.
    memory.append(request)
    with pytest.raises(OutOfBlocks, match="a reservation of 12 tokens is full"):
        memory.append(request)


@EACH
def test_each_sample_takes_a_reservation_of_its_own(make: Make) -> None:
    memory, request = make(), SequenceGroup(5, output=6, samples=2)
    assert memory.can_admit(request, 5)
    assert not memory.could_admit(SequenceGroup(5, output=6, samples=3), 5)
    memory.admit(request, 5)
    assert (memory.held_blocks(request), memory.shared_blocks, memory.free_blocks) == (6, 0, 2)
    memory.end_samples(request, [0])
    assert (memory.held_blocks(request), memory.free_blocks) == (3, 5)


@EACH
def test_growing_takes_no_block_so_it_needs_none_free(make: Make) -> None:
    memory, request = make(), SequenceGroup(1, output=31)
    memory.admit(request, 1)
    memory.start_decoding(request)
    assert (memory.free_blocks, memory.blocks_needed(31), memory.blocks_to_extend(request, 1)) == (0, 0, 0)
    assert memory.steps_that_fit(31, spare=2) == 31
    assert memory.allocate_step(31) == 0
    assert (memory.length(request), memory.free_blocks) == (32, 0)


@EACH
def test_a_prompt_whose_room_is_reserved_has_no_chunks(make: Make) -> None:
    memory, request = make(), SequenceGroup(5, output=6)
    memory.admit(request, 5)
    with pytest.raises(BlockManagerError, match="takes all of a prompt at once"):
        memory.extend(request, 1)
    assert (memory.length(request), memory.free_blocks) == (5, 5)


@pytest.mark.parametrize("tables", [False, True])
def test_a_reservation_survives_a_swap(tables: bool) -> None:
    memory = PagedManager(8, [KVGroup(4, Reserved(reserve_oracle(32)))], 4, tables=tables)
    request = SequenceGroup(5, output=6)
    memory.admit(request, 5)
    memory.swap_out(request)
    assert (memory.free_blocks, memory.free_cpu_blocks) == (8, 1)
    memory.swap_in(request)
    assert memory.held_and_reserved(request) == (3, 11)


def test_pages_need_no_neighbours_where_contiguous_memory_does() -> None:
    answers = []
    for memory in (contiguous(), counted()):
        requests = [SequenceGroup(4, output=4) for _ in range(4)]
        for request in requests:
            memory.admit(request, 4)
        memory.release(requests[0])
        memory.release(requests[2])
        request = SequenceGroup(12, output=4)
        assert memory.blocks_to_admit(request, 12) <= memory.free_blocks
        answers.append(memory.can_admit(request, 12))
    assert answers == [False, True]
