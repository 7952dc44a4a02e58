"""How prompts share the tokens of an iteration under TensorRT-LLM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

ChunkingPolicy = Literal["FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS"]


def share_out(policy: ChunkingPolicy, left: Sequence[int], budget: int, unit: int) -> list[int]:
    """Return the tokens that each prompt computes of those that it has left.

    A chunk that is not the last one is whole units. So a prompt may get nothing though a shorter one behind
    it gets all that it has left.

    Source: TensorRT-LLM, ``PyMicroBatchScheduler._chunk_fcfs``, ``_chunk_equal_progress``.

    Args:
        policy: whether a prompt takes all it can before the next one does, or all take a unit in turns.
        left: tokens, ``[N]``, in the order in which prompts are served.
        budget: tokens for all of them.
        unit: tokens.
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
