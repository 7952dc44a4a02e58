"""Families of groups whose layers attend to some of the tokens: a sliding window, or a chunk.

Source: vLLM 0.33.0, ``v1/core/single_type_kv_cache_manager.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from pagesim.kvcache.groups import KVGroup, SlidingWindow
from pagesim.kvcache.hybrid.blocks import Blocks
from pagesim.kvcache.hybrid.families import DENSE, FullFamily, Hits, Setting, replay_boundaries
from pagesim.kvcache.runs import BlockContent
from pagesim.kvcache.sequence_group import SequenceGroup
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class WindowFamily(FullFamily):
    """Groups whose layers attend to a sliding window: blocks that have left it are freed.

    A hit needs the blocks of the window before its end, and only these enter the table. So a prompt's blocks
    are only hashed if they are in the window before its end or before another expected end of hits.

    Attributes:
        contiguous: number of consecutive blocks that a hit needs.
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
        self, content: BlockContent, tokens: int, alike: Sequence[FullFamily], *, drops_block: bool = False
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
    """Groups whose layers attend to the tokens of one chunk: blocks of earlier chunks are freed."""

    __slots__ = ()

    def find(
        self, content: BlockContent, tokens: int, alike: Sequence[FullFamily], *, drops_block: bool = False
    ) -> Hits:
        gone = self.group.released(tokens)
        hits: Hits = [None] * gone
        for place in range(gone, tokens // self.size):
            blocks = self.cached(content, place, alike)
            if blocks is None:
                break
            hits.append(blocks)
        return hits
