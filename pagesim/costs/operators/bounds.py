"""Datasheet bounds of operators, used to scale a measurement to an untimed type or shape.

A measurement of one type or shape is used for another one times the ratio of their bounds at the same size.
All substitutions follow this rule.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pagesim.costs.operators.tables import Floats
from pagesim.hardware import GpuSpec
from pagesim.models.weights import WeightDtype

LAUNCH_S = 3e-6
"""Launch seconds of every kernel on every GPU."""

SHARE = 0.8
"""Fraction of the datasheet's rates that large GEMMs and streaming reads achieve."""

Sizes = npt.ArrayLike


def product_bound(gpu: GpuSpec, dtype: WeightDtype, n: int, k: int, tokens: Sizes) -> Floats:
    """Return the lower bound in seconds of a product of ``tokens`` rows, ``[T]``.

    Args:
        gpu: GPU with its peak rates.
        dtype: type of the weights.
        n: columns of the weights.
        k: rows of the weights.
        tokens: rows of the other factor, ``[T]``.
    """
    rows = np.asarray(tokens, np.float64)
    moved = n * k * dtype.bits / 8 + 2 * rows * (n + k)
    return _longer(gpu, moved, 2 * rows * n * k, gpu.flops(dtype.compute))


def decode_bound(gpu: GpuSpec, kv_bytes: float, tokens: Sizes) -> Floats:
    """Return the lower bound in seconds of a layer's decode attention, ``[T]``.

    Args:
        gpu: GPU with its peak rates.
        kv_bytes: bytes of a token's keys and values in the layer on each GPU.
        tokens: tokens read, of all sequences together, ``[T]``.
    """
    return _longer(gpu, kv_bytes * np.asarray(tokens, np.float64), 0.0, gpu.fp16_flops)


def prompts_bound(gpu: GpuSpec, kv_bytes: float, width: int, tokens: Sizes, pairs: Sizes) -> Floats:
    """Return the lower bound in seconds of a layer's prompt attention, ``[T]``.

    Args:
        gpu: GPU with its peak rates.
        kv_bytes: bytes of a token's keys and values in the layer on each GPU.
        width: total width of all query heads on each GPU.
        tokens: tokens of all prompts together, ``[T]``.
        pairs: query-key pairs, ``[T]``.
    """
    moved = (kv_bytes + 4 * width) * np.asarray(tokens, np.float64)
    return _longer(gpu, moved, 4.0 * width * np.asarray(pairs, np.float64), gpu.fp16_flops)


def experts_bound(
    gpu: GpuSpec,
    dtype: WeightDtype,
    shape: tuple[int, int, int, int],
    moe_tp: int,
    moe_ep: int,
    tokens: Sizes,
) -> Floats:
    """Return the lower bound in seconds of a layer of experts, ``[T]``.

    Args:
        gpu: GPU with its peak rates.
        dtype: type of the experts' weights.
        shape: hidden size, an expert's inner width, experts per token, number of experts.
        moe_tp: GPUs over which each expert is divided.
        moe_ep: GPUs over which whole experts are distributed.
        tokens: tokens of all GPUs together, ``[T]``.
    """
    hidden, inner, visited, experts = shape
    rows = np.asarray(tokens, np.float64)
    held = max(1, experts // moe_ep)
    touched = held * (1 - (1 - visited / experts) ** rows)
    weights = 3.0 * hidden * inner / moe_tp
    moved = touched * weights * dtype.bits / 8 + 4 * rows * hidden
    return _longer(gpu, moved, 2 * weights * rows * visited / moe_ep, gpu.flops(dtype.compute))


def _longer(gpu: GpuSpec, moved: npt.ArrayLike, operations: npt.ArrayLike, peak: float) -> Floats:
    reading = np.asarray(moved, np.float64) / (SHARE * gpu.hbm_bytes_per_s)
    computing = np.asarray(operations, np.float64) / (SHARE * peak)
    longer: Floats = LAUNCH_S + np.maximum(reading, computing)
    return longer
