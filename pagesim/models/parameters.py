"""The tensors of a model: its parameters, and each GPU's part of them under tensor parallelism.

Shapes and partitioning are those of vLLM 0.33.0's model classes (vllm/model_executor/models).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pagesim.errors import PagesimError
from pagesim.models.layers import FullLayer, IndexerLayer, StateLayer

if TYPE_CHECKING:
    from pagesim.models.model_spec import ModelSpec
    from pagesim.models.parts import LatentAttention, MixtureOfExperts

REST = "rest"
"""Group of tensors that are never quantized: tables, norms, biases, routers."""

TOWER = "tower"
"""Group of a vision tower's tensors, which text tokens do not use."""

ALL = 1 << 16
"""Value of ``shards`` for a tensor that can be divided over any number of GPUs."""

NOWHERE = (-1,)
"""Value of ``layers`` for a tensor that exists once, outside any layer."""

TABLES = ("embed_tokens", "embed_tokens_per_layer", "positions", "tid2eid")
"""Tensors in which a token's row is only looked up, without a multiplication."""

VOCAB_STEP = 64
"""vLLM pads the rows of the token table and the LM head to a multiple of this."""


class Tensor(NamedTuple):
    """Weights of one shape, in one or several layers.

    Attributes:
        group: one of `weights.GROUPS`, `REST` or `TOWER`.
        name: its name in checkpoints, or a description.
        rows: output size, over all GPUs.
        columns: input size; 1 for a vector.
        layers: indices of the layers that have it, from 0.
        shards: most GPUs over which it is divided; further GPUs hold replicas. 1 if each GPU holds it whole.
        by_columns: whether it is divided along its input rather than its output.
        copies: copies in each layer (experts).
        used: copies that one token uses.
        wide: whether its elements have 32 bits.
        step: the rows of all GPUs together are padded to a multiple of this.
        own_step: the rows of each GPU are padded to a multiple of this.
        heads: heads that tp must divide for it to be divided; else each GPU holds it whole.
        scales: matrices fused into it, each with scales of its own if quantized.
        modules: linear layers of the engine that begin with it; 0 if it continues the previous tensor's.
        counted: parameters per element: 0 for a learned scale, 8 for a 32-bit word of a table, as in the
            reference counted with vLLM's classes.
    """

    group: str
    name: str
    rows: int
    columns: int = 1
    layers: Sequence[int] = NOWHERE
    shards: int = 1
    by_columns: bool = False
    copies: int = 1
    used: int = 1
    wide: bool = False
    step: int = 1
    own_step: int = 1
    heads: int = 0
    scales: int = 1
    modules: int = 1
    counted: int = 1

    def numbers(self, *, active: bool = False) -> int:
        """Return its number of parameters in all layers, or of those that one token uses."""
        numbers = self.rows * self.columns * (self.used if active else self.copies)
        return numbers * len(self.layers) * self.counted

    def shape(self, tp: int) -> tuple[int, int]:
        """Return the rows and columns of one copy on each of ``tp`` GPUs."""
        rows, shards = _up(self.rows, self.step), 1 if self.heads % tp else min(tp, self.shards)
        if self.by_columns:
            return rows, -(-self.columns // shards)
        return _up(-(-rows // shards), self.own_step), self.columns


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


class Shares(NamedTuple):
    """Parameters of a vision tower: those that tensor parallelism divides, and those on every GPU."""

    split: int = 0
    whole: int = 0

    def times(self, layers: int) -> Shares:
        """Return the parameters of this many such layers."""
        return Shares(*(layers * each for each in self))


def vector(
    name: str,
    size: int,
    layers: Sequence[int] = NOWHERE,
    *,
    shards: int = 1,
    wide: bool = False,
    counted: int = 1,
) -> Tensor:
    """Return the tensor of a bias, a norm or the like, which is never quantized."""
    return Tensor(REST, name, size, layers=layers, shards=shards, wide=wide, counted=counted)


def count(spec: ModelSpec, *, active: bool = False) -> dict[str, int]:
    """Count a model's parameters by group; `ModelSpec.weights_are` tells whether they are exact.

    Args:
        spec: the model.
        active: whether to count only the experts that a token visits.

    Raises:
        PagesimError: the model's weights are not known, only what its layers cache.
    """
    found = {REST: 0, "head": 0}
    for tensor in tensors(spec):
        found[tensor.group] = found.get(tensor.group, 0) + tensor.numbers(active=active)
    return found


def tensors(spec: ModelSpec) -> list[Tensor]:
    """Return the tensors of a model, including those of a vision tower.

    Raises:
        PagesimError: the model's weights are not known, only what its layers cache.
    """
    if not spec.has_weights:
        raise PagesimError(
            f"model {spec.name} says only what its layers keep, not what they weigh and compute: give its "
            "hidden, ffn and vocab, or available_gib or num_blocks of the cache and an affine cost"
        )
    attending = spec.attending or range(spec.attention_layers)
    recurring = spec.recurring or range(spec.state_layers)
    width, every = spec.embedding or spec.hidden, range(spec.layers)
    norm = spec.hidden * (2 if spec.layer_norm else 1)
    found = [
        Tensor(REST, "embed_tokens", spec.vocab, width, shards=ALL, step=VOCAB_STEP),
        Tensor(REST, "positions", spec.position_rows, spec.hidden),
        Tensor(REST, "projections", 2 * spec.hidden if width != spec.hidden else 0, width),
        Tensor(REST, "norms", spec.norms_per_layer, norm, every),
        vector("final_norm", norm if spec.final_norm else 0),
        Tensor(TOWER, "tower", spec.tower, shards=ALL, heads=spec.tower_heads),
        Tensor(TOWER, "tower", spec.tower_whole),
    ]
    if not spec.tied:
        found.append(Tensor("head", "lm_head", spec.vocab, width, shards=ALL, step=VOCAB_STEP))
    if spec.own_attention:
        pass
    elif spec.mla:
        found += _latent(spec, spec.mla, attending)
    else:
        found += _heads(spec, attending)
    if spec.recurrence:
        found += spec.recurrence.tensors(spec.hidden, recurring)
    return [each for each in (*found, *_mlps(spec), *spec.extras) if each.rows and each.layers]


def projections(
    hidden: int, heads: int, kv_heads: int, widths: tuple[int, int], at: Sequence[int], gated: int = 1
) -> list[Tensor]:
    """Return the query, key, value and output projections of attention.

    Args:
        hidden: width of the residual stream.
        heads: query heads.
        kv_heads: key and value heads.
        widths: width of a key and of a value.
        at: layers that have them.
        gated: matrices of the query projection's size; 2 if a second one computes a gate.
    """
    keys, values = widths
    return [
        Tensor("attention", "q_proj", gated * heads * keys, hidden, at, ALL),
        Tensor("attention", "k_proj", kv_heads * keys, hidden, at, kv_heads, modules=0),
        Tensor("attention", "v_proj", kv_heads * values, hidden, at, kv_heads, modules=0),
        Tensor("attention", "o_proj", hidden, heads * values, at, ALL, by_columns=True),
    ]


def _heads(spec: ModelSpec, attending: Sequence[int]) -> list[Tensor]:
    """Return the tensors of attention with a key and value per head; layers may differ in their heads."""
    own = [layer for layer in spec.cache_layers if isinstance(layer, FullLayer)]
    shapes: dict[tuple[int, int], list[int]] = {}
    for place, layer in zip(attending, own, strict=False):
        shapes.setdefault((layer.kv_heads, layer.head_dim), []).append(place)
    found = []
    for (kv_heads, dim), at in shapes.items():
        query, key = spec.heads * dim, kv_heads * dim
        gated = 2 if spec.output_gate else 1
        found += [
            *projections(spec.hidden, spec.heads, kv_heads, (dim, dim), at, gated),
            vector("qk_norm", 2 * dim if spec.qk_norm else 0, at),
        ]
        if spec.wide_qk_norm:
            of_query, of_key = (ALL, kv_heads) if spec.split_qk_norm else (1, 1)
            found += [vector("q_norm", query, at, shards=of_query), vector("k_norm", key, at, shards=of_key)]
        if spec.qkv_bias:
            found.append(vector("q_bias", gated * query, at, shards=ALL))
            found.append(vector("kv_bias", 2 * key, at, shards=kv_heads))
    found.append(vector("out_bias", spec.hidden if spec.out_bias else 0, attending))
    return [*found, vector("sinks", spec.heads if spec.sinks else 0, attending, shards=ALL)]


def _latent(spec: ModelSpec, mla: LatentAttention, attending: Sequence[int]) -> list[Tensor]:
    """Return the tensors of latent attention: down to the ranks (each with its norm), up to the heads, out.

    An indexer, which every GPU holds whole, computes queries from their latent vector. From the residual
    stream it computes a key, with a LayerNorm, and one weight per head.
    """
    query = spec.heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    up = spec.heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    found = [Tensor("attention", "q_proj", query, spec.hidden, attending, ALL)]
    if mla.q_lora_rank:
        found = [
            Tensor("attention", "q_a_proj", mla.q_lora_rank, spec.hidden, attending),
            Tensor("attention", "q_b_proj", query, mla.q_lora_rank, attending, ALL),
        ]
    found += [
        Tensor("attention", "kv_a_proj_with_mqa", mla.width, spec.hidden, attending),
        Tensor("attention", "kv_b_proj", up, mla.kv_lora_rank, attending, ALL),
        Tensor(
            "attention", "o_proj", spec.hidden, spec.heads * mla.v_head_dim, attending, ALL, by_columns=True
        ),
        vector("rank_norms", mla.q_lora_rank + mla.kv_lora_rank, attending),
    ]
    if mla.index_heads:
        picking = _picking(spec, attending)
        found += [
            Tensor(
                "attention", "indexer.wq_b", mla.index_heads * mla.index_head_dim, mla.q_lora_rank, picking
            ),
            # The engine fuses these into one layer and keeps it in 16 bits.
            Tensor(
                REST, "indexer.wk_weights_proj", mla.index_head_dim + mla.index_heads, spec.hidden, picking
            ),
            vector("indexer.k_norm", 2 * mla.index_head_dim, picking, wide=True),
        ]
    return found


def _picking(spec: ModelSpec, attending: Sequence[int]) -> list[int]:
    """Return the layers with an indexer: those whose latent layer one follows in the list, or all."""
    kept = [layer for layer in spec.cached if not isinstance(layer, StateLayer)]
    if not kept:
        return list(attending)
    number, found = -1, []
    for layer in kept:
        if isinstance(layer, IndexerLayer):
            found.append(attending[number])
        number += layer.kind == "latent"
    return found


def _mlps(spec: ModelSpec) -> list[Tensor]:
    """Return the tensors of all MLPs and experts, including biases and routers."""
    layers = range(spec.mlp_layers or spec.layers)
    dense = min(spec.moe.dense_layers, len(layers)) if spec.moe else len(layers)
    plain, sparse = spec.plain or layers[:dense], spec.sparse or layers[dense:]
    widths: dict[int, list[int]] = {}
    for layer in plain:
        widths.setdefault(spec.ffns[layer] if spec.ffns else spec.ffn, []).append(layer)
    found = [vector("act_numbers", spec.act_numbers, layers)]
    for width, at in widths.items():
        found += _mlp(spec, "mlp", width, at)
        if spec.mlp_bias:
            found.append(vector("up_bias", (2 if spec.gated else 1) * width, at, shards=ALL))
            found.append(vector("down_bias", spec.hidden, at))
    return found if spec.moe is None else [*found, *_experts(spec, spec.moe, sparse)]


def _mlp(
    spec: ModelSpec,
    group: str,
    width: int,
    at: Sequence[int],
    hidden: int = 0,
    copies: int = 1,
    used: int = 1,
) -> list[Tensor]:
    """Return the matrices of an MLP, or of ``copies`` identical ones."""
    hidden = hidden or spec.hidden
    up = Tensor(group, "up_proj", width, hidden, at, ALL, copies=copies, used=used)
    down = Tensor(group, "down_proj", hidden, width, at, ALL, by_columns=True, copies=copies, used=used)
    return [up._replace(name="gate_proj"), up._replace(modules=0), down] if spec.gated else [up, down]


def _experts(spec: ModelSpec, moe: MixtureOfExperts, at: Sequence[int]) -> list[Tensor]:
    """Return the tensors of these layers' shared and routed experts, and of the router.

    If there is a ``latent`` width, it is the routed experts' input and output width, between two projections
    that every GPU holds whole.
    """
    shared = moe.shared_ffn or moe.shared_experts * moe.expert_ffn
    count, used = moe.experts, moe.experts_per_token
    others = _mlp(spec, "experts", moe.expert_ffn, at, moe.latent, count, used)
    if moe.beside:
        others = [each._replace(name=f".experts.{each.name}") for each in others]
    found = [
        *_mlp(spec, "shared", shared, at),
        *others,
        Tensor(REST, "router", count, spec.hidden, at, wide=moe.wide_router),
        vector("correction_bias", count if moe.correction_bias else 0, at, wide=True),
        Tensor(REST, "latent_proj", 2 * moe.latent, spec.hidden, at),
        vector("shared_gate", spec.hidden if moe.shared_gate else 0, at),
    ]
    if moe.biases:
        up = (2 if spec.gated else 1) * moe.expert_ffn
        found += [
            vector("router_bias", count, at),
            Tensor(REST, "up_bias", up, 1, at, ALL, copies=count, used=used),
            Tensor(REST, "down_bias", spec.hidden, 1, at, copies=count, used=used),
        ]
    return found if shared else [each for each in found if each.group != "shared"]
