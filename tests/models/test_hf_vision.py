"""Towers for images: counted to the byte where their sizes are read, else named as left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pagesim.errors import PagesimError
from pagesim.models import from_hf_config

TEXT = {
    "hidden_size": 5120,
    "intermediate_size": 8192,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}
SIGLIP = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "image_size": 896}
QWEN = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "patch_size": 16}
LLAMA4 = {"hidden_size": 1408, "intermediate_size": 5632, "num_hidden_layers": 34, "image_size": 336}
PIXTRAL = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "image_size": 1540}
MOON = {"vt_hidden_size": 1152, "vt_intermediate_size": 4304, "vt_num_hidden_layers": 27}

TOWERS: list[tuple[str, str, int, dict[str, Any], dict[int, int]]] = [
    # model_type, its language model's, hidden size, vision_config, and bytes on each of so many GPUs that the
    # classes of vLLM 0.33.0 have: Gemma-3-27B, Qwen2.5-VL-7B, Qwen3-VL-2B and 32B, Qwen3.5-35B and 122B,
    # Llama-4-Maverick, Mistral-Small-3.2, Kimi-K2.5
    (
        "gemma3",
        "gemma3_text",
        5376,
        {**SIGLIP, "patch_size": 14, "vision_use_head": False},
        {1: 846120672, 2: 434840688},
    ),
    (
        "qwen2_5_vl",
        "qwen2_5_vl_text",
        3584,
        {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "out_hidden_size": 3584},
        {1: 1353100288},
    ),
    (
        "qwen3_vl",
        "qwen3_vl_text",
        2048,
        {
            **QWEN,
            "depth": 24,
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "out_hidden_size": 2048,
            "deepstack_visual_indexes": [5, 11, 17],
        },
        {1: 813914112},
    ),
    ("qwen3_vl", "qwen3_vl_text", 5120, {**QWEN, "out_hidden_size": 5120}, {2: 599928688}),
    ("qwen3_5", "qwen3_5_text", 2048, {**QWEN, "out_hidden_size": 2048}, {1: 893142496, 4: 230209336}),
    ("qwen3_5", "qwen3_5_text", 3072, {**QWEN, "deepstack_visual_indexes": []}, {4: 232570680, 8: 120902172}),
    ("llama4", "llama4_text", 5120, {**LLAMA4, "vision_output_dim": 4096}, {8: 219919808}),
    ("mistral3", "mistral", 5120, {**PIXTRAL, "patch_size": 14}, {1: 877916160, 4: 226750464}),
    # What is left out of PIXTRAL here are the defaults of transformers' PixtralVisionConfig.
    ("mistral3", "mistral", 5120, {"patch_size": 14, "image_size": 1540}, {1: 877916160}),
    ("kimi_k25", "llama", 7168, MOON, {8: 222547868}),
]


@pytest.mark.parametrize(("kind", "text", "hidden", "vision", "sizes"), TOWERS)
def test_a_tower_takes_the_bytes_that_it_takes_in_the_engine(kind, text, hidden, vision, sizes) -> None:
    keys = {**TEXT, "model_type": text, "hidden_size": hidden, "num_local_experts": 2}
    config = {"model_type": kind, "text_config": keys}
    whole = from_hf_config({**config, "vision_config": vision})
    alone = replace(whole, tower=0, tower_whole=0)
    assert {tp: whole.weight_bytes_per_gpu(tp) - alone.weight_bytes_per_gpu(tp) for tp in sizes} == sizes
    bare = from_hf_config(config)  # Llama 4's code then has a tower of default sizes
    assert (bare.tower > 0, bare.left_out) == (kind == "llama4", ())
    assert any("vision tower of" in note for note in whole.notes)
    # No token of text makes use of it.
    assert whole.linear_flops_per_token == alone.linear_flops_per_token
    assert whole.layer_weight_bytes == alone.layer_weight_bytes


@pytest.mark.parametrize(
    ("keys", "part"),
    [
        ({"vision_config": {"hidden_size": 1024}}, "vision tower"),
        ({"mm_vision_tower": "openai/clip-vit-large-patch14"}, "vision tower"),
        ({"audio_config": {"hidden_size": 1024}}, "audio tower"),
    ],
)
def test_a_part_that_is_not_counted_is_named(keys, part) -> None:
    spec = from_hf_config({"model_type": "llava", "text_config": {**TEXT, "model_type": "llama"}, **keys})
    assert (spec.weights_are, spec.left_out) == ("language model only", (part,))
    assert any(f"its {part} is left out" in note for note in spec.notes)


def test_a_key_of_a_tower_that_is_not_read_makes_an_estimate() -> None:
    config = {"model_type": "mistral3", "text_config": {**TEXT, "model_type": "mistral"}}
    spec = from_hf_config({**config, "vision_config": {**PIXTRAL, "num_experts": 4}})
    assert (spec.weights_are, spec.unread) == ("estimated", ("vision_config.num_experts",))


def test_a_size_of_a_tower_that_is_none_is_refused() -> None:
    config = {"model_type": "mistral3", "text_config": {**TEXT, "model_type": "mistral"}}
    with pytest.raises(PagesimError, match="vision_config: hidden_size is '1024'; it must be a whole number"):
        from_hf_config({**config, "vision_config": {**PIXTRAL, "hidden_size": "1024"}})
    with pytest.raises(PagesimError, match="vision_config is 7; it must be an object"):
        from_hf_config({**config, "vision_config": 7})
