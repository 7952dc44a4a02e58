"""Samples: what was measured of a term, in one form wherever it comes from."""

from __future__ import annotations

import math
from typing import NamedTuple

from pagesim.errors import PagesimError

CURVES = ("linear", "head", "write", "overhead", "all_reduce", "all_reduce_eager", "experts")
"""Terms that depend on one size alone."""

BLOCK_CURVES = ("copy", "swap_out", "swap_in")
"""Terms that depend on a number of blocks, and on their size."""

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
"""What the sizes of a term's points are."""


class Sample(NamedTuple):
    """One measurement of one term, all layers.

    Attributes:
        term: the operator: one of ``TERMS``, or attention within a span, such as ``decode window:1024``.
        block_size: tokens a block; 0 where the term has none.
        size: tokens; sequences for ``head``, ``overhead`` and ``decode``; blocks for copies and swaps.
        context: tokens that the sequences hold together for ``decode``, pairs of a query and a key for
            ``prefill``, of those within the span; else 0.
        seconds: above 0.
    """

    term: str
    block_size: int
    size: int
    context: int
    seconds: float

    @property
    def axes(self) -> tuple[str, ...]:
        """What the sizes of its point are."""
        return AXES[self.term.partition(" ")[0]]

    @property
    def point(self) -> tuple[float, ...]:
        """Its sizes: of attention those of a sequence, or of a token, in the mean."""
        return (self.size,) if len(self.axes) == 1 else (self.size, self.context / self.size)

    def check(self) -> None:
        """Make sure that it can have been measured.

        Raises:
            PagesimError: it cannot.
        """
        known = (*CURVES, *ATTENTION, *BLOCK_CURVES)
        term, _, span = self.term.partition(" ")
        if term not in known or (span and term not in ATTENTION[:2]):
            raise PagesimError(f"a sample's term is {self.term!r}; it must be one of {', '.join(known)}")
        if self.size < 1 or self.context < 0 or (self.block_size < 1) != (self.term in CURVES):
            raise PagesimError(f"{self}: a size of at least 1 is needed, and a block size where it has one")
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise PagesimError(f"{self}: it must have taken a time above 0")
