"""Under `sglang` a request that verifies drafts holds slots ahead, and its step yields what is accepted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pagesim as ps
from pagesim.errors import PagesimError
from pagesim.results.result import Result
from pagesim.scheduling.options import Machine
from pagesim.scheduling.sglang import SglangOptions
from pagesim.scheduling.sglang.defaults import resolved
from pagesim.scheduling.sglang.speculation import written_by_step
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.system import System
from pagesim.workloads.trace import Trace
from tests.traces import trace_of as trace

CHAIN = {"speculative_algorithm": "EAGLE", "speculative_num_steps": 3, "speculative_eagle_topk": 1}
"""Of three drafts: a step verifies four tokens, and writes as many."""

TREE = {**CHAIN, "speculative_num_steps": 5, "speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8}

LLAMA = "llama-3.1-8b"


def serve(requests: Trace, **options: Any) -> Result:
    how = {"policy": "sglang", "num_blocks": 1000, "max_model_len": 500, "cost": "affine:0.01,1e-5,0"}
    return ps.simulate(requests, steps="iterations", **{**how, **options})


def held(result: Result, iterations: int) -> list[int]:
    """Return the tokens that are not free in the first iterations, where nothing is cached."""
    assert result.steps is not None
    return (1000 - result.steps["free"][:iterations]).tolist()  # type: ignore[no-any-return]


def settled(**options: Any) -> SglangOptions:
    model = options.pop("model", LLAMA)
    return resolved(SglangOptions(**options), Machine("h100", 80 << 30, 8192, model=model))


# What is held


@pytest.mark.parametrize(
    ("options", "page", "written"),
    # 0.5.23, allocation_sizing.py: steps times branches, or the tokens verified; in pages each branch of a
    # tree begins with up to a page less one of what was there: of 15 + 5 tokens, two pages of 16.
    [
        (CHAIN, 1, 4),
        (CHAIN, 64, 4),
        (TREE, 1, 20),
        (TREE, 16, 4 * 32),
        (TREE, 64, 4 * 128),
        ({"speculative_algorithm": "NGRAM"}, 16, 12),
        ({"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 30}, 1, 30),
    ],
)
def test_a_step_may_write_what_drafting_takes(options: dict[str, Any], page: int, written: int) -> None:
    assert written_by_step(settled(**options), page) == written


def test_twice_what_a_step_may_write_is_held_beyond_what_counts() -> None:
    one = serve(trace((0, 100, 50)), **CHAIN, acceptance=0.0)
    # The prompt; 100 + 8; what counts is known a step late.
    assert held(one, 5) == [100, 108, 108, 109, 110]
    whole = serve(trace((0, 100, 50)), **CHAIN, acceptance=1.0, disable_overlap_schedule=True)
    assert held(whole, 4) == [100, 108, 112, 116]
    paged = serve(trace((0, 100, 50)), **TREE, num_blocks=125, block_size=8, acceptance=0.0)
    # Each branch takes ceil((7 + 5) / 8) pages: 4 * 16 tokens, of which there are two beyond 100.
    assert held(paged, 3) == [104, 232, 232]


def test_what_is_held_ahead_is_why_requests_are_retracted() -> None:
    requests, page = trace(*[(0.0, 60, 100)] * 5), {"num_blocks": 62, "block_size": 16}
    # All find room with what they generate, 5 * 10 pages; not with 256 tokens ahead of it, 5 * 20 pages.
    alone = serve(requests, **page)
    ahead = serve(requests, **TREE, **page, acceptance=0.0)
    assert alone.requests["recomputes"].sum() == 0
    assert ahead.requests["recomputes"].sum() > 0
    assert (ahead.requests["status"] == "finished").all()


# What a step yields


@pytest.mark.parametrize(
    ("output", "overlapped", "steps"),
    # The prompt gives one token, each step four: 49 with the twelfth. A request is left out of the next step
    # only where one more token would be its last.
    [(49, True, 14), (49, False, 13), (50, True, 14), (50, False, 14), (51, True, 15), (51, False, 14)],
)
def test_a_step_too_many_runs_where_the_end_lies_inside_of_one(
    output: int, overlapped: bool, steps: int
) -> None:
    result = serve(trace((0, 100, output)), **CHAIN, acceptance=1.0, disable_overlap_schedule=not overlapped)
    assert result.summary["iterations"] == steps
    assert result.requests["output_tokens"].tolist() == [output]


def test_drafts_are_counted_and_those_behind_the_end_are_not_accepted() -> None:
    drafts = serve(trace((0, 100, 51)), **CHAIN, acceptance=1.0, disable_overlap_schedule=True).summary[
        "speculation"
    ]
    assert (drafts["drafted"], drafts["accepted"]) == (
        39,
        37,
    )  # of the last step's four tokens two are needed


def test_mixed_steps_generate_a_plain_token_a_request() -> None:
    requests = trace((0, 100, 50), (0.05, 100, 50))
    mixed = serve(requests, **CHAIN, enable_mixed_chunk=True, chunked_prefill_size=200, acceptance=1.0)
    assert mixed.steps is not None
    assert 101 in mixed.steps["num_tokens"].tolist()
    plain = serve(requests, speculative_algorithm="NGRAM", enable_mixed_chunk=True, chunked_prefill_size=200)
    assert plain.steps is not None
    assert 101 not in plain.steps["num_tokens"].tolist()


# What is cached


@pytest.mark.parametrize(
    ("algorithm", "acceptance", "found"),
    # Of prompt and answer, 150 tokens, the KV of the last one is there where a draft behind it was right.
    # By pairs a token is found with the one behind it.
    [("EAGLE", 0.0, 148), ("EAGLE", 1.0, 149), ("NGRAM", 0.0, 149), ("NGRAM", 1.0, 150)],
)
def test_a_tree_keyed_by_pairs_finds_a_token_less(algorithm: str, acceptance: float, found: int) -> None:
    turns = trace((0, 100, 50), (5, 200, 5), session_id=np.array([1, 1]))
    drafts = CHAIN if algorithm == "EAGLE" else {"speculative_algorithm": algorithm}
    table = serve(turns, **drafts, acceptance=acceptance).requests
    assert table["cached_tokens"].tolist() == [0, found]


def test_a_prompt_that_is_met_again_is_found_but_for_two_tokens() -> None:
    same = trace((0, 100, 5), (5, 100, 5), hash_ids=[tuple(range(100))] * 2, hash_block_size=1)
    assert serve(same, **CHAIN).requests["cached_tokens"].tolist() == [0, 98]
    assert serve(same, **CHAIN, block_size=16).requests["cached_tokens"].tolist() == [0, 96]


# What is taken by default, and refused


@pytest.mark.parametrize(
    ("model", "options", "steps", "topk", "verified"),
    # 0.5.23, speculative_hook.py
    [
        (LLAMA, {"speculative_algorithm": "EAGLE3"}, 5, 4, 8),
        ("deepseek-v3", {"speculative_algorithm": "EAGLE"}, 3, 1, 4),
        ("llama-4-scout-17b-16e", {"speculative_algorithm": "EAGLE3"}, 3, 1, 4),
        (LLAMA, {"speculative_algorithm": "STANDALONE", "speculative_draft_model_path": "x"}, 3, 1, 4),
        (LLAMA, {"speculative_algorithm": "NGRAM"}, 1, 10, 12),
        (LLAMA, {**CHAIN, "speculative_num_draft_tokens": 7}, 3, 1, 4),
    ],
)
def test_what_is_left_out_follows_from_the_model(
    model: str, options: dict[str, Any], steps: int, topk: int, verified: int
) -> None:
    found = settled(model=model, enable_mixed_chunk=True, **options)
    assert found.speculative_num_steps == steps
    assert found.speculative_eagle_topk == topk
    assert found.speculative_num_draft_tokens == verified
    assert found.max_running_requests == 48
    assert found.enable_mixed_chunk == found.speculative_algorithm.startswith("EAGLE")  # type: ignore[union-attr]
    assert found.cuda_graph_max_bs_decode == 256, "it is settled before"
    assert settled(**options, max_running_requests=100).max_running_requests == 100


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"speculative_num_steps": 3}, "nothing drafts: give speculative_algorithm"),
        ({"acceptance": 0.5}, "acceptance is 0.5, and nothing drafts"),
        ({"speculative_algorithm": "STANDALONE"}, "give speculative_draft_model_path"),
        ({"speculative_algorithm": "EAGLE", "speculative_eagle_topk": 2}, "without speculative_num_steps"),
        ({"speculative_algorithm": "EAGLE", "speculative_num_steps": 2}, "without speculative_eagle_topk"),
        ({**TREE, "speculative_num_draft_tokens": None}, "without speculative_num_draft_tokens"),
        ({**CHAIN, "model": "gpt-oss-20b"}, "keep a window or a state, in a pool of their own"),
        ({**CHAIN, "model": "nemotron-h-8b"}, "keep a window or a state, in a pool of their own"),
        ({**TREE, "gpu": "b200"}, "verify a single branch"),
    ],
)
def test_what_sglang_does_not_start_with_or_no_log_checks_is_refused(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(PagesimError, match=said):
        serve(trace((0, 60, 20)), **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({**CHAIN, "enable_prefill_delayer": True}, "speculative_algorithm and enable_prefill_delayer"),
        ({"speculative_algorithm": "NGRAM"}, "does not start beside attn_dp_size 2"),
    ],
)
def test_what_ranks_of_attention_do_not_verify_drafts_beside_is_refused(
    options: dict[str, Any], said: str
) -> None:
    two = Machine("h100", 80 << 30, 8192, tp=2, model=LLAMA)
    with pytest.raises(PagesimError, match=said):
        resolved(SglangOptions(attn_dp_size=2, **options), two)


@pytest.mark.parametrize(
    ("model", "options", "token_bytes"),
    # 0.5.23, pool_configurator.py: int(bytes of a token * layers that draft / layers) more.
    [
        (LLAMA, {**CHAIN, "speculative_algorithm": "EAGLE3"}, 131072 * 33 // 32),
        (
            "llama-3.1-70b",
            {"speculative_algorithm": "STANDALONE", "speculative_draft_model_path": "llama-3.2-1b"},
            327680 * 96 // 80,
        ),
        (LLAMA, {"speculative_algorithm": "NGRAM"}, 131072),
        ("deepseek-v3", CHAIN, 61 * 1152 * 62 // 61),
    ],
)
def test_layers_that_draft_are_in_the_bytes_of_a_token(
    model: str, options: dict[str, Any], token_bytes: int
) -> None:
    system = System(policy="sglang", model=model, num_blocks=100000, **options)
    assert EngineConfig(system).capacity.block_bytes == token_bytes


def test_a_drafter_s_weights_are_taken_from_the_static_share() -> None:
    drafts = {"speculative_algorithm": "STANDALONE", "speculative_draft_model_path": "llama-3.2-1b"}
    system = System(policy="sglang", model=LLAMA, gpu="h100", mem_fraction_static=0.8)
    alone = EngineConfig(system).capacity
    beside = EngineConfig(system.model_copy(update=drafts)).capacity
    assert beside.weight_bytes_per_gpu - alone.weight_bytes_per_gpu == 2 * 1_235_814_400
