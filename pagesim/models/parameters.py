"""How many parameters a ModelSpec has, and how tensor parallelism deals them out."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pagesim.errors import PagesimError

if TYPE_CHECKING:
    from pagesim.models.model_spec import LatentAttention, MixtureOfExperts, ModelSpec


class Shares(NamedTuple):
    """Parameters by what tensor parallelism does with them.

    Args:
        split: divided by the number of GPUs: token table, LM head, query and output projections, MLPs, what a
            recurrent layer projects, experts.
        kv: key and value projections, divided by head, a head being replicated where GPUs outnumber heads.
        whole: kept by every GPU: position table, norms, biases, MLA's down-projections, experts' routers,
            selective vectors of Mamba-2 in one group.

    Biases count as whole, as in the PagedAttention artifact; later systems divide some (< 0.1 % of a model).
    """

    split: int = 0
    kv: int = 0
    whole: int = 0

    def times(self, layers: int) -> Shares:
        """Return those of so many layers."""
        return Shares(*(layers * each for each in self))


REST = "rest"
"""The group of what is never quantized: tables, norms, biases, routers."""

TOWER = "tower"
"""The group of a tower for images, which no token of text makes use of."""

Groups = dict[str, Shares]
"""Parameters by group: `weights.GROUPS`, `REST`, and `TOWER` where there is one."""


def count(spec: ModelSpec, *, active: bool = False) -> Groups:
    """Count a model's parameters; whether they are exact says `ModelSpec.weights_are`.

    embeddings  vocab·E (twice unless tied) + position_rows·H + 2·E·H if E ≠ H (E: the token table's width)
    norms       norms_per_layer·N a layer, where N = H for RMSNorm and 2·H for LayerNorm; N at the end, if any
    attention   2·H·heads·d + 2·H·kv_heads·d + biases + 2·d if queries and keys are normed
                (heads·d + kv_heads·d if over all heads); H·heads·d more for
                an output gate, heads more for sinks; MLA: ``_latent``
    recurrence  ``Recurrence.weights``
    MLP         m·H·F + biases, m = 3 if gated, else 2, and what its activation learns; experts: ``_experts``

    Each part counts for the layers that have it.

    Args:
        spec: the model.
        active: count only the experts that a token visits.

    Returns:
        By group; what a layer has beside its matrices is in ``rest``.

    Raises:
        PagesimError: only what the model keeps is known.
    """
    if not spec.has_weights:
        raise PagesimError(
            f"model {spec.name} says only what its layers keep, not what they weigh and compute: give its "
            "hidden, ffn and vocab, or available_gib or num_blocks of the cache and an affine cost"
        )
    attention, beside = _latent(spec, spec.mla) if spec.mla else _heads(spec)
    state = spec.recurrence.weights(spec.hidden) if spec.recurrence else (Shares(), 0)
    norm = spec.hidden * (2 if spec.layer_norm else 1)
    width = spec.embedding or spec.hidden
    rest = spec.position_rows * spec.hidden + (2 * width * spec.hidden if width != spec.hidden else 0)
    rest += spec.layers * spec.norms_per_layer * norm + (norm if spec.final_norm else 0)
    rest += spec.attention_layers * beside + spec.state_layers * state[1]
    mlps, routers = _mlps(spec, active)
    return {
        REST: Shares(spec.vocab * width, 0, rest + routers),
        "head": Shares(0 if spec.tied else spec.vocab * width),
        "attention": attention.times(spec.attention_layers),
        "recurrent": state[0].times(spec.state_layers),
        **mlps,
        **({TOWER: Shares(spec.tower, 0, spec.tower_whole)} if spec.tower or spec.tower_whole else {}),
    }


def _heads(spec: ModelSpec) -> tuple[Shares, int]:
    """One layer's attention with a key and a value per head: its matrices, and what is beside them."""
    query = spec.heads * spec.head_dim * (2 if spec.output_gate else 1)
    biases = query + 2 * spec.kv_heads * spec.head_dim if spec.qkv_bias else 0
    biases += spec.hidden if spec.out_bias else 0
    norms = 2 * spec.head_dim if spec.qk_norm else 0
    norms += (spec.heads + spec.kv_heads) * spec.head_dim if spec.wide_qk_norm else 0
    matrices = Shares(
        split=spec.hidden * (query + spec.heads * spec.head_dim),
        kv=2 * spec.hidden * spec.kv_heads * spec.head_dim,
    )
    return matrices, biases + norms + (spec.heads if spec.sinks else 0)


def _latent(spec: ModelSpec, mla: LatentAttention) -> tuple[Shares, int]:
    """One layer's latent attention: down to the ranks (each with its norm), up to the heads, and out.

    An indexer, which every GPU has whole, has queries from their rank, a key with a LayerNorm, and a weight a
    head from the residual stream.
    """
    query = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    up = mla.kv_lora_rank * spec.heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    up += (mla.q_lora_rank or spec.hidden) * spec.heads * query
    down = spec.hidden * (mla.kv_lora_rank + mla.qk_rope_head_dim + mla.q_lora_rank)
    indexer = mla.q_lora_rank * mla.index_heads * mla.index_head_dim
    indexer += spec.hidden * (mla.index_head_dim + mla.index_heads)
    norms = mla.kv_lora_rank + mla.q_lora_rank + 2 * mla.index_head_dim
    return Shares(up + spec.heads * mla.v_head_dim * spec.hidden, 0, down + indexer), norms


def _mlps(spec: ModelSpec, active: bool) -> tuple[Groups, int]:
    """The matrices of all MLPs and experts, by group, and what is beside them: biases and routers."""
    matrices = 3 if spec.gated else 2
    layers = spec.mlp_layers or spec.layers
    dense = min(spec.moe.dense_layers, layers) if spec.moe else layers
    beside = dense * ((matrices - 1) * spec.ffn + spec.hidden) if spec.mlp_bias else 0
    beside += layers * spec.act_numbers
    found = {"mlp": Shares(dense * matrices * spec.hidden * spec.ffn)}
    if not spec.moe or dense == layers:
        return found, beside
    shared, experts, routers = _experts(spec, spec.moe, matrices, active)
    sparse = layers - dense
    found |= {"shared": Shares(sparse * shared), "experts": Shares(sparse * experts)}
    return found, beside + sparse * routers


def _experts(spec: ModelSpec, moe: MixtureOfExperts, matrices: int, active: bool) -> tuple[int, int, int]:
    """One layer's experts, m·H·expert_ffn each, those that are shared and the others, and its router.

    The others take and give ``latent`` numbers where there is such a width, and count m·latent·expert_ffn;
    the 2·H·latent of the way there and back are with the router.
    """
    visited = moe.experts_per_token if active else moe.experts
    shared = moe.shared_ffn or moe.shared_experts * moe.expert_ffn
    router = spec.hidden * moe.experts + (moe.experts if moe.correction_bias else 0)
    if moe.biases:
        router += moe.experts + visited * ((matrices - 1) * moe.expert_ffn + spec.hidden)
    router += 2 * spec.hidden * moe.latent
    return (
        matrices * spec.hidden * shared,
        visited * matrices * (moe.latent or spec.hidden) * moe.expert_ffn,
        router + (spec.hidden if moe.shared_gate else 0),
    )
