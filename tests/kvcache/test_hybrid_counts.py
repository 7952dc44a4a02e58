"""Memory of several KV groups, counted and tabled: what is taken and given back, block by block."""

from __future__ import annotations

import pytest

from pagesim.kvcache import (
    BlockManager,
    BlockManagerError,
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


@BOTH
def test_samples_are_requests_of_their_own(kind: Kind) -> None:
    kv = memory(kind, 8, KVGroup(4, SlidingWindow(6)))
    with pytest.raises(BlockManagerError, match="every sample as a request of its own"):
        kv.admit(SequenceGroup(4, samples=2), 4)
    assert kv.free_blocks == 8


def test_states_that_can_be_found_are_kept_in_tables_only() -> None:
    with pytest.raises(ValueError, match="use HybridManager"):
        memory(CountedHybridManager, 8, KVGroup(4), KVGroup(4, State(aligned=True)))
