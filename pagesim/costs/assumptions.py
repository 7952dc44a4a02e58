"""Assumptions of cost models about a model's layers, and known errors, one sentence each."""

from __future__ import annotations

from pagesim.costs.mixed import STATE_FLOPS
from pagesim.hardware import GpuSpec
from pagesim.models import ModelSpec
from pagesim.models.weights import GROUPS, Compute


def of_experts(model: ModelSpec, cost: str) -> tuple[str, ...]:
    """Return what the named cost model assumes about experts; empty for a dense model."""
    if model.moe is None:
        return ()
    return (
        f"cost {cost} takes each token of {model.name} to visit {model.moe.experts_per_token} of "
        f"{model.moe.experts} experts uniformly and independently; real ones touch fewer together",
    )


def of_weights(model: ModelSpec, gpu: GpuSpec, cost: str) -> tuple[str, ...]:
    """Return the data types in which it assumes GEMMs with quantized weights to be computed."""
    found = []
    by_dtype: dict[tuple[str, Compute], list[str]] = {}
    for group in GROUPS:
        dtype = model.weights.of(group)
        if dtype is not None and dtype.quantized:
            by_dtype.setdefault((dtype.name, dtype.compute), []).append(group)
    for (name, compute), groups in by_dtype.items():
        where = f"cost {cost} takes products with {name} weights of {model.name} ({', '.join(groups)})"
        if compute == "fp16":
            found.append(f"{where} to be computed in 16 bit: only weights are quantized")
        elif gpu.has(compute):
            found.append(f"{where} to be computed in {compute}, activations quantized as they run")
        else:
            found.append(f"{where} to be computed in 16 bit: {gpu.name} has no units for {compute}")
    return tuple(found)


def of_layers(model: ModelSpec, cost: str) -> tuple[str, ...]:
    """Return what it assumes about chunk, indexer and recurrent layers."""
    found = []
    kinds = {layer.kind for layer in model.cache_layers}
    if "chunk" in kinds:
        found.append(
            f"cost {cost} takes chunk layers of {model.name} to read the tokens since their chunk began, "
            "also where memory keeps all"
        )
    if "indexer" in kinds and not (model.mla and model.mla.index_topk):
        found.append(
            f"how many tokens the indexer of {model.name} picks (index_topk) is not known: cost {cost} takes "
            "all to be read"
        )
    if "state" in kinds:
        found.append(
            f"cost {cost} takes recurrent layers of {model.name} to read and write their states once an "
            f"iteration, and {STATE_FLOPS} operations a token and element: no kernel was measured"
        )
    return tuple(found)


DENSE, EXPERTS = "dense models", "models with experts"

ERRORS = {
    "auto": {DENSE: (6, 13), EXPERTS: (7, 6)},
    "roofline": {DENSE: (11, 13), EXPERTS: (9, 13)},
}
"""Absolute errors of cost models on held-out runs in percent, by kind of model: the mean for time per output
token and the median for time to first token (docs/validation/accuracy.md)."""


def of_operators(model: ModelSpec) -> str:
    """Describe the known error of summed operators for this kind of model."""
    kind, tpot, ttft = _held_out(model, "auto")
    return f"on held-out runs of {kind} TPOT was {tpot} % off in the mean and TTFT {ttft} % in the median"


def of_roofline(model: ModelSpec) -> str:
    """Describe the roofline's known error for this kind of model."""
    kind, tpot, ttft = _held_out(model, "roofline")
    return (
        f"cost roofline is an estimate from datasheets: {kind} on H100, H200 and B200 that it was not fitted "
        f"to were {tpot} % off in TPOT (mean) and {ttft} % in TTFT (median); of other GPUs less is known"
    )


def _held_out(model: ModelSpec, cost: str) -> tuple[str, int, int]:
    kind = DENSE if model.moe is None else EXPERTS
    return kind, *ERRORS[cost][kind]
