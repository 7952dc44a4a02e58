"""Drafting: the drafter of an engine's model, and the GPU memory it needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pagesim.costs.roofline import DraftForwards
from pagesim.errors import PagesimError
from pagesim.models import ModelSpec, model
from pagesim.models.catalogue import is_config, known_as
from pagesim.models.drafters import WITHOUT_MODEL, draft_bytes, draft_layers, layers_of_head
from pagesim.models.layers import IndexerLayer, Layer
from pagesim.scheduling.sglang import SglangOptions
from pagesim.scheduling.vllm_v1_options import VllmV1Options

if TYPE_CHECKING:  # it imports this module
    from pagesim.setup.engine_config import EngineConfig


class Drafting(NamedTuple):
    """How a system drafts tokens for speculative decoding.

    Attributes:
        drafter: draft model; None without drafting, if modules of the target model draft, or if the draft
            model is not known.
        layers: what the drafter's layers keep; empty without drafting.
        weights: bytes of the drafter's weights on each GPU, as far as known; estimated.
        forwards: the drafter's forward passes per step; None if no model drafts.
    """

    drafter: ModelSpec | None = None
    layers: tuple[Layer, ...] = ()
    weights: int = 0
    forwards: DraftForwards | None = None

    @property
    def attending(self) -> int:
        """Number of the drafter's layers that are attention layers."""
        return sum(not isinstance(layer, IndexerLayer) for layer in self.layers)


def drafting_of(config: EngineConfig) -> Drafting:
    """Return how an engine drafts tokens.

    Raises:
        PagesimError: the drafter is not known, or is not simulated for the model.
    """
    options, target = config.options, config.model
    if not isinstance(options, VllmV1Options | SglangOptions) or (speculation := options.speculation) is None:
        return Drafting()
    name, kind, modules = speculation.model, speculation.drafter, speculation.n_predict or 1
    drafter = model(name) if name is not None and (is_config(name) or known_as(name)) else None
    layers = draft_layers(kind, target, drafter, modules)
    if isinstance(options, SglangOptions):
        _check_layers(target, layers)
    forwards = None
    if kind not in WITHOUT_MODEL:
        known = drafter if drafter is not None and drafter.has_weights and kind != "mtp" else None
        each = (1, speculation.tokens) if speculation.drafts_at_once else (speculation.tokens, 1)
        of_each = layers_of_head(kind) if known is None else known.layers
        forwards = DraftForwards(*each, of_each, known)
    weights = draft_bytes(kind, target, drafter, modules, config.tp)
    return Drafting(drafter, layers, weights, forwards)


def _check_layers(target: ModelSpec, layers: Sequence[Layer]) -> None:
    """Refuse a drafter whose layers would use a second pool of SGLang, that of windows or of states."""
    kinds = {layer.kind for layer in layers} - {"full", "latent", "indexer"}
    if kinds:
        raise PagesimError(
            f"layers that draft for {target.name} keep a {' and a '.join(sorted(kinds))}: what SGLang "
            "decides then is checked by no log; choose another drafter, or leave speculative_algorithm out"
        )
