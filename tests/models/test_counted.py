"""What is called exact: parameters counted from outside, and keys that may not be passed over."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest

from pagesim.errors import PagesimError
from pagesim.models import ModelSpec, from_hf_config
from pagesim.models.families import BUILT_AS, FAMILIES

COUNTED = [
    (int(row["parameters"]), json.loads(row["config"]))
    for row in csv.DictReader(Path(__file__).with_name("counted.csv").read_text().splitlines())
]
"""Parameters by transformers' own classes, and the config (``make_counted.py``)."""

LLAMA = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}


ELSEWHERE = {
    *{"kimi_k2"},  # has no class of its own: its code is DeepSeek V3's
    # vLLM's classes read other keys than transformers' do, or transformers has none.
    *{"deepseek_v4", "glm5_next", "kimi_linear", "mimo", "mimo_v2", "minimax_m3", "nemotron-nas", "zamba2"},
    *{"afmoe", "bailing_hybrid", "bailing_moe", "glm4_moe_lite", "hy_v3", "hy_v4", "laguna", "mellum"},
    *{"longcat_flash", "muse_glimmer", "plamo3", "step3p5"},
}
"""Families that are held against vLLM's own classes (test_engine_plans.py, test_open_models.py) or against
the files of a release (test_catalogue.py)."""


def family(config: dict[str, Any]) -> str:
    text = config.get("text_config") or {}
    return str(text.get("model_type", config["model_type"])).removesuffix("_text")


def read(config: dict[str, Any]) -> ModelSpec | None:
    try:
        return from_hf_config(config)
    except PagesimError:
        return None


def test_what_is_called_exact_has_the_parameters_of_the_familys_own_code() -> None:
    exact = [
        (spec.parameters, parameters, config)
        for parameters, config in COUNTED
        if (spec := read(config)) and spec.weights_are == "exact"
    ]
    assert len(exact) >= 100
    assert len({family(config) for _, _, config in exact}) >= 60
    wrong = [(family(config), ours, theirs) for ours, theirs, config in exact if ours != theirs]
    assert not wrong


def test_a_config_that_holds_every_key_of_its_family_is_exact() -> None:
    """The first config of each is its family's own, with the keys that its class fills in itself."""
    first = {family(config): config for _, config in reversed(COUNTED)}
    assert set(FAMILIES) - set(first) == ELSEWHERE
    assert {
        name: spec.unread for name in FAMILIES if name in first and (spec := from_hf_config(first[name]))
    } == (dict.fromkeys(set(FAMILIES) - ELSEWHERE, ()))
    assert all(from_hf_config(first[name]).weights_are == "exact" for name in FAMILIES if name in first)


def test_a_family_whose_code_is_not_known_is_never_exact() -> None:
    others = [config for _, config in COUNTED if family(config) not in {*FAMILIES, *BUILT_AS}]
    assert len({family(config) for config in others}) >= 18
    assert [
        family(config) for config in others if (spec := read(config)) and spec.weights_are == "exact"
    ] == []


UNKNOWN = {
    "num_experts_in_a_new_key": 128,
    "expert_ffn": 4096,
    "n_routed_experts": 8,
    "num_local_experts": 8,
    "moe_latent_size": 512,
    "embedding_rank": 256,
    "altup_num_inputs": 4,
    "head_dims": [64, 128],
    "ffn_multipliers": [0.5, 4.0],
    "mlp_ratio": 3.5,
    "ffn_config": {"moe_num_experts": 16},
    "use_post_norm": True,
    "attention_gate": True,
    "block_pattern": "ABAB",
    "laurel_rank": 64,
    "num_memory_blocks": 2,
    "audio_encoder": {"num_layers": 24},
    "mm_hidden_size": 1024,
    "output_gate": True,
}


@pytest.mark.parametrize("key", UNKNOWN)
def test_a_key_that_may_carry_a_size_and_is_not_read_makes_an_estimate_that_names_it(key: str) -> None:
    spec = from_hf_config({**LLAMA, key: UNKNOWN[key]})
    assert (spec.weights_are, spec.unread) == ("estimated", (key,))
    assert any(key in note and "estimate" in note for note in spec.notes)
    assert from_hf_config({**LLAMA, key: None}).weights_are == "exact"


@pytest.mark.parametrize(
    "key", ["num_kv_groups", "kv_rank", "v_head_dim", "attention_window_map", "num_kv_heads"]
)
def test_a_key_that_may_change_what_the_layers_keep_is_refused(key: str) -> None:
    with pytest.raises(
        PagesimError, match=rf"{key} is 64, and what the layers .* list what each layer keeps"
    ):
        from_hf_config({**LLAMA, key: 64})


def test_what_a_family_does_without_being_told_counts() -> None:
    """OPT may have lost its last norm; Falcon shares one head of keys unless its config says otherwise."""
    opt = {**LLAMA, "model_type": "opt", "ffn_dim": 8192}
    lost = from_hf_config({**opt, "_remove_final_layer_norm": True})
    assert from_hf_config(opt).parameters - lost.parameters == 2 * 2048
    falcon = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert from_hf_config({**falcon, "model_type": "falcon"}).kv_heads == 1
    with pytest.raises(PagesimError, match="add_cross_attention is True, and what the layers"):
        from_hf_config({**LLAMA, "add_cross_attention": True})


@pytest.mark.parametrize("name", ["qwen3_moe", "nemotron_h", "ernie4_5_moe"])
def test_experts_without_a_width_are_refused_and_not_as_wide_as_a_plain_mlp(name: str) -> None:
    keys = {"num_experts_per_tok": 2, "hybrid_override_pattern": "ME*E"} if name == "nemotron_h" else {}
    experts = {"num_experts": 8, "moe_num_experts": 8, "num_experts_per_tok": 2}
    with pytest.raises(PagesimError, match="key moe_intermediate_size is missing"):
        from_hf_config({**LLAMA, "model_type": name, **experts, **keys})


HARMLESS = {
    "rope_theta": 500000.0,
    "rope_scaling": {"factor": 8.0, "original_max_position_embeddings": 8192},
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "pretraining_tp": 1,
    "attention_dropout": 0.1,
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-5,
    "use_cache": True,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "transformers_version": "5.0.0",
    "id2label": {"0": "LABEL_0", "1": "LABEL_1"},
    "num_labels": 2,
    "max_length": 20,
    "top_k": 50,
    "router_aux_loss_coef": 0.001,
    "num_nextn_predict_layers": 1,
    "time_step_limit": [0.0, float("inf")],
}


def test_what_nearly_every_config_has_is_no_reason_for_doubt() -> None:
    assert from_hf_config({**LLAMA, **HARMLESS}).weights_are == "exact"


def test_experts_may_work_on_a_narrower_stream() -> None:
    """By hand, a layer of Nemotron-3: 2 · latent · width · experts, the way there and back, and no more."""
    keys = {
        **LLAMA,
        "model_type": "nemotron_h",
        "hybrid_override_pattern": "ME*E",
        "n_routed_experts": 64,
        "num_experts_per_tok": 6,
        "n_shared_experts": 1,
        "moe_intermediate_size": 2048,
        "moe_shared_expert_intermediate_size": 4096,
    }
    wide, narrow = from_hf_config(keys), from_hf_config({**keys, "moe_latent_size": 512})
    experts = 2 * 2 * 2048 * 64
    assert wide.parameters - narrow.parameters == experts * (2048 - 512) - 2 * 2 * 2048 * 512


def test_a_model_without_a_family_is_refused_and_a_known_class_gives_one() -> None:
    nameless = {key: value for key, value in LLAMA.items() if key != "model_type"}
    for architectures in (None, [], ["T5ForConditionalGeneration"], "LlamaForCausalLM", [3]):
        with pytest.raises(PagesimError, match="there is no model_type, and architectures"):
            from_hf_config({**nameless, "architectures": architectures})
    named = from_hf_config({**nameless, "architectures": ["LlamaForCausalLM"]})
    assert named.parameters == from_hf_config(LLAMA).parameters
    assert from_hf_config({**nameless, "architectures": ["Qwen3ForCausalLM"]}).qk_norm


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("tie_word_embeddings", "false", "true or false"),
        ("use_sliding_window", "false", "true or false"),
        ("hidden_size", 2048.0, "a whole number from 1"),
        ("hidden_size", float("inf"), "a whole number from 1"),
        ("_name_or_path", 3, "a text"),
    ],
)
def test_a_key_of_another_type_is_refused(key: str, value: object, wanted: str) -> None:
    with pytest.raises(PagesimError, match=rf"{key} is .*; it must be {wanted}"):
        from_hf_config({**LLAMA, key: value})


def test_a_table_tied_around_the_language_model_counts(tmp_path: Path) -> None:
    text = {**LLAMA, "model_type": "qwen3"}
    around = {"model_type": "qwen3_vl", "text_config": text, "vision_config": {"depth": 2}}
    assert not from_hf_config(around).tied
    assert from_hf_config({**around, "tie_word_embeddings": True}).tied
    with pytest.raises(PagesimError, match="tie_word_embeddings is 'true'; it must be true or false"):
        from_hf_config({**around, "tie_word_embeddings": "true"})


def test_infinity_and_nan_in_a_file_are_read_where_nobody_asks_for_them(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "time_step_limit": [0.0, float("inf")], "x": float("nan")}))
    assert "Infinity" in path.read_text()
    assert from_hf_config(path).weights_are == "exact"
    path.write_text(json.dumps({**LLAMA, "hidden_size": float("inf")}))
    with pytest.raises(PagesimError, match="hidden_size is inf; it must be a whole number from 1"):
        from_hf_config(path)


def test_a_file_that_is_too_deep_or_too_long_or_no_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("[" * 200_000)
    with pytest.raises(PagesimError, match="is not JSON: it is nested too deeply"):
        from_hf_config(path)
    path.write_text(json.dumps(LLAMA)[:-1] + ', "x": ' + "[" * 900 + "1" + "]" * 900 + "}")
    assert from_hf_config(path).unread == ("x",)
    path.write_bytes(b'{"\xff": 1}')
    with pytest.raises(PagesimError, match=r"is not JSON: .*can't decode"):
        from_hf_config(path)
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(PagesimError, match=r"cannot read .*: it has 1099511627776 bytes"):
        from_hf_config(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(PagesimError, match=r"cannot read .*: it is a FIFO"):
        from_hf_config(path)
