"""A model's linear layers by their names in checkpoints, by which quantization may exclude some."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pagesim.models.parameters import Tensor
from pagesim.models.weights import GROUPS

PREFIXES = (
    "model.layers",
    "model.language_model.layers",
    "language_model.model.layers",
    "backbone.layers",
    "layers",
)
"""Prefixes of the layers' names in checkpoints."""

_PLACES = {
    "attention": ("self_attn", "attn", "mixer"),
    "recurrent": ("linear_attn", "mixer", "mamba", "self_attn"),
    "mlp": ("mlp", "feed_forward", "mixer"),
    "shared": (
        "mlp.shared_experts",
        "mlp.shared_expert",
        "feed_forward.shared_expert",
        *("mixer.shared_experts", "block_sparse_moe.shared_experts", "ffn.shared_experts", "mlp"),
    ),
    "experts": (
        *("mlp.experts", "mlp.experts.0", "block_sparse_moe.experts.0"),
        *("feed_forward.experts", "mixer.experts.0", "ffn.experts.0"),
    ),
}
_FUSED = {
    "q_proj": ("q_proj", "qkv_proj"),
    "k_proj": ("k_proj", "qkv_proj"),
    "v_proj": ("v_proj", "qkv_proj"),
    "gate_proj": ("gate_proj", "gate_up_proj", "w1"),
    "up_proj": ("up_proj", "gate_up_proj", "w3"),
    "down_proj": ("down_proj", "w2"),
    "in_proj": ("in_proj", "in_proj_qkv", "in_proj_qkvz"),
}


HEAD_NAMES = ("lm_head", "model.lm_head", "language_model.lm_head", "embed_out", "output")


@dataclass(frozen=True, slots=True)
class Module:
    """A linear layer, or all similar ones (such as experts) of one transformer layer.

    Attributes:
        group: its group in `Weights`.
        parameters: parameters of its matrix, or of all of them.
        name: its name within the layer.
        layer: index of the layer, from 0; -1 for the LM head, which is in none.
    """

    group: str
    parameters: int
    name: str = ""
    layer: int = -1

    @property
    def names(self) -> tuple[str, ...]:
        """Its possible names in checkpoints, which differ by family."""
        return HEAD_NAMES if self.layer < 0 else names(self.group, self.layer, self.name)


def modules(tensors: Iterable[Tensor]) -> Iterator[Module]:
    """Yield the linear layers among the tensors of a model."""
    for tensor in tensors:
        if tensor.group in GROUPS:
            size = tensor.numbers() // len(tensor.layers)
            for layer in tensor.layers:
                yield Module(tensor.group, size, tensor.name, layer)


def names(group: str, layer: int | str, name: str) -> tuple[str, ...]:
    """Return the possible names of a layer's module in checkpoints, which differ by family.

    A name that begins with a dot is directly inside the layer in all families.
    """
    if name.startswith("."):
        return tuple([f"{prefix}.{layer}{name}" for prefix in PREFIXES])
    ends = [f"{place}.{each}" for place in _PLACES[group] for each in _FUSED.get(name, (name,))]
    return tuple([f"{prefix}.{layer}.{end}" for prefix in PREFIXES for end in ends])
