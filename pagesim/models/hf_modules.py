"""The linear layers of a model by the names that checkpoints give them, by which some are left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pagesim.models.model_spec import ModelSpec

PREFIXES = (
    "model.layers",
    "model.language_model.layers",
    "language_model.model.layers",
    "backbone.layers",
    "layers",
)
"""Where checkpoints have their layers."""

_MLP = ("gate_proj", "up_proj", "down_proj")
_PLACES = {
    "attention": ("self_attn", "attn", "mixer"),
    "recurrent": ("linear_attn", "mixer", "mamba"),
    "mlp": ("mlp", "feed_forward", "mixer"),
    "shared": (
        "mlp.shared_experts",
        "mlp.shared_expert",
        "feed_forward.shared_expert",
        "mixer.shared_experts",
    ),
    "experts": (
        *("mlp.experts", "mlp.experts.0", "block_sparse_moe.experts.0"),
        *("feed_forward.experts", "mixer.experts.0"),
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


WHOLE = ("q_a_proj", "kv_a_proj_with_mqa", "indexer.wq_b", "indexer.wk")
"""Of attention, what every GPU has whole."""

HEAD_NAMES = ("lm_head", "model.lm_head", "language_model.lm_head", "embed_out", "output")


@dataclass(frozen=True, slots=True)
class Module:
    """A linear layer, or all like it of one layer.

    Attributes:
        group: of `Weights`.
        parameters: of its matrix, or of all of them.
        name: what it is in its layer.
        layer: from 0; -1 for the head, which is in none.
    """

    group: str
    parameters: int
    name: str = ""
    layer: int = -1

    @property
    def names(self) -> tuple[str, ...]:
        """The names that checkpoints give it, by family."""
        return HEAD_NAMES if self.layer < 0 else names(self.group, self.layer, self.name)


def modules(spec: ModelSpec, attending: Sequence[int], recurrent: Sequence[int]) -> Iterator[Module]:
    """Yield the linear layers of a model.

    Args:
        spec: the model.
        attending: its layers that attend, from 0.
        recurrent: those that keep a state.
    """
    yield Module("head", spec.vocab * (spec.embedding or spec.hidden))
    for layer in attending:
        for name, parameters in _attention(spec).items():
            yield Module("attention", parameters, name, layer)
    for layer in recurrent:
        size = sum(spec.recurrence.weights(spec.hidden)[0]) if spec.recurrence else 0
        for name, parameters in {"in_proj": size * 2 // 3, "out_proj": size // 3}.items():
            yield Module("recurrent", parameters, name, layer)
    matrices = _MLP if spec.gated else _MLP[1:]
    dense = spec.moe.dense_layers if spec.moe else spec.layers
    for layer in range(spec.layers):
        sizes = {"mlp": spec.hidden * spec.ffn}
        if spec.moe and layer >= dense:
            moe = spec.moe
            shared = moe.shared_ffn or moe.shared_experts * moe.expert_ffn
            sizes = {"shared": spec.hidden * shared, "experts": spec.hidden * moe.expert_ffn * moe.experts}
        for group, size in sizes.items():
            for name in matrices:
                if size:
                    yield Module(group, size, name, layer)


def _attention(spec: ModelSpec) -> dict[str, int]:
    """Return the projections of a layer's attention and their parameters."""
    mla = spec.mla
    if mla is None:
        query = spec.heads * spec.head_dim * (2 if spec.output_gate else 1)
        key = spec.kv_heads * spec.head_dim
        widths = {"q_proj": query, "k_proj": key, "v_proj": key, "o_proj": spec.heads * spec.head_dim}
        return {name: spec.hidden * width for name, width in widths.items()}
    query = spec.heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    found = {"q_proj": spec.hidden * query}
    if mla.q_lora_rank:
        found = {"q_a_proj": spec.hidden * mla.q_lora_rank, "q_b_proj": mla.q_lora_rank * query}
    found |= {
        "kv_a_proj_with_mqa": spec.hidden * (mla.kv_lora_rank + mla.qk_rope_head_dim),
        "kv_b_proj": mla.kv_lora_rank * spec.heads * (mla.qk_nope_head_dim + mla.v_head_dim),
        "o_proj": spec.heads * mla.v_head_dim * spec.hidden,
    }
    if mla.index_heads:
        found["indexer.wq_b"] = mla.q_lora_rank * mla.index_heads * mla.index_head_dim
        found["indexer.wk"] = spec.hidden * mla.index_head_dim
    return found


def names(group: str, layer: int | str, name: str) -> tuple[str, ...]:
    """Return the names that checkpoints give a module of a layer, by family."""
    ends = [f"{place}.{each}" for place in _PLACES[group] for each in _FUSED.get(name, (name,))]
    return tuple([f"{prefix}.{layer}.{end}" for prefix in PREFIXES for end in ends])
