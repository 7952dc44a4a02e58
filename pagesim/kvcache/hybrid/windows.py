"""Families of groups whose layers attend to a part of the tokens: a sliding window, or a chunk.

Source: vLLM 0.33.0, ``v1/core/single_type_kv_cache_manager.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from pagesim.kvcache.groups import KVGroup, SlidingWindow
from pagesim.kvcache.hybrid.blocks import Blocks
from pagesim.kvcache.hybrid.families import DENSE, FullFamily, Hits, Setting, replay_boundaries
from pagesim.kvcache.runs import Content
from pagesim.kvcache.sequence_group import SequenceGroup
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class WindowFamily(FullFamily):
    """Groups whose layers attend to a sliding window: what is behind it is given back.

    A hit needs the blocks of one window before it, and only those enter a table. So of a prompt's blocks
    those are hashed that a window at its end needs, or at another position where hits are expected.

    Attributes:
        contiguous: blocks that a hit needs.
    """

    __slots__ = ("contiguous",)

    def __init__(self, numbers: range, of: int, group: KVGroup, blocks: Blocks, setting: Setting) -> None:
        super().__init__(numbers, of, group, blocks, setting)
        assert isinstance(group.rule, SlidingWindow)
        self.contiguous = -(-(group.rule.window - 1) // self.size)

    def findable(self, request: SequenceGroup, start: int, end: int) -> Sequence[int]:
        size, alignment, retention = self.size, self.setting.alignment, self.setting.retention
        contiguous, further = self.contiguous + self.drops_block, int(self.drops_block)
        places: set[int] = set()
        if retention:
            segment = (alignment if retention == DENSE else retention) // size
            if contiguous >= segment:
                return range(start, end)
            places.update(
                place
                for place in range(max(start, further), end)
                if (place - further) % segment >= segment - contiguous
            )
        if retention != DENSE:
            for tokens in replay_boundaries(request, self):
                last = tokens // alignment * alignment // size + further
                places.update(range(max(start, last - contiguous), min(end, last)))
        return sorted(places)

    def find(
        self, content: Content, tokens: int, alike: Sequence[FullFamily], *, drops_block: bool = False
    ) -> Hits:
        most = tokens // self.size
        contiguous, further = self.contiguous + drops_block, int(drops_block)
        hits: Hits = [None] * most
        run = 0
        for place in range(most - 1, -1, -1):
            blocks = self.cached(content, place, alike)
            if blocks is None:
                run = 0
            elif run or self.aligned(place + 1 - further) == place + 1 - further:
                hits[place] = blocks
                run += 1
                if run >= contiguous:
                    return hits[: self.aligned(place + run - further)] if further else hits[: place + run]
        run = self.aligned(run)
        return hits[: self.aligned(run - 1)] if further and run else hits[:run]


@mypyc_attr(allow_interpreted_subclasses=True)
class ChunkFamily(FullFamily):
    """Groups whose layers attend to the tokens of one chunk: those of the chunks before are given back."""

    __slots__ = ()

    def find(
        self, content: Content, tokens: int, alike: Sequence[FullFamily], *, drops_block: bool = False
    ) -> Hits:
        gone = self.group.released(tokens)
        hits: Hits = [None] * gone
        for place in range(gone, tokens // self.size):
            blocks = self.cached(content, place, alike)
            if blocks is None:
                break
            hits.append(blocks)
        return hits
