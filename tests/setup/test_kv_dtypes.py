"""The dtype of a KV cache that is left out: the checkpoint's under the vLLM of today."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagesim.api import run
from pagesim.experiments.plan import plan
from pagesim.hardware.gpus import GIB
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.scenario import Scenario
from pagesim.setup.serve import read_serve
from pagesim.setup.system import System
from pagesim.workloads.trace import Trace

SHAPE = {
    **{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32},
    **{"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256},
    "max_position_embeddings": 131072,
}
BLOCK_OF_16_BITS = 2 * 32 * 8 * 128 * 16 * 2
FP8 = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps({**SHAPE, "quantization_config": FP8}))
    return str(tmp_path)


def block_bytes(**options: Any) -> int:
    return plan(System(**{"policy": "vllm-v1", "gpu": "h100", **options})).blocks.bytes_per_block


def test_a_plan_takes_the_dtype_of_the_checkpoint_and_says_so(folder: str) -> None:
    found = plan(System(policy="vllm-v1", gpu="h100", model=folder))
    assert found.blocks.bytes_per_block == BLOCK_OF_16_BITS // 2
    assert found.settled["kv_cache_dtype"] == "fp8"
    assert any("the KV cache is fp8, as the checkpoint of" in note for note in found.notes)


@pytest.mark.parametrize(
    "options",
    [
        {"kv_cache_dtype": "bf16"},
        {"kv_cache_dtype": "fp16"},
        {"vllm_version": "0.19.0"},
        {"weight_dtype": "fp8"},
    ],
)
def test_what_is_given_and_other_releases_keep_16_bits(folder: str, options: dict[str, Any]) -> None:
    assert block_bytes(model=folder, **options) == BLOCK_OF_16_BITS
    given = System(policy="vllm-v1", gpu="h100", model=folder, **options)
    assert not any("KV cache is" in note for note in plan(given).notes)


def test_other_policies_keep_16_bits(folder: str) -> None:
    for policy in ("vllm-sosp", "trtllm"):
        assert EngineConfig(System(policy=policy, model=folder)).kv_dtype == "fp16"
    assert EngineConfig(System(policy="vllm-sosp", scheduler="vllm-v1", model=folder)).kv_dtype == "fp8"


def test_sglang_follows_what_modelopt_wrote_alone(folder: str, tmp_path: Path) -> None:
    # mem_cache/kv_cache_dtype.py: ``kv_cache_quant_algo``, which only configs of ModelOpt and fp8 have.
    assert EngineConfig(System(policy="sglang", model=folder)).kv_dtype == "fp8"
    assert EngineConfig(System(policy="sglang", model=folder, weight_dtype="fp8")).kv_dtype == "fp16"
    weights = {"type": "float", "num_bits": 8, "strategy": "tensor", "symmetric": True}
    quantized = {
        "quant_method": "compressed-tensors",
        "kv_cache_scheme": {"type": "float", "num_bits": 8},
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text(json.dumps({**SHAPE, "quantization_config": quantized}))
    other = str(tmp_path / "other")
    assert EngineConfig(System(policy="vllm-v1", model=other)).kv_dtype == "fp8"
    assert EngineConfig(System(policy="sglang", model=other)).kv_dtype == "fp16"


@pytest.mark.parametrize(
    ("model", "gpu", "given", "dtype", "vector"),
    [
        # ``_dsa_kv_cache_dtype_default`` and ``_dsa_split_backend_resolution`` (arg_groups/overrides.py), and
        # the bytes of mem_cache/kv_cache_configurator.py 3415: with scales 512 + 4 * 4 + 64 * 2, else 576.
        ("deepseek-v3.2", "h200", None, "fp16", 1152),
        ("deepseek-v3.2", "h200", "fp8", "fp8", 656),
        ("deepseek-v3.2", "b200", None, "fp8", 576),
        ("deepseek-v3.2", "b200", "bf16", "bf16", 1152),
        ("deepseek-v3.2", "mi355x", None, "fp16", 1152),
        ("deepseek-v3.2", "mi355x", "fp8", "fp8", 576),
        ("deepseek-v3.2", "rtx-pro-6000", None, "fp8", 576),
        ("glm-5", "rtx-pro-6000", None, "fp8", 656),
        ("deepseek-v3", "b200", None, "fp16", 1152),
    ],
)
def test_sglang_keeps_sparse_attention_in_fp8_on_blackwell(model, gpu, given, dtype, vector) -> None:
    config = EngineConfig(System(policy="sglang", model=model, gpu=gpu, kv_cache_dtype=given))
    assert config.kv_dtype == dtype
    assert config.model.cache_layers[0].bytes_per_token(dtype) == vector


def test_a_run_and_a_served_line_take_it_too(folder: str) -> None:
    trace = Trace(arrival_s=np.zeros(1), prompt_tokens=np.array([8]), output_tokens=np.array([8]))
    scenario = {"policy": "vllm-v1", "gpu": "h100", "max_model_len": 4096, "cost": "roofline"}
    halved, whole = (
        run(System(**scenario, model=folder, **more), trace) for more in ({}, {"kv_cache_dtype": "fp16"})
    )
    assert abs(halved.summary["memory"]["num_blocks"] - 2 * whole.summary["memory"]["num_blocks"]) <= 2
    assert halved.summary["options"]["defaults"]["kv_cache_dtype"] == "fp8"
    assert any("the KV cache is fp8" in note for note in halved.notes)
    for flag, dtype in (
        ("", "fp8"),
        (" --kv-cache-dtype auto", "fp8"),
        (" --kv-cache-dtype bfloat16", "bf16"),
    ):
        options = read_serve(f"vllm serve {folder}{flag}").options
        assert EngineConfig(System(**{"gpu": "h100", **options})).kv_dtype == dtype


def test_a_stored_scenario_means_the_same_when_it_is_read_again(folder: str) -> None:
    from pagesim.setup.scenario_files import to_toml

    assert "kv_cache_dtype" not in to_toml(Scenario(policy="vllm-v1", model=folder))


def test_a_cache_in_four_bits_has_a_scale_of_eight_for_sixteen_elements(tmp_path: Path) -> None:
    four = {**FP8, "kv_cache_quant_algo": "NVFP4"}
    (tmp_path / "config.json").write_text(json.dumps({**SHAPE, "quantization_config": four}))
    assert block_bytes(model=str(tmp_path)) == BLOCK_OF_16_BITS * 9 // 32
    assert block_bytes(model=str(tmp_path), kv_cache_dtype="fp8") == BLOCK_OF_16_BITS // 2


GLM = {
    **{"model_type": "glm_moe_dsa", "hidden_size": 512, "intermediate_size": 512, "num_hidden_layers": 4},
    **{"num_attention_heads": 8, "vocab_size": 1000, "max_position_embeddings": 4096, "kv_lora_rank": 512},
    **{"qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "v_head_dim": 64, "q_lora_rank": 64},
    **{"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
}


def test_glm_5_is_kept_in_fp8_on_blackwell_servers_alone(tmp_path: Path) -> None:
    # A block of 64 tokens: a latent vector of 576 elements and 132 bytes of an indexer, in each of 4 layers.
    (tmp_path / "config.json").write_text(json.dumps(GLM))
    for gpu, element, said in (("h200", 2, False), ("b200", 1, True), ("b300", 1, True)):
        found = plan(System(policy="vllm-v1", gpu=gpu, model=str(tmp_path)))
        assert found.blocks.bytes_per_block == 4 * 64 * (576 * element + 132)
        assert any(f"as vLLM keeps that of {tmp_path} on {gpu}" in note for note in found.notes) == said
    assert block_bytes(model=str(tmp_path), gpu="b200", kv_cache_dtype="bf16") == 4 * 64 * (576 * 2 + 132)


@pytest.mark.parametrize(
    ("hub_id", "dtype"),
    [
        ("nvidia/Llama-3.1-8B-Instruct-FP8", "fp8"),
        ("nvidia/Llama-3.1-70B-Instruct-FP8", "fp8"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8", "fp16"),  # of compressed-tensors, with no scheme
        ("Qwen/Qwen3-32B-FP8", "fp16"),
        ("meta-llama/Llama-3.1-8B-Instruct", "fp16"),
    ],
)
def test_releases_that_are_known_by_name_have_theirs(hub_id: str, dtype: str) -> None:
    assert EngineConfig(System(policy="vllm-v1", model=hub_id)).kv_dtype == dtype


MODELS = Path(__file__).resolve().parents[2].parent / "shared" / "models"
GPUS = {"b200": "b200", "rtx5090": "rtx-5090"}
TOLD = ("minimax-m2.7-nvfp4", "nemotron-3-nano-nvfp4", "qwen3.5-397b-a17b-nvfp4")


@pytest.mark.parametrize("name", TOLD)
def test_the_blocks_of_released_checkpoints_are_those_of_the_engine(name: str) -> None:
    """What vLLM 0.33.0's own classes plan of the released configs with a KV dtype of auto."""
    truth = MODELS / "open" / "truth.csv"
    if not truth.exists():
        pytest.skip("the folder ../shared with what the engine plans of released configs is absent")
    with truth.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == name and row["num_blocks"]]
    rows = [row for row in rows if row["kv_dtype"] == "fp8_e4m3" and row["kv_dtype_flag"] == "auto"]
    assert rows
    for row in rows:
        system = System(
            policy="vllm-v1",
            model=str(MODELS / row["config"]),
            gpu=GPUS[row["gpu"]],
            tensor_parallel_size=int(row["tp"]),
            max_model_len=int(row["max_model_len"]),
        )
        found = plan(system, cache_bytes=int(float(row["kv_gib"]) * GIB), enforce_eager=True)
        assert (found.sized.num_blocks, found.tokens) == (int(row["num_blocks"]), int(row["tokens"]))
