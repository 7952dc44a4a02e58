"""Served: the model that a system serves, in the weight dtype that it asks for."""

from __future__ import annotations

from pagesim.costs.specs import ModelSpec, model
from pagesim.setup.scenario import System


def served_model(system: System) -> ModelSpec:
    """Return a system's model: as released, or in its ``weight_dtype``.

    Raises:
        PagesimError: there is no such model, or it says only what its layers keep and not what they weigh.
    """
    spec = model(system.model)
    return spec if system.weight_dtype is None else spec.with_weights(system.weight_dtype)
