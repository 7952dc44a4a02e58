"""Weight dtypes: bytes with scales, which layers have them, and in what products are computed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pagesim.costs.roofline import Roofline
from pagesim.errors import PagesimError
from pagesim.hardware import gpu
from pagesim.hardware.gpus import GIB
from pagesim.models import from_hf_config, model
from pagesim.models.parameters import Tensor
from pagesim.models.weights import DTYPES, GROUPS
from pagesim.sizing import divide

SHAPE = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
ATTENTION, MLP, HEAD = 32 * 4096 * (2 * 4096 + 2 * 1024), 32 * 3 * 4096 * 14336, 128256 * 4096
REST = HEAD + 65 * 4096  # the token table and norms

NVFP4_GROUP = {
    "targets": ["Linear"],
    "weights": {"num_bits": 4, "type": "float", "group_size": 16},
    "input_activations": {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": False},
}
FP8_GROUP = {
    "targets": ["Linear"],
    "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True},
    "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
}
INT4_GROUP = {
    "targets": ["Linear"],
    "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True},
    "input_activations": None,
}


def read(section: dict[str, Any] | None, **keys: Any) -> Any:
    return from_hf_config({**SHAPE, **keys, "quantization_config": section})


def compressed(group: dict[str, Any], *ignore: str) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": list(ignore)}


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("bf16", 16),
        ("fp16", 16),
        ("fp8", 8),
        ("fp8_block", 8 + 32 / 128**2),
        ("int8", 8),
        ("int4", 4 + 16 / 128),
        ("nvfp4", 4 + 8 / 16),
        ("mxfp4", 4 + 8 / 32),
        ("mxfp4_mxfp8", 4 + 8 / 32),
    ],
)
def test_a_dense_models_linear_layers_take_their_bits_and_all_else_two_bytes(name, bits) -> None:
    spec = model("llama-3.1-8b").with_weights(name)
    assert spec.weight_bytes == (ATTENTION + MLP) * bits / 8 + 2 * (HEAD + REST)
    assert spec.parameters == model("llama-3.1-8b").parameters


def test_every_group_of_a_model_with_experts_has_the_weight_dtype_but_the_lm_head() -> None:
    weights = model("deepseek-v3").with_weights("fp8").weights
    names = {group: weights.of(group).name for group in GROUPS}
    assert names == {**dict.fromkeys(GROUPS, "fp8"), "recurrent": "bf16", "head": "bf16"}


def test_in_mxfp4_experts_alone_are_quantized_where_there_are_any() -> None:
    spec = model("gpt-oss-20b")
    assert spec.with_weights("mxfp4").weights == spec.weights
    assert spec.with_weights("bf16").weight_bytes == 2 * spec.parameters
    assert model("qwen3-8b").with_weights("mxfp4").weights.mlp.name == "mxfp4"


def test_activations_in_mxfp8_take_no_memory_but_compute_in_eight_bits() -> None:
    plain, quantized = (model("gpt-oss-120b").with_weights(name) for name in ("mxfp4", "mxfp4_mxfp8"))
    assert plain.weight_bytes == quantized.weight_bytes
    assert plain.weights.experts.compute == "fp16"
    assert quantized.weights.experts.compute == "fp8"
    assert quantized.weights.attention.name == "bf16"


def test_in_nvfp4_attention_stays_in_16_bits_beside_experts_and_is_quantized_without() -> None:
    weights = model("minimax-m2.5").with_weights("nvfp4").weights
    assert (weights.attention.name, weights.experts.name) == ("bf16", "nvfp4")
    kimi = model("kimi-k2.5").with_weights("nvfp4").weights
    assert (kimi.attention.name, kimi.shared.name, kimi.mlp.name) == ("bf16", "nvfp4", "nvfp4")
    assert model("llama-3.1-70b").with_weights("nvfp4").weights.attention.name == "nvfp4"


SECTIONS = {
    "compressed-tensors fp8": (compressed(FP8_GROUP, "lm_head"), ("fp8", 8, "fp8")),
    "compressed-tensors fp8, weights alone": (
        compressed({**FP8_GROUP, "input_activations": None}, "lm_head"),
        ("fp8", 8, "fp16"),
    ),
    "compressed-tensors int4": (compressed(INT4_GROUP, "lm_head"), ("int4", 4.125, "fp16")),
    "compressed-tensors nvfp4": (compressed(NVFP4_GROUP, "lm_head"), ("nvfp4", 4.5, "fp4")),
    "compressed-tensors mxfp4": (
        compressed(
            {**INT4_GROUP, "weights": {"num_bits": 4, "type": "float", "group_size": 32}}, "re:.*lm_head"
        ),
        ("mxfp4", 4.25, "fp16"),
    ),
    "fp8 of a tensor": ({"quant_method": "fp8", "activation_scheme": "static"}, ("fp8", 8, "fp8")),
    "fp8 of blocks": (
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
        ("fp8_block", 8 + 32 / 16384, "fp8"),
    ),
    "gptq": (
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True},
        ("int4", 4 + 20 / 128, "fp16"),
    ),
    "gptq with zero points": (
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False},
        ("int4", 4 + 20 / 32, "fp16"),
    ),
    "gptq of channels": ({"quant_method": "gptq", "bits": 8, "group_size": -1}, ("int8", 8, "fp16")),
    "awq": (
        {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
        ("int4", 4 + 20 / 128, "fp16"),
    ),
    "modelopt fp8": (
        {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]},
        ("fp8", 8, "fp8"),
    ),
    "modelopt nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, ("nvfp4", 4.5, "fp4")),
    "modelopt in capitals": ({"quant_method": "ModelOpt", "quant_algo": "fp8"}, ("fp8", 8, "fp8")),
    "modelopt before it named itself": (
        {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}},
        ("fp8", 8, "fp8"),
    ),
    "modelopt of weights alone": (
        {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"},
        ("nvfp4", 4.5, "fp16"),
    ),
}


@pytest.mark.parametrize("section", SECTIONS)
def test_a_quantization_config_is_read_with_its_scales(section) -> None:
    content, (name, bits, compute) = SECTIONS[section]
    weights = read(content).weights
    for dtype in (weights.attention, weights.mlp):
        assert (dtype.name, dtype.bits, dtype.compute) == (name, bits, compute)
    assert (weights.head.name, weights.mixed) == ("bf16", ())


def test_a_section_without_a_method_is_passed_over_as_vllm_does() -> None:
    for section in ({"quant_algo": "FP8", "producer": {"name": "modelopt"}}, {"bits": 4}):
        spec = read(section)
        assert spec.weight_bytes == 2 * (ATTENTION + MLP + HEAD + REST)
        assert any("has no quant_method, so vLLM passes it over" in note for note in spec.notes)
    assert read({}).notes == ()


@pytest.mark.parametrize("method", ["bitsandbytes", "quark", "torchao", "gguf", "", None, 4])
def test_a_method_that_is_not_known_is_refused_by_name(method) -> None:
    with pytest.raises(PagesimError, match=rf"quant_method is {method!r}; .*take quantization_config out"):
        read({"quant_method": method})


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"quant_method": "modelopt", "quant_algo": "INT3"}, "quant_algo is 'INT3'; it must be one of FP8"),
        ({"quant_method": "fp8", "quant_algo": "MIXED_PRECISION"}, "quant_algo is 'MIXED_PRECISION'"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size is .*two whole numbers"),
        ({"quant_method": "fp8", "modules_to_not_convert": "lm_head"}, "must be a list of names"),
        ({"quant_method": "gptq", "dynamic": {"+:.*": {}}}, "dynamic is"),
        ({"quant_method": "gptq", "bits": "4"}, "bits is '4'"),
        ({"quant_method": "compressed-tensors"}, "config_groups is None"),
        (compressed({**INT4_GROUP, "weights": {"num_bits": 5, "type": "float"}}), "it must be integers"),
        (
            compressed({"weights": {"type": "float", "strategy": "block", "block_structure": "128x128"}}),
            r"weights.block_structure is '128x128'; it must be two whole numbers",
        ),
        (compressed(INT4_GROUP, "re:(("), "ignore is .*a name, or a pattern that RE2 takes"),
        ("awq", "quantization_config is 'awq'; it must be an object"),
    ],
)
def test_what_is_off_in_a_quantization_config_is_named(section, said) -> None:
    with pytest.raises(PagesimError, match=said):
        read(section)


@pytest.mark.parametrize(
    "ignored",
    [
        ["re:.*self_attn.*"],
        [f"model.layers.{layer}.self_attn*" for layer in range(32)],
        [f"model.layers.{layer}.self_attn.{name}_proj" for layer in range(32) for name in "qkvo"],
        ["model.layers.*.self_attn"],
        ["self_attn"],
        ["qkv_proj", "o_proj"],
    ],
)
def test_ignored_attention_stays_in_16_bit(ignored) -> None:
    spec = read(compressed(INT4_GROUP, *ignored, "lm_head"))
    assert (spec.weights.attention.name, spec.weights.mlp.name) == ("bf16", "int4")
    shapes = 2 * 16  # of two linear layers, two numbers in 64 bits
    cached = 3 * (4 + 2)  # of queries, keys and values, a scale in 32 bits and a zero point in 16
    assert spec.weight_bytes == 2 * (ATTENTION + HEAD + REST) + MLP * 4.125 / 8 + 32 * (shapes + cached)


def test_a_router_that_is_ignored_is_no_gate_projection() -> None:
    spec = read({"quant_method": "fp8", "modules_to_not_convert": ["gate", "lm_head"]})
    assert spec.weights.mlp.name == "fp8"


def test_an_lm_head_that_is_not_ignored_is_quantized_where_linear_layers_are_targets() -> None:
    assert read(compressed(INT4_GROUP)).weights.head.name == "int4"
    assert read({"quant_method": "gptq", "bits": 4, "lm_head": True}).weights.head.name == "int4"


def test_layers_that_differ_have_the_mean_of_their_bits_and_say_so() -> None:
    spec = read({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["model.layers.0*", "lm_head"]})
    assert spec.weights.mlp.bits == pytest.approx((16 + 31 * 4.5) / 32)
    assert spec.weights.mixed == ("attention", "mlp")
    assert spec.weight_bytes == pytest.approx(
        (ATTENTION + MLP) * (16 + 31 * 4.5) / 32 / 8 + 2 * (HEAD + REST) + 31 * 7 * 8 + 32 * 8, rel=1e-9
    )
    assert any("attention, mlp" in note for note in spec.notes)


def test_mixed_precision_is_read_layer_by_layer() -> None:
    layers = {
        f"model.layers.{layer}.mlp.{name}": {"quant_algo": "NVFP4"}
        for layer in range(32)
        for name in ("gate_proj", "up_proj", "down_proj")
    }
    layers |= {f"model.layers.{layer}.self_attn.o_proj": {"quant_algo": "FP8"} for layer in range(32)}
    section = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    weights = read(section).weights
    assert (weights.mlp.name, weights.attention.name, weights.head.name) == ("nvfp4", "bf16", "bf16")
    o_share = 4096 / (2 * 4096 + 2 * 1024)
    assert weights.attention.bits == pytest.approx(16 - 8 * o_share)


def test_experts_in_four_bits_beside_attention_in_sixteen() -> None:
    keys = {
        "model_type": "deepseek_v3",
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 64,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "first_k_dense_replace": 1,
    }
    ignored = (
        "lm_head",
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
    )
    group = {**INT4_GROUP, "weights": {**INT4_GROUP["weights"], "group_size": 32}}
    weights = read(compressed(group, *ignored), **keys).weights
    assert (weights.experts.name, weights.experts.bits) == ("int4", 4.5)
    assert {weights.of(group).name for group in GROUPS if group != "experts"} == {"bf16"}
    assert weights.mixed == ()


def prefill_s(name: str, device: str) -> float:
    """Return the seconds of a token's linear layers in a large batch, but for the LM head's."""
    spec = model("llama-3.1-70b").with_weights(name)
    flops = {compute: each / gpu(device).flops(compute) for compute, each in spec.flops_by_compute.items()}
    return sum(flops.values())


def test_only_where_weights_and_activations_are_fp8_are_products_computed_in_fp8() -> None:
    assert prefill_s("fp8", "h100") == pytest.approx(prefill_s("bf16", "h100") / 2, rel=1e-3)
    assert prefill_s("fp8_block", "h100") == prefill_s("fp8", "h100")
    for weights_alone in ("int4", "int8", "mxfp4"):
        assert prefill_s(weights_alone, "h100") == prefill_s("bf16", "h100")
    assert prefill_s("fp8", "a100-80gb") == prefill_s("bf16", "a100-80gb")


def test_nvfp4_is_computed_in_fp4_where_the_gpu_has_it() -> None:
    assert prefill_s("nvfp4", "b200") == pytest.approx(prefill_s("bf16", "b200") / 4, rel=1e-3)
    assert prefill_s("nvfp4", "h100") == prefill_s("bf16", "h100")


def test_a_roofline_says_in_what_it_took_products_to_be_computed() -> None:
    spec = model("llama-3.1-8b")
    (estimate,) = Roofline(spec, gpu("h100")).notes
    assert "an estimate from datasheets" in estimate
    (on_h100, _) = Roofline(spec.with_weights("fp8"), gpu("h100")).notes
    assert "computed in fp8, activations quantized" in on_h100
    (on_a100, _) = Roofline(spec.with_weights("fp8"), gpu("a100-80gb")).notes
    assert "a100-80gb has no units for fp8" in on_a100
    (of_weights, _) = Roofline(spec.with_weights("int4"), gpu("h100")).notes
    assert "int4 weights of llama-3.1-8b (attention, mlp) to be computed in 16 bit" in of_weights


def test_a_bit_less_a_weight_is_a_bit_less_to_read() -> None:
    spec = model("llama-3.1-8b")
    assert replace(spec, weights=spec.with_weights("int4").weights) == spec.with_weights("int4")
    # What a decode step reads but the LM head: 4.125 of 16 bits.
    linear = spec.layer_weight_bytes, spec.with_weights("int4").layer_weight_bytes
    norms = 2 * 65 * 4096
    assert (linear[1] - norms) / (linear[0] - norms) == pytest.approx(4.125 / 16)


@pytest.mark.parametrize(
    ("name", "device", "weight_bytes"),
    [
        ("gpt-oss-20b", "h100", 13_761_264_768),
        *(("gpt-oss-20b", each, 14_679_227_520) for each in ("b200", "a100-80gb", "l40s", "rtx-4090")),
        ("gpt-oss-20b", "rtx-5090", 14_679_227_520),
        ("gpt-oss-120b", "h100", 60.77 * GIB),
        ("gpt-oss-120b", "b200", 65.90 * GIB),
        ("gpt-oss-120b", "a100-80gb", 65.90 * GIB),
    ],
)
def test_experts_in_mxfp4_are_as_wide_as_their_kernel_takes_them(name, device, weight_bytes) -> None:
    """The parameters of vLLM 0.33.0, built for that GPU."""
    exact = 0 if isinstance(weight_bytes, int) else 0.005 * GIB
    assert divide(model(name), gpu(device)).weights == pytest.approx(weight_bytes, rel=0, abs=exact)


@pytest.mark.parametrize(
    ("device", "tp", "hidden", "width"),
    [
        ("h100", 2, 2880, 1472),
        ("h100", 4, 2880, 768),
        ("h100-pcie", 4, 2880, 768),
        ("gh200", 2, 2880, 1472),
        ("b200", 2, 3072, 1536),
        ("a100-80gb", 4, 3072, 768),
        ("mi300x", 1, 3072, 3072),
        ("mi355x", 2, 3072, 1536),
    ],
)
def test_the_share_of_a_gpu_is_padded(device: str, tp: int, hidden: int, width: int) -> None:
    spec = model("gpt-oss-20b")
    inner = 2880 // tp
    weights = 24 * 32 * 3 * (hidden * width - 2880 * inner) * 4.25 / 8
    biases = 24 * 32 * (2 * (width - inner) + hidden - 2880) * 2
    padded = divide(spec, gpu(device), tp=tp).weights - spec.weight_bytes_per_gpu(tp)
    assert padded == weights + biases


def test_experts_of_other_dtypes_and_widths_are_not_padded() -> None:
    wide = model("qwen3-30b-a3b").with_weights("mxfp4")
    for spec in (wide, model("gpt-oss-20b").with_weights("bf16"), model("llama-3.1-8b")):
        assert divide(spec, gpu("b200"), tp=2).weights == spec.weight_bytes_per_gpu(2)
    assert divide(wide, gpu("b200"), tp=4).weights > wide.weight_bytes_per_gpu(4)  # 768 / 4 is no 128


def test_what_every_gpu_has_whole_keeps_a_dtype_of_its_own() -> None:
    """Latent attention with the output projection alone quantized, as NVIDIA released DeepSeek-V3.1."""
    ranks = {"kv_lora_rank": 512, "q_lora_rank": 1536}
    heads = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    ignored = ["lm_head", *(f"model.layers.{i}.self_attn.{q}" for i in range(32) for q in ("q_*", "kv_*"))]
    section = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ignored}
    spec = read(section, model_type="deepseek_v3", **ranks, **heads)
    down = 4096 * (1536 + 512 + 64)
    up = 1536 * 32 * 192 + 512 * 32 * 256
    out = 32 * 128 * 4096
    for tp in (1, 2, 8):
        by_hand = 32 * (2 * down + 2 * up / tp + 4.5 / 8 * out / tp + 8)
        assert spec.weight_bytes_by_group(tp)["attention"] == pytest.approx(by_hand, abs=1)
    assert spec.weights.mixed == ("attention",)


def test_one_projection_of_latent_attention_may_keep_16_bits() -> None:
    ranks = {"kv_lora_rank": 512, "q_lora_rank": 1536}
    heads = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    section = {"quant_method": "fp8", "modules_to_not_convert": ["kv_a_proj_with_mqa"]}
    spec = read(section, model_type="deepseek_v3", **ranks, **heads)
    eight_bits = 4096 * 1536 + 1536 * 32 * 192 + 512 * 32 * 256 + 32 * 128 * 4096
    by_hand = 32 * (eight_bits + 2 * 4096 * (512 + 64) + 4 * 4)
    assert spec.weight_bytes_by_group(1)["attention"] == pytest.approx(by_hand, abs=1)


@pytest.mark.parametrize(("method", "kept"), [("modelopt", 11), ("fp8", 1)])
def test_a_name_that_modelopt_excludes_may_be_the_beginning_of_one(method: str, kept: int) -> None:
    """``exclude_module in prefix`` in vLLM's modelopt.py: layers 1 and 10 to 19."""
    names = ["lm_head", "model.layers.1"]
    algorithm = {"quant_algo": "FP8"} if method == "modelopt" else {}
    spec = read({"quant_method": method, "ignored_layers": names, **algorithm})
    assert spec.weights.mlp.bits == pytest.approx(8 + 8 * kept / 32)


def test_numbers_behind_the_last_whole_group_have_no_scale_in_nvfp4() -> None:
    # Gemma 4 26B A4B on 8 GPUs: a GPU has 88 of the 704 inner numbers of an expert, five groups and a half.
    down = Tensor("experts", "down_proj", 2816, 704, (0,), shards=8, by_columns=True)
    assert DTYPES["nvfp4"].bytes(down, 8) == 2816 * (88 / 2 + 5)
