"""Memory of several KV groups, counted and tabled: what is taken and given back, block by block."""

from __future__ import annotations

import pytest

from pagesim.allocators import OutOfBlocks
from pagesim.kvcache import (
    BlockManager,
    BlockManagerError,
    ChunkedLocal,
    CountedHybridManager,
    HybridManager,
    KVGroup,
    SequenceGroup,
    SlidingWindow,
    State,
)

Kind = type[CountedHybridManager] | type[HybridManager]
BOTH = pytest.mark.parametrize("kind", [CountedHybridManager, HybridManager])
LONGEST = 100


def memory(
    kind: Kind, blocks: int, *groups: KVGroup, in_flight: int = 8, steps_in_flight: int = 0
) -> BlockManager:
    kv = kind(blocks, groups, longest=LONGEST, in_flight=in_flight)
    kv.steps_in_flight = steps_in_flight
    return kv


def admit(kv: BlockManager, tokens: int, *, decodes: bool = False, in_flight: int = 0) -> SequenceGroup:
    request = SequenceGroup(tokens)
    kv.admit(request, tokens)
    request.inflight_tokens = in_flight
    if decodes:
        kv.start_decoding(request)
    return request


def held_after_steps(kv: BlockManager, request: SequenceGroup, steps: int) -> list[int]:
    held = []
    for _ in range(steps):
        kv.allocate_step(1)
        held.append(kv.held_blocks(request))
    return held


@BOTH
def test_a_window_gives_a_block_back_once_no_later_token_attends_to_it(kind: Kind) -> None:
    kv = memory(kind, 8, KVGroup(4, SlidingWindow(6)))
    request = admit(kv, 8, decodes=True)
    # Token 10 attends to tokens 4 to 9, itself included: the first block goes when the 10th token comes.
    assert held_after_steps(kv, request, 6) == [3, 2, 2, 2, 3, 2]


@BOTH
def test_with_a_step_in_flight_a_window_gives_a_block_back_one_step_later(kind: Kind) -> None:
    kv = memory(kind, 8, KVGroup(4, SlidingWindow(6)), steps_in_flight=1)
    request = admit(kv, 8, decodes=True, in_flight=8)
    assert held_after_steps(kv, request, 7) == [3, 3, 2, 2, 3, 3, 2]


@BOTH
def test_what_a_prompt_in_flight_attends_to_is_kept_for_its_first_step(kind: Kind) -> None:
    kv = memory(kind, 8, KVGroup(4, SlidingWindow(4)), steps_in_flight=1)
    request = admit(kv, 16, decodes=True, in_flight=9)
    # First 16 − 9 − 3 tokens are skipped, then 16 − 3.
    assert held_after_steps(kv, request, 2) == [5 - 1, 5 - 3]


@BOTH
def test_chunks_are_given_back_as_a_whole(kind: Kind) -> None:
    kv = memory(kind, 8, KVGroup(4, ChunkedLocal(8)))
    request = admit(kv, 4, decodes=True)
    assert held_after_steps(kv, request, 14) == [2, 2, 2, 2, 1, 1, 1, 1, 2, 2, 2, 2, 1, 1]


@BOTH
def test_a_state_is_one_block_however_long_a_sequence_is(kind: Kind) -> None:
    kv = memory(kind, 20, KVGroup(4), KVGroup(LONGEST, State()))
    request = admit(kv, 1, decodes=True)
    kv.allocate_step(50)
    assert kv.held_by_group(request) == [(51, 13), (51, 1)]


@BOTH
def test_a_step_takes_before_it_gives_back_and_a_trim_gives_back_first(kind: Kind) -> None:
    kv = memory(kind, 3, KVGroup(4, SlidingWindow(4)))
    request = admit(kv, 12, decodes=True)
    with pytest.raises(OutOfBlocks):
        kv.allocate_step(1)
    kv.stop_decoding(request)
    kv.free_skipped_blocks(request)
    assert kv.free_blocks == 2
    kv.start_decoding(request)
    kv.allocate_step(1)
    assert (kv.free_blocks, kv.held_by_group(request)) == (1, [(5, 2)])


@BOTH
def test_what_was_trimmed_stays_given_back(kind: Kind) -> None:
    kv = memory(kind, 3, KVGroup(4, SlidingWindow(4)))
    request = admit(kv, 12)
    kv.free_skipped_blocks(request)
    assert kv.held_blocks(request) == 1
    kv.allocate_step(2)
    assert kv.free_blocks == 2


@BOTH
def test_a_chunk_counts_on_what_its_beginning_gives_back(kind: Kind) -> None:
    kv = memory(kind, 3, KVGroup(4, SlidingWindow(4)))
    request = admit(kv, 12)
    with pytest.raises(OutOfBlocks):
        kv.extend(request, 9)
    assert (kv.length(request), kv.held_blocks(request)) == (12, 1)
    kv.extend(request, 8)
    assert kv.free_blocks == 0


@BOTH
def test_groups_of_other_block_sizes_take_blocks_of_one_pool(kind: Kind) -> None:
    kv = memory(kind, 8, KVGroup(4), KVGroup(6, SlidingWindow(6)))
    request = admit(kv, 12, decodes=True)
    assert (kv.free_blocks, kv.held_by_group(request)) == (3, [(12, 3), (12, 2)])
    kv.allocate_step(1)
    assert kv.held_by_group(request) == [(13, 4), (7, 2)]


@BOTH
def test_the_gate_counts_what_a_sequence_holds_at_once(kind: Kind) -> None:
    kv = memory(kind, 15, KVGroup(4), KVGroup(4, SlidingWindow(6)))
    # Of 40 tokens the window has 6 − 1 and 8 in flight at most, in 4 blocks and one more where it begins.
    assert kv.blocks_for(40) == 10 + 5
    assert kv.can_admit(SequenceGroup(40), 8, length=40)
    assert not kv.can_admit(SequenceGroup(40), 8, spare=1, length=40)
    assert not kv.can_admit(SequenceGroup(40), 40, length=40), (
        "the first chunk is held before any is given back"
    )


@BOTH
def test_the_first_step_after_a_prompt_is_planned_where_steps_are_in_flight(kind: Kind) -> None:
    kv = memory(kind, 90, KVGroup(4, SlidingWindow(6)), steps_in_flight=1)
    admit(kv, 9, decodes=True, in_flight=9)
    assert kv.steps_that_fit(5, 0) == 0
    kv.allocate_step(1)
    assert kv.steps_that_fit(5, 0) == 5


def test_it_is_not_where_a_prompt_is_too_short_to_give_anything_back() -> None:
    kv = memory(CountedHybridManager, 90, KVGroup(4, SlidingWindow(6)), steps_in_flight=1)
    admit(kv, 8, decodes=True, in_flight=8)
    assert kv.steps_that_fit(5, 0) == 5


@BOTH
def test_samples_are_requests_of_their_own(kind: Kind) -> None:
    kv = memory(kind, 8, KVGroup(4, SlidingWindow(6)))
    with pytest.raises(BlockManagerError, match="every sample as a request of its own"):
        kv.admit(SequenceGroup(4, samples=2), 4)
    assert kv.free_blocks == 8


@BOTH
def test_a_full_window_takes_no_more_than_it_gives_back(kind: Kind) -> None:
    kv = memory(kind, 3, KVGroup(4, SlidingWindow(5)))
    request = admit(kv, 8, decodes=True)
    for _ in range(1000):
        assert kv.steps_that_fit(1, 0) == 1
        assert kv.try_allocate_step(0) == 0
    assert (kv.length(request), kv.held_blocks(request)) == (1008, 2)


def test_states_that_can_be_found_are_kept_in_tables_only() -> None:
    with pytest.raises(ValueError, match="use HybridManager"):
        memory(CountedHybridManager, 8, KVGroup(4), KVGroup(4, State(aligned=True)))
