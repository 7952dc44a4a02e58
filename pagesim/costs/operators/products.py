"""The matrix products (GEMMs) of a model's layers on each GPU."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from pagesim.costs.attended import layers_with_experts
from pagesim.costs.operators.dtypes import BF16, Dtypes
from pagesim.errors import PagesimError
from pagesim.models import ModelSpec
from pagesim.models.layers import FullLayer, LatentLayer, StateLayer, kv_heads_per_gpu


class Product(NamedTuple):
    """A matrix product of some of a model's layers.

    Attributes:
        name: what it computes.
        n, k: columns and rows of the weights on each GPU.
        dtype: type of the weights, by its name in the tables.
        layers: number of layers that have it.
    """

    name: str
    n: int
    k: int
    dtype: str
    layers: int


class Halves(NamedTuple):
    """Elementwise operators, which are bound by memory.

    Attributes:
        norms: number of residual additions with a norm, over all layers.
        activations: output widths of the activation functions on each GPU, one per layer that has one.
        wide: width of queries and keys on each GPU if normalised over all heads together; else 0.
    """

    norms: int
    activations: tuple[int, ...]
    wide: int = 0


class LatentShape(NamedTuple):
    """Sizes of latent attention's projections on one GPU.

    Attributes:
        hidden: width of the residual stream.
        heads: heads on the GPU.
        query_rank: rank of compressed queries; 0 if they are not compressed.
        kv_rank: rank of compressed keys and values.
        rotary, plain, value: widths of a head's rotary and other key dimensions, and of its value.
    """

    hidden: int
    heads: int
    query_rank: int
    kv_rank: int
    rotary: int
    plain: int
    value: int

    @classmethod
    def of(cls, model: ModelSpec, tp: int) -> LatentShape:
        """Return the sizes of a model that has latent attention."""
        mla = model.mla
        assert mla is not None
        widths = (mla.kv_lora_rank, mla.qk_rope_head_dim, mla.qk_nope_head_dim, mla.v_head_dim)
        return cls(model.hidden, model.heads // tp, mla.q_lora_rank or 0, *widths)

    def products(self, dtype: str, layers: int) -> list[Product]:
        """Return the products of the projections, each for ``layers`` layers."""
        query = self.heads * (self.plain + self.rotary)
        first = self.query_rank or query
        shapes = [("latent down", first + self.kv_rank + self.rotary, self.hidden)]
        if self.query_rank:
            shapes.append(("latent queries", query, self.query_rank))
        shapes.append(("latent keys and values", self.heads * (self.plain + self.value), self.kv_rank))
        shapes.append(("out", self.hidden, self.heads * self.value))
        return [Product(name, n, k, dtype, layers) for name, n, k in shapes]


def products(model: ModelSpec, tp: int, types: Dtypes, *, latent: bool) -> list[Product]:
    """Return the products of all layers that every token goes through, without experts and the LM head.

    Args:
        model: model whose weights are known.
        tp: GPUs over which it is divided.
        types: types of its weights.
        latent: whether to include latent attention; not if a timed module includes its projections.

    Raises:
        PagesimError: the heads cannot be divided over ``tp`` GPUs, or the weights are not known.
    """
    if not model.has_weights:
        raise PagesimError(f"model {model.name} says only what its layers keep: it has no products to sum up")
    model.kv_heads_per_gpu(tp)
    found: Counter[Product] = Counter()

    def add(name: str, n: int, k: int, layers: int, dtype: str) -> None:
        if layers and n and k:
            found[Product(name, n, k, dtype, 0)] += layers

    for layer in model.cache_layers:
        if isinstance(layer, FullLayer):
            kv = kv_heads_per_gpu(layer.kv_heads, tp) * layer.head_dim
            queries = model.heads // tp * layer.head_dim
            add("qkv", queries * (2 if model.output_gate else 1) + 2 * kv, model.hidden, 1, types.attention)
            add("out", model.hidden, queries, 1, types.attention)
        elif isinstance(layer, LatentLayer) and latent and model.mla:
            for each in LatentShape.of(model, tp).products(types.attention, 1):
                add(each.name, each.n, each.k, 1, each.dtype)
        elif isinstance(layer, StateLayer) and model.recurrence:
            values = model.recurrence.layer().state[0] * model.recurrence.layer().state[1] // tp
            conv = model.recurrence.layer().conv[1] * model.recurrence.conv
            tensors = model.recurrence.tensors(model.hidden, (0,))
            matrices = sum(each.numbers() for each in tensors if each.group == "recurrent") + conv
            into = matrices // tp // model.hidden - values
            add("state in", into, model.hidden, 1, types.recurrent)
            add("state out", model.hidden, values, 1, types.recurrent)
    gated = 2 if model.gated else 1
    sparse = layers_with_experts(model)
    dense = (model.mlp_layers or model.layers) - sparse
    add("gate up", gated * model.ffn // tp, model.hidden, dense, types.mlp)
    add("down", model.hidden, model.ffn // tp, dense, types.mlp)
    if model.moe:
        add("router", model.moe.experts, model.hidden, sparse, BF16)
        shared = _shared(model) // tp
        add("shared gate up", gated * shared, model.hidden, sparse, types.shared)
        add("shared down", model.hidden, shared, sparse, types.shared)
    return [each._replace(layers=layers) for each, layers in found.items()]


def elementwise(model: ModelSpec, tp: int) -> Halves:
    """Return the elementwise operators: two norms per layer, and the activations of MLPs.

    Timings of experts include their activations.
    """
    sparse, shared = layers_with_experts(model), _shared(model) // tp
    dense = (model.mlp_layers or model.layers) - sparse
    widths = (model.ffn // tp,) * dense + ((shared,) * sparse if shared else ())
    heads = model.heads // tp + model.kv_heads_per_gpu(tp)
    return Halves(2 * model.layers, widths, heads * model.head_dim if model.wide_qk_norm else 0)


def _shared(model: ModelSpec) -> int:
    moe = model.moe
    return 0 if moe is None else moe.shared_ffn or moe.shared_experts * moe.expert_ffn
