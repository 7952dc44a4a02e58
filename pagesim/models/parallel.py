"""What tensor and pipeline parallelism send between GPUs, and what each pipeline stage holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from pagesim.errors import PagesimError
from pagesim.models.layers import IndexerLayer, RingLayer, StateLayer
from pagesim.models.model_spec import ModelSpec
from pagesim.models.parameters import NOWHERE, tensors

ALL_REDUCES_PER_LAYER = 2
"""One after attention, one after the MLP (Megatron-LM, arXiv 1909.08053)."""


def all_reduce_bytes_per_token(model: ModelSpec, tp: int) -> float:
    """Return the bytes that each GPU sends (and receives) per token in one all-reduce.

    This is 2·(tp − 1)/tp · hidden · 2 bytes: in a ring, (tp − 1)/tp of the elements are sent while reducing
    and again while gathering. With one GPU it is 0.
    A layer has ``ALL_REDUCES_PER_LAYER``.

    Args:
        model: model whose hidden size counts.
        tp: tensor-parallel degree.
    """
    return 2 * (tp - 1) / tp * model.hidden * 2


def hand_over_bytes_per_token(model: ModelSpec, tp: int) -> float:
    """Return the bytes per token that each GPU sends to the next stage: hidden states and the residual.

    The GPUs of a stage hold the same data, so each sends 1/tp of it.

    Source: vLLM 0.33.0, ``send_tensor_dict`` in distributed/parallel_state.py.

    Args:
        model: model whose hidden size counts.
        tp: tensor-parallel degree.
    """
    return 2 * model.hidden * 2 / tp


def stages_of(model: ModelSpec, number: int) -> tuple[range, ...]:
    """Return the layers of each pipeline stage, from 0.

    Remainder layers go to the stages before the last one, from the back: the last stage also has the head.

    Source: vLLM 0.33.0, ``get_pp_indices`` in distributed/utils.py.

    Args:
        model: model to divide.
        number: number of stages.

    Raises:
        PagesimError: there are fewer layers than stages.
    """
    if model.layers < number:
        raise PagesimError(
            f"pipeline_parallel_size is {number}, more than the {model.layers} layers of {model.name}: lower "
            "it"
        )
    each, more = divmod(model.layers, number)
    sizes = [each + (number - 1 - more <= stage < number - 1) for stage in range(number)]
    ends = list(accumulate(sizes))
    return tuple([range(end - size, end) for size, end in zip(sizes, ends, strict=True)])


def cached_by_stage(model: ModelSpec, stages: Sequence[range]) -> tuple[frozenset[int], ...]:
    """Return the indices of the ``cache_layers`` in each pipeline stage.

    Args:
        model: model that is divided.
        stages: layers of each stage.

    Raises:
        PagesimError: it is not known which cache layers belong to which transformer layer.
    """
    if len(stages) == 1:
        return (frozenset(range(len(model.cache_layers))),)
    beside = IndexerLayer | RingLayer  # belong to the layer before them in the list
    own = sum(not isinstance(each, beside) for each in model.cache_layers)
    attending, recurring = iter(model.attending), iter(model.recurring)
    in_order = (place // max(1, own // model.layers) for place in range(own))
    if own > model.layers and own % model.layers and not model.attending:
        raise PagesimError(
            f"pipeline_parallel_size is {len(stages)}, and which of the caches of {model.name} belong to "
            "which of its layers is not known: leave it out"
        )
    found: list[set[int]] = [set() for _ in stages]
    at = 0
    for place, kept in enumerate(model.cache_layers):
        if not isinstance(kept, beside):
            at = next(in_order)
            if model.attending or model.recurring:
                at = next(recurring if isinstance(kept, StateLayer) else attending)
        for stage, layers in enumerate(stages):
            if at in layers:
                found[stage].add(place)
    return tuple(map(frozenset, found))


def stage_weight_bytes(model: ModelSpec, tp: int, layers: range) -> int:
    """Return the bytes of weights on each GPU of a pipeline stage.

    The first stage has the token table and any vision tower. The last one has the final norm and the LM head,
    which is a copy of the token table if they are tied.

    Args:
        model: model that is divided.
        tp: tensor-parallel degree within the stage.
        layers: layers of the stage.
    """
    if len(layers) == model.layers:
        return model.weight_bytes_per_gpu(tp)
    model.kv_heads_per_gpu(tp)
    is_first, is_last = layers.start == 0, layers.stop == model.layers
    found: float = 0
    for tensor in tensors(model):
        if tensor.layers == NOWHERE:
            is_head = tensor.name in ("lm_head", "final_norm")
            is_here = is_last if is_head else is_first
            is_here |= model.tied and is_last and tensor.name == "embed_tokens"
            found += model.bytes_on_gpu(tensor, tp) if is_here else 0
        else:
            # Layers after the last one, which predict further tokens, belong to the last stage.
            own = [each for each in tensor.layers if each in layers or (is_last and each >= layers.stop)]
            found += model.bytes_on_gpu(tensor._replace(layers=own), tp)
    attending = model.attending or range(model.attention_layers)
    found += model.weights.cache_scales * sum(each in layers for each in attending)
    return round(found)


def balancer_bytes(model: ModelSpec, tp: int, layers: range) -> int:
    """Return the bytes on each GPU of a pipeline stage that an expert load balancer adds to the weights.

    These are a buffer as large as one layer's experts on the GPU, and the balancer's maps.

    Args:
        model: model that is divided.
        tp: tensor-parallel degree within the stage.
        layers: layers of the stage.
    """
    division, moe = model.expert_division, model.moe
    if moe is None or division is None or division.balancer is None:
        return 0
    buffer, sparse = 0.0, set[int]()
    experts = [tensor for tensor in tensors(model) if tensor.group == "experts"]
    for tensor in experts:
        here = [each for each in tensor.layers if each in layers]
        buffer += model.bytes_on_gpu(tensor._replace(layers=here[:1]), tp)
        sparse.update(here)
    return round(buffer) + division.balancer.map_bytes(moe.experts, len(sparse))


def weights_read(model: ModelSpec, tp: int) -> tuple[float, float]:
    """Return the weight bytes each of ``tp`` GPUs reads per iteration: of the layers and of the LM head.

    Routed experts are left out. Weights divided over the GPUs of all ranks (`ExpertDivision`) count less.
    """
    layers, head = model.layer_weight_bytes / tp, model.lm_head_bytes / tp
    if model.expert_division is None:
        return layers, head
    here = model.weight_bytes_by_group(tp)
    alone = replace(model, expert_division=None).weight_bytes_by_group(tp)
    more = {group: here[group] - alone[group] for group in ("mlp", "shared", "head") if group in here}
    return layers + more.get("mlp", 0) + more.get("shared", 0), head + more.get("head", 0)
