"""Prefix segments: blocks of ``hash_ids`` that the same requests have, taken as one segment of contents."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Self

import numpy as np

from pagesim.workloads.trace import IntColumn


class PrefixSegments:
    """Where the prompts of a trace part, if every id of a block stands for all that comes before it, too.

    A segment is named by the id of its last block.

    Args:
        names: of the segments of all requests, one request after another.
        ends: of each, in tokens.
        first: of each request the place of its first segment, ``[N + 1]``.
        last_name: the greatest id.

    Attributes:
        last_name: the greatest id of a segment.
    """

    __slots__ = ("_ends", "_first", "_names", "last_name")

    def __init__(self, names: IntColumn, ends: IntColumn, first: IntColumn, last_name: int) -> None:
        # One request's of these are looked at at a time, which arrays of Python's own give in half the time.
        self._names, self._ends, self._first = (
            array("q", column.astype(np.int64).tobytes()) for column in (names, ends, first)
        )
        self.last_name = last_name

    @classmethod
    def of(cls, hash_ids: Sequence[Sequence[int]], block: int) -> Self | None:
        """Return the segments of requests with these ids, one each ``block`` tokens.

        None where an id stands after different ones, there is none, or one is below 0.
        """
        lengths = np.fromiter(map(len, hash_ids), np.int64, len(hash_ids))
        try:
            ids = np.fromiter(chain.from_iterable(hash_ids), np.int64, int(lengths.sum()))
        except OverflowError:
            return None
        if not len(ids) or ids.min() < 0:
            return None
        begins = np.cumsum(lengths) - lengths
        before = np.roll(ids, 1)
        before[begins[lengths > 0]] = -1
        greatest = int(ids.max())
        # Ids that leave few numbers out are places in a table; others are numbered first.
        kind = ids if greatest < 4 * len(ids) else np.unique(ids, return_inverse=True)[1]
        before_kind = np.empty(int(kind.max()) + 1, np.int64)
        before_kind[kind] = before
        if not (before_kind[kind] == before).all():
            return None
        # A block that as many requests have as the one after it: the same ones.
        requests = np.bincount(kind)[kind]
        last = np.append(requests[1:] != requests[:-1], True)
        last[(begins + lengths - 1)[lengths > 0]] = True
        places = np.flatnonzero(last)
        ends = (places - np.repeat(begins, lengths)[places] + 1) * block
        first = np.searchsorted(places, np.append(begins, len(ids)))
        return cls(ids[places], ends, first, greatest)

    def cut(self, row: int) -> tuple[list[int], list[int]]:
        """Return the ends of a request's segments, in tokens, and their names."""
        begin, end = self._first[row], self._first[row + 1]
        return self._ends[begin:end].tolist(), self._names[begin:end].tolist()
