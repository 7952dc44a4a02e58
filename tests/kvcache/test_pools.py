"""A pool for each layer type: what one has free no other can take."""

from __future__ import annotations

import pytest

from pagesim.allocators import OutOfBlocks
from pagesim.kvcache import Full, KVGroup, PooledManager, SequenceGroup, SlidingWindow, State

FULL = KVGroup(4, Full(), page_bytes=8)
WINDOW = KVGroup(4, SlidingWindow(5), page_bytes=12)


def pools(full: int, window: int) -> PooledManager:
    return PooledManager([full, window], [FULL, WINDOW], longest=200, in_flight=4)


@pytest.mark.parametrize(("full", "window", "fits"), [(3, 3, True), (9, 2, False), (2, 9, False)])
def test_a_request_is_admitted_only_if_every_pool_has_room(full: int, window: int, fits: bool) -> None:
    memory, request = pools(full, window), SequenceGroup(12)
    assert memory.can_admit(request, 12) == fits == memory.could_admit(request, 12)
    if fits:
        memory.admit(request, 12)
        assert memory.free == [0, 0]
    else:
        with pytest.raises(OutOfBlocks):
            memory.admit(request, 12)
        assert memory.free == [full, window], "and changes nothing"


def test_a_step_needs_more_than_is_free_if_one_pool_is_out() -> None:
    memory, request = pools(20, 2), SequenceGroup(8)
    memory.admit(request, 8)
    memory.start_decoding(request)
    assert memory.free == [18, 0]
    assert memory.blocks_needed(1) > memory.free_blocks
    assert memory.steps_that_fit(10, 0) == 0
    memory.free_skipped_blocks(request)
    assert memory.free == [18, 1], "the window gives back what its next token does not attend to"
    assert memory.blocks_needed(1) == 2
    memory.allocate_step(1)
    memory.check_integrity()


def test_prompts_and_steps_that_fit_each_alone_may_not_fit_together() -> None:
    memory, decoding, prompt = pools(20, 4), SequenceGroup(4), SequenceGroup(8)
    for request in (decoding, prompt):
        memory.admit(request, 4)
    memory.start_decoding(decoding)
    assert memory.free == [18, 2]
    assert memory.blocks_needed(1) + memory.blocks_to_extend(prompt, 8) <= memory.free_blocks
    assert not memory.equal_blocks, "no sum tells: three pages of the window are needed, and two are left"
    memory.allocate_step(1)
    with pytest.raises(OutOfBlocks):
        memory.extend(prompt, 8)


def test_a_spare_is_left_over_all_pools() -> None:
    memory = pools(5, 5)
    assert memory.can_admit(SequenceGroup(8), 8, spare=6)
    assert not memory.can_admit(SequenceGroup(8), 8, spare=7)


def test_a_state_is_one_page_however_long_a_request_gets() -> None:
    memory = PooledManager([50, 2], [FULL, KVGroup(200, State(), page_bytes=700)], longest=200, in_flight=4)
    requests = [SequenceGroup(1), SequenceGroup(1)]
    for request in requests:
        memory.admit(request, 1)
        memory.start_decoding(request)
    memory.allocate_step(80)
    assert memory.pages == [2 * 21, 2]
    assert not memory.can_admit(SequenceGroup(1), 1), "no state is left"


def test_memory_that_no_page_takes_is_part_of_the_capacity() -> None:
    sized = PooledManager([3, 2], [FULL, WINDOW], longest=200, in_flight=4, capacity_bytes=3 * 8 + 2 * 12 + 7)
    assert sized.capacity_bytes == 55
    with pytest.raises(ValueError, match="capacity_bytes is 40; the pools have 48"):
        PooledManager([3, 2], [FULL, WINDOW], longest=200, in_flight=4, capacity_bytes=40)


def test_states_that_are_found_again_are_refused() -> None:
    with pytest.raises(ValueError, match="caches no prefixes"):
        PooledManager([3], [KVGroup(4, State(aligned=True))], longest=200, in_flight=4)
