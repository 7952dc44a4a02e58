"""Memory of several KV groups, counted and tabled: what is taken and given back, block by block."""

from __future__ import annotations

import pytest

from pagesim.kvcache import (
    BlockManager,
    BlockManagerError,
    ChunkedLocal,
    CountedHybridManager,
    Holder,
    HybridManager,
    KVGroup,
    OutOfBlocks,
    SlidingWindow,
    State,
)

Kind = type[CountedHybridManager] | type[HybridManager]
BOTH = pytest.mark.parametrize("kind", [CountedHybridManager, HybridManager])
LONGEST = 100


def memory(kind: Kind, blocks: int, *groups: KVGroup, in_flight: int = 8, lag: int = 0) -> BlockManager:
    kv = kind(blocks, groups, longest=LONGEST, in_flight=in_flight)
    kv.lag = lag
    return kv


def admit(kv: BlockManager, tokens: int, *, decodes: bool = False, in_flight: int = 0) -> Holder:
    holder = Holder(tokens)
    kv.admit(holder, tokens)
    holder.in_flight = in_flight
    if decodes:
        kv.start_decoding(holder)
    return holder


def held_after_steps(kv: BlockManager, holder: Holder, steps: int) -> list[int]:
    held = []
    for _ in range(steps):
        kv.grow(1)
        held.append(kv.held_blocks(holder))
    return held


@BOTH
def test_a_window_gives_a_block_back_once_no_later_token_attends_to_it(kind: Kind) -> None:
    kv = memory(kind, 8, KVGroup(4, SlidingWindow(6)))
    holder = admit(kv, 8, decodes=True)
    # Token 10 attends to tokens 4 to 9, itself included: the first block goes when the 10th token comes.
    assert held_after_steps(kv, holder, 6) == [3, 2, 2, 2, 3, 2]


@BOTH
def test_with_a_step_in_flight_a_window_gives_a_block_back_one_step_later(kind: Kind) -> None:
    kv = memory(kind, 8, KVGroup(4, SlidingWindow(6)), lag=1)
    holder = admit(kv, 8, decodes=True, in_flight=8)
    assert held_after_steps(kv, holder, 7) == [3, 3, 2, 2, 3, 3, 2]


@BOTH
def test_what_a_prompt_in_flight_attends_to_is_kept_for_its_first_step(kind: Kind) -> None:
    kv = memory(kind, 8, KVGroup(4, SlidingWindow(4)), lag=1)
    holder = admit(kv, 16, decodes=True, in_flight=9)
    # First 16 − 9 − 3 tokens are skipped, then 16 − 3.
    assert held_after_steps(kv, holder, 2) == [5 - 1, 5 - 3]


@BOTH
def test_chunks_are_given_back_as_a_whole(kind: Kind) -> None:
    kv = memory(kind, 8, KVGroup(4, ChunkedLocal(8)))
    holder = admit(kv, 4, decodes=True)
    assert held_after_steps(kv, holder, 14) == [2, 2, 2, 2, 1, 1, 1, 1, 2, 2, 2, 2, 1, 1]


@BOTH
def test_a_state_is_one_block_however_long_a_sequence_is(kind: Kind) -> None:
    kv = memory(kind, 20, KVGroup(4), KVGroup(LONGEST, State()))
    holder = admit(kv, 1, decodes=True)
    kv.grow(50)
    assert kv.held_by_group(holder) == [(51, 13), (51, 1)]


@BOTH
def test_a_step_takes_before_it_gives_back_and_a_trim_gives_back_first(kind: Kind) -> None:
    kv = memory(kind, 3, KVGroup(4, SlidingWindow(4)))
    holder = admit(kv, 12, decodes=True)
    with pytest.raises(OutOfBlocks):
        kv.grow(1)
    kv.stop_decoding(holder)
    kv.free_skipped_blocks(holder)
    assert kv.free_blocks == 2
    kv.start_decoding(holder)
    kv.grow(1)
    assert (kv.free_blocks, kv.held_by_group(holder)) == (1, [(5, 2)])


@BOTH
def test_what_was_trimmed_stays_given_back(kind: Kind) -> None:
    kv = memory(kind, 3, KVGroup(4, SlidingWindow(4)))
    holder = admit(kv, 12)
    kv.free_skipped_blocks(holder)
    assert kv.held_blocks(holder) == 1
    kv.grow(2)
    assert kv.free_blocks == 2


@BOTH
def test_a_chunk_counts_on_what_its_beginning_gives_back(kind: Kind) -> None:
    kv = memory(kind, 3, KVGroup(4, SlidingWindow(4)))
    holder = admit(kv, 12)
    with pytest.raises(OutOfBlocks):
        kv.extend(holder, 9)
    assert (kv.length(holder), kv.held_blocks(holder)) == (12, 1)
    kv.extend(holder, 8)
    assert kv.free_blocks == 0


@BOTH
def test_groups_of_other_block_sizes_take_blocks_of_one_pool(kind: Kind) -> None:
    kv = memory(kind, 8, KVGroup(4), KVGroup(6, SlidingWindow(6)))
    holder = admit(kv, 12, decodes=True)
    assert (kv.free_blocks, kv.held_by_group(holder)) == (3, [(12, 3), (12, 2)])
    kv.grow(1)
    assert kv.held_by_group(holder) == [(13, 4), (7, 2)]


@BOTH
def test_the_gate_counts_what_a_sequence_holds_at_once(kind: Kind) -> None:
    kv = memory(kind, 15, KVGroup(4), KVGroup(4, SlidingWindow(6)))
    # Of 40 tokens the window has 6 − 1 and 8 in flight at most, in 4 blocks and one more where it begins.
    assert kv.blocks_for(40) == 10 + 5
    assert kv.can_admit_whole(Holder(40), 8, 40)
    assert not kv.can_admit_whole(Holder(40), 8, 40, spare=1)
    assert not kv.can_admit_whole(Holder(40), 40, 40), "the first chunk is held before any is given back"


@BOTH
def test_the_first_step_after_a_prompt_is_planned_where_steps_are_in_flight(kind: Kind) -> None:
    kv = memory(kind, 90, KVGroup(4, SlidingWindow(6)), lag=1)
    admit(kv, 9, decodes=True, in_flight=9)
    assert kv.steps_that_fit(5, 0) == 0
    kv.grow(1)
    assert kv.steps_that_fit(5, 0) == 5


def test_it_is_not_where_a_prompt_is_too_short_to_give_anything_back() -> None:
    kv = memory(CountedHybridManager, 90, KVGroup(4, SlidingWindow(6)), lag=1)
    admit(kv, 8, decodes=True, in_flight=8)
    assert kv.steps_that_fit(5, 0) == 5


@BOTH
def test_samples_are_requests_of_their_own(kind: Kind) -> None:
    kv = memory(kind, 8, KVGroup(4, SlidingWindow(6)))
    with pytest.raises(BlockManagerError, match="every sample as a request of its own"):
        kv.admit(Holder(4, samples=2), 4)
    assert kv.free_blocks == 8


def test_a_full_window_takes_no_more_than_it_gives_back() -> None:
    kv = memory(CountedHybridManager, 3, KVGroup(4, SlidingWindow(5)))
    admit(kv, 8, decodes=True)
    kv.grow(2)
    assert kv.steps_that_fit(1000, 0) == 1000
    kv.grow(1000)
    assert kv.free_blocks >= 1


def test_states_that_can_be_found_are_kept_in_tables_only() -> None:
    with pytest.raises(ValueError, match="use HybridManager"):
        memory(CountedHybridManager, 8, KVGroup(4), KVGroup(4, State(aligned=True)))
