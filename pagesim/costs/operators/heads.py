"""Which measured heads stand for those of a model that were not measured."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple


class Stand(NamedTuple):
    """Measured heads that stand for others, in a weighted sum.

    Attributes:
        heads, kv_heads: of what was measured.
        factor: each sequence counts as so many of it.
        share: of its seconds in the sum.
    """

    heads: int
    kv_heads: int
    factor: int
    share: float


def stands_for(heads: int, kv_heads: int, known: Collection[tuple[int, int]]) -> Sequence[Stand]:
    """Return what stands for heads on a GPU; nothing if nothing does.

    Heads of one group of queries are alike, whichever sequence they are of: b sequences of 32 KV heads are
    4·b of 8. Where as many KV heads were measured with fewer and with more queries, it is the line between
    these.

    Args:
        heads: query heads on the GPU.
        kv_heads: key and value heads there.
        known: pairs of both that were measured.
    """
    for factor in range(1, kv_heads + 1):
        if kv_heads % factor or heads % factor:
            continue
        q, kv = heads // factor, kv_heads // factor
        if (q, kv) in known:
            return (Stand(q, kv, factor, 1.0),)
        measured = sorted(each for each, theirs in known if theirs == kv)
        below = [each for each in measured if each < q]
        above = [each for each in measured if each > q]
        if below and above:
            share = (q - below[-1]) / (above[0] - below[-1])
            return Stand(below[-1], kv, factor, 1 - share), Stand(above[0], kv, factor, share)
    return ()
