"""What is measured: the operators that a system asks for, at the sizes of a grid that its model allows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import numpy as np

from pagesim.device.calibration.points import CalibrationGrid, Measurement, measurements
from pagesim.device.calibration.rank import AttentionShape, TensorParallelRank, rank_of
from pagesim.device.live.batch import columns_alike
from pagesim.errors import PagesimError
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.system import System, checked

GRID = CalibrationGrid(
    tokens=(1, 2, 4, 8),
    sequences=(1, 2, 3),
    batches=(1, 8),
    contexts=(2, 16, 64),
    prompts=((1, 30),),
    chunks=((4, 100),),
    blocks=(1, 5),
    iterations=(2,),
    most_context=200,
)

DRAFTS = {"speculative_method": "ngram", "speculative_tokens": 3, "acceptance": 0.5}

WINDOWS = {
    "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "hidden_size": 256,
    "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "sliding_window": 32, "sliding_window_pattern": 3, "vocab_size": 1000,
    "max_position_embeddings": 2048, "torch_dtype": "bfloat16",
}  # fmt: skip
"""Two layers of three look back on 32 tokens."""

LATENT = {
    "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 256,
    "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4,
    "kv_lora_rank": 256, "q_lora_rank": 96, "qk_nope_head_dim": 32, "qk_rope_head_dim": 64, "v_head_dim": 32,
    "vocab_size": 1000, "max_position_embeddings": 2048, "torch_dtype": "bfloat16",
    "first_k_dense_replace": 1, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    "n_shared_experts": 1,
}  # fmt: skip
"""Latent attention over 256 + 64 numbers, two layers of three with experts."""


@pytest.fixture
def config_of(tmp_path: Path) -> Any:
    """Return a function that stores a model's config and returns its path."""

    def store(config: dict[str, Any]) -> str:
        file = tmp_path / "made-up.json"
        file.write_text(json.dumps(config))
        return str(file)

    return store


def rank(model: str, device: str = "cpu", **options: Any) -> TensorParallelRank:
    system = checked(System, {"model": model, **options})
    return rank_of(EngineConfig(system), device=device, cuda_graphs=False, swap="gather")


def asked(of: TensorParallelRank, *block_sizes: int, on_gpu: bool = False) -> list[Measurement]:
    return list(measurements(of, GRID, block_sizes or (16,), model="mine", on_gpu=on_gpu))


def of_operator(found: list[Measurement], operator: str) -> list[Measurement]:
    return [each for each in found if each.operator == operator]


def columns(each: Measurement) -> tuple[str, dict[str, Any], int]:
    """Return the only point of a measurement: its op, its columns, and in how many layers it is done."""
    ((point, layers),) = each.points
    return point.op, dict(point.parameters), layers


def test_a_quick_grid_has_every_second_size_and_the_last():
    quick = GRID.quick()
    assert (quick.tokens, quick.sequences, quick.batches) == ((1, 4, 8), (1, 3), (1, 8))
    assert (quick.prompts, quick.most_context) == (((1, 30),), 200)


def test_points_are_those_that_the_bound_on_context_allows():
    found = asked(rank("tiny"), 16, 32)
    decode = [each[1:4] for each in of_operator(found, "decode")]
    # Eight contexts of 64 are more than 200 tokens together.
    of_one = [(1, 2), (1, 16), (1, 64), (8, 16), (8, 128)]
    assert decode == [(b, *each) for b in (16, 32) for each in of_one]
    # 30 queries see 30 · 31 / 2 tokens; 4 behind 96 see 97 + 98 + 99 + 100.
    prefill = [each[1:4] for each in of_operator(found, "prefill")]
    assert prefill == [(b, *each) for b in (16, 32) for each in ((30, 465), (4, 394))]
    assert [each.size for each in of_operator(found, "write")] == [1, 2, 4, 8], "the block size plays no part"
    assert not [each for each in found if each.operator.startswith("launch")]
    assert [each[1:3] for each in of_operator(found, "iteration")] == [(16, 2)]
    launches = [each.operator for each in asked(rank("tiny"), on_gpu=True) if "launch" in each.operator]
    assert launches == ["launch-decode", "launch-prompt", "launch-mixed"]


def test_each_operator_has_the_shapes_of_one_gpu_of_the_group():
    """Tiny has 2 layers of 4 heads on 2 KV heads of 64 numbers: over 2 GPUs, 2 heads on one."""
    found = asked(rank("tiny", tensor_parallel_size=2, kv_cache_dtype="fp8", **DRAFTS))
    shape = {"q_heads": 2, "kv_heads": 1, "head_size": 64, "layout": "NHD", "block_size": 16, "dtype": "fp8"}
    one = of_operator(found, "decode")[-1]
    assert columns(one) == ("paged-decode", {**shape, "batch": 8, "context": 16}, 2)
    prompt = of_operator(found, "prefill")[0]
    assert columns(prompt) == ("paged-prefill", {**shape, "batch": 1, "context": 30, "query": 30}, 2)
    # A token and three drafts need four tokens of context.
    drafted = of_operator(found, "decode_drafts")
    assert [each[2:4] for each in drafted] == [(1, 16), (1, 64), (8, 128)]
    wanted = {**shape, "batch": 8, "context": 16, "queries": 4}
    assert columns(drafted[-1]) == ("paged-decode", wanted, 2)
    write = {"tokens": 8, "kv_heads": 1, "head_size": 64, "layout": "NHD", "block_size": 16, "dtype": "fp8"}
    assert columns(of_operator(found, "write")[-1]) == ("reshape-and-cache", write, 2)
    assert not of_operator(found, "iteration"), "no live run has several devices"


def test_swaps_are_measured_by_size_in_both_directions():
    """A block of 16 tokens is 4 pieces, keys and values of 2 layers, of 16 · 1 · 64 numbers of a byte."""
    found = asked(rank("tiny", tensor_parallel_size=2, kv_cache_dtype="fp8"))
    for direction in ("out", "in"):
        swaps = of_operator(found, f"swap_{direction}")
        assert [each.size for each in swaps] == [1, 5]
        op, given, layers = columns(swaps[-1])
        assert (op, layers) == ("swap", 1)
        assert given == {
            "strategy": "gather", "direction": direction, "host_blocks": "neighbours",
            "pieces": 4, "piece_bytes": 1024, "blocks": 5,
        }  # fmt: skip
    _, given, _ = columns(of_operator(found, "copy")[-1])
    assert (given["pieces"], given["piece_bytes"], given["blocks"]) == (4, 1024, 5)


def test_layers_with_a_window_are_measured_apart(config_of):
    found = asked(rank(config_of(WINDOWS)))
    shape = {"q_heads": 4, "kv_heads": 2, "head_size": 64, "layout": "NHD", "block_size": 16, "dtype": "fp32"}
    everywhere = of_operator(found, "decode")
    assert columns(everywhere[2]) == ("paged-decode", {**shape, "batch": 1, "context": 64}, 1)
    within = of_operator(found, "decode window:32")
    # Of 64 tokens 32 are within.
    assert [each[2:4] for each in within] == [(1, 2), (1, 16), (1, 32), (8, 16), (8, 128)]
    assert columns(within[2]) == ("paged-decode", {**shape, "batch": 1, "context": 64, "window": 32}, 2)
    (_, prompts) = of_operator(found, "prefill"), of_operator(found, "prefill window:32")
    # Prompts of 30 tokens are within; each of 4 tokens behind 96 sees 32.
    assert [each[2:4] for each in prompts] == [(30, 465), (4, 128)]
    assert of_operator(found, "linear")[0].points[0][0].op == "layers"
    assert not of_operator(found, "iteration"), "no live run has windows"


def test_latent_attention_is_measured_over_latents_and_its_prompts_over_heads(config_of):
    found = asked(rank(config_of(LATENT), tensor_parallel_size=2, gpu="h100"))
    latent = {"q_heads": 2, "block_size": 16, "dtype": "fp32", "latent": 256}
    wanted = {**latent, "batch": 8, "context": 16}
    assert columns(of_operator(found, "decode")[-1]) == ("mla-decode", wanted, 3)
    op, given, layers = columns(of_operator(found, "prefill")[0])
    assert (op, layers) == ("paged-prefill", 3)
    assert (given["q_heads"], given["kv_heads"], given["head_size"]) == (2, 2, 32 + 64)
    write = {"tokens": 8, "block_size": 16, "dtype": "fp32", "latent": 256}
    assert columns(of_operator(found, "write")[-1]) == ("mla-write", write, 3)
    # Of each layer one vector, of 320 numbers of four bytes a token.
    _, moved, _ = columns(of_operator(found, "swap_in")[0])
    assert (moved["pieces"], moved["piece_bytes"]) == (3, 16 * 320 * 4)
    products = {(p["n"], p["k"]): layers for p, layers in of_operator(found, "linear")[0].points}
    assert products == {
        (96 + 256 + 64, 256): 3,  # down to the latents of queries, keys and values
        (2 * (32 + 64), 96): 3,  # queries of two heads
        (2 * (32 + 32), 256): 3,  # keys and values of two heads
        (256, 2 * 32): 3,  # out
        (2 * 256, 256): 1,  # gate and up of half of the one plain MLP
        (256, 256): 1,  # and down
        (8, 256): 2,  # routers
        (2 * 32, 256): 2,  # gate and up of half of the shared experts
        (256, 32): 2,  # and down
    }
    op, head, _ = columns(of_operator(found, "head")[0])
    assert (op, head["n"], head["k"]) == ("linear", 500, 256)


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        (WINDOWS, DRAFTS, "times several queries of full attention only, and the layers of"),
        (LATENT, {"kv_cache_dtype": "fp8"}, "kernel of latent attention"),
        (LATENT, DRAFTS, "several queries of full attention only"),
        ({**LATENT, "qk_rope_head_dim": 32}, {}, "keeps 32 numbers beside its latents"),
        ({**WINDOWS, "num_attention_heads": 4}, {"tensor_parallel_size": 8}, "must divide the 4 heads"),
    ],
)
def test_what_has_no_kernel_is_refused(model, options, said, config_of):
    with pytest.raises(PagesimError, match=said):
        asked(rank(config_of(model), **options))


def test_layers_of_a_kind_are_counted():
    assert rank("gemma3-27b").attention == {AttentionShape(0, 16, 128): 10, AttentionShape(1024, 16, 128): 52}
    assert rank("kimi-k2", weight_dtype="bf16", tensor_parallel_size=8).attention == {
        AttentionShape(0, 8, 192, 512): 61
    }


def test_a_batch_has_the_last_tokens_of_each_context():
    given = columns_alike([1, 1, 2, 3], 5, np.zeros((4, 1), np.int32))
    assert given.decodes == 2
    assert given.positions.tolist() == [4, 4, 3, 4, 2, 3, 4]
    assert given.lengths.tolist() == [5] * 4
    assert set(given.slots.tolist()) == {-1}
