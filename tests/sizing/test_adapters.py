"""What adapters take of a GPU's memory, beside the tensors that vLLM makes for them."""

from __future__ import annotations

from math import prod

import pytest

import pagesim as ps
from pagesim.experiments.plan import plan
from pagesim.models import model
from pagesim.setup.system import System, checked
from pagesim.sizing.adapters import Adapters, adapter_bytes

RANK = 64


def tensors_of_llama_3_1_8b(tp: int, rank: int) -> list[tuple[int, ...]]:
    """Return the shapes that ``create_lora_weights`` (lora/layers) makes on a GPU, for one adapter."""
    hidden, ffn, head, vocab = 4096, 14336, 128, 128_256
    query, kv = 32 // tp * head, 8 // tp * head
    of_layer = [
        *[(rank, hidden)] * 3,  # MergedQKVParallelLinearWithLoRA
        *[(query, rank), (kv, rank), (kv, rank)],
        *[(rank, query), (hidden, rank)],  # RowParallelLinearWithLoRA of o_proj
        *[(rank, hidden)] * 2,  # MergedColumnParallelLinearWithLoRA
        *[(ffn // tp, rank)] * 2,
        *[(rank, ffn // tp), (hidden, rank)],  # RowParallelLinearWithLoRA of down_proj
    ]
    tables = [(vocab, rank), (hidden, rank), (rank, hidden), (vocab, rank)]
    return [*of_layer * 32, *tables]


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_each_linear_layer_keeps_two_matrices_an_adapter(tp: int) -> None:
    one = 2 * sum(map(prod, tensors_of_llama_3_1_8b(tp, RANK)))
    spec = model("llama-3.1-8b")
    assert adapter_bytes(spec, Adapters(1, RANK), tp, range(32)) == one
    assert adapter_bytes(spec, Adapters(5, 2 * RANK), tp, range(32)) == 10 * one
    halves = [adapter_bytes(spec, Adapters(1, RANK), tp, half) for half in (range(16), range(16, 32))]
    assert halves == [one // 2, one // 2]
    assert adapter_bytes(spec, Adapters(), tp, range(32)) == 0


def test_each_expert_keeps_its_own() -> None:
    """Mixtral has 8 experts in 32 layers (FusedMoEWithLoRA): 4096 wide, 14336 within."""
    experts = 32 * 8 * (3 * 4096 + 3 * 14336)
    attention = 32 * (3 * 4096 + 4096 + 2 * 1024 + 4096 + 4096)
    tables = 2 * (32_000 + 4096)
    rank_1 = adapter_bytes(model("mixtral-8x7b"), Adapters(1, 1), 1, range(32))
    assert rank_1 == 2 * (experts + attention + tables)


def test_a_plan_names_them_and_the_cache_loses_them() -> None:
    options = {"model": "llama-3.1-8b", "gpu": "h100", "policy": "vllm-v1", "max_model_len": 8192}
    without = plan(checked(System, options))
    with_them = plan(checked(System, {**options, "max_loras": 4, "max_lora_rank": RANK}))
    parts = {part.name: part.bytes for part in with_them.parts}
    assert parts["adapters"] == 4 * 2 * sum(map(prod, tensors_of_llama_3_1_8b(1, RANK)))
    assert without.cache_bytes - with_them.cache_bytes == parts["adapters"]
    assert "adapters" not in {part.name for part in without.parts}


def test_layers_of_which_it_is_not_known_are_refused() -> None:
    with pytest.raises(ps.PagesimError, match="what adapters take of the layers of deepseek-v3 is not known"):
        adapter_bytes(model("deepseek-v3"), Adapters(1), 8, range(61))
