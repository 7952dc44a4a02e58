"""The ledger of the tiers of an engine, after every iteration of a run."""

from __future__ import annotations

from pagesim.scheduling.content import name_and_tokens
from tests.sim.test_tiers import served
from tests.traces import conversations


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
