"""Drafters for speculative decoding: what their layers cache and what their weights take up."""

from __future__ import annotations

from typing import Final

from pagesim.errors import PagesimError
from pagesim.models.layers import FullLayer, IndexerLayer, LatentLayer, Layer
from pagesim.models.model_spec import ModelSpec
from pagesim.models.parallel import balancer_bytes, stage_weight_bytes

WITHOUT_MODEL: Final = ("ngram", "ngram_gpu", "suffix")
"""Methods that draft without a model."""

_DFLASH_LAYERS = 5


def draft_layers(
    method: str, target: ModelSpec, drafter: ModelSpec | None, modules: int
) -> tuple[Layer, ...]:
    """Return what the drafter's layers keep for previous tokens, in order.

    If the drafter is not known, an EAGLE head is assumed to have one layer and DFlash five, each with the
    heads of the target's full attention.

    Args:
        method: speculative method, one of `speculative_config.METHODS`.
        target: model for which tokens are drafted.
        drafter: separate draft model; None if it is part of the target's checkpoint, or not known.
        modules: MTP modules of the target's checkpoint.

    Raises:
        PagesimError: the method needs a whole draft model, and none is known.
    """
    if method in WITHOUT_MODEL:
        return ()
    if method == "mtp":
        return target.mtp if target.mtp is not None else _like_full(target) * modules
    if drafter is not None:
        return drafter.cache_layers
    if method == "draft_model":
        raise PagesimError(
            "the model that drafts is not known, and with it what it keeps: as model of speculative_config "
            "name one of `pagesim list models`, a config.json or a file of layers"
        )
    return _like_full(target) * layers_of_head(method)


def layers_of_head(method: str) -> int:
    """Return the layers to assume for an unknown draft head or module of a method."""
    return 1 if method in ("mtp", "eagle", "eagle3") else _DFLASH_LAYERS


def draft_bytes(method: str, target: ModelSpec, drafter: ModelSpec | None, modules: int, tp: int) -> int:
    """Return the bytes of the drafter's weights on each of ``tp`` GPUs; for MTP modules, an estimate.

    An MTP module is assumed to be as large as the target's second-to-last attention layer plus a projection
    of the hidden state and the token. An unknown drafter counts as 0.

    Args:
        method: speculative method, as for `draft_layers`.
        target: model for which tokens are drafted.
        drafter: separate draft model, or None.
        modules: MTP modules of the target's checkpoint.
        tp: tensor-parallel degree of the target.
    """
    if method == "mtp" and target.has_weights:
        attending = target.attending or tuple(range(target.layers))
        layer = range(attending[-2:][0], attending[-2:][0] + 1)
        one = stage_weight_bytes(target, tp, layer) if target.layers > 1 else 0
        one += balancer_bytes(target, tp, layer)
        return modules * (one + 2 * 2 * target.hidden * target.hidden)
    if drafter is not None and drafter.has_weights and method not in ("mtp", *WITHOUT_MODEL):
        return drafter.weight_bytes_per_gpu(tp if drafter.heads % tp == 0 else 1)
    return 0


def _like_full(target: ModelSpec) -> tuple[Layer, ...]:
    """Return what the target's last full-attention layer keeps, including its indexer."""
    layers = target.cache_layers
    attending = [at for at, layer in enumerate(layers) if type(layer) in (FullLayer, LatentLayer)]
    if not attending:
        return (FullLayer(target.kv_heads, target.head_dim),)
    last = attending[-1]
    indexers = [layer for layer in layers[last + 1 : last + 2] if isinstance(layer, IndexerLayer)]
    return (layers[last], *indexers)
