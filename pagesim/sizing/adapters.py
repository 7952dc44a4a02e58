"""Adapters (LoRA): the memory that vLLM reserves for the adapters a batch may use."""

from __future__ import annotations

from dataclasses import dataclass

from pagesim.errors import PagesimError
from pagesim.models import ModelSpec
from pagesim.models.layers import FullLayer

BYTES = 2
"""Bytes per adapter parameter, which has the model's own 16-bit type."""


@dataclass(frozen=True, slots=True)
class Adapters:
    """The adapters for which memory is reserved.

    Args:
        count: adapters per batch (``--max-loras``); 0 if the server accepts none.
        rank: largest rank (``--max-lora-rank``).
    """

    count: int = 0
    rank: int = 16


NO_ADAPTERS = Adapters()
"""No adapters."""


def adapter_bytes(model: ModelSpec, adapters: Adapters, tp: int, layers: range) -> int:
    """Return the bytes that each GPU reserves for adapters, whether requests use them or not.

    Each linear layer has two matrices of the largest rank per adapter. The matrix next to the input is
    replicated if GPUs split the output, the other one if they split the input. The token embedding and
    the LM head have theirs replicated. Source: ``create_lora_weights`` (vLLM 0.33.0, lora/layers).

    Args:
        model: the model.
        adapters: number and rank of the adapters.
        tp: GPUs over which weights are divided.
        layers: layers of the GPU's pipeline stage.

    Raises:
        PagesimError: the model has layers for which this is not known.
    """
    if not adapters.count:
        return 0
    if model.mla or model.recurrence or not all(isinstance(each, FullLayer) for each in model.cache_layers):
        raise PagesimError(
            f"max_loras is {adapters.count}, and what adapters take of the layers of {model.name} is not "
            "known; leave it out"
        )
    hidden, moe = model.hidden, model.moe
    query = -(-model.heads // tp) * model.head_dim
    kv = -(-model.kv_heads // tp) * model.head_dim
    attention = 3 * hidden + query + 2 * kv + query + hidden
    columns = 0
    for layer in layers:
        columns += attention
        if moe is None or layer < moe.dense_layers:
            columns += _mlp(model, model.ffn, tp)
        else:
            columns += moe.experts * _mlp(model, moe.expert_ffn, tp)
            shared = moe.shared_ffn or moe.shared_experts * moe.expert_ffn
            columns += _mlp(model, shared, tp) if shared else 0
    tables = (layers.start == 0) + (layers.stop == model.layers)
    columns += tables * (model.vocab + hidden)
    return columns * adapters.rank * adapters.count * BYTES


def _mlp(model: ModelSpec, width: int, tp: int) -> int:
    """Return the columns of an adapter's matrices in an MLP on each GPU."""
    into = 2 if model.gated else 1
    return into * (model.hidden + width // tp) + width // tp + model.hidden
