"""Models read from a Hugging Face config.json."""

import json

import pytest

from pagesim.errors import PagesimError
from pagesim.models import from_hf_config, model

LLAMA_3_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "attention_bias": False,
    "tie_word_embeddings": False,
}
OPT_350M = {
    "model_type": "opt",
    "hidden_size": 1024,
    "ffn_dim": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "vocab_size": 50272,
    "max_position_embeddings": 2048,
    "word_embed_proj_dim": 512,
    "do_layer_norm_before": False,
}
QWEN3_4B = {
    "model_type": "qwen3",
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "attention_bias": False,
    "tie_word_embeddings": True,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "topk_method": "noaux_tc",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "tie_word_embeddings": False,
}


def test_a_model_is_read_from_a_path_by_name(tmp_path) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    path = folder / "config.json"
    path.write_text(json.dumps(LLAMA_3_8B))
    assert model(str(path)) == model(str(folder))
    assert model(str(path)).name == "my-llama"


def test_a_missing_key_is_one_sentence_naming_file_and_key(tmp_path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({k: v for k, v in LLAMA_3_8B.items() if k != "num_hidden_layers"}))
    with pytest.raises(PagesimError) as caught:
        model(str(path))
    assert str(caught.value) == (
        f"{path}: key num_hidden_layers (or n_layer, n_layers, num_layers) is missing; add it to the config"
    )


@pytest.mark.parametrize("value", [0, -1, 3.5, "32", True])
def test_a_value_that_is_no_positive_whole_number_is_refused(value) -> None:
    with pytest.raises(PagesimError, match=r"num_attention_heads is .*; it must be a whole number from 1"):
        from_hf_config({**LLAMA_3_8B, "num_attention_heads": value})


def test_a_file_that_cannot_be_read_is_refused_with_its_path(tmp_path) -> None:
    with pytest.raises(PagesimError, match=r"cannot read .*nothing\.json: No such file"):
        model(str(tmp_path / "nothing.json"))
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(PagesimError, match=r"broken\.json is not JSON"):
        model(str(broken))
    broken.write_text("[]")
    with pytest.raises(PagesimError, match="holds a list"):
        model(str(broken))
