"""Engines with a chain of tiers: vLLM's one tier as a chain, limits, a request by hand, conservation."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

import pagesim as ps
from pagesim.costs.transfers import LinkQueue
from pagesim.scheduling.arrivals import NEVER
from pagesim.scheduling.observer import Observer
from pagesim.setup.prepare import prepare
from pagesim.setup.server import Server
from pagesim.setup.system import System, checked
from pagesim.sim.clock import TICKS_PER_SECOND
from pagesim.sim.copies import TierCopies
from pagesim.workloads.trace import Trace

SYSTEM = {
    "policy": "vllm-v1",
    "model": "llama-3.1-8b",
    "gpu": "h100",
    "cost": "affine:0.010,1e-5,1e-7",
    "num_blocks": 120,
    "max_num_batched_tokens": 256,
    "max_model_len": 4096,
}
DEAR = "affine:0.010,1e-4,1e-7"
"""So that it pays to load over the links below."""

BLOCK = 16 * 2 * 32 * 8 * 128 * 2
"""Bytes of a block of Llama-3.1-8B."""


def size_of(blocks: int) -> str:
    """Return the capacity of so many blocks as a tier says it."""
    return f"{blocks * BLOCK}B"


def random_trace(seed: int, requests: int = 40) -> Trace:
    """Return requests of a few documents, whose prompts begin alike and part somewhere."""
    rnd = Random(seed)
    prompt = [rnd.randint(20, 700) for _ in range(requests)]
    ids = [
        tuple(
            1000 * (row % 5) + block if rnd.random() < 0.98 else rnd.randint(10**6, 10**9)
            for block in range(-(-tokens // 16))
        )
        for row, tokens in enumerate(prompt)
    ]
    arrival = np.sort([rnd.random() * requests / 6 for _ in range(requests)])
    aborts = arrival + np.array([rnd.choice((0.2, 1.0, 1e4)) for _ in range(requests)])
    return Trace(
        arrival,
        np.array(prompt),
        np.array([rnd.randint(1, 40) for _ in range(requests)]),
        hash_ids=ids,
        hash_block_size=16,
        abort_s=aborts,
    )


def run(trace: Trace, **options: Any) -> Any:
    return ps.simulate(trace, **{**SYSTEM, **options}, steps="iterations")


def differences(one: Any, other: Any) -> list[str]:
    """Return the columns of requests and iterations in which two results differ."""
    found = []
    for table in ("requests", "steps"):
        ours, theirs = getattr(one, table), getattr(other, table)
        assert list(ours.columns) == list(theirs.columns)
        assert len(ours) == len(theirs)
        found += [f"{table}.{name}" for name in ours if not ours[name].equals(theirs[name])]
    return found


@pytest.mark.parametrize("fast_forward", [True, False])
@pytest.mark.parametrize("eviction", ["lru", "arc"])
@pytest.mark.parametrize("seed", [1, *[pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 4)]])
def test_a_chain_of_one_inclusive_tier_is_vllms_offloading(
    seed: int, eviction: str, fast_forward: bool
) -> None:
    rnd = Random(seed)
    same = {
        "cost": DEAR,
        "fast_forward": fast_forward,
        "async_scheduling": rnd.random() < 0.5,
        "kv_offloading_load": rnd.choice(("always", "auto")),
        "kv_offloading_threshold": rnd.choice((0, 2)),
        "kv_offloading_prompt_only": rnd.random() < 0.7,
        "kv_offloading_chunk_blocks": rnd.choice((1, 1, 3)),
        "enable_prefix_caching": rnd.random() < 0.8,
    }
    gib, link = rnd.choice((0.25, 0.5, 2.0)), rnd.choice(("5GB/s:20us", "0.7GB/s"))
    trace = random_trace(seed)
    vllm = run(
        trace,
        **same,
        kv_offloading_size=gib,
        kv_offloading_link=link,
        kv_offloading_eviction=eviction,
    )
    chain = run(trace, **same, tiers=[f"host:{gib}GiB:{link}:{eviction}"])
    assert differences(vllm, chain) == []
    assert vllm.requests["loaded_tokens"].sum() > 0
    assert vllm.summary["tiers"] == chain.summary["tiers"]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt-oss-20b", "gemma3-27b"])
@pytest.mark.parametrize("blocks", [1, 2])
def test_of_hybrid_caches_as_well(model: str, blocks: int) -> None:
    same = {"model": model, "num_blocks": 400, "kv_offloading_chunk_blocks": blocks}
    trace = random_trace(5)
    vllm = run(trace, **same, kv_offloading_size=2.0, kv_offloading_link="5GB/s")
    chain = run(trace, **same, tiers=["host:2GiB:5GB/s"])
    assert differences(vllm, chain) == []
    assert vllm.requests["loaded_tokens"].sum() > 0


@pytest.mark.parametrize(
    "tiers",
    [
        {"kv_offloading_chunks": 0},
        *(
            {"tiers": own}
            for own in (["host:0GiB"], ["host:0GiB", "ssd:0GiB"], ["host:0GiB", "ssd:1GiB:arc"])
        ),
    ],
)
def test_tiers_without_room_change_nothing_where_frees_are_not_fenced(tiers: dict[str, Any]) -> None:
    trace = random_trace(1)
    without = run(trace, async_scheduling=False)
    nothing = run(trace, async_scheduling=False, **tiers)
    for table in ("steps", "requests"):
        ours, theirs = getattr(without, table), getattr(nothing, table)
        assert theirs[ours.columns].equals(ours)


def test_over_infinitely_slow_links_auto_computes_everything() -> None:
    trace = random_trace(2)
    without = run(trace, async_scheduling=False)
    slow = run(
        trace,
        async_scheduling=False,
        kv_offloading_load="auto",
        tiers=["host:1GiB:1KB/s", "ssd:8GiB:1KB/s:exclusive", "remote:1TiB:1KB/s:direct"],
    )
    assert slow.requests["loaded_tokens"].sum() == 0
    assert slow.requests[without.requests.columns].equals(without.requests)
    assert slow.summary["ttft"] == without.summary["ttft"]


@pytest.mark.parametrize(
    "tiers",
    [
        {"kv_offloading_chunks": 1_000_000, "kv_offloading_link": "1000000TB/s"},
        {"tiers": ["host:infGiB:infGB/s"]},
        {"tiers": [f"host:{size_of(20)}:infGB/s", "ssd:infGiB:infGB/s:0s"]},
        {"tiers": [f"host:{size_of(60)}:infGB/s:arc", "ssd:infGiB:infGB/s:0s:exclusive"]},
    ],
)
def test_an_infinite_instant_chain_finds_what_was_ever_computed(tiers: dict[str, Any]) -> None:
    """Requests come one at a time, so that all of a prompt is stored when the next one comes."""
    drawn = random_trace(3, requests=60)
    trace = drawn.with_columns({"abort_s": None, "arrival_s": 100.0 * np.arange(len(drawn))})
    found = run(trace, num_blocks=60, **tiers).requests["cached_tokens"].tolist()
    assert trace.hash_ids is not None
    known: set[tuple[int, ...]] = set()
    expected = []
    for ids, prompt in zip(trace.hash_ids, trace.prompt_tokens.tolist(), strict=True):
        chunks = [tuple(ids[: place + 1]) for place in range(prompt // 16)]
        hit = next((at for at, chunk in enumerate(chunks) if chunk not in known), len(chunks))
        expected.append(min(16 * hit, prompt - 1))  # the last token is computed again, whatever was found
        known.update(chunks)
    assert sum(expected) > 0
    assert found == expected


def test_a_prompt_that_returns_through_two_tiers_takes_what_a_calculation_by_hand_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The host has room for the four blocks of one prompt, so that of the first only the drive has any left.

    Each prompt is computed at its arrival and takes 10 ms, 10 us a token and 0.1 us a token of context; its
    blocks are stored when the iteration that generates the second token is launched. When that is over, the
    engine sees that they are, and they go on to the drive.
    """
    copies: list[tuple[float, float]] = []
    occupy = LinkQueue.occupy

    def noting(queue: LinkQueue, ready: int, taken: int, size: int) -> tuple[int, int]:
        begin, end = occupy(queue, ready, taken, size)
        copies.append((begin / TICKS_PER_SECOND, end / TICKS_PER_SECOND))
        return begin, end

    monkeypatch.setattr(LinkQueue, "occupy", noting)
    trace = Trace(
        np.array([0.0, 10.0, 20.0]),
        np.array([64, 64, 64]),
        np.array([2, 2, 2]),
        hash_ids=[(1,), (2,), (1,)],
        hash_block_size=64,
    )
    result = run(
        trace,
        async_scheduling=False,
        enable_prefix_caching=False,
        tiers=[f"host:{size_of(4)}:1GB/s:1ms", "ssd:1GiB:0.5GB/s:0.25GB/s:2ms"],
    )
    first, second, third = result.requests.to_dict("records")
    computes = 0.010 + 64e-5 + 64e-7
    assert first["first_token_s"] == pytest.approx(computes)
    assert second["first_token_s"] == pytest.approx(10 + computes)
    # The host's memory is read and written at 1 ms and 1 GB/s, the drive at 2 ms and 0.5 or 0.25 GB/s.
    host_s = 0.001 + 4 * BLOCK / 1e9
    read_s, written_s = (0.002 + 4 * BLOCK / rate for rate in (0.5e9, 0.25e9))
    over = computes + 0.010 + 1e-5 + 65e-7
    by_hand = [
        *((computes, computes + host_s), (over, over + written_s)),
        *((10 + computes, 10 + computes + host_s), (10 + over, 10 + over + written_s)),
        *((20.0, 20 + read_s), (20 + read_s, 20 + read_s + host_s)),
    ]
    assert np.array(copies) == pytest.approx(np.array(by_hand), abs=1e-9)
    load_s = read_s + host_s
    naps = np.ceil(load_s / 0.001) + 1  # the engine looks every millisecond, and schedules one after that
    assert (third["cached_tokens"], third["loaded_tokens"]) == (63, 64)
    assert third["first_token_s"] == pytest.approx(20 + 0.001 * naps + 0.010 + 1e-5 + 64e-7)
    tiers = result.summary["tiers"]
    assert tiers["host"]["chunks"] == {"stored": 8, "loaded": 0, "promoted": 4, "demoted": 0, "evicted": 8}
    assert tiers["ssd"]["chunks"] == {"stored": 8, "loaded": 4, "promoted": 0, "demoted": 0, "evicted": 0}
    assert tiers["ssd"]["bytes"]["loaded"] == 4 * BLOCK
    assert (tiers["host"]["share"], tiers["ssd"]["share"]) == (0.0, 1.0)


CHAINS = {
    "write-through": [f"host:{size_of(60)}:2GB/s", f"ssd:{size_of(200)}:1GB/s:0.5GB/s"],
    "demotion": [f"host:{size_of(60)}:2GB/s:arc", f"ssd:{size_of(200)}:1GB/s:0.5GB/s:exclusive"],
    "side by side": [f"host:{size_of(40)}:2GB/s", f"remote:{size_of(300)}:1GB/s:direct"],
    "never": [f"host:{size_of(80)}:2GB/s:never", f"ssd:{size_of(100)}:0.3GB/s"],
    "three": [
        f"host:{size_of(40)}:2GB/s",
        f"ssd:{size_of(80)}:1GB/s:0.5GB/s:exclusive",
        f"far:{size_of(300)}:0.3GB/s:1ms:exclusive:lru-chunk",
    ],
    "three, one beside": [
        f"host:{size_of(40)}:2GB/s:arc",
        f"remote:{size_of(300)}:1GB/s:direct",
        f"far:{size_of(500)}:0.2GB/s:5ms",
    ],
    "little room at first": [f"host:{size_of(20)}:2GB/s", f"ssd:{size_of(100)}:0.1GB/s:exclusive"],
}


class Conserved(Observer):
    """Checks in every planned iteration that each tier has every chunk in one entry; notes the entries."""

    def __init__(self) -> None:
        self.connector: Any = None
        self.planned_ones = 0
        self.seen: list[dict[str, int]] = []

    def begun(self, scheduler: Any) -> None:
        self.connector = scheduler.connector

    def planned(self, batch: Any, decided: int, start: int, ticks: int) -> None:
        self.planned_ones += 1
        for tier in self.connector.tiers():
            entries = tier.entries()
            assert min(entries.values()) >= 0
            assert sum(entries.values()) == tier.store.capacity
            self.seen.append(entries)
        if self.planned_ones % 10 == 0:
            self.connector.backing.chain.check_integrity()


def served(trace: Trace, watch: Observer | None = None, **options: Any) -> Server:
    setting = prepare(checked(System, {**SYSTEM, **options}), trace)
    server = Server(
        setting,
        setting.new_log(),
        setting.arrivals(),
        aborts=setting.aborts(),
        observers=[] if watch is None else [watch],
    )
    server.replay()
    return server


@pytest.mark.parametrize("seed", [11, pytest.param(12, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", CHAINS)
def test_no_chunk_is_lost_in_a_run_and_nothing_stays_pinned_or_pending(kind: str, seed: int) -> None:
    rnd = Random(seed)
    watch = Conserved()
    server = served(
        random_trace(seed),
        watch,
        cost=DEAR,
        tiers=CHAINS[kind],
        async_scheduling=rnd.random() < 0.5,
        kv_offloading_prompt_only=rnd.random() < 0.5,
        kv_offloading_chunk_blocks=rnd.choice((1, 2)),
        kv_offloading_load=rnd.choice(("always", "auto")),
        enable_prefix_caching=rnd.random() < 0.8,
    )
    assert watch.planned_ones > 50
    copies, connector = server.engine.copies, server.scheduler.connector
    assert isinstance(copies, TierCopies)
    copies.advance(NEVER)  # what moves from tier to tier goes on when all requests are over
    chain = connector.backing.chain
    chain.check_integrity()
    assert not connector.jobs
    assert not chain.moves
    for tier in connector.tiers():
        assert (tier.store.writing, tier.store.pinned) == (0, 0)
    assert sum(traffic.stored for traffic in chain.traffic) > 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"kv_offloading_size": 1.0}, r"kv_offloading_size is 1\.0, and tiers is host:1GiB"),
        ({"kv_offloading_eviction": "arc"}, "kv_offloading_eviction is arc, and tiers"),
        ({"kv_offloading_link": "25GB/s"}, "each tier says its own link"),
        ({"vllm_version": "0.19.0"}, r"tiers is for vLLM 0\.33\.0, not 0\.19\.0"),
        ({"policy": "vllm-sosp"}, "scheduler vllm-sosp stores nothing in tiers: choose policy vllm-v1"),
        ({"tiers": ["host:1GiB:exclusive"]}, "swap space is policy vllm-sosp with preemption swap"),
        ({"tiers": ["host:1KiB"]}, "tier host has 1024 bytes, less than the 2097152 of a chunk"),
        ({"tiers": ["host"]}, "it has 0 capacities"),
    ],
)
def test_what_an_engine_cannot_be_driven_by_is_refused_in_a_sentence(
    options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ps.PagesimError, match=sentence):
        ps.simulate(random_trace(1), **{**SYSTEM, "tiers": ["host:1GiB"], **options})


def test_tiers_are_written_as_a_list_or_with_a_plus_between_them() -> None:
    written = checked(System, {"tiers": "host:1GiB:2GB/s+ssd:1TiB"})
    assert written.option("tiers") == ("host:1GiB:2GB/s", "ssd:1TiB")
    assert written == checked(System, {"tiers": ["host:1GiB:2GB/s", "ssd:1TiB"]}, strict=True)
    assert checked(System, {"tiers": []}).option("tiers") is None


def test_notes_say_where_the_links_of_each_tier_are_from() -> None:
    notes = run(random_trace(1, 5), tiers=["host:1GiB", "ssd:1TiB", "remote:1TiB:3GB/s:direct"]).notes
    links = [note for note in notes if note.startswith("links of ")]
    assert [note.split(":")[0] for note in links] == ["links of host", "links of ssd", "links of remote"]
    assert "PCIe" in links[0]
    assert "NVMe" in links[1]
    assert "given by --tier remote" in links[2]


def test_replicas_have_tiers_of_their_own_and_a_summary_has_their_sum() -> None:
    trace = random_trace(1)
    options = {**SYSTEM, "tiers": CHAINS["demotion"]}
    two = ps.simulate_cluster(trace, options.pop("policy"), replicas=2, **options).summary["tiers"]
    own = [run(trace.take(np.arange(first, len(trace), 2)), tiers=CHAINS["demotion"]) for first in (0, 1)]
    parts = [each.summary["tiers"] for each in own]
    for name in ("host", "ssd"):
        assert two[name]["capacity"] == 2 * parts[0][name]["capacity"]
        for what, count in two[name]["chunks"].items():
            assert count == sum(part[name]["chunks"][what] for part in parts)
    assert two["host"]["share"] + two["ssd"]["share"] == pytest.approx(1)
