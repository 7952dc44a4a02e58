"""The weights that an iteration reads."""

from __future__ import annotations

from dataclasses import replace

from pagesim.models import ModelSpec


def weights_read(model: ModelSpec, tp: int) -> tuple[float, float]:
    """Return the bytes that each of ``tp`` GPUs reads in an iteration: of layers, and of the LM head.

    Routed experts are left out. What ranks divide over all GPUs (`ExpertDivision`) is less on each.
    """
    layers, head = model.layer_weight_bytes / tp, model.lm_head_bytes / tp
    if model.expert_division is None:
        return layers, head
    here = model.weight_bytes_by_group(tp)
    alone = replace(model, expert_division=None).weight_bytes_by_group(tp)
    more = {group: here[group] - alone[group] for group in ("mlp", "shared", "head") if group in here}
    return layers + more.get("mlp", 0) + more.get("shared", 0), head + more.get("head", 0)
