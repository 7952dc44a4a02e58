"""Memory of several KV groups serves every sample as a request of its own."""

from __future__ import annotations

import pytest

from pagesim.kvcache import BlockManagerError, HybridManager, KVGroup, SequenceGroup, SlidingWindow


def test_samples_are_requests_of_their_own() -> None:
    kv = HybridManager(8, [KVGroup(4, SlidingWindow(6))], longest=100, in_flight=8)
    with pytest.raises(BlockManagerError, match="every sample as a request of its own"):
        kv.admit(SequenceGroup(4, samples=2), 4)
    assert kv.free_blocks == 8
