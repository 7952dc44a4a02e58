"""Hit rate of a tier over a trace's prompts, without a scheduler."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pagesim as ps
from pagesim.errors import PagesimError
from pagesim.experiments.offload.hit_rate import (
    OFFERED_TOKENS,
    capacities_around,
    chunk_bytes,
    hit_rates,
    hits_of,
    prompt_chunks,
)
from pagesim.kvcache.tiers import EVICTIONS, ChunkStore
from pagesim.models import model
from pagesim.workloads import load

LLAMA = model("llama-3.1-8b")


def prompts_of(*ids, tokens=None):
    """Return the chunks of prompts that these ids of blocks of 16 tokens name, all of them full."""
    count = np.array([16 * len(each) for each in ids])
    trace = ps.Trace(
        np.zeros(len(ids)),
        count,
        np.ones(len(ids), int),
        hash_ids=[tuple(each) for each in ids],
        hash_block_size=16,
    )
    return prompt_chunks(trace, tokens)


def rates(prompts, capacities, evictions=tuple(EVICTIONS)):
    return list(hit_rates(prompts, capacities, evictions))


def test_a_prompt_hits_as_far_as_it_begins_as_an_earlier_one():
    prompts = prompts_of([1, 2, 3], [1, 2, 4], [5, 2, 3], [1, 2, 3])
    assert hits_of(ChunkStore(100, EVICTIONS["lru"](100)), prompts) == 2 + 0 + 3
    assert prompts.future.possible_hits == 5


def test_a_chunk_that_a_prompt_does_not_fill_is_counted_and_never_hits():
    trace = ps.Trace(
        np.zeros(2), np.array([20, 20]), np.ones(2, int), hash_ids=[(1, 2), (1, 2)], hash_block_size=16
    )
    prompts = prompt_chunks(trace)
    assert (prompts.chunks, prompts.future.possible_hits) == (4, 1)


def test_smaller_chunks_find_what_larger_ones_do_not():
    trace = ps.Trace(np.zeros(2), np.array([40, 40]), np.ones(2, int), prefix_tokens=np.array([24, 24]))
    found = {size: prompt_chunks(trace, size).future.possible_hits for size in (8, 16, 32)}
    assert found == {8: 3, 16: 1, 32: 0}


def test_a_tail_without_its_head_is_no_hit_and_lru_by_request_keeps_heads():
    prompts = prompts_of([1, 2, 3], [9], [1, 2, 3])
    found = {rate.eviction: rate.hits for rate in rates(prompts, [3], ("lru", "lru-chunk"))}
    assert found == {"lru": 2, "lru-chunk": 0, "belady": 3}


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=2, max_size=30), st.integers(0, 12)
)
def test_no_eviction_exceeds_the_bound_and_a_tier_of_all_content_loses_nothing(ids, capacity):
    prompts = prompts_of(*ids)
    future = prompts.future
    found = {rate.eviction: rate.hits for rate in rates(prompts, [capacity])}
    assert max(found.values()) == found["belady"] <= future.possible_hits
    assert {rate.hits for rate in rates(prompts, [future.distinct])} == {future.possible_hits}


def test_a_tier_of_no_capacity_has_no_hit():
    assert {rate.hits for rate in rates(prompts_of([1, 2], [1, 2]), [0])} == {0}


def test_a_chunk_has_the_bytes_of_its_tokens_on_all_gpus_in_whole_pages():
    assert chunk_bytes(LLAMA, 512) == 512 * 131_072
    assert chunk_bytes(LLAMA, 512, tp=4) == 512 * 131_072, "heads are divided, not copied"
    assert chunk_bytes(model("tiny"), 1) % 4096 == 0
    # 61 layers of 576 numbers, which all eight GPUs hold, in 275 pages of 4,096 bytes
    assert chunk_bytes(model("deepseek-v3"), 16, tp=8) == 275 * 4096


def test_capacities_go_by_twos_from_below_the_working_set_to_all_content():
    prompts = prompts_of(*[[k, k, k, k] for k in range(50)] * 2)
    future = prompts.future
    found = capacities_around(future, 1 << 20)
    assert found[0] * 32 <= future.working_set
    assert found[-1] >= future.distinct > found[-2]


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: prompts_of([1], tokens=0), "chunk_tokens is 0; it must be at least 1"),
        (lambda: rates(prompts_of([1]), [1], ("fifo",)), "eviction is 'fifo'; it must be one of lru, arc"),
        (lambda: prompt_chunks(ps.Trace(np.zeros(0), np.zeros(0, int), np.zeros(0, int))), "no requests"),
    ],
)
def test_what_cannot_be_is_refused(ask, said):
    with pytest.raises(PagesimError, match=said):
        ask()


@pytest.mark.slow
def test_mooncakes_conversations_on_llama_3_1_8b(shared):
    """Without a limit the trace's own 36.60 %: Belady has it in 509 GiB, LRU and ARC in many times that."""
    prompts = prompt_chunks(load(shared / "data" / "mooncake_fast25_conversation.parquet"))
    assert (prompts.tokens, prompts.chunks) == (512, 288_500)
    assert OFFERED_TOKENS // prompts.tokens == 16
    future = prompts.future
    assert 100 * future.possible_hits / prompts.chunks == pytest.approx(36.60, abs=0.005)
    chunk = chunk_bytes(LLAMA, 512)
    assert future.working_set * chunk / 2**30 == pytest.approx(508.2, abs=0.1)
    half, whole = (size * 2**30 // chunk for size in (512, 16384))
    found = {
        (each.eviction, each.capacity): each.percent for each in rates(prompts, [half, whole], ("lru", "arc"))
    }
    assert found["belady", half] == pytest.approx(36.60, abs=0.005)
    assert found["lru", half] == pytest.approx(18.85, abs=0.005)
    assert found["arc", half] == pytest.approx(17.19, abs=0.005)
    for name in ("lru", "arc", "belady"):
        assert found[name, whole] == pytest.approx(36.60, abs=0.005)
