"""Attention: seconds of one layer in decoding and in prompts, by its heads and how far it looks back."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from pagesim.costs.base import AttentionSpan
from pagesim.costs.operators.bounds import decode_bound, prompts_bound
from pagesim.costs.operators.dtypes import BF16
from pagesim.costs.operators.planes import Plane
from pagesim.costs.operators.tables import Chip, Floats, Ints, OperatorTable
from pagesim.costs.table import line

DECODE, PROMPTS = "decode", "prompts"


class Heads(NamedTuple):
    """A layer's heads on one GPU.

    Attributes:
        query, kv: numbers of query heads, and of key and value heads.
        width: of a head.
        span: how far it looks back; None if on all tokens.
    """

    query: int
    kv: int
    width: int
    span: AttentionSpan | None = None

    def kv_bytes(self, cache: str) -> float:
        """Return the bytes of a token's keys and values, in a cache of a type of the tables."""
        return 2 * self.kv * self.width * (2 if cache == BF16 else 1)


class Attention:
    """Attention on a GPU over a cache of one type.

    Args:
        chip: the GPU and its measurements.
        cache: ``bfloat16`` or ``fp8``.

    Attributes:
        used: the tables that were looked up, by family.
        notes: what was borrowed, a sentence each.
    """

    def __init__(self, chip: Chip, cache: str) -> None:
        self._chip, self._cache = chip, cache
        self.used: dict[str, OperatorTable] = {}
        self.notes: list[str] = []

    def decoding(self, heads: Heads) -> Plane | None:
        """Return the seconds of a layer over sequences and context; None if nothing like it was timed.

        Context is the mean of the sequences', the token that is decoded included; of a layer with a span it
        is what is within the span.
        """
        found = self._plane(DECODE, heads)
        if found is None or heads.span is None:
            return found
        return _within(found, heads.span, self._window(self.used[DECODE], heads))

    def prompts(self, heads: Heads) -> Plane | None:
        """Return the seconds of a layer over prompts and their length; None if nothing like it was timed."""
        return self._plane(PROMPTS, heads)

    def _plane(self, family: str, heads: Heads) -> Plane | None:
        table = self._table(family)
        if table is None:
            return None
        window = self._window(table, heads)
        width, widths = heads.width, set(table.keys[:, 2].tolist())
        if width not in widths:
            width = min(widths, key=lambda each: abs(np.log(each / heads.width)))
        known = [(q, kv) for q, kv, w, reach in table.keys.tolist() if (w, reach) == (width, window)]
        stands = stands_for(heads.query, heads.kv, known) or _nearest(heads, known)
        plane: Plane | None = None
        for stand in stands:
            row = table.row(stand.heads, stand.kv_heads, width, window)
            assert row is not None
            of = Plane.decoding(table.axes, row) if family == DECODE else Plane.prompting(table.axes, row)
            share = Plane(of.batch, of.length, of.at(of.batch * stand.factor, of.length) * stand.share)
            share = share._replace(power=of.power, most=of.most // stand.factor)
            plane = share if plane is None else plane.plus(share)
        assert plane is not None
        measured = Heads(stands[0].heads * stands[0].factor, stands[0].kv_heads * stands[0].factor, width)
        plane = self._carried(family, plane, measured, heads, table.name[1])
        if family == PROMPTS and heads.span is not None and not window:
            self.notes.append(
                f"prompts' attention within {heads.span.size} tokens was not timed: it is that to all "
                "tokens, by its share of the pairs"
            )
            plane = plane.scaled(_pairs_within(plane.length, heads.span) / _pairs(plane.length))
        return plane

    def _window(self, table: OperatorTable, heads: Heads) -> int:
        """Return the window of the rows that count: that of the heads where it was timed, 0 for none."""
        span = heads.span
        timed = {(width, window) for _, _, width, window in table.keys.tolist()}
        of_window = span is not None and span.kind == "window" and (heads.width, span.size) in timed
        return span.size if span is not None and of_window else 0

    def _table(self, family: str) -> OperatorTable | None:
        for cache in (self._cache, BF16):
            if found := self._chip.tables.find(family, cache):
                self.used[family] = found[0]
                if cache != self._cache:
                    self.notes.append(
                        f"attention over a cache in {self._cache} was not timed on "
                        f"{self._chip.gpu.name}: that over one in 16 bits counts, times the ratio of "
                        "their bounds"
                    )
                return found[0]
        return None

    def _carried(self, family: str, plane: Plane, measured: Heads, wanted: Heads, cache: str) -> Plane:
        """Return what was measured of some heads and a cache as those that are wanted."""
        same = (measured.query, measured.kv, measured.width) == (wanted.query, wanted.kv, wanted.width)
        if same and cache == self._cache:
            return plane
        if not same:
            self.notes.append(
                f"attention of {wanted.query} heads over {wanted.kv} of width {wanted.width} was not timed: "
                f"that of {measured.query} over {measured.kv} of width {measured.width} counts, times the "
                "ratio of their bounds"
            )
        tokens = np.multiply.outer(plane.batch, plane.length)
        bounds = []
        for heads, of in ((wanted, self._cache), (measured, cache)):
            if family == DECODE:
                bounds.append(decode_bound(self._chip.gpu, heads.kv_bytes(of), tokens))
            else:
                pairs = np.multiply.outer(plane.batch, _pairs(plane.length))
                width = heads.query * heads.width
                bounds.append(prompts_bound(self._chip.gpu, heads.kv_bytes(of), width, tokens, pairs))
        return plane.scaled(bounds[0] / bounds[1])


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


def _nearest(heads: Heads, known: list[tuple[int, int]]) -> tuple[Stand, ...]:
    """Return the measured heads that are the most like these."""
    query, kv = min(
        known,
        key=lambda each: abs(np.log(each[1] / heads.kv)) + abs(np.log(each[0] / heads.query)),
    )
    return (Stand(query, kv, 1, 1.0),)


def _within(plane: Plane, span: AttentionSpan, window: int) -> Plane:
    """Return what decoding takes over the tokens within a span.

    With all of them within a window that was timed it takes what longer contexts do, too, since the window
    moves with the sequence; of another span, what a context of its size does.
    """
    before, beyond = plane.length < span.size, plane.length > span.size
    full = line(plane.length, plane.seconds, [span.size])
    if window and beyond.any():
        full = np.exp(np.log(plane.seconds[:, beyond][:, :2]).mean(1, keepdims=True))
    return plane._replace(
        length=np.append(plane.length[before], span.size), seconds=np.hstack([plane.seconds[:, before], full])
    )


def _pairs(length: Ints) -> Floats:
    """Return the pairs of a query and a key of whole prompts, ``[L]``."""
    lengths = length.astype(np.float64)
    found: Floats = lengths * (lengths + 1) / 2
    return found


def _pairs_within(length: Ints, span: AttentionSpan) -> Floats:
    """Return those of them that are within a span: a window of each query, or the chunk that it is in."""
    lengths, size = length.astype(np.float64), float(span.size)
    if span.kind == "chunk":
        chunks, rest = np.divmod(lengths, size)
        found: Floats = chunks * size * (size + 1) / 2 + rest * (rest + 1) / 2
        return found
    short = np.minimum(lengths, size)
    return np.asarray(short * (short + 1) / 2 + (lengths - short) * size)
