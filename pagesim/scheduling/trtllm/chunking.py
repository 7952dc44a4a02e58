"""How TensorRT-LLM divides the tokens of an iteration among prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

ChunkingPolicy = Literal["FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS"]


def share_out(policy: ChunkingPolicy, left: Sequence[int], budget: int, unit: int) -> list[int]:
    """Return how many of its remaining tokens each prompt computes.

    Every chunk but a prompt's last is a multiple of the unit. A prompt may therefore get nothing although a
    shorter one behind it gets all its remaining tokens.

    Source: TensorRT-LLM, ``PyMicroBatchScheduler._chunk_fcfs``, ``_chunk_equal_progress``.

    Args:
        policy: whether each prompt takes as much as it can in turn, or all take one unit per round.
        left: remaining tokens of each prompt, ``[N]``, in serving order.
        budget: tokens available for all prompts.
        unit: chunk unit in tokens.
    """
    if policy == "EQUAL_PROGRESS" and sum(left) > budget:
        return _equal_progress(left, budget, unit)
    shares = []
    for wanted in left:
        tokens = wanted if wanted <= budget else budget // unit * unit
        shares.append(tokens)
        budget -= tokens
    return shares


def _equal_progress(left: Sequence[int], budget: int, unit: int) -> list[int]:
    shares = [0] * len(left)
    goes_on = True
    while goes_on and budget:
        goes_on = False
        for place, wanted in enumerate(left):
            tokens = min(unit, wanted - shares[place])
            if 0 < tokens <= budget:
                shares[place] += tokens
                budget -= tokens
                goes_on = True
    return shares
