"""Content: the identity of a request's tokens, as far as other requests may share them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from typing import Final

import numpy as np

from pagesim.setup.compiled import mypyc_attr
from pagesim.workloads.trace import IntColumn, Trace

_POSITIONS: Final = 1 << 32  # more tokens than any request has
_NO_NAMES: frozenset[int] = frozenset()


def name_and_tokens(key: int) -> tuple[int, int]:
    """Return the segment name and the number of tokens that a key encodes (`Content.key_at`)."""
    return divmod(key, _POSITIONS)


class Content:
    """The tokens of one request, prompt and answer, divided into segments with one source each.

    Two requests share their first tokens as far as their segments have the same names.

    Attributes:
        answer: name of the generated segment.
        lookahead: tokens after a block that must also match for the block to match.
        ends: end of each segment in tokens; the last one, which is generated, has no end.
        names: name of each segment; two are equal exactly if all segments up to them are the same.
        follows: names of segments that other requests generate.
    """

    __slots__ = ("answer", "block_size", "ends", "follows", "lookahead", "names")

    def __init__(
        self,
        ends: list[int],
        names: list[int],
        follows: frozenset[int],
        block_size: int,
        lookahead: int = 0,
    ) -> None:
        self.ends = ends
        self.names = names
        self.follows = follows
        self.block_size = block_size
        self.lookahead = lookahead
        self.answer = names[-1]

    def key(self, block: int) -> int:
        """Return the hash of a block; two contents have the same one if all tokens up to its end match."""
        tokens = (block + 1) * self.block_size  # `key_at` inlined
        return self.names[bisect_left(self.ends, tokens + self.lookahead)] * _POSITIONS + tokens

    def key_at(self, tokens: int) -> int:
        """Return the hash of the block that ends after ``tokens`` tokens, for any block size."""
        return self.names[bisect_left(self.ends, tokens + self.lookahead)] * _POSITIONS + tokens

    def named(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """Split a range of tokens into parts within which blocks are hashed under the same segment name.

        Args:
            start: start of the range, in tokens.
            end: end of the range, in tokens.

        Returns:
            The parts in order, as (segment name, start, end).
        """
        found: list[tuple[int, int, int]] = []
        ends, names, lookahead = self.ends, self.names, self.lookahead
        at = bisect_left(ends, start + 1 + lookahead)
        while start < end:
            stop = min(ends[at] - lookahead, end)
            if stop > start:
                found.append((names[at], start, stop))
                start = stop
            at += 1
        return found

    def common(self, other: Content, most: int) -> int:
        """Return how many of the first ``most`` blocks have the same hash in both contents."""
        tokens = most * self.block_size + self.lookahead
        alike = self.common_tokens(other, tokens)
        return most if alike == tokens else max(0, alike - self.lookahead) // self.block_size

    def common_tokens(self, other: Content, most: int) -> int:
        """Return how many of the first ``most`` tokens are the same in both contents."""
        mine, theirs = self.names, other.names
        last = bisect_left(other.ends, most)
        if last < len(mine) and mine[last] == theirs[last] and self.ends[last] >= most:
            return most
        alike, unlike = 0, min(last + 1, len(mine))
        while alike < unlike:  # binary search: equal names come first
            middle = (alike + unlike) // 2
            if mine[middle] == theirs[middle]:
                alike = middle + 1
            else:
                unlike = middle
        return min(self.ends[alike - 1], other.ends[alike - 1], most) if alike else 0


@mypyc_attr(allow_interpreted_subclasses=True)
class Contents:
    """The contents of a trace's requests, computed when a request is first needed, in trace order.

    A prompt begins with the prefix that all requests share (``prefix_tokens``). If it has ``hash_ids``, they
    identify its blocks of ``hash_block_size`` tokens. A later turn of a session begins with the whole
    previous turn, prompt and answer, if its prompt is long enough. All other tokens are unique to the
    request. Samples of one request have the same prompt.

    Args:
        trace: requests in order of arrival.
        request_of: the request that each row is a sample of, ``[N]``.
        block_size: token slots per block.
        lookahead: tokens after a block that must also match for the block to match.
    """

    def __init__(self, trace: Trace, request_of: IntColumn, block_size: int, *, lookahead: int = 0) -> None:
        self.trace = trace
        self.block_size = block_size
        self.lookahead = lookahead
        self._request_of = request_of
        self._names: dict[tuple[int, Hashable], int] = {}
        self._count = 0
        self._last: tuple[int, Content] | None = None  # the latest content and its request
        self._rounds: dict[Hashable, tuple[int, Content]] = {}
        # Whether no two requests share a prefix.
        sources = (trace.hash_ids, trace.session_id, trace.prefix_tokens)
        has_samples = not (np.diff(request_of) > 0).all()
        self._none_is_shared = all(each is None for each in sources) and not has_samples

    def of(self, row: int) -> Content:
        """Return a request's content; rows must be requested in order."""
        if self._none_is_shared:
            self._count = name = self._count + 2
            ends = [self.trace.prompt_tokens.item(row), _POSITIONS]
            return Content(ends, [name - 1, name], _NO_NAMES, self.block_size, self.lookahead)
        request = self._request_of.item(row)
        if self._last is not None and self._last[0] == request:
            first = self._last[1]
            names = [*first.names[:-1], self._fresh()]
            return Content(first.ends, names, first.follows, self.block_size, self.lookahead)
        ends, names, follows = self._prompt(row)
        ends.append(_POSITIONS)
        names.append(self._fresh())
        content = Content(ends, names, follows, self.block_size, self.lookahead)
        self._last = request, content
        if self.trace.session_id is not None:  # the next turn continues the first sample
            total = int(self.trace.prompt_tokens[row] + self.trace.output_tokens[row])
            self._rounds[self.trace.session_id[row]] = (total, content)
        return content

    def _prompt(self, row: int) -> tuple[list[int], list[int], frozenset[int]]:
        trace = self.trace
        tokens = trace.prompt_tokens.item(row)
        ends: list[int] = []
        names: list[int] = []
        follows = _NO_NAMES
        if trace.hash_ids is not None and trace.hash_ids[row]:
            names = self._names_of(trace.hash_ids[row])
            size = trace.hash_block_size
            ends = list(range(size, size * len(names) + 1, size))
            if ends[-1] > tokens:
                ends[-1] = tokens
        else:
            if trace.session_id is not None:
                last = self._rounds.get(trace.session_id[row])
                if last is not None and last[0] <= tokens:
                    total, content = last
                    ends, names = [*content.ends[:-1], total], list(content.names)
                    follows = content.follows | {content.answer}
            if not ends and trace.prefix_tokens is not None and trace.prefix_tokens[row]:
                ends, names = [int(trace.prefix_tokens[row])], [self._named(0, "prefix")]
        if not ends or ends[-1] < tokens:
            ends.append(tokens)
            names.append(self._fresh())
        return ends, names, follows

    def _names_of(self, hash_ids: Sequence[int]) -> list[int]:
        names: list[int] = []
        name = 0
        for each in hash_ids:
            name = self._named(name, each)
            names.append(name)
        return names

    def _named(self, after: int, source: Hashable) -> int:
        name = self._names.get((after, source))
        if name is None:
            name = self._names[after, source] = self._fresh()
        return name

    def _fresh(self) -> int:
        self._count += 1
        return self._count
