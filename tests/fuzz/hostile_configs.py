"""Hostile configs of models, under ``pagesim plan``."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from hostile_case import Case, Content, fifo, folder, link
from mutators import mutate

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 128256, "max_position_embeddings": 8192, "torch_dtype": "bfloat16", "head_dim": 128,
    "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False,
}  # fmt: skip
QWEN3_MOE: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
    "intermediate_size": 6144, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
    "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
    "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "norm_topk_prob": True, "attention_bias": False, "tie_word_embeddings": False,
}  # fmt: skip
DEEPSEEK: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168,
    "intermediate_size": 18432, "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "vocab_size": 129280, "max_position_embeddings": 163840, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
BASES = (LLAMA, QWEN3_MOE, DEEPSEEK)
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings")
UNKNOWN = (
    "moe_hyper_latent_size", "num_zeta_experts", "shadow_intermediate_size", "extra_projection_dim",
    "second_vocab_size", "side_hidden_size", "num_ghost_layers", "twin_head_dim", "expert_lora_rank",
)  # fmt: skip
EVIL = (
    "(a+)+$", "(a|a)*b", "(a|aa)+$", "([a-z]+)*[A-Z]", "^(([a-z])+.)+[A-Z]([a-z])+$", "(.*)*x", "(.*.*)*x",
    "(?=(a+))a*b\\1", "((a*)*)*b", "(x+x+)+y", "(model.*)+Z", "(model.*layers.*){9}Z", ".*.*.*.*.*.*.*.*Z",
    "(?:(?:l|la|lay)*)*Q", "(\\w+\\.)*\\w+#", "(\\w|\\.)*\\w*\\w*#", "(.|\\w|[a-z])+#", "(((((\\w)*)*)*)*)*#",
    "(?<=a)(.+)+#", "(a?){50}a{50}", "(.{1,30000}){1,30000}#", "(\\w{0,9}){0,9}{0}#",
)  # fmt: skip


def _plan(
    name: str, data: bytes | Content, expects: str = "any", beside: dict[str, Content] | None = None
) -> Case:
    return Case(
        name,
        ("plan", "--model", "{}/config.json", "--gpu", "h100", "--tensor-parallel-size", "1"),
        {"config.json": data, **(beside or {})},
        expects,
    )


def _json(content: Any) -> bytes:
    return json.dumps(content).encode()


def _base(rng: random.Random) -> dict[str, Any]:
    return deepcopy(rng.choice(BASES))


def _quantized(rng: random.Random, ignored: list[Any]) -> bytes:
    """Return a config whose linear layers are FP8 but for those that are named."""
    kind = rng.randrange(4)
    config = _base(rng)
    fp8 = {"num_bits": 8, "type": "float", "strategy": "channel", "dynamic": False, "symmetric": True}
    if kind == 0:
        quantization: dict[str, Any] = {"quant_method": "fp8", "modules_to_not_convert": ignored}
    elif kind == 1:
        quantization = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ignored}
    else:
        group = {"targets": ["Linear"], "weights": fp8, "input_activations": fp8 | {"dynamic": True}}
        quantization = {
            "quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ignored,
            "config_groups": {"group_0": group},
        }  # fmt: skip
        if kind == 3:
            quantization["ignore"] = ["lm_head"]
            group["targets"] = ignored
    return _json(config | {"quantization_config": quantization})


def _slow_pattern(rng: random.Random) -> Case:
    patterns = [f"re:{rng.choice(('', '.*', '^'))}{rng.choice(EVIL)}" for _ in range(rng.choice((1, 1, 5)))]
    if rng.random() < 0.3:
        patterns = ["*a" * rng.choice((5, 15, 40)) + "*Q", "*" * 200 + "Q", "[a-z]*" * 30 + "Q"]
    return _plan("a slow pattern", _quantized(rng, patterns))


def _nested_pattern(rng: random.Random) -> Case:
    depth = rng.choice((40, 101, 500, 3000, 60_000))
    left, right = rng.choice((("(", ")"), ("(?:", ")*"), ("(", ")+"), ("(a|", ")"), ("(", "")))
    return _plan("nested patterns", _quantized(rng, ["re:" + left * depth + "x" + right * depth]))


def _broken_pattern(rng: random.Random) -> Case:
    pattern: Any = rng.choice(
        ("re:(", "re:[", "re:*", "re:(?P<", "re:\\", "re:(?<=a+)b", "re:a{99999999999}", "re:\ud800", "re:",
         "re:(?i", "re:\\1", "re:(?P<a>x)(?P<a>y)", 5, None, True, ["x"], {"a": 1}, 1e999, "re:[z-a]")
    )  # fmt: skip
    return _plan("patterns that are none", _quantized(rng, [pattern]))


def _many_names(rng: random.Random) -> Case:
    number = rng.choice((283, 1000, 20_000, 200_000))
    parts = ("mlp.gate", "self_attn.q_proj", "x")
    names = [f"model.layers.{n % 94}.{rng.choice(parts)}" for n in range(number)]
    names += [f"re:.*layers.{n}.mlp.*" for n in range(rng.choice((0, 60)))]
    return _plan("many names", _quantized(rng, names))


def _no_number(rng: random.Random) -> Case:
    config = _base(rng)
    key = rng.choice(SIZES)
    config[key] = rng.choice((float("nan"), float("inf"), float("-inf")))
    return _plan("infinite size", _json(config), "refused")


def _idle_infinity(rng: random.Random) -> Case:
    idle = rng.choice(("router_aux_loss_coef", "initializer_range", "attention_dropout", "time_step_limit"))
    value = float("inf")
    base = deepcopy(rng.choice(BASES[:2]))  # the third fits on no single GPU
    return _plan("Infinity", _json(base | {idle: [0.0, value] if "limit" in idle else value}), "done")


def _wrong_type(rng: random.Random) -> Case:
    config = _base(rng)
    key = rng.choice([key for key in config if key not in ("architectures", "mlp_only_layers")])
    own = config[key]
    if isinstance(own, bool):
        others: tuple[Any, ...] = ("false", "False", "no", 2, [False], {"a": 1}, "")
    elif isinstance(own, int):
        others = (str(own), f"{own}.0", own + 0.5, [own], {"a": own}, True, "many", "")
    else:
        others = (5, True, [own], {"a": own}, 0.5)
    value = rng.choice(others)
    # These say nothing of memory, and are not looked at.
    expects = "any" if key in ("torch_dtype", "norm_topk_prob") else "refused"
    return _plan(f"a type for another: {type(own).__name__}", _json(config | {key: value}), expects)


def _no_type(rng: random.Random) -> Case:
    config = _base(rng)
    del config["architectures"]
    expects = "refused"
    match rng.randrange(4):
        case 0:
            del config["model_type"]
        case 1:
            config["model_type"] = rng.choice(("zzz", " llama", "LLAMA\n", "llama2x"))
            expects = "says:estimate"
        case 2:
            config["model_type"] = rng.choice((None, 5, ["llama"], {}, ""))
        case _:
            del config["model_type"]
            config["architectures"] = rng.choice(([], ["ZzzForCausalLM"], "LlamaForCausalLM", [5], None))
    return _plan("no type of model", _json(config), expects)


def _twice(rng: random.Random) -> Case:
    config = _base(rng)
    key = rng.choice(list(config))
    value = rng.choice((1, 10**9, None, "x", [], False))
    return _plan("a key twice", (json.dumps(config)[:-1] + f', "{key}": {json.dumps(value)}}}').encode())


def _unknown_size(rng: random.Random) -> Case:
    key = rng.choice(UNKNOWN)
    value = rng.choice((512, 4096, 64, 3))
    return _plan("a size that is not known", _json(_base(rng) | {key: value}), f"says:{key}")


def _quantized_beside(rng: random.Random) -> Case:
    good = {"producer": {"name": "modelopt", "version": "0.29"},
            "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None}}  # fmt: skip
    damage = rng.randrange(8)
    other: Content = _json(good)
    expects = "says:fp8"
    if damage == 1:
        other, expects = mutate("hf_quant_config.json", _json(good), rng), "any"
    elif damage == 2:
        other, expects = b'{"quantization":' * 50_000, "refused"
    elif damage == 3:
        other, expects = _json([good]), "refused"
    elif damage == 4:
        other, expects = b"", "refused"
    elif damage == 5:
        other, expects = b"\xff\xfe{}", "refused"
    elif damage == 6:
        other, expects = rng.choice((fifo, link("/dev/zero"), folder, link("hf_quant_config.json"))), "any"
    elif damage == 7:
        good["quantization"]["quant_algo"] = rng.choice((5, "ZZZ", ["FP8"], {}, "\ud800"))
        other, expects = _json(good), "refused"
    return _plan("quantization beside it", _json(_base(rng)), expects, {"hf_quant_config.json": other})


def _no_file(rng: random.Random) -> Case:
    text = json.dumps(_base(rng))
    content, expects = rng.choice(
        (
            (fifo, "refused"), (folder, "refused"), (link("/dev/zero"), "refused"),
            (link("config.json"), "refused"), (link("/dev/null"), "refused"), (b"", "refused"),
            (b"\xef\xbb\xbf" + text.encode(), "any"), (text.encode("utf-16"), "any"), (b"[]", "refused"),
            (b"null", "refused"), (b"{}", "refused"), (text.encode() + b"\0" * 10, "refused"),
            (text.encode()[:-5], "refused"), (link("/dev/urandom"), "refused"), (b"\x93NUMPY", "refused"),
        )
    )  # fmt: skip
    return _plan("no plain file of JSON", content, expects)


MAKERS: tuple[Callable[[random.Random], Case], ...] = (
    _slow_pattern, _no_type, _wrong_type, _unknown_size, _no_number, _nested_pattern, _wrong_type, _twice,
    _quantized_beside, _idle_infinity, _no_file, _many_names, _slow_pattern, _wrong_type, _broken_pattern,
    _no_type, _quantized_beside,
)  # fmt: skip
"""What damaged configs of all kinds come to, `test_readers.py` looks at."""
