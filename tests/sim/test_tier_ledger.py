"""The ledger of the tiers of an engine, after every iteration of a run."""

from __future__ import annotations

import pytest

from pagesim.scheduling.content import name_and_tokens
from tests.sim.test_tiers import Conserved, served
from tests.traces import conversations


@pytest.mark.parametrize("caching", [True, False])
def test_a_tier_has_every_chunk_in_one_entry_after_every_iteration(caching: bool) -> None:
    watch = Conserved()
    server = served(
        conversations(),
        watch,
        kv_offloading_chunks=150,
        kv_offloading_link="0.3GB/s",
        enable_prefix_caching=caching,
        fast_forward=False,
    )
    seen = watch.seen
    for entry in ("pending", "pinned", "duplicate", "kept", "free"):
        assert max(entries[entry] for entries in seen) > 0, entry
    last = server.scheduler.connector.tiers()[0]
    assert (last.name, last.store.writing, last.store.pinned) == ("host", 0, 0)


def test_of_chunks_of_several_blocks_those_are_on_the_device_whose_end_is() -> None:
    server = served(conversations(), kv_offloading_chunks=1000, kv_offloading_chunk_blocks=2)
    tier = server.scheduler.connector.tiers()[0]
    names = {
        name_and_tokens(run.content.key(block))
        for run in server.scheduler.memory.found_runs()
        for block in range(run.start, run.start + run.count)
    }
    duplicate = tier.entries()["duplicate"]
    assert 0 < duplicate < tier.store.used
    idle = [run for run, readers in tier.store.chunks().items() if readers == 0]
    ends = [(run[0] >> 40, 32 * run[2]) for run in idle]  # the name of the segment, the tokens up to the end
    assert duplicate == sum(end in names for end in ends)


@pytest.mark.parametrize("model", ["gpt-oss-20b"])
def test_of_a_hybrid_cache_every_group_is_looked_at(model: str) -> None:
    watch, tier = Conserved(), {"kv_offloading_chunks": 400, "num_blocks": 300}
    served(conversations(), watch, model=model, **tier, fast_forward=False)
    assert max(entries["duplicate"] for entries in watch.seen) > 0
    assert max(entries["kept"] for entries in watch.seen) > 0
