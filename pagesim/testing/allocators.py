"""The conformance suite for allocators: one call tests any implementation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from pagesim.allocators import OutOfBlocks
from pagesim.allocators.allocator import Allocator
from pagesim.kvcache.contiguous import contiguous
from pagesim.testing.conformance import check_block_manager
from pagesim.testing.makes import check_makes

_SIZES = (1, 16, 61)
_CHANGES = 200


def check_allocator(make: Callable[[int], Allocator]) -> None:
    """Check that an allocator fulfils the contract of ``pagesim.kvcache.Allocator``.

    It serves random allocations, the same in every run, and then as contiguous memory in
    ``check_block_manager``.

    Args:
        make: factory of an allocator with the given number of blocks, all free: usually the class itself.

    Raises:
        AssertionError: a rule is broken; the message says which.
        TypeError: an allocator was passed instead of a factory.
    """
    check_makes(make)
    for num_blocks in _SIZES:
        first, second = make(num_blocks), make(num_blocks)
        assert _lead(first) == _lead(second), "the same calls gave different blocks"
        assert first.free_extents() == make(num_blocks).free_extents(), "blocks that were freed are missing"
    check_block_manager(contiguous(make))


def _lead(allocator: Allocator) -> list[list[int]]:
    """Allocate and free at random, checking each result; return the blocks of each allocation, in order."""
    rng = Random(allocator.num_blocks)
    held: list[Sequence[int]] = []
    taken: list[list[int]] = []
    for _ in range(_CHANGES):
        if held and rng.random() < 0.5:
            allocator.free(held.pop(rng.randrange(len(held))))
        else:
            blocks = rng.randint(1, max(1, allocator.num_blocks // 4))
            got = _allocate(allocator, blocks, held)
            if got is not None:
                held.append(got)
                taken.append(list(got))
        _check_free(allocator, held)
    while held:
        allocator.free(held.pop())
    _check_free(allocator, held)
    return taken


def _allocate(allocator: Allocator, blocks: int, held: list[Sequence[int]]) -> Sequence[int] | None:
    before = allocator.free_extents()
    promised = allocator.can_allocate(blocks)
    try:
        got = allocator.allocate(blocks)
    except OutOfBlocks:
        assert not promised, f"it refuses what can_allocate promised: {blocks} blocks"
        assert allocator.free_extents() == before, "an allocation that fails changes nothing"
        return None
    assert promised, f"it allocates {blocks} blocks that can_allocate denied"
    rounded = allocator.rounded(blocks)
    assert rounded >= blocks, f"rounded({blocks}) is {rounded}, which is fewer"
    assert len(got) == rounded, f"allocate({blocks}) took {len(got)} blocks; rounded({blocks}) says {rounded}"
    neighbours = list(range(got[0], got[0] + len(got)))
    assert list(got) == neighbours, f"allocate({blocks}) took blocks that are apart"
    held_now = {block for each in held for block in each}
    assert held_now.isdisjoint(got), "it hands out blocks that are held"
    return got


def _check_free(allocator: Allocator, held: Sequence[Sequence[int]]) -> None:
    allocator.check_integrity()
    owned = [block for each in held for block in each]
    owned += [block for first, blocks in allocator.free_extents() for block in range(first, first + blocks)]
    assert sorted(owned) == list(range(allocator.num_blocks)), "blocks are owned twice or lost"
