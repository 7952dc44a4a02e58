"""Drafting: what drafts tokens for an engine's model, and what that takes of a GPU's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pagesim.models import ModelSpec, model
from pagesim.models.catalogue import is_config, known_as
from pagesim.models.drafters import draft_bytes, draft_layers
from pagesim.models.layers import Layer
from pagesim.scheduling.vllm_v1_options import VllmV1Options

if TYPE_CHECKING:  # which asks for it
    from pagesim.setup.engine_config import EngineConfig


class Drafting(NamedTuple):
    """What drafts.

    Attributes:
        drafter: the model that does; None where nothing does, where modules of the model itself do, or where
            it is not known.
        layers: what its layers keep; none where nothing drafts.
        weights: bytes on each GPU, as far as they are known; estimated.
    """

    drafter: ModelSpec | None = None
    layers: tuple[Layer, ...] = ()
    weights: int = 0


def drafting_of(config: EngineConfig) -> Drafting:
    """Return what drafts for an engine.

    Raises:
        PagesimError: what drafts is not known.
    """
    options, target = config.options, config.model
    if not isinstance(options, VllmV1Options) or options.speculation is None:
        return Drafting()
    speculation = options.speculation
    name, kind, modules = speculation.model, speculation.drafter, speculation.n_predict or 1
    drafter = model(name) if name is not None and (is_config(name) or known_as(name)) else None
    return Drafting(
        drafter,
        draft_layers(kind, target, drafter, modules),
        draft_bytes(kind, target, drafter, modules, config.system.tensor_parallel_size),
    )
