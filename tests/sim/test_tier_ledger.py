"""The ledger of the tiers of an engine, after every iteration of a run."""

from __future__ import annotations

from typing import Any

import pytest

from pagesim.scheduling.content import name_and_tokens
from pagesim.scheduling.observer import Observer
from pagesim.setup.prepare import prepare
from pagesim.setup.server import Server
from pagesim.setup.system import System, checked
from tests.traces import conversations

SYSTEM = {
    "policy": "vllm-v1",
    "model": "llama-3.1-8b",
    "gpu": "h100",
    "cost": "affine:0.010,1e-5,1e-7",
    "block_size": 16,
    "num_blocks": 120,
    "max_num_batched_tokens": 256,
    "max_model_len": 4096,
}


class Watch(Observer):
    """Notes the entries of all tiers whenever an iteration is planned."""

    def __init__(self) -> None:
        self.connector: Any = None
        self.seen: list[dict[str, int]] = []

    def begun(self, scheduler: Any) -> None:
        self.connector = scheduler.connector

    def planned(self, batch: Any, decided: int, start: int, ticks: int) -> None:
        for tier in self.connector.tiers():
            entries = tier.entries()
            assert min(entries.values()) >= 0
            assert sum(entries.values()) == tier.store.capacity
            self.seen.append(entries)


def watched(**options: Any) -> tuple[Watch, Server]:
    trace = conversations()
    setting = prepare(checked(System, {**SYSTEM, **options}), trace)
    watch = Watch()
    server = Server(setting, setting.new_log(), setting.arrivals(), observers=[watch])
    server.replay()
    return watch, server


@pytest.mark.parametrize("caching", [True, False])
def test_a_tier_has_every_chunk_in_one_entry_after_every_iteration(caching: bool) -> None:
    watch, server = watched(
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
    _, server = watched(kv_offloading_chunks=1000, kv_offloading_chunk_blocks=2)
    tier = server.scheduler.connector.tiers()[0]
    names = {
        name_and_tokens(run.content.key(block))
        for run in server.scheduler.memory.found_runs()
        for block in range(run.start, run.start + run.count)
    }
    assert 0 < tier.entries()["duplicate"] < tier.store.used
    idle = [run for run, readers in tier.store.chunks().items() if readers == 0]
    ends = [(run[0] >> 40, 32 * run[2]) for run in idle]  # the name of the segment, the tokens up to the end
    assert tier.entries()["duplicate"] == sum(end in names for end in ends)


@pytest.mark.parametrize("model", ["gpt-oss-20b"])
def test_of_a_hybrid_cache_every_group_is_looked_at(model: str) -> None:
    watch, _ = watched(model=model, kv_offloading_chunks=400, num_blocks=300, fast_forward=False)
    assert max(entries["duplicate"] for entries in watch.seen) > 0
    assert max(entries["kept"] for entries in watch.seen) > 0
