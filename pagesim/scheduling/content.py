"""Content: what a request's tokens are, as far as another request may have the same ones."""

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
    """Return the name of the segment and the tokens up to its end that a key says (`Content.key_at`)."""
    return divmod(key, _POSITIONS)


class Content:
    """The tokens of one request, prompt and answer, cut into segments that come from one source each.

    Two requests have the same first tokens as far as their segments up to there are the same.

    Attributes:
        answer: the name of what is generated.
        lookahead: tokens behind a block that must be the same, too, for the block to be.
        ends: where each segment ends, in tokens; the last one, what is generated, has no end.
        names: of each segment: equal exactly where all segments up to it are the same.
        follows: the names of segments that other requests generate.
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
        """Return the hash of a block: equal in two contents where all tokens up to its end are the same."""
        tokens = (block + 1) * self.block_size  # as `key_at`, without a call
        return self.names[bisect_left(self.ends, tokens + self.lookahead)] * _POSITIONS + tokens

    def key_at(self, tokens: int) -> int:
        """Return the hash of the block that ends after so many tokens, whatever the block size."""
        return self.names[bisect_left(self.ends, tokens + self.lookahead)] * _POSITIONS + tokens

    def named(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """Cut some tokens where the name of what ends there changes.

        Args:
            start: tokens before the first of them.
            end: tokens up to the last of them.

        Returns:
            Parts in order: the name of the segment, where the part begins, and where it ends.
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
        """Return how many of the first ``most`` blocks have the same hash in this and in another content."""
        tokens = most * self.block_size + self.lookahead
        alike = self.common_tokens(other, tokens)
        return most if alike == tokens else max(0, alike - self.lookahead) // self.block_size

    def common_tokens(self, other: Content, most: int) -> int:
        """Return how many of so many first tokens are the same as another content's."""
        mine, theirs = self.names, other.names
        last = bisect_left(other.ends, most)
        if last < len(mine) and mine[last] == theirs[last] and self.ends[last] >= most:
            return most
        alike, unlike = 0, min(last + 1, len(mine))
        while alike < unlike:  # the same names come first: halve what is not known
            middle = (alike + unlike) // 2
            if mine[middle] == theirs[middle]:
                alike = middle + 1
            else:
                unlike = middle
        return min(self.ends[alike - 1], other.ends[alike - 1], most) if alike else 0


@mypyc_attr(allow_interpreted_subclasses=True)
class Contents:
    """The contents of a trace's requests, worked out when a request is first looked at, in their order.

    A prompt begins with what all requests share (``prefix_tokens``). A prompt with ``hash_ids`` is what they
    say, block by block of ``hash_block_size`` tokens. The prompt of a session's later turn begins with all
    of the previous turn, prompt and answer, if it is long enough. The rest is the request's own. Samples of
    one request have the same prompt.

    Args:
        trace: requests in order of arrival.
        request_of: for each row the request that it is a sample of, ``[N]``.
        block_size: token slots a block.
        lookahead: tokens behind a block that must be the same, too, for the block to be.
    """

    def __init__(self, trace: Trace, request_of: IntColumn, block_size: int, *, lookahead: int = 0) -> None:
        self.trace = trace
        self.block_size = block_size
        self.lookahead = lookahead
        self._request_of = request_of
        self._names: dict[tuple[int, Hashable], int] = {}
        self._count = 0
        self._last: tuple[int, Content] | None = None  # the content made last, and of which request
        self._rounds: dict[Hashable, tuple[int, Content]] = {}
        # Whether every request begins as no other does.
        sources = (trace.hash_ids, trace.session_id, trace.prefix_tokens)
        has_samples = not (np.diff(request_of) > 0).all()
        self._none_is_shared = all(each is None for each in sources) and not has_samples

    def of(self, row: int) -> Content:
        """Return a request's content; rows are asked for in their order."""
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
        if self.trace.session_id is not None:  # the next turn goes on from the first sample
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
