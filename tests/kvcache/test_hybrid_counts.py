"""Memory of several KV groups: what is taken and given back, block by block."""

from __future__ import annotations

import pytest

from pagesim.kvcache import (
    BlockManager,
    BlockManagerError,
    HybridManager,
    KVGroup,
    SequenceGroup,
    SlidingWindow,
)

LONGEST = 100


def memory(blocks: int, *groups: KVGroup, in_flight: int = 8, steps_in_flight: int = 0) -> BlockManager:
    kv = HybridManager(blocks, groups, longest=LONGEST, in_flight=in_flight)
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


def test_a_window_gives_a_block_back_once_no_later_token_attends_to_it() -> None:
    kv = memory(8, KVGroup(4, SlidingWindow(6)))
    request = admit(kv, 8, decodes=True)
    # Token 10 attends to tokens 4 to 9, itself included: the first block goes when the 10th token comes.
    assert held_after_steps(kv, request, 6) == [3, 2, 2, 2, 3, 2]


def test_the_gate_counts_what_a_sequence_holds_at_once() -> None:
    kv = memory(15, KVGroup(4), KVGroup(4, SlidingWindow(6)))
    # Of 40 tokens the window has 6 − 1 and 8 in flight at most, in 4 blocks and one more where it begins.
    assert kv.blocks_for(40) == 10 + 5
    assert kv.can_admit(SequenceGroup(40), 8, length=40)
    assert not kv.can_admit(SequenceGroup(40), 8, spare=1, length=40)
    assert not kv.can_admit(SequenceGroup(40), 40, length=40), (
        "the first chunk is held before any is given back"
    )


def test_the_first_step_after_a_prompt_is_planned_where_steps_are_in_flight() -> None:
    kv = memory(90, KVGroup(4, SlidingWindow(6)), steps_in_flight=1)
    admit(kv, 9, decodes=True, in_flight=9)
    assert kv.steps_that_fit(5, 0) == 0
    kv.allocate_step(1)
    assert kv.steps_that_fit(5, 0) == 5


def test_samples_are_requests_of_their_own() -> None:
    kv = memory(8, KVGroup(4, SlidingWindow(6)))
    with pytest.raises(BlockManagerError, match="every sample as a request of its own"):
        kv.admit(SequenceGroup(4, samples=2), 4)
    assert kv.free_blocks == 8
