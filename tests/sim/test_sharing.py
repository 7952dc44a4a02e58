"""Samples and beams of one request: what they share, when they part, and what that copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pagesim as ps
from pagesim.scheduling.beams import BeamSearch

OPTIONS: dict[str, Any] = {
    "steps": "iterations",
    "cost": "affine:0.02,0,0",
    "frontend": "0",
    "num_blocks": 100,
    "block_size": 4,
}


def one(prompt: int, output: int, **columns: Any) -> ps.Trace:
    return ps.Trace(np.zeros(1), np.array([prompt]), np.array([output])).with_columns(columns)


def steps(trace: ps.Trace, policy: str = "vllm-sosp", **options: Any) -> Any:
    result = ps.simulate(trace, policy, **(OPTIONS | options))
    assert result.steps is not None
    return result.steps


def test_samples_share_the_prompt_and_copy_its_last_block_when_they_part() -> None:
    # 6 tokens: a full block and a half one, which three of four samples copy with their first own token.
    rows = steps(one(6, 4, n=np.array([4])))
    assert rows["num_physical_blocks"].tolist() == [2, 5, 5, 9]
    assert rows["num_logical_blocks"].tolist() == [8, 8, 8, 12]
    assert rows["blocks_copied"].tolist() == [0, 3, 0, 0]
    assert rows["num_physical_tokens"].tolist() == [6, 4 + 4 * 3, 4 + 4 * 4, 4 + 4 * 5]


def test_samples_of_a_prompt_of_full_blocks_copy_nothing() -> None:
    rows = steps(one(8, 3, n=np.array([3])))
    assert rows["num_physical_blocks"].tolist() == [2, 5, 5]
    assert rows["blocks_copied"].sum() == 0


def test_samples_of_different_lengths_leave_one_by_one_and_free_what_was_theirs() -> None:
    trace = one(6, 9, n=np.array([3]), sample_tokens=[(2, 9, 5)])
    result = ps.simulate(trace, "vllm-v0", **OPTIONS)
    assert result.steps is not None
    assert result.steps["num_running_seqs"].tolist() == [1, 3, 2, 2, 2, 1, 1, 1, 1]
    (ends,) = result.requests["sample_finish_s"]
    np.testing.assert_allclose(ends, [0.04, 0.18, 0.10])
    assert result.requests["finish_s"].tolist() == pytest.approx([0.18])
    assert result.summary["normalized_latency"]["mean"] == pytest.approx((0.02 + 0.02 + 0.02) / 3)


def test_where_an_engine_ends_samples_together_all_run_as_long_as_the_longest() -> None:
    trace = one(6, 9, n=np.array([3]), sample_tokens=[(2, 9, 5)])
    result = ps.simulate(trace, "vllm-sosp", **OPTIONS)
    assert result.steps is not None
    assert set(result.steps["num_running_seqs"]) == {3}
    assert "as long as the longest" in " ".join(result.notes)


def test_vllm_v1_serves_every_sample_as_a_request_of_its_own() -> None:
    trace = one(6, 9, n=np.array([3]), sample_tokens=[(2, 9, 5)])
    result = ps.simulate(trace, "vllm-v1", enable_prefix_caching=False, **OPTIONS)
    assert result.requests["request_id"].tolist() == ["0.0", "0.1", "0.2"]
    assert result.requests["output_tokens"].tolist() == [2, 9, 5]
    assert result.requests["cached_tokens"].tolist() == [0, 0, 0]
    cached = ps.simulate(trace, "vllm-v1", enable_prefix_caching=True, **OPTIONS)
    assert cached.requests["cached_tokens"].tolist() == [0, 4, 4], "they have the same prompt"


def test_beams_are_refused_where_the_engine_has_none() -> None:
    with pytest.raises(ps.PagesimError, match="beam_width is 3; scheduler vllm-v1 knows no beam search"):
        ps.simulate(one(6, 9, beam_width=np.array([3])), "vllm-v1", **OPTIONS)
    with pytest.raises(ps.PagesimError, match="n is 4; of 3 beams"):
        ps.simulate(one(6, 9, beam_width=np.array([3]), n=np.array([4])), "vllm-sosp", **OPTIONS)


@pytest.mark.parametrize("policy", ["vllm-sosp", "vllm-v0"])
def test_beams_fork_what_they_share_and_copy_it_with_the_next_token(policy: str) -> None:
    trace = one(6, 40, beam_width=np.array([2]))
    rows = steps(trace, policy, beam_drop=0.3)
    search = BeamSearch(2, 0.3, 0)
    # A fork at token t (in iteration t − 1, counted from 0) shares everything; the next iteration copies the
    # last block unless that one is full.
    copied = [0] * 40
    copied[1] = 1  # the prompt's half block
    while (token := search.token) < 40:
        assert len(search.fork()) == 1
        copied[token] = int((6 + token - 1) % 4 > 0)
    assert rows["blocks_copied"].tolist() == copied
    assert (rows["num_physical_blocks"] <= rows["num_logical_blocks"]).all()


def test_beams_where_memory_cannot_be_shared_copy_the_whole_reservation() -> None:
    trace = one(6, 12, beam_width=np.array([2]))
    rows = steps(trace, "orca-oracle", beam_drop=0.3)
    search = BeamSearch(2, 0.3, 0)
    copied = [0] * 12
    while (token := search.token) < 12:
        search.fork()
        copied[token] = 8  # 18 tokens are 5 blocks, of which a buddy makes 8
    assert rows["blocks_copied"].tolist() == copied
    assert rows["num_physical_blocks"].tolist() == [16] * 12


def test_beams_live_the_same_lives_under_every_policy_and_others_with_another_seed() -> None:
    def lives(seed: int) -> list[tuple[int, list[tuple[int, int]]]]:
        search = BeamSearch(4, 0.2, seed)
        return [(search.token, search.fork()) for _ in range(20)]

    assert lives(1) == lives(1)
    assert lives(1) != lives(2)
    for _, forks in lives(3):
        dropped = {beam for beam, _ in forks}
        assert dropped
        assert not dropped & {survivor for _, survivor in forks}


def test_a_beam_is_dropped_as_often_as_it_should_be() -> None:
    tokens, dropped = 20_000, 0
    search = BeamSearch(5, 0.085, 7)
    while search.token < tokens:
        dropped += len(search.fork())
    assert dropped / (5 * tokens) == pytest.approx(0.085, rel=0.02)
