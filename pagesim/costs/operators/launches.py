"""Host time to launch an iteration without a CUDA graph.

No table has it. These are seconds per layer under vLLM 0.15 to 0.19. They come from public runs of short
prompts that differ only in whether a graph launches them (docs/validation/accuracy.md).
"""

from __future__ import annotations

from pagesim.costs.attended import layers_with_experts
from pagesim.costs.profiles.profile import Launching
from pagesim.models import ModelSpec

LAYER_S = 0.3e-3
"""Seconds per layer with attention and a plain MLP."""

EXPERTS_S = 0.9e-3
"""Additional seconds per layer for routing and experts."""

LATENT_S = 1.1e-3
"""Additional seconds per layer for latent instead of plain attention."""


def launching(model: ModelSpec) -> Launching:
    """Return the host's launch time of a model's iterations with a prompt, alone or mixed with decodes.

    Args:
        model: model whose layers are counted.
    """
    seconds = model.layers * LAYER_S + layers_with_experts(model) * EXPERTS_S
    if model.mla is not None:
        seconds += model.layers * LATENT_S
    seconds = round(seconds, 6)
    return Launching(prompt_s=seconds, mixed_s=seconds, unless_graphed=True)
