"""A tier beside short memory: stores are waited for alike, iteration by iteration and in fast-forward."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import pagesim as ps
from pagesim.scheduling.offload.connector import Connector
from pagesim.scheduling.offload.jobs import Transfers
from tests.sim.test_tiers import DEAR, SYSTEM, differences, random_trace

Flushed = list[tuple[int, ...]]


def random_options(rnd: Random) -> dict[str, Any]:
    """Return a system with a tier, in which memory is short and copies take long."""
    link = rnd.choice(("5GB/s:20us", "0.7GB/s", "0.1GB/s", "50GB/s"))
    tier: dict[str, Any] = {
        "kv_offloading_size": rnd.choice((0.05, 0.25, 0.5, 2.0)),
        "kv_offloading_link": link,
        "kv_offloading_eviction": rnd.choice(("lru", "lru", "arc")),
    }
    if rnd.random() < 0.25:
        tier = {"tiers": [f"host:{rnd.choice((0.05, 0.25, 0.5))}GiB:{link}", "ssd:2GiB:0.5GB/s"]}
    return {
        **SYSTEM,
        **tier,
        "cost": rnd.choice((DEAR, SYSTEM["cost"])),
        "async_scheduling": rnd.random() < 0.5,
        "kv_offloading_load": rnd.choice(("always", "always", "auto")),
        "kv_offloading_threshold": rnd.choice((0, 0, 2)),
        "kv_offloading_prompt_only": rnd.random() < 0.7,
        "kv_offloading_chunk_blocks": rnd.choice((1, 1, 3)),
        "num_blocks": rnd.choice((60, 80, 120, 200)),
        "max_num_seqs": rnd.choice((4, 16, 64)),
        "max_num_batched_tokens": rnd.choice((64, 256, 1024)),
        "watermark": rnd.choice((0.0, 0.05)),
        "until": 60.0,  # a prompt that can neither be loaded nor computed waits for ever
    }


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> Flushed:
    """Return where the rows of requests are noted for whose stores the host waits, plan by plan."""
    found: Flushed = []
    close = Connector.close

    def noting(self: Connector, *args: Any) -> Transfers:
        plan = close(self, *args)
        found.append(tuple(sorted(job.tracked.request.row for job in plan.flushed)))
        return plan

    monkeypatch.setattr(Connector, "close", noting)
    return found


@pytest.mark.parametrize(
    "seeds",
    [
        range(20),
        *[pytest.param(range(first, first + 70), marks=pytest.mark.slow) for first in range(20, 300, 70)],
    ],
)
def test_copies_are_waited_for_in_fast_forward_as_without(seeds: range, flushed: Flushed) -> None:
    waits = 0
    for seed in seeds:
        options, trace = random_options(Random(seed)), random_trace(seed)
        results, noted = [], []
        for fast_forward in (False, True):
            results.append(ps.simulate(trace, **options, fast_forward=fast_forward, steps="iterations"))
            noted.append([rows for rows in flushed if rows])
            flushed.clear()
        assert differences(*results) == [], f"seed {seed}"
        assert noted[0] == noted[1], f"seed {seed}"
        for part in ("tiers", "memory"):
            assert results[0].summary[part] == results[1].summary[part]
        waits += sum(map(len, noted[0]))
    assert waits > 10
