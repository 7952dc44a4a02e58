"""Pools of states under SGLang: how many there are, for which options, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pagesim.errors import PagesimError
from pagesim.scheduling.sglang.defaults import most_running
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.system import System
from pagesim.sizing import StatePlan

NO_BUFFER = {"mamba_radix_cache_strategy": "no_buffer"}
ALONE = {"disable_radix_cache": True}
DRAFTS = {"speculative_algorithm": "NEXTN", "speculative_num_steps": 3, "speculative_eagle_topk": 1}

HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2}
SIZES = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 2048}
KEPT = {
    # Two layers keep a state and one attends; each does both.
    "nemotron_h": {
        **{"num_hidden_layers": 3, "hybrid_override_pattern": "M*M", "conv_kernel": 4},
        **{"mamba_num_heads": 8, "mamba_head_dim": 64, "ssm_state_size": 16, "n_groups": 2},
    },
    "falcon_h1": {
        **{"num_hidden_layers": 2, "mamba_d_ssm": 512, "mamba_n_heads": 8, "mamba_d_head": 64},
        **{"mamba_d_state": 16, "mamba_n_groups": 2, "mamba_d_conv": 4},
    },
}


def config_of(model: str, tp: int = 1, **options: Any) -> EngineConfig:
    return EngineConfig(System(policy="sglang", gpu="h200", model=model, tensor_parallel_size=tp, **options))


@pytest.mark.parametrize(
    ("model", "tp", "gib", "options", "states", "tokens", "running"),
    [
        # What SGLang 0.5.23 made of so many GiB beside the weights (its own code, run on no GPU).
        ("qwen3-next-80b", 2, 30, {}, 393, 1_382_704, 78),
        ("qwen3-next-80b", 4, 30, {}, 788, 1_381_132, 157),
        ("nemotron-h-8b", 1, 30, {}, 148, 1_037_214, 29),
        ("qwen3-next-80b", 2, 55.5, {}, 729, 2_554_544, 145),
        ("qwen3-next-80b", 4, 55.5, {}, 1460, 2_552_972, 292),
        ("nemotron-h-8b", 1, 55.5, {}, 275, 1_916_664, 55),
        ("qwen3-next-80b", 4, 30, NO_BUFFER, 788, 1_381_132, 262),
        ("qwen3-next-80b", 4, 30, ALONE, 788, 1_381_132, 788),
        ("qwen3-next-80b", 4, 30, {**ALONE, "max_running_requests": 64}, 64, 2_519_260, 64),
        ("qwen3-next-80b", 4, 30, {"max_mamba_cache_size": 500}, 500, 1_833_868, 100),
        ("qwen3-next-80b", 4, 30, {"max_mamba_cache_size": 500, "attn_dp_size": 2}, 250, 1_832_296, 50),
        ("qwen3-next-80b", 4, 30, {"mamba_full_memory_ratio": 0.5}, 554, 1_748_980, 110),
        # 1,626,364 tokens of 12 layers; pool_configurator.py adds the layer that drafts.
        ("qwen3-next-80b", 4, 30, DRAFTS, 436, 1_626_364 * 12 // 13, 48),
    ],
)
def test_as_many_states_and_tokens_fit_as_the_engine_finds(
    model: str, tp: int, gib: float, options: dict[str, Any], states: int, tokens: int, running: int
) -> None:
    config = config_of(model, tp, **options)
    plan = config.blocks
    assert isinstance(plan, StatePlan)
    plan = plan.within(int(gib * 2**30))
    assert (plan.states, plan.num_blocks) == (states, tokens)
    most = most_running(config.options, tokens, config.max_model_len)  # type: ignore[arg-type]
    assert min(most, plan.most_running) == running


@pytest.mark.parametrize(
    ("model", "tp", "options", "size"),
    [
        ("qwen3-next-80b", 2, {}, 38_633_472),
        ("qwen3-next-80b", 4, {}, 19_316_736),
        # 36 layers, 3 · 2048 numbers of a convolution and 8 · 128 · 128 of a state.
        ("qwen3-next-80b", 4, {"mamba_ssm_dtype": "bfloat16"}, 36 * (3 * 2048 + 8 * 128 * 128) * 2),
        ("nemotron-h-8b", 1, {}, 102_137_856),
    ],
)
def test_a_state_takes_as_many_bytes_as_the_engine_finds(
    model: str, tp: int, options: dict[str, Any], size: int
) -> None:
    plan = config_of(model, tp, **options).blocks
    assert isinstance(plan, StatePlan)
    assert plan.state_bytes == size


@pytest.mark.parametrize(
    ("named", "options", "size"),
    [
        # SGLang 0.5.23, srt/configs/mamba_utils.py: the flag, else the config's key, else float32.
        ({}, {}, 4),
        ({"mamba_ssm_dtype": None}, {}, 4),
        ({"mamba_ssm_dtype": "bfloat16"}, {}, 2),
        ({"mamba_ssm_dtype": "float16"}, {"mamba_ssm_dtype": "float32"}, 4),
        ({"mamba_ssm_cache_dtype": "bfloat16"}, {}, 4),  # which vLLM reads
    ],
)
@pytest.mark.parametrize("family", KEPT)
def test_a_state_has_the_type_that_the_config_names_for_sglang(
    family: str, named: dict[str, Any], options: dict[str, Any], size: int, tmp_path: Path
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": family, **HEADS, **SIZES, **KEPT[family], **named}))
    plan = config_of(str(file), **options).blocks
    assert isinstance(plan, StatePlan)
    # Two layers: 3 tokens of 512 channels and two vectors of 16 in two groups; 8 heads of 64 · 16 numbers.
    assert plan.state_bytes == 2 * (3 * (512 + 2 * 2 * 16) * 2 + 8 * 64 * 16 * size)


@pytest.mark.parametrize(
    ("model", "chunk"),
    # As the configs of the checkpoints have it; of a gated delta net the kernels' own.
    [("qwen3-next-80b", 64), ("falcon-h1-7b", 256), ("nemotron-3-nano", 128), ("granite-4-h-small", 256)],
)
def test_states_are_kept_at_multiples_of_the_model_s_own_chunk(model: str, chunk: int) -> None:
    plan = config_of(model).blocks
    assert isinstance(plan, StatePlan)
    assert plan.chunk == chunk


@pytest.mark.parametrize(
    ("options", "overlaps", "slots"),
    [
        ({}, True, 5),
        ({"disable_overlap_schedule": True}, False, 3),
        ({"disable_overlap_schedule": True, "block_size": 16}, False, 4),
        ({"mamba_radix_cache_strategy": "extra_buffer", "disable_overlap_schedule": True}, False, 4),
        (NO_BUFFER, False, 3),
        ({**NO_BUFFER, **ALONE}, True, 1),
    ],
)
def test_a_strategy_decides_on_overlap_and_on_the_slots_of_a_request(
    options: dict[str, Any], overlaps: bool, slots: int
) -> None:
    config = config_of("qwen3-next-80b", 4, **options)
    plan = config.blocks
    assert isinstance(plan, StatePlan)
    assert plan.of_a_request == slots
    assert config.scheduler.schedules_ahead(config.options) == overlaps


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"block_size": 16, **NO_BUFFER}, "no_buffer, and block_size is 16; SGLang needs pages of 1 token"),
        (
            {**DRAFTS, "mamba_track_interval": 3},
            "is 3; SGLang starts only with .* the 4 that a step verifies",
        ),
        ({"block_size": 64, "mamba_track_interval": 96}, "is 96; .* a multiple of a page's 64 tokens"),
        ({"attn_dp_size": 4, "max_mamba_cache_size": 3}, "is 3, of which 4 ranks have none each"),
        (
            {"speculative_algorithm": "STANDALONE", "speculative_draft_model_path": "nemotron-h-8b"},
            "layers that draft for qwen3-next-80b keep a state: .* choose another drafter",
        ),
    ],
)
def test_what_is_in_no_log_beside_states_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PagesimError, match=sentence):
        _ = config_of("qwen3-next-80b", 4, **options).capacity
