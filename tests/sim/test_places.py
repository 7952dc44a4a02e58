"""Token-granular and virtually contiguous memory: logs by hand, and what they have in common with blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import pagesim as ps

SECOND: dict[str, Any] = {"cost": "affine:1,0,0", "steps": "iterations", "watermark": 0.0}
PAIRS: dict[str, Any] = {"model": "opt-175b", "page_size": "64K"}
"""Blocks of 2 tokens: the keys of one token of one layer are 24 KiB."""


def load(seed: int = 3, size: int = 60) -> ps.Trace:
    """More than 400 tokens of memory serve without a preemption."""
    rng = np.random.default_rng(seed)
    return ps.Trace(
        np.cumsum(rng.exponential(0.05, size)), rng.integers(1, 90, size), rng.integers(1, 60, size)
    )


def statuses(policy: str, n: int, prompt: int, output: int, **options: Any) -> list[str]:
    trace = ps.Trace(np.zeros(1), np.array([prompt]), np.array([output]), np.array([n]))
    return ps.simulate(trace, policy, **{**SECOND, **options}).requests["status"].tolist()


def assert_decides_alike(one: ps.Result, other: ps.Result) -> None:
    assert one.steps is not None
    assert other.steps is not None
    pd.testing.assert_frame_equal(one.steps, other.steps, check_exact=True)
    pd.testing.assert_frame_equal(one.requests, other.requests, check_exact=True)
    assert one.summary["preemptions"] == other.summary["preemptions"]
    assert one.summary["preemptions"]["recompute"] > 0, "the memory is meant to be too small"


def test_token_granular_memory_holds_tokens_and_nothing_else() -> None:
    steps = ps.simulate(load(), "token-granular", num_blocks=400, cost="affine:0.02,0,0").steps
    assert steps is not None
    assert (steps["used"] == steps["num_physical_blocks"]).all()
    assert (steps[["reserved", "unused_reservation", "rounding", "external"]] == 0).all(axis=None)


def test_token_granular_memory_is_the_papers_with_blocks_of_1() -> None:
    options: dict[str, Any] = {"num_blocks": 400, "cost": "affine:0.02,1e-4,1e-6"}
    own = ps.simulate(load(), "token-granular", **options)
    assert_decides_alike(own, ps.simulate(load(), "vllm-sosp", block_size=1, **options))
    assert own.summary["memory"]["block_size"] == 1


@pytest.mark.parametrize(("page_size", "tokens"), [("64K", 6), ("128K", 12), ("256K", 25), ("2M", 204)])
def test_where_nobody_could_share_pages_are_blocks_of_as_many_tokens(page_size: str, tokens: int) -> None:
    options: dict[str, Any] = {"num_blocks": 900 // tokens, "cpu_blocks": 0, "cost": "affine:0.02,1e-4,1e-6"}
    mapped = ps.simulate(load(), "virtual-contiguous", page_size=page_size, **options)
    assert_decides_alike(mapped, ps.simulate(load(), "vllm-sosp", block_size=tokens, **options))
    assert mapped.summary["memory"]["block_size"] == tokens


def test_samples_that_cannot_share_are_recomputed_together_each_with_its_own_prompt() -> None:
    trace = ps.Trace(np.zeros(2), np.array([2, 2]), np.array([4, 4]), np.array([2, 2]))
    result = ps.simulate(trace, "virtual-contiguous", num_blocks=6, **PAIRS, **SECOND)
    assert result.steps is not None
    columns = [
        "clock", "num_running", "num_running_seqs", "num_waiting",
        "num_batched_tokens", "num_tokens", "free_gpu_blocks", "num_preempted",
    ]  # fmt: skip
    assert [tuple(row) for row in result.steps[columns].itertuples(index=False)] == [
        (0.0, 2, 4, 0, 4, 8, 2, 0),  # a block for each of the four samples
        (1.0, 1, 2, 1, 2, 2, 2, 1),  # each needs a second one: the later request gives its two back
        (2.0, 1, 2, 1, 2, 2, 2, 0),  # it has 3 tokens a sample and wants 4 blocks
        (3.0, 1, 2, 1, 2, 2, 0, 0),
        (4.0, 1, 2, 0, 3, 6, 2, 0),  # both samples' 3 tokens are computed
        (5.0, 1, 2, 0, 2, 2, 2, 0),
        (6.0, 1, 2, 0, 2, 2, 0, 0),
    ]
    assert result.requests["recomputes"].tolist() == [0, 1]
    assert result.requests["finish_s"].tolist() == [4.0, 7.0]
    assert result.summary["itl"]["mean"] == pytest.approx((1 + 1 + 1 + 4 + 1 + 1) / 6)
    assert result.summary["sharing"]["saving"] == 0


def test_samples_are_turned_away_if_their_copies_cannot_all_grow_to_the_end() -> None:
    # 7 tokens are stored: 4 blocks a sample, of which 3 are full with the prompt and could be shared.
    own, shared = ("virtual-contiguous", 3, 6, 2), ("vllm-sosp", 3, 6, 2)
    assert statuses(*own, num_blocks=12, **PAIRS) == ["finished"]
    assert statuses(*own, num_blocks=11, **PAIRS) == ["rejected"]
    assert statuses(*shared, num_blocks=6, block_size=2) == ["finished"]
    assert statuses(*shared, num_blocks=5, block_size=2) == ["rejected"]


def test_samples_that_outgrow_the_watermark_can_never_be_recomputed_and_are_given_up() -> None:
    trace = ps.Trace(np.zeros(1), np.array([4]), np.array([7]), np.array([2]))
    options = {**PAIRS, **SECOND, "watermark": 0.2}
    result = ps.simulate(trace, "virtual-contiguous", num_blocks=10, **options)
    assert result.requests["status"].tolist() == ["unschedulable"]
    assert result.summary["failure_modes"]["never_admitted"] == 1
    assert result.summary["preemptions"] == {"recompute": 1, "swap": 0}


def test_a_beam_that_is_dropped_becomes_a_copy_of_all_of_the_survivor() -> None:
    trace = ps.Trace(np.zeros(1), np.array([9]), np.array([80])).with_columns({"beam_width": np.array([4])})
    steps = ps.simulate(trace, "virtual-contiguous", num_blocks=400, **PAIRS, **SECOND).steps
    assert steps is not None
    forks = steps[steps["blocks_copied"] > 0]
    assert len(forks) > 5
    # The blocks as they were when the beam was dropped, before the iteration that copies them grew.
    before = -(-(9 + forks["step"] - 1) // 2)
    assert (forks["blocks_copied"] % before == 0).all()
    assert (steps["num_physical_blocks"] == 4 * -(-(9 + steps["step"]) // 2)).all()


def test_forcing_what_happens_anyhow_changes_nothing() -> None:
    trace = load(size=20).with_columns({"n": np.full(20, 2)})
    options: dict[str, Any] = {"num_blocks": 200, "page_size": "64K", "steps": "iterations"}
    default = ps.simulate(trace, "virtual-contiguous", **options)
    assert_decides_alike(default, ps.simulate(trace, "virtual-contiguous", preemption="recompute", **options))


def test_a_comparison_gives_every_policy_the_same_memory() -> None:
    policies = ["vllm-sosp", "token-granular", "virtual-contiguous"]

    def blocks(**options: Any) -> list[tuple[int, int, int]]:
        results = ps.compare(load(), policies, **options)
        memories = [result.summary["memory"] for result in results.values()]
        return [(m["num_blocks"], m["block_size"], m["cpu_blocks"]) for m in memories]

    sized = [(983, 16, 1638), (15_728, 1, 26_208), (76, 204, 0)]
    assert blocks() == blocks(num_blocks=983) == sized
    assert blocks(num_blocks=983, cpu_blocks=10)[1:] == [(15_728, 1, 160), (76, 204, 0)]
    assert blocks(num_blocks=61, block_size=256)[1:] == [(15_616, 1, 26_208), (76, 204, 0)]
    assert blocks(num_blocks=983, page_size="64K")[2] == (2457, 6, 0)
    # Alone, a policy's blocks are its own.
    alone = ps.simulate(load(), "token-granular", num_blocks=983).summary["memory"]
    assert (alone["num_blocks"], alone["block_size"]) == (983, 1)
