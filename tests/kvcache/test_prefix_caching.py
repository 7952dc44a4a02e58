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


@pytest.fixture
def memory() -> NumberedPrefixManager:
    return NumberedPrefixManager(10, SIZE)


def test_where_content_is_that_can_still_be_found_can_be_asked(memory: NumberedPrefixManager) -> None:
    request = admit(memory, ("a", 9))
    assert memory.cached_extents() == []
    memory.release(request)
    assert memory.cached_extents() == [(0, 2)], "the third block is not full"
    assert sum(blocks for _, blocks in memory.cached_extents()) == memory.cached_blocks


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
