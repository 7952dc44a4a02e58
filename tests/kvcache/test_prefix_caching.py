"""What a prompt finds in the cache, and in what order blocks are lost, as vLLM's v1 does it."""

import pytest

from pagesim.kvcache import AllocatorError, OutOfBlocks, PrefixCachingAllocator
from tests.kvcache.text import Text

SIZE = 4


def prompt(*parts: tuple[str, int]) -> tuple[Text, int]:
    """Return the content and the length of a prompt that is made of so many tokens of each text."""
    tokens = [(name, place) for name, tokens in parts for place in range(tokens)]
    return Text(tokens, SIZE), len(tokens)


def admit(memory: PrefixCachingAllocator, sequence: int, *parts: tuple[str, int]) -> int:
    """Compute a whole prompt; return the blocks of it that were found."""
    text, tokens = prompt(*parts)
    hits = memory.hits(text, tokens)
    memory.allocate_cached(sequence, text, hits, tokens)
    memory.check_integrity()
    return hits


@pytest.fixture
def memory() -> PrefixCachingAllocator:
    return PrefixCachingAllocator(10, SIZE)


def queue(memory: PrefixCachingAllocator) -> list[int]:
    """Return the blocks in the order in which they would be taken."""
    order = []
    while memory.free_blocks:
        memory.allocate(1000 + len(order), 1)
        order.append(memory.block_table(1000 + len(order))[0])
    return order


def test_blocks_are_taken_in_order_and_a_common_beginning_is_shared(memory: PrefixCachingAllocator) -> None:
    assert admit(memory, 0, ("system", 12), ("a", 3)) == 0
    assert memory.block_table(0) == [0, 1, 2, 3]
    assert admit(memory, 1, ("system", 12), ("b", 1)) == 3
    assert memory.block_table(1) == [0, 1, 2, 4]
    assert [memory.references(block) for block in range(5)] == [2, 2, 2, 1, 1]
    assert memory.shared_blocks == 3


def test_a_freed_request_gives_back_its_last_block_first_and_unfilled_ones_are_reused_first(
    memory: PrefixCachingAllocator,
) -> None:
    admit(memory, 0, ("system", 12), ("a", 3))
    admit(memory, 1, ("system", 12), ("b", 1))
    memory.free(0)
    memory.free(1)
    assert memory.cached_blocks == 3
    assert queue(memory) == [4, 3, 5, 6, 7, 8, 9, 2, 1, 0]


def test_in_one_queue_unfilled_blocks_wait_like_all_others() -> None:
    memory = PrefixCachingAllocator(10, SIZE, reuses_unfilled_first=False)
    admit(memory, 0, ("system", 12), ("a", 3))
    admit(memory, 1, ("system", 12), ("b", 1))
    memory.free(0)
    memory.free(1)
    assert queue(memory) == [5, 6, 7, 8, 9, 3, 4, 2, 1, 0]


def test_what_is_found_leaves_the_queue_from_wherever_it_is(memory: PrefixCachingAllocator) -> None:
    admit(memory, 0, ("system", 12), ("a", 3))
    memory.free(0)
    assert admit(memory, 1, ("system", 8), ("c", 5)) == 2
    assert memory.block_table(1) == [0, 1, 3, 4]
    assert queue(memory) == [5, 6, 7, 8, 9, 2]


def test_the_last_token_is_always_computed_so_a_prompt_of_full_blocks_loses_one(
    memory: PrefixCachingAllocator,
) -> None:
    admit(memory, 0, ("system", 12))
    memory.free(0)
    assert admit(memory, 1, ("system", 12)) == 2
    assert memory.cached_blocks == 1, "the block that was computed again has a double"
    memory.free(1)
    assert memory.cached_blocks == 4
    text, tokens = prompt(("system", 12), ("b", 1))
    assert memory.hits(text, tokens) == 3
    memory.allocate_cached(2, text, 3, tokens)
    assert memory.block_table(2)[:3] == [0, 1, 2], "the first that had the content is found"


def test_a_block_that_is_taken_loses_its_content_and_its_double_is_found(
    memory: PrefixCachingAllocator,
) -> None:
    admit(memory, 0, ("system", 12))
    memory.free(0)
    admit(memory, 1, ("system", 12))
    double = memory.block_table(1)[2]
    assert double != 2
    for sequence in range(2, 9):
        memory.allocate(sequence, SIZE)  # everything that is free, block 2 last
    assert memory.free_blocks == 0
    assert memory.cached_blocks == 0
    assert list(memory.take_evictions()) == [(memory.blocks_taken, 1)]
    memory.free(8)
    text, tokens = prompt(("system", 12), ("b", 1))
    assert memory.hits(text, tokens) == 3
    memory.allocate_cached(10, text, 3, tokens)
    assert memory.block_table(10)[2] == double


def test_what_is_shared_is_equal_from_the_first_token_on(memory: PrefixCachingAllocator) -> None:
    admit(memory, 0, ("a", 4), ("common", 8))
    text, tokens = prompt(("b", 4), ("common", 8))
    assert memory.hits(text, tokens) == 0


def test_without_room_what_was_found_stays_where_it_is(memory: PrefixCachingAllocator) -> None:
    admit(memory, 0, ("system", 12))
    memory.free(0)
    admit(memory, 1, ("other", 20))
    text, tokens = prompt(("system", 12), ("b", 13))
    assert memory.hits(text, tokens) == 3
    assert memory.blocks_wanted(text, 3, tokens) == 7
    with pytest.raises(OutOfBlocks, match="7 blocks are needed, 5 are free"):
        memory.allocate_cached(2, text, 3, tokens)
    memory.check_integrity()
    assert memory.cached_blocks == 3
    assert queue(memory) == [8, 9, 2, 1, 0]


def test_a_chunk_is_found_as_soon_as_room_for_it_was_made(memory: PrefixCachingAllocator) -> None:
    text, tokens = prompt(("system", 13))
    memory.allocate_cached(0, text, 0, 6)
    assert memory.hits(text, tokens) == 1
    memory.extend(0, 7)
    assert memory.hits(text, tokens) == 3


def test_growing_sequences_take_blocks_before_whoever_comes_later(memory: PrefixCachingAllocator) -> None:
    admit(memory, 0, ("old", 24))
    memory.free(0)
    admit(memory, 1, ("new", 4))
    memory.start_growing(1)
    memory.grow(4 * SIZE)  # the three other fresh blocks, and the block of the old prompt's end
    assert memory.cached_blocks == 5
    assert sum(blocks for _, blocks in memory.take_evictions()) == 1
    text, tokens = prompt(("old", 24))
    assert memory.hits(text, tokens + 1) == 5


def test_where_content_lies_that_can_still_be_found_can_be_asked(memory: PrefixCachingAllocator) -> None:
    admit(memory, 0, ("a", 9))
    assert memory.cached_extents() == []
    memory.free(0)
    assert memory.cached_extents() == [(0, 2)], "the third block is not full"
    assert sum(blocks for _, blocks in memory.cached_extents()) == memory.cached_blocks


def test_what_others_may_find_cannot_be_overwritten(memory: PrefixCachingAllocator) -> None:
    admit(memory, 0, ("system", 12))
    memory.fork(0, 1)
    with pytest.raises(AllocatorError, match="others may find"):
        memory.adopt(0, 1)
