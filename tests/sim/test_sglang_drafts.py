"""Under `sglang` a request that verifies drafts holds slots ahead, and its step yields what is accepted."""

from __future__ import annotations

from typing import Any

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
        ({"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 4}, 1, 10),  # of 0 steps, as of 1
    ],
)
def test_a_step_may_write_what_drafting_takes(options: dict[str, Any], page: int, written: int) -> None:
    assert written_by_step(settled(**options), page) == written


# What a step yields


def test_drafts_are_counted_and_those_behind_the_end_are_not_accepted() -> None:
    drafts = serve(trace((0, 100, 51)), **CHAIN, acceptance=1.0, disable_overlap_schedule=True).summary[
        "speculation"
    ]
    assert (drafts["drafted"], drafts["accepted"]) == (
        39,
        37,
    )  # of the last step's four tokens two are needed


def test_a_run_stops_where_drafts_leave_a_prompt_no_memory() -> None:
    """SGLang 0.5.23's own code stops in the same step: it tries to allocate 15 tokens, and 1 is available."""
    with pytest.raises(PagesimError, match=r"'Prefill out of memory': .* 15 blocks are needed, 1 are free"):
        serve(
            trace((0, 10, 24), (0, 46, 5)),
            **{**TREE, "num_blocks": 71, "chunked_prefill_size": 16, "enable_mixed_chunk": True},
            schedule_conservativeness=0.0,
        )


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
        (
            {"speculative_algorithm": "STANDALONE", "speculative_draft_model_path": "gpt-oss-20b"},
            "layers that draft for opt-13b keep a window: .* choose another drafter",
        ),
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
        # 12 layers of each kind, 8 heads of 64, and one more of full attention; 0.8 tokens have window slots.
        ("gpt-oss-20b", {**CHAIN, "speculative_algorithm": "EAGLE3"}, int(2048 * (13 + 0.8 * 12)) + 1),
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


def test_ranks_of_attention_divide_a_drafter_s_mlp_alone() -> None:
    system = System(
        policy="sglang",
        model=LLAMA,
        gpu="h100",
        mem_fraction_static=0.8,
        tensor_parallel_size=2,
        attn_dp_size=2,
    )
    alone = EngineConfig(system).capacity
    beside = EngineConfig(system.model_copy(update={**CHAIN, "speculative_algorithm": "NEXTN"})).capacity
    # Queries, keys, values and output whole, half of three matrices of an MLP, two norms; and the projection.
    attention, mlp, norms = 4096 * (4096 + 2 * 1024 + 4096), 3 * 4096 * 14336, 2 * 4096
    numbers = attention + mlp // 2 + norms + 2 * 4096 * 4096
    assert beside.weight_bytes_per_gpu - alone.weight_bytes_per_gpu == 2 * numbers
