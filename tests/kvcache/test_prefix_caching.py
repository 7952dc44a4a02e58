"""What a prompt finds in the cache, and in what order blocks are evicted, as vLLM's v1 does it."""

from __future__ import annotations

import pytest

from pagesim.kvcache import BlockManagerError, NumberedPrefixManager, SequenceGroup
from tests.kvcache.text import Reader

SIZE = 4


def prompt(*parts: tuple[str, int]) -> Reader:
    """Return a request whose prompt is made of so many tokens of each text."""
    return Reader([(name, place) for name, tokens in parts for place in range(tokens)], SIZE)


def hits(memory: NumberedPrefixManager, request: Reader) -> int:
    """Return the cached blocks of a request's prompt."""
    return memory.match_prefix(request, len(request.content.tokens)) // SIZE


def admit(memory: NumberedPrefixManager, *parts: tuple[str, int]) -> Reader:
    """Compute a whole prompt."""
    request = prompt(*parts)
    hits(memory, request)
    memory.admit(request, len(request.content.tokens))
    memory.check_integrity()
    return request


def table(memory: NumberedPrefixManager, request: Reader) -> list[int]:
    return memory.block_table(request)


@pytest.fixture
def memory() -> NumberedPrefixManager:
    return NumberedPrefixManager(10, SIZE)


def queue(memory: NumberedPrefixManager) -> list[int]:
    """Return the blocks in the order in which they would be taken."""
    rest = SequenceGroup(memory.free_blocks * SIZE)
    memory.admit(rest, rest.tokens)
    return memory.block_table(rest)


def test_blocks_are_taken_in_order_and_a_common_beginning_is_shared(memory: NumberedPrefixManager) -> None:
    assert table(memory, admit(memory, ("system", 12), ("a", 3))) == [0, 1, 2, 3]
    assert hits(memory, prompt(("system", 12), ("b", 1))) == 3
    assert table(memory, admit(memory, ("system", 12), ("b", 1))) == [0, 1, 2, 4]
    assert (memory.shared_blocks, memory.free_blocks) == (3, 5)


def test_a_released_holder_gives_back_its_last_block_first_and_unhashed_ones_are_reused_first(
    memory: NumberedPrefixManager,
) -> None:
    first, second = admit(memory, ("system", 12), ("a", 3)), admit(memory, ("system", 12), ("b", 1))
    memory.release(first)
    memory.release(second)
    assert memory.cached_blocks == 3
    assert queue(memory) == [4, 3, 5, 6, 7, 8, 9, 2, 1, 0]


def test_where_content_is_that_can_still_be_found_can_be_asked(memory: NumberedPrefixManager) -> None:
    request = admit(memory, ("a", 9))
    assert memory.cached_extents() == []
    memory.release(request)
    assert memory.cached_extents() == [(0, 2)], "the third block is not full"
    assert sum(blocks for _, blocks in memory.cached_extents()) == memory.cached_blocks


def test_what_was_found_and_then_evicted_is_not_admitted(memory: NumberedPrefixManager) -> None:
    memory.release(admit(memory, ("system", 12)))
    request = prompt(("system", 12), ("b", 1))
    assert hits(memory, request) == 3
    memory.admit(rest := SequenceGroup(9 * SIZE), 9 * SIZE)  # all but one of the blocks
    memory.release(rest)
    assert memory.blocks_to_admit(request, 13) == 4, "one of them was found, and is free"
    memory.admit(request, 13)
    memory.check_integrity()
    assert memory.free_blocks == 6


def test_what_was_found_is_cut_where_a_part_of_its_duplicate_is_taken(memory: NumberedPrefixManager) -> None:
    admit(memory, ("system", 12))
    memory.admit(twice := prompt(("system", 12)), 12)  # without a look into the cache
    memory.release(twice)
    last = admit(memory, ("system", 12), ("b", 20))  # the four fresh blocks and one of the duplicate's
    assert table(memory, last) == [0, 1, 2, 6, 7, 8, 9, 5]


def test_what_was_found_for_one_holder_is_not_given_to_another(memory: NumberedPrefixManager) -> None:
    memory.release(admit(memory, ("system", 12)))
    request, other = prompt(("system", 12), ("b", 1)), prompt(("system", 12), ("c", 1))
    assert hits(memory, request) == 3
    memory.admit(other, 13)  # without a look into the cache
    assert memory.cached_blocks == 3, "all of its blocks were computed again"


def test_what_empty_memory_cannot_hold_never_fits_though_most_of_it_is_cached(
    memory: NumberedPrefixManager,
) -> None:
    admit(memory, ("system", 32))
    request = prompt(("system", 32), ("b", 12))
    assert hits(memory, request) == 8
    assert memory.blocks_to_admit(request, 44) == 3
    assert not memory.could_admit(request, 44)


def test_samples_are_holders_of_their_own(memory: NumberedPrefixManager) -> None:
    with pytest.raises(BlockManagerError, match="a request of its own"):
        memory.admit(SequenceGroup(4, samples=2), 4)
    with pytest.raises(BlockManagerError, match="a request of its own"):
        memory.end_samples(admit(memory, ("a", 4)), [0])
    assert memory.free_blocks == 9
