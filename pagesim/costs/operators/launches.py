"""How long the host needs to launch an iteration that no graph launches.

No table has it. These are seconds of layers of a kind under vLLM 0.15 to 0.19, found where public runs of
short prompts differ by nothing but whether a graph launches them (docs/validation/accuracy.md).
"""

from __future__ import annotations

from pagesim.costs.attended import layers_with_experts
from pagesim.costs.profiles.profile import Launching
from pagesim.models import ModelSpec

LAYER_S = 0.3e-3
"""Of attention and a plain MLP."""

EXPERTS_S = 0.9e-3
"""Of routing and experts, beside that."""

LATENT_S = 1.1e-3
"""Of latent attention, beside plain attention."""


def launching(model: ModelSpec) -> Launching:
    """Return what the host needs for an iteration of a model that has a prompt, one by one or mixed.

    Args:
        model: whose layers are counted.
    """
    seconds = model.layers * LAYER_S + layers_with_experts(model) * EXPERTS_S
    if model.mla is not None:
        seconds += model.layers * LATENT_S
    seconds = round(seconds, 6)
    return Launching(prompt_s=seconds, mixed_s=seconds, unless_graphed=True)
