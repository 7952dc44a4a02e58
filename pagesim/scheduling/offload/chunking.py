"""Chunking: how a KV group is cut into chunks, which are stored and loaded as a whole."""

from __future__ import annotations

from bisect import bisect_left

from pagesim.kvcache import Full, KVGroup, SlidingWindow, State
from pagesim.kvcache.tiers import ChunkRun, segment
from pagesim.kvcache.tiers.chunks import NAMED
from pagesim.scheduling.content import Content
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class OffloadGroup:
    """How a KV group is cut into chunks.

    Args:
        number: of the group.
        group: its layers, their rule and its block size.
        blocks: a chunk.

    Attributes:
        tokens: token slots a chunk.
        unnamed: the segment of its chunks whose name is 0.
        keeps_all: whether its layers attend to all tokens.
        has_states: whether it keeps recurrent states.
        window: chunks in a row that a load needs, where the group does not keep all.
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
        """Return the chunks in a row that a load needs which ends after so many tokens."""
        rule = self.group.rule
        if not isinstance(rule, SlidingWindow):
            return self.window
        return max(self.window, -(-(rule.window - 1 + -tokens % self.tokens) // self.tokens))


def chunk_runs(content: Content, group: OffloadGroup, start: int, end: int) -> list[ChunkRun]:
    """Return some chunks in a row of a group, the last not included, in runs."""
    size, unnamed = group.tokens, group.unnamed
    ends, names, lookahead = content.ends, content.names, content.lookahead
    found: list[ChunkRun] = []
    at = bisect_left(ends, start * size + 1 + lookahead)
    while start < end:
        # A chunk is of the segment in which it ends.
        stop = (ends[at] - lookahead) // size
        if stop > start:
            if stop > end:
                stop = end
            found.append((names[at] << NAMED | unnamed, start, stop))
            start = stop
        at += 1
    return found
