"""Which matrix products the layers of a model are, on each GPU."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from pagesim.costs.attended import layers_with_experts
from pagesim.costs.operators.dtypes import BF16, Dtypes
from pagesim.errors import PagesimError
from pagesim.models import ModelSpec
from pagesim.models.layers import FullLayer, LatentLayer, StateLayer, kv_heads_per_gpu


class Product(NamedTuple):
    """A matrix product that some layers have.

    Attributes:
        name: what it is.
        n, k: columns and rows of the weights on each GPU.
        dtype: of the weights, as the tables call it.
        layers: that have it.
    """

    name: str
    n: int
    k: int
    dtype: str
    layers: int


class Halves(NamedTuple):
    """What goes through memory beside products, element by element.

    Attributes:
        norms: sums of the residual stream with a norm, of all layers.
        activations: widths, on each GPU, of what activation functions give, one a layer that has one.
        wide: width, on each GPU, of queries and keys that are normed over all heads together; 0 if none are.
    """

    norms: int
    activations: tuple[int, ...]
    wide: int = 0


class LatentShape(NamedTuple):
    """Sizes of latent attention's projections on one GPU.

    Attributes:
        hidden: width of the residual stream.
        heads: on the GPU.
        query_rank: of compressed queries, 0 where they are not.
        kv_rank: of compressed keys and values.
        rotary, plain, value: widths of a head's two parts of a key, and of its value.
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
        """Return the projections' products, each of so many layers."""
        query = self.heads * (self.plain + self.rotary)
        first = self.query_rank or query
        shapes = [("latent down", first + self.kv_rank + self.rotary, self.hidden)]
        if self.query_rank:
            shapes.append(("latent queries", query, self.query_rank))
        shapes.append(("latent keys and values", self.heads * (self.plain + self.value), self.kv_rank))
        shapes.append(("out", self.hidden, self.heads * self.value))
        return [Product(name, n, k, dtype, layers) for name, n, k in shapes]


def products(model: ModelSpec, tp: int, types: Dtypes, *, latent: bool) -> list[Product]:
    """Return the products of all layers that every token goes through; experts and the LM head are left out.

    Args:
        model: any whose weights are known.
        tp: GPUs over which it is divided.
        types: of weights.
        latent: whether those of latent attention are wanted; a module of it has them in its time.

    Raises:
        PagesimError: the heads cannot be dealt out over ``tp`` GPUs, or the weights are not known.
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
    """Return what goes through memory beside products: two norms a layer, and activations of MLPs.

    Experts' activations are in their own time.
    """
    sparse, shared = layers_with_experts(model), _shared(model) // tp
    dense = (model.mlp_layers or model.layers) - sparse
    widths = (model.ffn // tp,) * dense + ((shared,) * sparse if shared else ())
    heads = model.heads // tp + model.kv_heads_per_gpu(tp)
    return Halves(2 * model.layers, widths, heads * model.head_dim if model.wide_qk_norm else 0)


def _shared(model: ModelSpec) -> int:
    moe = model.moe
    return 0 if moe is None else moe.shared_ffn or moe.shared_experts * moe.expert_ffn
