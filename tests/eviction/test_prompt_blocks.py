"""The blocks that prompts ask for, and the capacities at which they are looked for."""

from __future__ import annotations

import numpy as np
import pytest

import pagesim as ps
from pagesim.errors import PagesimError
from pagesim.experiments.evictions import (
    compare_policies,
    evicted_blocks,
    prefill_seconds,
    recompute_weights,
)
from pagesim.experiments.prompt_blocks import PromptBlocks, block_bytes, capacities_around, prompt_blocks
from pagesim.models import model

LLAMA = model("llama-3.1-8b")


def prompts_of(*ids: list[int], tokens: int | None = None) -> PromptBlocks:
    """Return the blocks of prompts that these ids of blocks of 16 tokens name, all of them full."""
    count = np.array([16 * len(each) for each in ids])
    trace = ps.Trace(
        np.zeros(len(ids)),
        count,
        np.ones(len(ids), int),
        hash_ids=[tuple(each) for each in ids],
        hash_block_size=16,
    )
    return prompt_blocks(trace, tokens)


def test_a_prompt_hits_as_far_as_it_begins_as_an_earlier_one() -> None:
    prompts = prompts_of([1, 2, 3], [1, 2, 4], [5, 2, 3], [1, 2, 3])
    assert prompts.future.possible_hits == 2 + 0 + 3
    assert prompts.depth == [0, 1, 2, 2, 0, 1, 2]


def test_a_block_that_a_prompt_does_not_fill_never_hits() -> None:
    trace = ps.Trace(
        np.zeros(2), np.array([20, 20]), np.ones(2, int), hash_ids=[(1, 2), (1, 2)], hash_block_size=16
    )
    prompts = prompt_blocks(trace)
    assert (list(map(len, prompts.requests)), prompts.future.possible_hits) == ([1, 1], 1)


def test_smaller_blocks_find_what_larger_ones_do_not() -> None:
    trace = ps.Trace(np.zeros(2), np.array([40, 40]), np.ones(2, int), prefix_tokens=np.array([24, 24]))
    found = {size: prompt_blocks(trace, size).future.possible_hits for size in (8, 16, 32)}
    assert found == {8: 3, 16: 1, 32: 0}


def test_turns_of_a_closed_loop_come_when_their_clients_have_thought() -> None:
    """Session 0 thinks for 5 s before its second turn, so session 1 is served between its turns."""
    trace = ps.Trace(
        np.array([0.0, 0.0, 3.0]),
        np.array([16, 48, 32]),
        np.array([16, 1, 1]),
        session_id=np.array([0, 0, 1]),
        think_s=np.array([9.0, 5.0, 9.0]),
    )
    prompts = prompt_blocks(trace, 16)
    assert (prompts.arrival_s, prompts.prompt_tokens) == ([0.0, 3.0, 5.0], [16, 32, 48])
    assert prompts.requests[2][0] == prompts.requests[0][0]


def test_a_block_has_the_bytes_of_its_tokens_on_all_gpus_in_whole_pages() -> None:
    assert block_bytes(LLAMA, 512) == 512 * 131_072
    assert block_bytes(LLAMA, 512, tp=4) == 512 * 131_072, "heads are divided, not copied"
    assert block_bytes(model("tiny"), 1) % 4096 == 0
    # 61 layers of 576 numbers, which all eight GPUs hold, in 275 pages of 4,096 bytes
    assert block_bytes(model("deepseek-v3"), 16, tp=8) == 275 * 4096


def test_capacities_go_by_twos_from_below_the_working_set_to_all_content() -> None:
    future = prompts_of(*[[k, k, k, k] for k in range(50)] * 2).future
    found = capacities_around(future, 1 << 20)
    assert found[0] * 32 <= future.working_set
    assert found[-1] >= future.distinct > found[-2]


def test_policies_stand_beside_the_bound() -> None:
    """Three prompts of one text of four blocks of 16 tokens, with another between them, and room for four."""
    prompts = prompts_of([1, 2, 3, 4], [5, 6, 7, 8], [1, 2, 3, 4])
    weights = recompute_weights(LLAMA, prompts)
    # 32 heads of 128, a pair of a query and a key 4 FLOPs each; 6.98·10⁹ parameters in linear layers, 2 each.
    assert weights[1] / weights[0] - 1 == pytest.approx(32 * 4 * 32 * 128 * 16 / (2 * 6.98e9), rel=2e-3)
    uncached = {"seconds": lambda prompt, found: prompt - found}  # a second a token
    lru, bound = compare_policies(prompts, ["lru"], [4], weights, **uncached)
    assert (lru["policy"], lru["hits"], lru["evictions"], lru["not_cached"]) == ("lru", 0, 8, 0)
    assert (lru["hit_pct"], lru["recomputed_pct"], lru["ttft_saved_s"]) == (0, 100, 0)
    assert (bound["policy"], bound["hits"], bound["hit_pct"]) == ("bound", 4, pytest.approx(100 * 64 / 192))
    whole, _ = compare_policies(prompts, ["lru"], [8], weights, **uncached)
    assert (whole["hits"], whole["of_bound_pct"], whole["evictions"]) == (4, 100, 0)
    assert whole["recomputed_pct"] == pytest.approx(200 / 3)
    assert whole["ttft_saved_s"] == pytest.approx(64 / 3)  # of a third of the prompts all 64 tokens


def test_retention_goes_by_the_traces_priorities() -> None:
    """Three prompts of one block in a cache of two, then the first again: it stays if it matters more."""
    found = {}
    for priority in (None, [80, 35, 35, 80], [10, 35, 35, 10]):
        trace = ps.Trace(
            np.arange(4.0),
            np.full(4, 16),
            np.ones(4, int),
            hash_ids=[(1,), (2,), (3,), (1,)],
            hash_block_size=16,
            priority=None if priority is None else np.array(priority),
        )
        row, _ = compare_policies(prompt_blocks(trace), ["retention"], [2], [1.0] * 3)
        found[priority and priority[0]] = row["hits"]
    assert found == {None: 0, 80: 1, 10: 0}


def test_a_prompt_that_is_found_whole_computes_its_last_token() -> None:
    """An affine cost of 1 s an iteration and 1 s a token: 10 tokens, of which 0, 4 or 10 are found."""
    from pagesim.costs import Affine

    seconds = prefill_seconds(Affine(1.0, 1.0, 0.0))
    assert [seconds(10, found) for found in (0, 4, 10)] == [11, 7, 2]


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: prompts_of([1], tokens=0), "block_size is 0; it must be at least 1"),
        (
            lambda: list(compare_policies(prompts_of([1]), ["best"], [1], [1.0])),
            "eviction is 'best'; it must be one of lru, fifo",
        ),
        (lambda: prompt_blocks(ps.Trace(np.zeros(0), np.zeros(0, int), np.zeros(0, int))), "no requests"),
    ],
)
def test_what_cannot_be_compared_is_refused(ask: object, said: str) -> None:
    with pytest.raises(PagesimError, match=said):
        ask()  # type: ignore[operator]


def test_who_evicts_whom_and_whether_that_is_asked_for_again() -> None:
    """With room for two blocks the second prompt evicts the first, which comes again and evicts it."""
    prompts = prompts_of([1, 2], [3, 4], [1, 2])
    evicted = evicted_blocks(prompts, "lru", 2, [1.0] * 4)
    assert evicted.tolist() == [[1, 0, 2], [1, 0, 2], [2, 1, -1], [2, 1, -1]]
    assert evicted_blocks(prompts, "lru", 4, [1.0] * 4).shape == (0, 3)
