"""What each layer keeps, read from the config of each family; what is refused."""

from itertools import groupby
from pathlib import Path

import pytest

from pagesim.errors import PagesimError
from pagesim.models import ModelSpec, from_hf_config
from pagesim.models.layers import FullLayer

WINDOWS_LAST = ["sliding_attention"] * 7 + ["full_attention"]
HYBRID = {"layer_types": ["mamba"] * 7 + ["attention"], "shared_intermediate_size": 96}
SMALL = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
}
LATENT = {
    "kv_lora_rank": 512,
    "q_lora_rank": 96,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 64,
    "v_head_dim": 32,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}


def read(family: str, **keys: object) -> ModelSpec:
    return from_hf_config({"model_type": family, **SMALL, **keys})


LETTER = {"full": "F", "window": "W", "chunk": "C", "latent": "L", "indexer": "I", "state": "S"}


def kinds(spec: ModelSpec) -> str:
    """What the layers keep, a letter each: F(ull), W(indow), C(hunk), L(atent), I(ndexer), S(tate)."""
    return "".join(LETTER[layer.kind] for layer in spec.cache_layers)


FAMILIES = [
    ("llama", {}, "FFFFFFFF"),
    ("gpt_oss", {"num_local_experts": 4}, "WFWFWFWF"),
    ("gemma2", {}, "WFWFWFWF"),
    ("gemma3_text", {}, "WWWWWFWW"),
    ("gemma3_text", {"sliding_window_pattern": 4}, "WWWFWWWF"),
    ("mistral", {"sliding_window": 4096}, "WWWWWWWW"),
    ("mistral", {"sliding_window": None}, "FFFFFFFF"),
    ("mistral", {}, "WWWWWWWW"),  # what the code takes where the config is silent
    ("mixtral", {"num_local_experts": 4}, "FFFFFFFF"),
    ("mixtral", {"num_local_experts": 4, "sliding_window": 64}, "WWWWWWWW"),
    ("ministral", {"sliding_window": 64, "layer_types": WINDOWS_LAST}, "WWWWWWWF"),
    ("ministral3", {"sliding_window": None}, "FFFFFFFF"),
    ("phi3", {"sliding_window": 2047}, "WWWWWWWW"),
    ("phi3", {"sliding_window": None}, "FFFFFFFF"),
    ("starcoder2", {"sliding_window": 4096}, "WWWWWWWW"),
    ("cohere2", {}, "WWWFWWWF"),
    ("olmo3", {}, "WWWFWWWF"),
    ("llama4_text", {}, "CCCFCCCF"),
    ("llama4_text", {"no_rope_layers": [1, 0] * 4}, "CFCFCFCF"),
    ("llama4_text", {"no_rope_layers": [1, 0] * 5}, "CFCFCFCF"),
    ("llama4_text", {"no_rope_layers": [], "no_rope_layer_interval": 2}, "CFCFCFCF"),
    ("llama4_text", {"attention_chunk_size": None}, "FFFFFFFF"),
    ("qwen2", {"sliding_window": 131072, "use_sliding_window": False, "max_window_layers": 4}, "FFFFFFFF"),
    ("qwen2", {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 6}, "FFFFFFWW"),
    ("qwen3", {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 0}, "WWWWWWWW"),
    ("qwen3_moe", {**EXPERTS, "sliding_window": 64, "use_sliding_window": True}, "WWWWWWWW"),
    (
        "qwen2_moe",
        {**EXPERTS, "sliding_window": 64, "use_sliding_window": True, "max_window_layers": 4},
        "WFWFFFFF",
    ),
    ("qwen3_next", EXPERTS, "SSSFSSSF"),
    ("qwen3_next", {**EXPERTS, "full_attention_interval": 2}, "SFSFSFSF"),
    ("qwen3_5_text", {}, "SSSFSSSF"),
    ("qwen3_5_moe_text", EXPERTS, "SSSFSSSF"),
    ("jamba", {}, "SSSSFSSS"),
    ("jamba", {"attn_layer_period": 4, "attn_layer_offset": 0}, "FSSSFSSS"),
    ("bamba", {"attn_layer_indices": [1, 6], "mamba_n_heads": 16}, "SFSSSSFS"),
    ("granitemoehybrid", HYBRID, "SSSSSSSF"),
    ("granitemoehybrid", {**HYBRID, "layer_types": ["attention"] * 8}, "FFFFFFFF"),
    ("nemotron_h", {"hybrid_override_pattern": "M-M*-M*-"}, "SSFSF"),
    ("nemotron_h", {"layers_block_type": ["mamba", "mlp", "attention", "moe"] * 2, **EXPERTS}, "SFSF"),
    ("falcon_h1", {"mamba_n_heads": 16}, "FS" * 8),
    ("deepseek_v2", LATENT, "LLLLLLLL"),
    ("deepseek_v3", LATENT, "LLLLLLLL"),
    ("deepseek_v32", LATENT, "LI" * 8),
    ("smollm3", {"no_rope_layers": [1, 1, 1, 0] * 2, "layer_types": ["full_attention"] * 8}, "FFFFFFFF"),
    ("exaone4", {"sliding_window": 64, "layer_types": WINDOWS_LAST}, "WWWWWWWF"),
    ("of_tomorrow", {}, "FFFFFFFF"),
]


@pytest.mark.parametrize(("family", "keys", "expected"), FAMILIES)
def test_a_config_says_what_each_layer_keeps(family, keys, expected) -> None:
    assert kinds(read(family, **keys)) == expected


def test_a_windows_and_a_chunks_tokens_are_the_configs() -> None:
    spec = read("gemma3_text", sliding_window=1024, head_dim=32)
    assert {layer.window for layer in spec.cached if layer.kind == "window"} == {1024}
    assert {(layer.kv_heads, layer.head_dim) for layer in spec.cached} == {(2, 32)}
    assert read("llama4_text", attention_chunk_size=512).cached[0].chunk == 512
    assert read("gpt_oss", num_local_experts=4).cached[0].window == 128


def test_coheres_windows_hold_the_token_before_them_too() -> None:
    assert read("cohere2", sliding_window=4096).cached[0].window == 4097


def test_layer_types_win_over_the_pattern_of_the_family() -> None:
    spec = read("gemma3_text", layer_types=["full_attention", "sliding_attention"] * 4)
    assert kinds(spec) == "FWFWFWFW"


def test_a_language_model_is_read_out_of_one_that_also_sees() -> None:
    text = {"model_type": "gemma3_text", **SMALL, "sliding_window": 512}
    spec = from_hf_config({"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 99}})
    assert spec.hidden == 256
    assert kinds(spec) == "WWWWWFWW"
    inner = {"model_type": "mistral", **SMALL, "sliding_window": None}
    assert kinds(from_hf_config({"model_type": "mistral3", "text_config": inner})) == "FFFFFFFF"


def test_layers_that_are_an_mlp_alone_keep_nothing() -> None:
    spec = read("nemotron_h", hybrid_override_pattern="M-M*-E*-", **EXPERTS)
    assert len(spec.cached) == 4
    assert (spec.layers, spec.mlp_layers, spec.attention_layers, spec.state_layers) == (8, 4, 2, 2)


SIGNS = [
    "compress_ratios", "index_kpool", "cross_attention_layers", "is_encoder_decoder", "sliding_window",
    "sliding_window_size", "sliding_window_pattern", "sliding_window_layers", "window_size",
    "attention_window", "local_attention_window", "global_attn_every_n_layers", "attention_chunk_size",
    "attention_types", "attn_type_list", "attention_layers", "block_types", "block_configs",
    "hybrid_override_pattern", "attn_layer_period", "attn_layer_indices", "full_attention_interval",
    "full_attn_idxs", "linear_attn_config", "linear_num_value_heads", "mamba_d_state", "mamba_d_ssm",
    "mamba_num_heads", "ssm_cfg", "ssm_state_size", "state_size", "conv_L_cache", "rwkv_head_size",
    "lru_width", "index_topk", "index_head_dim", "indexer_types", "num_kv_shared_layers",
    "kv_shared_layers", "global_head_dim", "num_global_key_value_heads", "blocksparse_params",
    "sparse_attention_config", "use_bidirectional_attention",
]  # fmt: skip


@pytest.mark.parametrize("sign", SIGNS)
def test_a_sign_of_other_attention_is_refused_where_it_is_not_read(sign) -> None:
    with pytest.raises(PagesimError, match=rf"{sign} is 7, and what the layers of model_type of_tomorrow "):
        read("of_tomorrow", **{sign: 7})
    for nothing in (None, 0, False, []):
        assert kinds(read("of_tomorrow", **{sign: nothing})) == "FFFFFFFF"


def test_a_sign_is_refused_in_a_known_family_whose_code_does_not_read_it() -> None:
    with pytest.raises(PagesimError, match=r"sliding_window is 4096, .* model_type llama then keep"):
        read("llama", sliding_window=4096)
    with pytest.raises(PagesimError, match="num_kv_shared_layers is 15"):
        read("gemma3_text", num_kv_shared_layers=15)
    with pytest.raises(PagesimError, match="linear_attn_config is"):
        read("deepseek_v3", **LATENT, linear_attn_config={"full_attn_layers": [4, 8]})


@pytest.mark.parametrize(
    ("family", "keys", "message"),
    [
        (
            "llama",
            {"layer_types": ["dense"] * 8},
            "layer_types names 'dense', which is none of full_attention",
        ),
        ("llama", {"layer_types": [3] * 8}, "layer_types names 3, which is none of full_attention"),
        ("llama", {"layer_types": "full_attention"}, "layer_types is 'full_attention'; it must be a list"),
        ("llama", {"layer_types": ["full_attention"] * 7}, "one entry for each of the 8 layers; it has 7"),
        ("llama", {"layer_types": ["sliding_attention"] * 8}, "key sliding_window is missing"),
        ("llama", {"layer_types": ["mamba"] * 8}, "layer_types names recurrent layers, .* model_type llama"),
        ("llama", {"layer_types": ["indexed_attention"] * 8}, "names sparse attention, .* llama"),
        ("mistral", {"sliding_window": -1}, "sliding_window is -1; it must be a whole number from 1"),
        (
            "nemotron_h",
            {"hybrid_override_pattern": "M-X"},
            "hybrid_override_pattern is 'M-X'; it must be a letter",
        ),
        ("llama4_text", {"no_rope_layers": [1, 0]}, "no_rope_layers is .*a number for each of the 8 layers"),
        ("jamba", {"attn_layer_period": 0}, "attn_layer_period is 0"),
        (
            "qwen3_5_text",
            {"mamba_ssm_dtype": "int8"},
            "mamba_ssm_dtype is 'int8'; it must be one of float32, bfloat16, float16",
        ),
        ("llama", {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; it must be a whole number"),
        ("llama", {"text_config": 3}, "text_config is 3; it must be an object"),
    ],
)
def test_a_key_that_cannot_be_read_is_refused_by_name(family, keys, message) -> None:
    with pytest.raises(PagesimError, match=message):
        read(family, **keys)


def test_a_projection_of_mamba_may_have_a_bias() -> None:
    """The parameters that transformers 5.23 makes of it; those of plain configs are in counted.csv."""
    assert read("jamba", mamba_proj_bias=True, num_experts=4).parameters == 11_622_224


def test_only_layers_that_attend_count_for_attention() -> None:
    spec = read("qwen3_next", **EXPERTS, head_dim=32)
    assert spec.attention_flops_per_pair == 4 * 2 * 8 * 32
    assert spec.kv_bytes_per_token() == 2 * 2 * 2 * 32 * 2
    assert spec.cache_layers[3] == FullLayer(2, 32)
    assert [len(list(run)) for _, run in groupby(kinds(spec))] == [3, 1, 3, 1]


def test_minimax_attends_to_all_tokens_in_every_layer() -> None:
    assert read("minimax_m2", attn_type_list=[1] * 8).is_plain
    with pytest.raises(PagesimError, match=r"attn_type_list is .*; it must be 1 for each of the 8 layers"):
        read("minimax_m2", attn_type_list=[1] * 7 + [0])


def test_what_no_layer_file_can_say_is_not_sent_to_one() -> None:
    with pytest.raises(
        PagesimError, match=r"is_encoder_decoder is True, .*no kind of layer here stands for it"
    ):
        read("t5", is_encoder_decoder=True)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # what vLLM's classes make of GLM-5: in this config, too, every layer has an indexer
        ("glm-5.2-fp8", 743_911_218_432),
        ("kimi-linear-48b", 49_122_681_728),
        # By transformers' classes, towers of 538,631,408 and 460,730,096 with them
        ("qwen3-vl-30b-a3b-fp8", 31_070_754_032),
        ("qwen3.8-27b", 27_356_728_560),
    ],
)
def test_a_config_that_users_brought_is_counted(name: str, parameters: int, shared: Path) -> None:
    spec = from_hf_config(shared / "inputs" / "threads" / name)
    assert (spec.parameters, spec.weights_are) == (parameters, "exact")


def test_gemma_3_attends_both_ways_within_an_image_where_it_takes_images() -> None:
    text = {
        **{"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 6, "num_attention_heads": 4},
        **{"vocab_size": 100, "max_position_embeddings": 128, "sliding_window": 32, "head_dim": 32},
    }
    assert not from_hf_config({"model_type": "gemma3_text", **text}).image_prefixes
    of_both = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", **text}}
    assert from_hf_config(of_both).image_prefixes
    assert not from_hf_config(
        {"model_type": "llama", "text_config": {**text, "sliding_window": None}}
    ).image_prefixes


def test_ministral_3_has_heads_of_128_where_its_config_is_silent() -> None:
    # The default of transformers' Ministral3Config, with 8 heads of keys and values.
    sizes = {"hidden_size": 2048, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 32}
    spec = from_hf_config(
        {"model_type": "ministral3", **sizes, "vocab_size": 100, "max_position_embeddings": 64}
    )
    assert spec.kv_bytes_per_token("bf16", 1) == 2 * 2 * 8 * 128 * 2
