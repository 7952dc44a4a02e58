"""Attention as its formula has it, in float64: the oracle of the hostile grid.

It shares no line with the kernels nor with ``pagesim.kernels.reference``: no mistake can stand in both.
"""

from __future__ import annotations

from math import exp

import torch
from torch import Tensor

BOUND = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 2e-5}
"""The largest error of a row and head over its largest number, by the type of the queries."""

FLOAT32_EPSILON = 2.0**-23


def attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    *,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Return what a sequence's last T tokens see of its L tokens, each all tokens up to itself.

    Args:
        q: ``[T, q_heads, D]``.
        keys: float64 ``[L, kv_heads, D]``.
        values: float64 ``[L, kv_heads, E]``.
        scale: what a dot product is multiplied by.
        window: tokens that a query sees, its own included.
        softcap: c in ``c · tanh(score / c)``.
        sinks: a score without a value for each query head, ``[q_heads]``.

    Returns:
        float64 ``[T, q_heads, E]``; zeros where there is no token to see.
    """
    new, q_heads = q.shape[:2]
    length, kv_heads = keys.shape[:2]
    out = torch.zeros(new, q_heads, values.shape[-1], dtype=torch.float64)
    for head in range(q_heads):
        of = head // (q_heads // kv_heads)
        scores = scale * (q[:, head].double() @ keys[:, of].T)  # [T, L]
        if softcap is not None:
            scores = softcap * (scores / softcap).tanh()
        sink = -torch.inf if sinks is None else float(sinks[head])
        for row in range(new):
            end = length - new + row + 1
            start = 0 if window is None else max(0, end - window)
            if end > 0:
                seen = scores[row, start:end]
                most = max(float(seen.max()), sink)
                weights = (seen - most).exp()
                out[row, head] = weights @ values[start:end, of] / (weights.sum() + exp(sink - most))
    return out


def rounding(q: Tensor, keys: Tensor, scale: float) -> Tensor:
    """Return by how much rounding of scores to float32 may change weights: a fraction, ``[T, q_heads]``.

    A sum of products errs by at most a few units in the last place of the sum of their magnitudes, and a
    weight is the exponential of a score, so that its relative error is the score's absolute one.
    """
    q_heads, (length, kv_heads) = q.shape[1], keys.shape[:2]
    if not length:
        return torch.zeros(q.shape[:2], dtype=torch.float64)
    magnitude = keys.abs().repeat_interleave(q_heads // kv_heads, dim=1)
    largest = torch.einsum("thd,lhd->thl", q.double().abs(), magnitude).amax(-1)
    return 2 * FLOAT32_EPSILON * abs(scale) * largest


def excess(got: Tensor, want: Tensor, slack: Tensor, floor: float = 0.0) -> float:
    """Return the largest error of a row and head over what is allowed; more than 1 is too much.

    Args:
        got: ``[…, D]`` in the type of the queries.
        want: float64 ``[…, D]``.
        slack: what is allowed beside ``BOUND``, ``[…]``.
        floor: an error that is none, however small the result is.
    """
    if not got.numel():
        return 0.0
    error = (got.double() - want).abs().nan_to_num(nan=torch.inf).amax(-1)
    error = torch.where(error <= floor, 0.0, error)
    allowed = want.abs().amax(-1) * (BOUND[got.dtype] + slack)
    ratio = torch.where(allowed > 0, error / allowed, torch.where(error > 0, torch.inf, 0.0))
    return float(ratio.max())


def least_weight(dtype: torch.dtype) -> float:
    """Return the error of weights beside a sink, as a fraction of the largest value, that is none.

    A sink far above all scores is next to all of the sum that weights are divided by, so that they come to
    far less than 1 and the result to next to nothing: not it but the values say how large an error is.
    Kernels round weights to the queries' type before they multiply them with values, and a weight below that
    type's least normal number errs by up to half of its least number of all, 2⁻²⁵ in float16. The errors of
    a context's weights together come to a few of these: 2⁻²² of the largest value in float16, where rounding
    a value itself errs by 2⁻¹¹ of it. bfloat16 and float32 reach as low as the float32 sum of weights.
    """
    kind = torch.finfo(dtype)
    return 4 * max(kind.tiny * kind.eps, 1000 * torch.finfo(torch.float32).tiny)
