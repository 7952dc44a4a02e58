"""ModelOpt's file beside a config, and what a checkpoint says of its KV cache."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pagesim.errors import PagesimError
from pagesim.models import from_hf_config, model

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
LINEAR = 32 * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336)
REST = 2 * 128256 * 4096 + 65 * 4096  # token table, LM head and norms
SCALES, CACHED = (
    32 * 7 * 2 * 4,
    32 * 4 * 2,
)  # of 7 matrices a layer and their inputs; of queries, keys, values
ROWS = 32 * (2 * 4096 + 2 * 1024 + 2 * 14336 + 4096)
BF16, FP8 = 2 * (LINEAR + REST), LINEAR + 2 * REST + SCALES
NVFP4 = LINEAR * 4.5 / 8 + 2 * REST + SCALES

MODELOPT = {"name": "modelopt", "version": "0.29.0"}


def filed(algorithm: str | None, **keys: Any) -> dict[str, Any]:
    """Return the content of a ``hf_quant_config.json``."""
    quantization = {"quant_algo": algorithm, "exclude_modules": ["lm_head"], **keys}
    return {"producer": MODELOPT, "quantization": quantization}


def folder(tmp_path: Path, file: Any, **config: Any) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({**SHAPE, **config}))
    text = file if isinstance(file, str) else json.dumps(file)
    (tmp_path / "hf_quant_config.json").write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "weight_bytes", "kv_dtype"),
    [
        (filed("FP8", kv_cache_quant_algo="FP8"), FP8, "fp8"),
        (filed("fp8"), FP8, ""),
        (filed("FP8_PER_CHANNEL_PER_TOKEN", kv_cache_quant_algo=None), FP8 - SCALES + 4 * ROWS, ""),
        (filed("NVFP4", kv_cache_quant_algo="FP8", group_size=16), NVFP4, "fp8"),
        (filed("NVFP4", kv_cache_quant_algo="NVFP4"), NVFP4, "nvfp4"),
        (filed("FP8", kv_cache_quant_algo="INT8"), FP8, ""),
        ({**filed("FP8", kv_cache_quant_algo="FP8"), "producer": {"name": "other"}}, BF16, ""),
        ({"quantization": {"quant_algo": "FP8"}}, BF16, ""),
        (filed(None, kv_cache_quant_algo="FP8"), BF16, ""),
    ],
)
def test_the_file_beside_a_config_counts(
    tmp_path: Path, file: Any, weight_bytes: float, kv_dtype: str
) -> None:
    path = folder(tmp_path, file)
    for named in (path, path / "config.json"):
        spec = from_hf_config(named)
        assert (spec.weight_bytes, spec.kv_dtype) == (
            weight_bytes + CACHED * (weight_bytes != BF16),
            kv_dtype,
        )
        assert "hf_quant_config.json" in spec.source
    assert any("passes it over" in note for note in spec.notes) == (weight_bytes == BF16)


def test_the_file_does_not_count_beside_a_config_that_is_quantized_itself(tmp_path: Path) -> None:
    path = folder(
        tmp_path, filed("FP8", kv_cache_quant_algo="FP8"), quantization_config={"quant_method": "fp8"}
    )
    assert from_hf_config(path).kv_dtype == ""
    assert "hf_quant_config" not in from_hf_config(path).source
    path = folder(tmp_path, "{", quantization_config={"quant_method": "fp8"})
    assert from_hf_config(path).weight_bytes == FP8 - SCALES // 2 + CACHED  # whose inputs have no scales


def test_layers_in_several_dtypes_are_looked_for_in_the_file(tmp_path: Path) -> None:
    layers = {
        f"model.layers.{layer}.mlp.{name}_proj": {"quant_algo": "NVFP4"}
        for layer in range(32)
        for name in ("gate", "up", "down")
    }
    own = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": None}
    file = filed("MIXED_PRECISION", kv_cache_quant_algo="FP8", quantized_layers=layers)
    spec = from_hf_config(folder(tmp_path, file, quantization_config=own))
    assert (spec.weights.mlp.name, spec.weights.attention.name) == ("nvfp4", "bf16")
    assert spec.kv_dtype == ""  # which is the config's own to say
    assert from_hf_config(folder(tmp_path, file)).kv_dtype == "fp8"


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (filed("INT4_AWQ"), r"hf_quant_config.json: quant_algo is 'INT4_AWQ'; it must be one of FP8, "),
        (filed("NVFP4_AWQ"), r"quant_algo is 'NVFP4_AWQ'"),
        ("{", r"hf_quant_config.json is not JSON"),
        ("[" * 100_000, r"hf_quant_config.json is not JSON"),
        ([1], r"hf_quant_config.json holds a list"),
        (filed("MIXED_PRECISION"), r"quantized_layers is None; it must be an object"),
        ({**filed("FP8"), "quantization": {"quant_algo": ["FP8"]}}, r"quant_algo is \['FP8'\]"),
    ],
)
def test_a_file_that_vllm_does_not_start_with_is_refused_by_name(
    tmp_path: Path, file: Any, said: str
) -> None:
    with pytest.raises(PagesimError, match=said):
        from_hf_config(folder(tmp_path, file))


FLOAT8 = {"num_bits": 8, "type": "float", "dynamic": False}


@pytest.mark.parametrize(
    ("section", "kv_dtype"),
    [
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": FLOAT8}, "fp8"),
        ({"quant_method": "modelopt_fp4", "quant_algo": "NVFP4", "kv_cache_scheme": FLOAT8}, "fp8"),
        (
            {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": {**FLOAT8, "dynamic": True}},
            "",
        ),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": {**FLOAT8, "type": "int"}}, ""),
        (
            {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": {**FLOAT8, "num_bits": 4}},
            "nvfp4",
        ),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": None}, ""),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": 8}, ""),
        ({"quant_method": "fp8", "kv_cache_quant_algo": "FP8", "kv_cache_scheme": FLOAT8}, ""),
        ({"quant_method": "gptq", "bits": 4, "kv_cache_scheme": FLOAT8}, ""),
        (None, ""),
    ],
)
def test_the_cache_has_the_dtype_that_vllm_takes_of_a_checkpoint(section: Any, kv_dtype: str) -> None:
    assert from_hf_config({**SHAPE, "quantization_config": section}).kv_dtype == kv_dtype


def test_text_config_has_the_quantization_of_its_own_but_not_of_the_cache() -> None:
    own = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    spec = from_hf_config({"model_type": "llava", "text_config": {**SHAPE, "quantization_config": own}})
    assert (spec.weight_bytes, spec.kv_dtype) == (FP8 + CACHED, "")
    outer = {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}
    text = {**SHAPE, "quantization_config": {"quant_method": "fp8"}}
    spec = from_hf_config({"model_type": "llava", "text_config": text, "quantization_config": outer})
    assert (spec.weight_bytes, spec.kv_dtype) == (NVFP4 + CACHED, "fp8")


COMPRESSED = {
    "quant_method": "compressed-tensors",
    "ignore": ["lm_head"],
    "config_groups": {"0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}},
}


def test_compressed_tensors_with_a_cache_scheme_has_an_fp8_cache_unless_it_is_latent() -> None:
    section = {**COMPRESSED, "kv_cache_scheme": {**FLOAT8, "strategy": "tensor", "symmetric": True}}
    assert from_hf_config({**SHAPE, "quantization_config": section}).kv_dtype == "fp8"
    assert (
        from_hf_config({**SHAPE, "quantization_config": {**section, "kv_cache_scheme": None}}).kv_dtype == ""
    )
    latent = {
        **{"model_type": "deepseek_v3", "kv_lora_rank": 512, "q_lora_rank": 1536, "v_head_dim": 128},
        **{"qk_nope_head_dim": 128, "qk_rope_head_dim": 64},
    }
    assert from_hf_config({**SHAPE, **latent, "quantization_config": section}).kv_dtype == ""
    with pytest.raises(PagesimError, match=r"kv_cache_scheme is .*; it must be null, or a float of 8 bits"):
        from_hf_config({**SHAPE, "quantization_config": {**section, "kv_cache_scheme": {"num_bits": 4}}})


def test_a_model_is_read_once_until_one_of_its_files_changes(tmp_path: Path) -> None:
    path = folder(tmp_path, filed("FP8"))
    assert model(str(path)) is model(str(path))
    assert model(str(path)).weight_bytes == FP8 + CACHED
    (path / "hf_quant_config.json").unlink()
    assert model(str(path)).weight_bytes == BF16
    (path / "config.json").write_text(json.dumps({**SHAPE, "num_hidden_layers": 16}))
    assert model(str(path)).layers == 16


def test_what_is_no_file_is_refused_by_name_at_once(tmp_path: Path) -> None:
    path = folder(tmp_path, filed("FP8"))
    (path / "hf_quant_config.json").unlink()
    os.mkfifo(path / "hf_quant_config.json")
    with pytest.raises(PagesimError, match=r"cannot read .*hf_quant_config.json: it is a FIFO and no"):
        from_hf_config(path)
