"""How many tokens each policy reserves, and what the reservation then means in blocks."""

from collections.abc import Callable

import pytest

from pagesim.kvcache import ContiguousAllocator, FirstFit, Fit, OutOfBlocks, PagedAllocator
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


def contiguous() -> ContiguousAllocator:
    return ContiguousAllocator(FirstFit(8), 4, reserve_oracle(100))


def paged() -> PagedAllocator:
    return PagedAllocator(8, 4, reservation=reserve_oracle(100))


Make = Callable[[], ContiguousAllocator | PagedAllocator]
BOTH = pytest.mark.parametrize("make", [contiguous, paged])


@BOTH
def test_a_reservation_is_taken_at_once_and_filled_later(make: Make) -> None:
    memory = make()
    memory.allocate(0, 5, output_tokens=6)
    assert (memory.length(0), memory.reserved_tokens(0), memory.held_blocks(0)) == (5, 11, 3)
    assert len(memory.block_table(0)) == 2
    for _ in range(6):
        assert memory.append(0) is None
    assert (memory.length(0), memory.free_blocks) == (11, 5)
    # The reservation was rounded up to whole blocks, and their slots are there to be used.
    memory.append(0)
    with pytest.raises(OutOfBlocks, match="sequence 0 has filled its reservation of 12 tokens"):
        memory.append(0)


@BOTH
def test_a_fork_takes_a_reservation_of_its_own(make: Make) -> None:
    memory = make()
    assert memory.probe(5, 6, sequences=2) is Fit.NOW
    assert memory.probe(5, 6, sequences=3) is Fit.NEVER
    memory.allocate(0, 5, 6)
    memory.fork(0, 1)
    assert (memory.length(1), memory.reserved_tokens(1), memory.free_blocks) == (5, 11, 2)
    assert not set(memory.block_table(0)) & set(memory.block_table(1))


@BOTH
def test_growing_takes_no_block_so_it_needs_none_free(make: Make) -> None:
    memory = make()
    memory.allocate(0, 1, 31)
    memory.start_growing(0)
    assert (memory.free_blocks, memory.demand(31), memory.growable(31, spare=2)) == (0, 0, 31)
    assert memory.grow(31) == []
    assert memory.length(0) == 32


def test_pages_need_no_neighbours_where_contiguous_memory_does() -> None:
    answers = []
    for memory in (contiguous(), paged()):
        for sequence in range(4):
            memory.allocate(sequence, 4, 4)
        memory.free(0)
        memory.free(2)
        answers.append(memory.probe(12, 4))
    assert answers == [Fit.LATER, Fit.NOW]
