"""Samples: measurements of terms in one format, whatever their source."""

from __future__ import annotations

import math
from typing import NamedTuple

from pagesim.errors import PagesimError

CURVES = ("linear", "head", "write", "overhead", "all_reduce", "all_reduce_eager", "experts")
"""Terms that depend on a single size."""

BLOCK_CURVES = ("copy", "swap_out", "swap_in")
"""Terms that depend on the number of blocks and on the block size."""

ATTENTION = ("decode", "prefill", "decode_drafts")

EVERYWHERE = (*CURVES[:3], *ATTENTION[:2], *BLOCK_CURVES)
"""Terms that every profile has."""

TERMS = (*EVERYWHERE, *CURVES[3:], "decode_drafts", "decode_mixed", "reached", "states")


AXES = {
    **dict.fromkeys(("linear", "write", "all_reduce", "all_reduce_eager", "experts"), ("tokens",)),
    **dict.fromkeys(("head", "overhead"), ("sequences",)),
    **dict.fromkeys(BLOCK_CURVES, ("blocks",)),
    **dict.fromkeys(("decode", "decode_drafts"), ("sequences", "context")),
    "prefill": ("tokens", "keys"),
}
"""Names of the sizes of a term's points."""


class Sample(NamedTuple):
    """One measurement of one term, over all layers.

    Attributes:
        term: the operator: one of ``TERMS``, or attention within a span, such as ``decode window:1024``.
        block_size: tokens per block; 0 if the term does not depend on it.
        size: tokens; sequences for ``head``, ``overhead`` and ``decode``; blocks for copies and swaps.
        context: total context of the sequences in tokens for ``decode``, query-key pairs for ``prefill``,
            each within the span; else 0.
        seconds: measured seconds, above 0.
    """

    term: str
    block_size: int
    size: int
    context: int
    seconds: float

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the sizes of its point."""
        return AXES[self.term.partition(" ")[0]]

    @property
    def point(self) -> tuple[float, ...]:
        """Its sizes; for attention, the second is a mean per sequence or per token."""
        return (self.size,) if len(self.axes) == 1 else (self.size, self.context / self.size)

    def check(self) -> None:
        """Check that its values are possible.

        Raises:
            PagesimError: a value is not possible.
        """
        known = (*CURVES, *ATTENTION, *BLOCK_CURVES)
        term, _, span = self.term.partition(" ")
        if term not in known or (span and term not in ATTENTION[:2]):
            raise PagesimError(f"a sample's term is {self.term!r}; it must be one of {', '.join(known)}")
        if self.size < 1 or self.context < 0 or (self.block_size < 1) != (self.term in CURVES):
            raise PagesimError(f"{self}: a size of at least 1 is needed, and a block size where it has one")
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise PagesimError(f"{self}: it must have taken a time above 0")
