"""Attention: seconds of one layer's decode and prompt attention, by heads and span."""

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
        query, kv: numbers of query heads and of KV heads.
        width: head dimension.
        span: attention span; None for full attention.
    """

    query: int
    kv: int
    width: int
    span: AttentionSpan | None = None

    def kv_bytes(self, cache: str) -> float:
        """Return the bytes of a token's keys and values, for a cache type of the tables."""
        return 2 * self.kv * self.width * (2 if cache == BF16 else 1)


class Attention:
    """Attention on a GPU over a cache of one type.

    Args:
        chip: the GPU and its measurements.
        cache: ``bfloat16`` or ``fp8``.

    Attributes:
        used: the tables that were looked up, by family.
        notes: what was substituted, one sentence each.
    """

    def __init__(self, chip: Chip, cache: str) -> None:
        self._chip, self._cache = chip, cache
        self.used: dict[str, OperatorTable] = {}
        self.notes: list[str] = []

    def decoding(self, heads: Heads) -> Plane | None:
        """Return a layer's decode seconds over sequences and context; None if decoding was not timed.

        Context is the mean over the sequences, including the token being decoded. For a layer with a span,
        only tokens within the span count.
        """
        found = self._plane(DECODE, heads)
        if found is None or heads.span is None:
            return found
        return _within(found, heads.span, self._window(self.used[DECODE], heads))

    def prompts(self, heads: Heads) -> Plane | None:
        """Return a layer's prompt seconds over prompts and their length; None if prompts were not timed."""
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
        """Return the window of the rows to use: that of the layer if it was timed, else 0 for none."""
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
        """Scale measurements of some heads and cache type to those that are wanted."""
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
    """Measured heads that replace others in a weighted sum.

    Attributes:
        heads, kv_heads: measured numbers of query heads and KV heads.
        factor: measured sequences that one sequence counts as.
        share: weight of its seconds in the sum.
    """

    heads: int
    kv_heads: int
    factor: int
    share: float


def stands_for(heads: int, kv_heads: int, known: Collection[tuple[int, int]]) -> Sequence[Stand]:
    """Return the measured heads that replace some heads on a GPU; empty if none can.

    A KV head costs the same in any sequence: b sequences with 32 KV heads are equivalent to 4·b with 8. If
    a number of KV heads was measured only with fewer and with more query heads, the result interpolates
    between these.

    Args:
        heads: query heads on the GPU.
        kv_heads: KV heads on the GPU.
        known: measured pairs of query heads and KV heads.
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
    """Return the measured heads that are most similar to these."""
    query, kv = min(
        known,
        key=lambda each: abs(np.log(each[1] / heads.kv)) + abs(np.log(each[0] / heads.query)),
    )
    return (Stand(query, kv, 1, 1.0),)


def _within(plane: Plane, span: AttentionSpan, window: int) -> Plane:
    """Return the decode seconds over the tokens within a span.

    A full window that was timed takes as long as any longer context, since the window moves along. A full
    span of another kind takes as long as a context of its size.
    """
    before, beyond = plane.length < span.size, plane.length > span.size
    full = line(plane.length, plane.seconds, [span.size])
    if window and beyond.any():
        full = np.exp(np.log(plane.seconds[:, beyond][:, :2]).mean(1, keepdims=True))
    return plane._replace(
        length=np.append(plane.length[before], span.size), seconds=np.hstack([plane.seconds[:, before], full])
    )


def _pairs(length: Ints) -> Floats:
    """Return the query-key pairs of whole prompts, ``[L]``."""
    lengths = length.astype(np.float64)
    found: Floats = lengths * (lengths + 1) / 2
    return found


def _pairs_within(length: Ints, span: AttentionSpan) -> Floats:
    """Return the query-key pairs within a span: each query's window, or the chunk it is in, ``[L]``."""
    lengths, size = length.astype(np.float64), float(span.size)
    if span.kind == "chunk":
        chunks, rest = np.divmod(lengths, size)
        found: Floats = chunks * size * (size + 1) / 2 + rest * (rest + 1) / 2
        return found
    short = np.minimum(lengths, size)
    return np.asarray(short * (short + 1) / 2 + (lengths - short) * size)
