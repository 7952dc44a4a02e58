"""How many parameters a ModelSpec has, and how tensor parallelism deals them out."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pagesim.costs.specs.models import LatentAttention, ModelSpec


class Shares(NamedTuple):
    """Parameters by what tensor parallelism does with them.

    Args:
        split: divided by the number of GPUs: token table, LM head, query and output projections, MLPs.
        kv: key and value projections, divided by head, a head being replicated where GPUs outnumber heads.
        whole: kept by every GPU: position table, norms, biases, MLA's down-projections, experts' routers.

    Biases count as whole, as in the PagedAttention artifact; later systems divide some (< 0.1 % of a model).
    """

    split: int
    kv: int
    whole: int


def count(spec: ModelSpec, *, active: bool = False) -> Shares:
    """Count a model's parameters, exactly.

    embeddings  vocab·E (twice unless tied) + position_rows·H + 2·E·H if E ≠ H (E: the token table's width)
    a layer     attention + MLP + norms_per_layer·N, where N = H for RMSNorm and 2·H for LayerNorm
    attention   2·H·heads·d + 2·H·kv_heads·d + biases + 2·d if queries and keys are normed; MLA: ``_latent``
    MLP         m·H·F + biases, m = 3 if gated, else 2; experts: m·H·expert_ffn each + the router H·experts
    end         N if there is a final norm

    Args:
        spec: the model.
        active: count only the experts that a token visits.
    """
    attention = _latent(spec, spec.mla) if spec.mla else _heads(spec)
    norm = spec.hidden * (2 if spec.layer_norm else 1)
    width = spec.embedding or spec.hidden
    embeddings = Shares(
        split=spec.vocab * width * (1 if spec.tied else 2),
        kv=0,
        whole=spec.position_rows * spec.hidden + (2 * width * spec.hidden if width != spec.hidden else 0),
    )
    norms = spec.layers * spec.norms_per_layer * norm + (norm if spec.final_norm else 0)
    mlp = _mlps(spec, active)
    return Shares(
        split=embeddings.split + spec.layers * attention.split + mlp.split,
        kv=spec.layers * attention.kv,
        whole=embeddings.whole + spec.layers * attention.whole + mlp.whole + norms,
    )


def _heads(spec: ModelSpec) -> Shares:
    """One layer's attention with a key and a value per head."""
    biases = (spec.heads + 2 * spec.kv_heads) * spec.head_dim if spec.qkv_bias else 0
    biases += spec.hidden if spec.out_bias else 0
    return Shares(
        split=2 * spec.hidden * spec.heads * spec.head_dim,
        kv=2 * spec.hidden * spec.kv_heads * spec.head_dim,
        whole=biases + (2 * spec.head_dim if spec.qk_norm else 0),
    )


def _latent(spec: ModelSpec, mla: LatentAttention) -> Shares:
    """One layer's latent attention: down to the ranks (each with its norm), up to the heads, and out."""
    query = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    up = mla.kv_lora_rank * spec.heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    up += (mla.q_lora_rank or spec.hidden) * spec.heads * query
    down = spec.hidden * (mla.kv_lora_rank + mla.qk_rope_head_dim) + mla.kv_lora_rank
    down += spec.hidden * mla.q_lora_rank + mla.q_lora_rank
    return Shares(split=up + spec.heads * mla.v_head_dim * spec.hidden, kv=0, whole=down)


def _mlps(spec: ModelSpec, active: bool) -> Shares:
    """The MLPs of all layers."""
    matrices = 3 if spec.gated else 2
    moe = spec.moe
    dense_layers = min(moe.dense_layers, spec.layers) if moe else spec.layers
    split = dense_layers * matrices * spec.hidden * spec.ffn
    whole = dense_layers * ((matrices - 1) * spec.ffn + spec.hidden) if spec.mlp_bias else 0
    if moe:
        visited = (moe.experts_per_token if active else moe.experts) + moe.shared_experts
        router = spec.hidden * moe.experts + (moe.experts if moe.correction_bias else 0)
        split += (spec.layers - dense_layers) * matrices * spec.hidden * moe.expert_ffn * visited
        whole += (spec.layers - dense_layers) * router
    return Shares(split, 0, whole)
