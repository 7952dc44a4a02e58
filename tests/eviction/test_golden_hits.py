"""Hits, evictions and victims beside libCacheSim's, and beside a reference with the prefix constraint."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pagesim.eviction import (
    EVICTION_POLICIES,
    CacheView,
    EvictionPolicy,
    Future,
    PrefixCache,
    lru_hits,
)
from pagesim.eviction.frequency import Gdsf
from pagesim.experiments.prompt_blocks import prompt_blocks
from pagesim.workloads import load
from tests.eviction.plugins import PLUGINS

POLICIES = ("lru", "fifo", "lfu", "sieve", "s3fifo", "arc", "gdsf", "belady")
SGLANG = {"mru": "mru", "filo": "filo", "slru-sglang": "slru"}
"""SGLang's leaf orders that only the reference with the prefix constraint has, and their names here."""

BLOCK = {"multiturn_s7": 16}
SMALL = ("small_s1", "small_s2", "small_s3")

ATTENTION = {512: 0.0168, 16: 0.000525}
"""By tokens a block: attention's FLOPs over the linear layers' for a block a block deep, of Llama-3-8B (32
layers, 4,096 wide, 8·10⁹ parameters): 4·32·4096·B / (2·8·10⁹)."""


class GdsfOfLibCacheSim(Gdsf):
    """libCacheSim's GDSF: it turns a block away that would go at once, and a new block's clock is older."""

    def __init__(self, cache: CacheView) -> None:
        super().__init__(cache)
        self._before = 0.0

    def miss(self, block: int) -> bool:
        self._before = self._clock
        if len(self.ranking) < self.cache.capacity:
            return True
        first = self.ranking.first()
        assert first is not None
        return bool(self.ranking.keys[first][0] <= self._clock + self.cache.recompute[block])

    def hit(self, block: int) -> None:
        super().insert(block)  # at the clock of now

    def insert(self, block: int) -> None:
        clock, self._clock = self._clock, self._before
        super().insert(block)
        self._clock = clock


@pytest.fixture(scope="module")
def policies(shared: Path) -> Path:
    found = shared / "policies"
    if not found.is_dir():
        pytest.skip("the folder ../shared/policies with golden hit counts is absent")
    return found


def rows_of(
    folder: Path, name: str, *traces: str, policies: Sequence[str] = POLICIES
) -> list[dict[str, str]]:
    """Return a golden table's rows of these traces and policies."""
    with (folder / f"golden_{name}.csv").open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["trace"] in traces and row["policy"] in policies]


@cache
def asked(folder: Path, trace: str, mapping: str) -> list[list[int]]:
    """Return what each request asks for: all blocks, or the full ones, first to last or last to first."""
    if trace == "conversation_trace":
        found = load(str(folder.parent / "data" / "mooncake_fast25_conversation.parquet"))
        rows: Iterator[Any] = zip(found.hash_ids or (), found.prompt_tokens.tolist(), strict=True)
    else:
        lines = (folder / "traces" / f"{trace}.jsonl").read_text().splitlines()
        rows = ((row["hash_ids"], row["input_length"]) for row in map(json.loads, lines))
    size = BLOCK.get(trace, 512)
    asked_for = [
        list(ids)[: tokens // size] if mapping.endswith("full") else list(ids) for ids, tokens in rows
    ]
    return [ids[::-1] for ids in asked_for] if mapping.startswith("rev") else asked_for


@cache
def future_of(folder: Path, trace: str, mapping: str) -> tuple[Future, list[int]]:
    """Return what a trace is going to ask for, and of each block how many are before it."""
    future = Future(asked(folder, trace, mapping))
    return future, depths(future)


def depths(future: Future) -> list[int]:
    found = [0] * future.distinct
    for blocks in future.blocks:
        for place, block in enumerate(blocks):
            found[block] = place
    return found


def prefix_cache(policy: str, capacity: int, depth: Sequence[int], size: int) -> PrefixCache:
    weights = [1 + ATTENTION[size] * (each + 0.5) for each in depth]
    view = CacheView(capacity, depth, weights)
    kind = PLUGINS.get(policy) or EVICTION_POLICIES.find(SGLANG.get(policy, policy))
    return PrefixCache(view, kind(view))


def check_tree(
    folder: Path,
    name: str,
    *traces: str,
    policies: Sequence[str] = (*POLICIES, *SGLANG),
) -> None:
    rows = rows_of(folder, name, *traces, policies=policies)
    assert {row["policy"] for row in rows} == set(policies)
    for row in rows:
        capacity, trace = int(row["capacity"]), row["trace"]
        future, depth = future_of(folder, trace, row["mapping"])
        cache = prefix_cache(row["policy"], capacity, depth, BLOCK.get(trace, 512))
        hits = sum(map(cache.serve, future.blocks, future.following))
        found = (hits, cache.evictions, cache.not_cached)
        assert found == (int(row["hits"]), int(row["evictions"]), int(row["not_cached"])), row


@cache
def flat_future(folder: Path, trace: str, mapping: str) -> Future:
    return Future([[block] for blocks in asked(folder, trace, mapping) for block in blocks])


def check_flat(folder: Path, name: str, *traces: str) -> None:
    rows = rows_of(folder, name, *traces)
    assert rows
    for row in rows:
        capacity = int(row["capacity"])
        asked_for = asked(folder, row["trace"], row["mapping"])
        future = flat_future(folder, row["trace"], row["mapping"])
        kind: type[EvictionPolicy] = EVICTION_POLICIES.find(row["policy"])
        if row["policy"] == "gdsf":
            kind = GdsfOfLibCacheSim
        view = CacheView(capacity, [0] * future.distinct, [1.0] * future.distinct)
        cache = PrefixCache(view, kind(view))
        # A prompt of one block hangs on none: any block may go.
        found = [cache.serve(*each) == 1 for each in zip(future.blocks, future.following, strict=True)]
        assert sum(found) == int(row["hits"]), row
        prefix, start = 0, 0
        for each in asked_for:
            own = found[start : start + len(each)]
            prefix += own.index(False) if False in own else len(own)
            start += len(each)
        if row["mapping"].startswith("fwd"):
            assert prefix == int(row["prefix_hits"]), row


def test_small_traces_hit_as_often_as_in_the_reference(policies: Path) -> None:
    check_tree(policies, "tree_small", *SMALL)


def test_policies_of_ones_own_hit_as_often_as_in_the_reference(policies: Path) -> None:
    check_tree(policies, "tree_small", *SMALL, policies=tuple(PLUGINS))


def test_small_traces_hit_as_often_as_in_libcachesim(policies: Path) -> None:
    check_flat(policies, "flat_small", *SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("trace", ["multiturn_s7", "conversation"])
@pytest.mark.parametrize("kind", ["tree", "flat"])
def test_every_size_of_longer_traces_is_equal(policies: Path, kind: str, trace: str) -> None:
    check = {"tree": check_tree, "flat": check_flat}[kind]
    check(policies, f"{kind}_{trace}", {"conversation": "conversation_trace"}.get(trace, trace))


def test_victims_are_those_of_the_reference_request_by_request(policies: Path) -> None:
    with (policies / "victims_small_s1_c50.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["policy"] in POLICIES]
    future = Future(asked(policies, "small_s1", "full"))
    name_of = {
        number: name
        for numbers, names in zip(future.blocks, asked(policies, "small_s1", "full"), strict=True)
        for number, name in zip(numbers, names, strict=True)
    }
    for policy in POLICIES:
        cache = prefix_cache(policy, 50, depths(future), 512)
        found = []
        for blocks, following in zip(future.blocks, future.following, strict=True):
            hits = cache.serve(blocks, following)
            found.append((hits, [name_of[block] for block in cache.victims]))
        given = [row for row in rows if row["policy"] == policy]
        assert found == [(int(row["hits"]), [int(name) for name in row["victims"].split()]) for row in given]


def test_the_bound_is_the_references(policies: Path) -> None:
    with (policies / "golden_tree_small.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["policy"] == "belady-bound"]
    assert rows
    for row in rows:
        future = Future(asked(policies, row["trace"], row["mapping"]))
        assert future.hits(int(row["capacity"])) == int(row["hits"]), row


def test_lru_at_every_capacity_is_the_references(policies: Path) -> None:
    with (policies / "mrc_lru_multiturn_s7.csv").open(newline="") as file:
        rows = [(int(row["capacity"]), int(row["hits"])) for row in csv.DictReader(file)]
    found = lru_hits(Future(asked(policies, "multiturn_s7", "full")).blocks)
    assert [found[min(capacity, len(found) - 1)] for capacity, _ in rows] == [hits for _, hits in rows]


@pytest.mark.slow
def test_priorities_by_the_type_of_a_request_are_the_references(policies: Path) -> None:
    """Texts have 35, searches 10, images 60 for 30 s where durations count, files 80 for 120 s."""
    rules = {"text": (35, None), "search": (10, None), "image": (60, 30.0), "file": (80, 120.0)}
    lines = (policies / "traces" / "multiturn_s7.jsonl").read_text().splitlines()
    requests = [json.loads(line) for line in lines]
    future = Future(asked(policies, "multiturn_s7", "full"))
    with (policies / "golden_retention_multiturn_s7.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["policy"] != "lru"][:6]
    for row in rows:
        view = CacheView(int(row["capacity"]), depths(future), [1.0] * future.distinct)
        cache = PrefixCache(view, EVICTION_POLICIES.find(row["policy"].removesuffix("-timed"))(view))
        hits = 0
        for request, blocks in zip(requests, future.blocks, strict=True):
            view.now = float(request["timestamp"])
            view.priority, duration = rules[request["type"]]
            view.duration = duration if row["policy"] == "retention-timed" else None
            hits += cache.serve(blocks)
        assert (hits, cache.evictions) == (int(row["hits"]), int(row["evictions"])), row


def test_the_readers_blocks_are_those_of_the_file(policies: Path) -> None:
    trace = load(str(policies / "traces" / "small_s1.jsonl"))
    future = prompt_blocks(trace).future
    assert future.blocks == Future(asked(policies, "small_s1", "full")).blocks
