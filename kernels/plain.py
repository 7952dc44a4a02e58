"""Paged attention for one query head in plain Python: the best starting point, and the tests' last oracle."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf

Vector = Sequence[float]


def online_softmax(scores: Vector) -> list[float]:
    """Return the softmax of some scores, with maximum and sum computed in a single pass.

    Whenever the maximum rises, the sum so far is rescaled to it (Milakov and Gimelshein, 2018).
    """
    m, l = -inf, 0.0  # noqa: E741
    for score in scores:
        m_new = max(m, score)
        l = l * exp(m - m_new) + exp(score - m_new)  # noqa: E741
        m = m_new
    return [exp(score - m) / l for score in scores]


def paged_decode(
    query: Vector,
    keys: Sequence[Sequence[Vector]],
    values: Sequence[Sequence[Vector]],
    block_table: Sequence[int],
    context_len: int,
    scale: float,
) -> list[float]:
    """Return one query's attention over a sequence whose keys and values are in arbitrary blocks.

    The output is accumulated and rescaled together with the sum, so no scores are stored (FlashAttention).

    Args:
        query: D numbers.
        keys: ``keys[block][slot]`` is a token's key, D numbers.
        values: ``values[block][slot]`` is its value.
        block_table: the sequence's blocks; token t is in ``block_table[t // block_size]``.
        context_len: number of tokens in the sequence; 0 gives zeros.
        scale: factor for dot products.
    """
    block_size = len(keys[0])
    m, l, acc = -inf, 0.0, [0.0] * len(query)  # noqa: E741
    for token in range(context_len):
        block, slot = block_table[token // block_size], token % block_size
        score = scale * sum(q * k for q, k in zip(query, keys[block][slot], strict=True))
        m_new = max(m, score)
        alpha, p = exp(m - m_new), exp(score - m_new)
        l = l * alpha + p  # noqa: E741
        acc = [a * alpha + p * v for a, v in zip(acc, values[block][slot], strict=True)]
        m = m_new
    return [a / l for a in acc] if context_len else acc


def merge(parts: Sequence[tuple[Vector, float]]) -> list[float]:
    """Combine the attention over several parts of a sequence into that over the whole (split-KV).

    Args:
        parts: output of each part and the logarithm of its sum, log Σ exp(score), which is minus infinity
            for a part without tokens.
    """
    highest = max(lse for _, lse in parts)
    if highest == -inf:
        return [0.0] * len(parts[0][0])
    weights = [exp(lse - highest) for _, lse in parts]
    columns = zip(*(output for output, _ in parts), strict=True)
    return [sum(w * o for w, o in zip(weights, column, strict=True)) / sum(weights) for column in columns]
