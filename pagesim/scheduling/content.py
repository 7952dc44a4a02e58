"""Content: what a request's tokens are, as far as another request may have the same ones."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from itertools import chain

import numpy as np

from pagesim.workloads.trace import IntColumn, Trace

_POSITIONS = 1 << 32  # more tokens than any request has


class Content:
    """The tokens of one request, prompt and answer, cut into segments that come from one source each.

    Two requests have the same first tokens as far as their segments up to there are the same.

    Attributes:
        answer: the name of what is generated.
        ends: where each segment ends, in tokens; the last one, what is generated, has no end.
        names: of each segment: equal exactly where all segments up to it are the same.
        follows: the names of segments that other requests generate.
    """

    __slots__ = ("answer", "block_size", "ends", "follows", "names")

    def __init__(self, ends: list[int], names: list[int], follows: frozenset[int], block_size: int) -> None:
        self.ends = ends
        self.names = names
        self.follows = follows
        self.block_size = block_size
        self.answer = names[-1]

    def key(self, block: int) -> int:
        """As `memory.Content.key`."""
        end = (block + 1) * self.block_size
        return self.names[bisect_left(self.ends, end)] * _POSITIONS + end

    def common(self, other: Content) -> int:
        """As `memory.Content.common`."""
        mine, theirs = self.names, other.names
        alike, most = 0, min(len(mine), len(theirs))
        while alike < most:  # the same names come first: halve what is not known
            middle = (alike + most) // 2
            if mine[middle] == theirs[middle]:
                alike = middle + 1
            else:
                most = middle
        return min(self.ends[alike - 1], other.ends[alike - 1]) // self.block_size if alike else 0


class Contents:
    """The content of every request of a trace, worked out when a request is first looked at, in their order.

    A prompt begins with what all requests share (``prefix_tokens``). A prompt with ``hash_ids`` is what they
    say, block by block of ``hash_block_size`` tokens. The prompt of a session's later turn begins with all
    of the previous turn, prompt and answer, if it is long enough. The rest is the request's own. Samples of
    one request have the same prompt.

    Args:
        trace: requests in order of arrival.
        request_of: for each row the request that it is a sample of, ``[N]``.
        block_size: token slots a block.
    """

    def __init__(self, trace: Trace, request_of: IntColumn, block_size: int) -> None:
        self.trace = trace
        self.block_size = block_size
        self._request_of = request_of
        self._names: dict[tuple[int, Hashable], int] = {}
        self._count = 0
        self._last_prompt: tuple[int, list[int], list[int], frozenset[int]] | None = None
        self._rounds: dict[Hashable, tuple[int, Content]] = {}
        # Where every id of a block stands for all that comes before it, too, it is its own name.
        self._ids_are_names = trace.hash_ids is not None and _imply_their_prefix(trace.hash_ids)
        if self._ids_are_names:
            self._count = max(chain.from_iterable(trace.hash_ids or ()))

    def of(self, row: int) -> Content:
        """Return a request's content; rows are asked for in their order."""
        request = int(self._request_of[row])
        is_first = self._last_prompt is None or self._last_prompt[0] != request
        if is_first:
            self._last_prompt = (request, *self._prompt(row))
        assert self._last_prompt is not None
        _, ends, names, follows = self._last_prompt
        content = Content([*ends, _POSITIONS], [*names, self._fresh()], follows, self.block_size)
        if self.trace.session_id is not None and is_first:  # the next turn goes on from the first sample
            total = int(self.trace.prompt_tokens[row] + self.trace.output_tokens[row])
            self._rounds[self.trace.session_id[row]] = (total, content)
        return content

    def _prompt(self, row: int) -> tuple[list[int], list[int], frozenset[int]]:
        trace = self.trace
        tokens = int(trace.prompt_tokens[row])
        ends: list[int] = []
        names: list[int] = []
        follows: frozenset[int] = frozenset()
        if trace.hash_ids is not None and len(trace.hash_ids[row]):
            names = self._names_of(trace.hash_ids[row])
            size = trace.hash_block_size
            ends = [*range(size, size * len(names), size), min(size * len(names), tokens)]
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
        if self._ids_are_names:
            return list(hash_ids)
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


def _imply_their_prefix(hash_ids: Sequence[Sequence[int]]) -> bool:
    """Say whether each id stands after the same one, or first, wherever it stands; none is below 0."""
    lengths = np.fromiter(map(len, hash_ids), np.int64, len(hash_ids))
    try:
        ids = np.fromiter(chain.from_iterable(hash_ids), np.int64, int(lengths.sum()))
    except OverflowError:
        return False
    if not len(ids) or ids.min() < 0:
        return False
    _, place, kind = np.unique(ids, return_index=True, return_inverse=True)
    before = np.roll(kind, 1)
    before[(np.cumsum(lengths) - lengths)[lengths > 0]] = -1
    return bool((before == before[place][kind]).all())
