"""Chunking: how a KV cache group is divided into chunks, which are stored and loaded as a whole."""

from __future__ import annotations

from bisect import bisect_left

from pagesim.kvcache import Full, KVGroup, SlidingWindow, State
from pagesim.kvcache.tiers import ChunkRun, segment
from pagesim.kvcache.tiers.chunks import NAMED
from pagesim.scheduling.content import Content
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class OffloadGroup:
    """How a KV cache group is divided into chunks.

    Args:
        number: the group's number.
        group: its layers, their rule and its block size.
        blocks: blocks per chunk.

    Attributes:
        tokens: token slots per chunk.
        unnamed: the segment of its chunks whose name is 0.
        keeps_all: whether its layers attend to all tokens.
        has_states: whether it keeps recurrent states.
        window: contiguous chunks that a load needs if the group does not keep all tokens.
    """

    __slots__ = ("blocks", "group", "has_states", "keeps_all", "number", "tokens", "unnamed", "window")

    def __init__(self, number: int, group: KVGroup, blocks: int) -> None:
        self.number = number
        self.group = group
        self.blocks = blocks
        self.tokens = blocks * group.block_size
        self.unnamed = segment(0, self.tokens, number)
        rule = group.rule
        self.keeps_all = isinstance(rule, Full)
        self.has_states = isinstance(rule, State)
        self.window = -(-rule.window // self.tokens) if isinstance(rule, SlidingWindow) else 1

    def window_before(self, tokens: int) -> int:
        """Return how many contiguous chunks a load that ends after ``tokens`` tokens needs."""
        rule = self.group.rule
        if not isinstance(rule, SlidingWindow):
            return self.window
        return max(self.window, -(-(rule.window - 1 + -tokens % self.tokens) // self.tokens))


def chunk_runs(content: Content, group: OffloadGroup, start: int, end: int) -> list[ChunkRun]:
    """Return a group's chunks from ``start`` up to but excluding ``end``, as runs."""
    size, unnamed = group.tokens, group.unnamed
    ends, names, lookahead = content.ends, content.names, content.lookahead
    found: list[ChunkRun] = []
    at = bisect_left(ends, start * size + 1 + lookahead)
    while start < end:
        # A chunk belongs to the segment in which it ends.
        stop = (ends[at] - lookahead) // size
        if stop > start:
            if stop > end:
                stop = end
            found.append((names[at] << NAMED | unnamed, start, stop))
            start = stop
        at += 1
    return found
