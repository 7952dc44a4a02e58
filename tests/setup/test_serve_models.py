"""The model of a ``vllm serve`` line: its name or config, its quantization, and kernels that run it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from serve_lines import MODEL, refusal
from serve_lines import vllm_options as options_of


def test_a_model_may_be_its_config(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "vocab_size": 100,
        "max_position_embeddings": 512,
    }
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for path in (tmp_path, tmp_path / "config.json"):
        assert options_of(f"vllm serve {path} --max-model-len 500") == {
            "model": str(path),
            "max_model_len": 500,
        }
    assert refusal(f"vllm serve {tmp_path} --max-model-len 513").startswith(
        "--serve: --max-model-len is 513, more"
    )


@pytest.mark.parametrize(
    ("hub", "name"),
    [
        ("facebook/opt-13b", "opt-13b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("meta-llama/Llama-3.2-1B", "llama-3.2-1b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("Qwen/Qwen3-32B", "qwen3-32b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
    ],
)
def test_models_are_known_by_their_ids_on_hugging_face(hub: str, name: str) -> None:
    from pagesim.models import model

    assert model(hub) is model(name)
    assert options_of(f"vllm serve {hub}") == {"model": name}


def test_fp8_quantizes_a_checkpoint_of_16_bits_when_it_is_loaded() -> None:
    assert options_of(f"vllm serve {MODEL} --quantization fp8")["weight_dtype"] == "fp8"
    assert options_of(f"vllm serve {MODEL} --quantization fp8_per_block")["weight_dtype"] == "fp8_block"
    assert "weight_dtype" not in options_of(f"vllm serve {MODEL} -q none")


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("deepseek-v3", "fp8"),
        ("deepseek-v3", "deepseek_v4_fp8"),
        ("gpt-oss-20b", "mxfp4"),
        ("gpt-oss-20b", "gpt_oss_mxfp4"),
    ],
)
def test_a_method_that_a_checkpoint_has_already_changes_nothing(name, method) -> None:
    assert "weight_dtype" not in options_of(f"vllm serve {name} -q {method}")


@pytest.mark.parametrize(
    ("name", "method"), [("deepseek-v3", "awq"), ("gpt-oss-20b", "fp8"), ("opt-13b", "gguf")]
)
def test_a_method_that_a_checkpoint_does_not_have_is_refused(name, method) -> None:
    assert f"--quantization {method} affects scheduling" in refusal(f"vllm serve {name} -q {method}")


@pytest.mark.parametrize(
    ("model", "kernels", "block"),
    [
        # ``get_preferred_block_size`` of each, as run.
        ("llama-3.1-8b", "FLASH_ATTN", None),
        ("llama-3.1-8b", "flashinfer", 16),
        ("llama-3.1-8b", "TRITON_ATTN", 16),
        ("llama-3.1-8b", "ROCM_AITER_FA", 16),
        ("llama-3.1-8b", "ROCM_AITER_UNIFIED_ATTN", 64),
        ("llama-3.1-8b", "B12X", 128),
        ("llama-3.1-8b", "auto", None),
        ("deepseek-v3", "FLASH_ATTN_MLA", 16),
        ("deepseek-v3", "FLASHINFER_MLA", 32),
        ("deepseek-v3", "FLASHMLA", 64),
        ("deepseek-v3", "CUTLASS_MLA", 128),
    ],
)
def test_named_kernels_of_attention_decide_on_the_block(model: str, kernels: str, block: int | None) -> None:
    for flag in ("--attention-backend", "-ac.backend", "--attention-config.backend"):
        line = f"vllm serve {model} {flag} {kernels}"
        assert options_of(line).get("block_size") == block
        assert options_of(f"{line} --block-size 256")["block_size"] == 256
    assert options_of(f"""vllm serve {model} -ac '{{"backend": "{kernels}"}}'""").get("block_size") == block


@pytest.mark.parametrize(("model", "kernels"), [("llama-3.1-8b", "FLASHMLA"), ("deepseek-v3", "FLASHINFER")])
def test_kernels_that_do_not_run_a_model_are_refused(model: str, kernels: str) -> None:
    said = refusal(f"vllm serve {model} --attention-backend {kernels}")
    assert said.startswith(f"--serve: --attention-backend '{kernels}' is not modelled for {model}")
