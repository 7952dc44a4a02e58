"""What layers of families with keys of their own keep, in blocks that vLLM 0.33.0's own planner made.

The configs hold few keys; bytes and blocks are those of a table that the engine's classes gave for released
models, of 20 GiB and requests of 32,768 tokens, for 8,192 tokens in a batch.
"""

from __future__ import annotations

from typing import Any

import pytest

from pagesim.models import from_hf_config
from pagesim.models.layers import (
    FullLayer,
    IndexerLayer,
    LatentLayer,
    Layer,
    RingLayer,
    StateLayer,
    WindowLayer,
)
from pagesim.sizing import BlockPlan, plan_blocks

SHAPE = {
    **{"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 16, "vocab_size": 1000},
    "max_position_embeddings": 32768,
}


def planned(config: dict[str, Any], **how: Any) -> BlockPlan:
    layers = from_hf_config({**SHAPE, **config}).cache_layers
    return of(layers, **how)


def of(layers: tuple[Layer, ...], **how: Any) -> BlockPlan:
    usual = {"max_model_len": 32768, "in_flight_tokens": 2 * 8192, "cache_bytes": 20 << 30}
    return plan_blocks(layers, **{**usual, **how})


def test_gemma_4_has_two_widths_of_heads_and_layers_that_read_what_others_keep() -> None:
    kinds = (["sliding_attention"] * 5 + ["full_attention"]) * 5
    heads = {"num_key_value_heads": 8, "num_global_key_value_heads": 2, "attention_k_eq_v": True}
    config = {"model_type": "gemma4_text", "layer_types": kinds, "num_hidden_layers": 30, **heads}
    plan = planned({**config, "sliding_window": 1024})
    assert [(len(group.layers), group.kind, group.block_size) for group in plan.groups[4:]] == [
        (5, "window", 16),
        (5, "full", 32),
    ]
    assert (plan.bytes_per_block, plan.num_blocks, plan.tokens) == (655_360, 32_768, 165_982)
    sharing = from_hf_config({**SHAPE, **config, "sliding_window": 1024, "num_kv_shared_layers": 12})
    assert [layer.kind for layer in sharing.cache_layers] == (["window"] * 5 + ["full"]) * 3


def test_deepseek_v4_keeps_windows_compressed_vectors_and_states_in_blocks_of_five_kinds() -> None:
    ranks = {"q_lora_rank": 128, "o_lora_rank": 128, "o_groups": 2, "qk_rope_head_dim": 64, "head_dim": 512}
    index = {"index_head_dim": 128, "index_n_heads": 4, "index_topk": 64, "num_key_value_heads": 1}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    ratios = [0, 0, *[4, 128] * 20, 4, 0]
    plan = planned(
        {
            **{"model_type": "deepseek_v4", "num_hidden_layers": 43, "compress_ratios": ratios},
            **{"sliding_window": 128, **ranks, **index, **experts},
        }
    )
    assert [
        (len(group.layers), group.block_size, group.bytes, group.most_blocks) for group in plan.groups
    ] == [
        (22, 64, 823_680, 259),
        (21, 64, 786_240, 259),
        (62, 256, 1_002_240, 128),
        (42, 4, 870_912, 4099),
        (20, 8, 656_640, 2065),
    ]
    assert (plan.num_blocks, plan.tokens, plan.scheduler_block, plan.hash_block) == (21_426, 103_096, 256, 4)


def test_glm_5_3_flash_has_a_ring_that_no_prefix_is_found_in() -> None:
    """Of two B200 in fp8: 34 states, 11 latent vectors of which 4 tokens have one key, 11 rings."""
    state = StateLayer((3, 24576), (64, 128, 128), state_dtype="fp32", checkpoint=16, always=True)
    attends = (LatentLayer(512), IndexerLayer(132, 4), RingLayer(4, 512))
    layers = tuple(each for i in range(45) for each in (attends if i % 4 == 3 else (state,)))
    plan = of(layers, in_flight_tokens=2 * 16384, tp=2, kv_dtype="fp8", capability=100)
    assert [(len(group.layers), group.block_size, group.most_blocks) for group in plan.groups] == [
        *[(9, 4352, 3), (9, 4352, 3), (8, 4352, 3), (8, 4352, 3)],
        *[(22, 4352, 8), (11, 4, 1)],
    ]
    assert (plan.bytes_per_block, plan.num_blocks, plan.tokens) == (26_492_928, 810, 1_263_908)
    assert (plan.block_size, plan.scheduler_block, plan.hash_block) == (4352, 4352, 4352)


def test_minimax_m3_has_a_key_of_the_indexer_beside_keys_and_values_by_head() -> None:
    sparse = {
        "sparse_attention_freq": [0] * 3 + [1] * 57,
        "sparse_index_dim": 128,
        "sparse_num_index_heads": 4,
    }
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "dense_intermediate_size": 64}
    config = {
        "model_type": "minimax_m3",
        "num_hidden_layers": 60,
        "sparse_attention_config": sparse,
        **experts,
    }
    plan = planned({**config, "head_dim": 128, "num_key_value_heads": 4}, tp=4, capability=100)
    assert (plan.bytes_per_block, plan.num_blocks, plan.tokens) == (5_799_936, 3702, 473_856)


ON_B200: dict[str, Any] = {"in_flight_tokens": 2 * 16384, "capability": 100}
MAMBA = StateLayer((3, 6144), (64, 64, 128), checkpoint=1, always=True)


@pytest.mark.parametrize(
    ("layers", "how", "found"),
    [
        # Qwen3-8B, Nemotron-3-Nano and gpt-oss-20b: bytes of a block, blocks, tokens found at once and hashed
        ((FullLayer(8, 128),) * 36, {"kv_dtype": "nvfp4"}, (663_552, 32_363, 16, 16)),
        (
            (MAMBA,) * 23 + (FullLayer(2, 128),) * 6,
            {"kv_dtype": "fp8", "state_dtype": "fp16"},
            (6_537_216, 3285, 2128, 2128),
        ),
        (
            (WindowLayer(8, 64, 128), FullLayer(8, 64)) * 12,
            {"prefix_match_unit": 8},
            (393_216, 54_613, 16, 8),
        ),
    ],
)
def test_flags_of_the_cache_make_of_blocks_what_they_make_in_the_engine(layers, how, found) -> None:
    plan = of(layers, **ON_B200, **how)
    assert (plan.bytes_per_block, plan.num_blocks, plan.scheduler_block, plan.hash_block) == found


def test_minicpm3_keeps_keys_and_values_of_its_heads_both_as_wide_as_keys() -> None:
    ranks = {"kv_lora_rank": 256, "q_lora_rank": 768, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32}
    heads = {"num_attention_heads": 40, "num_key_value_heads": 40, "v_head_dim": 64, "hidden_size": 2560}
    plan = planned({"model_type": "minicpm3", "num_hidden_layers": 62, **ranks, **heads})
    assert plan.bytes_per_block == 62 * 245_760  # of transformers' own config, which is that of the 4B


def test_an_indexer_has_a_scale_of_each_whole_128_numbers() -> None:
    latent = {"kv_lora_rank": 64, "q_lora_rank": 96, "qk_nope_head_dim": 48, "qk_rope_head_dim": 16}
    index = {"index_head_dim": 32, "index_n_heads": 4, "index_topk": 64, "v_head_dim": 64}
    experts = {"n_routed_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 192}
    config = {"model_type": "deepseek_v32", "num_hidden_layers": 6, **latent, **index, **experts}
    plan = planned({**config, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 2})
    assert plan.bytes_per_block == 73_728
