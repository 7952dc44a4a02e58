"""Look-up: the longest prefix that is cached in all groups, each by its own rule.

Source: vLLM 0.33.0, ``HybridKVCacheCoordinator.find_longest_cache_hit``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagesim.kvcache.hybrid.blocks import NULL
from pagesim.kvcache.hybrid.families import FullFamily, Hits
from pagesim.kvcache.hybrid.state import StateFamily
from pagesim.kvcache.runs import BlockContent
from pagesim.setup.compiled import mypyc_attr


@dataclass(frozen=True, slots=True)
class Found:
    """A prefix hit in a hybrid cache.

    Attributes:
        tokens: tokens of the hit.
        junction: tokens that one group alone would have matched, if these are more than the hit; else 0.
            Requests diverged there before, so the other groups cache what is needed to continue from there.
        blocks: blocks of each family, as in `FamilyTable.blocks`, with `NULL` where a hit needs none.
    """

    tokens: int
    junction: int
    blocks: tuple[list[int], ...]


@mypyc_attr(allow_interpreted_subclasses=True)
class LookUp:
    """Prefix look-up in a block manager's families, grouped by rule and block size, full attention first."""

    __slots__ = ("_alike", "_families")

    def __init__(self, families: Sequence[FullFamily]) -> None:
        self._families = families
        alike: dict[object, list[FullFamily]] = {}
        for family in families:
            like = (type(family), family.group.rule, family.size, family.drops_block)
            alike.setdefault(like, []).append(family)
        self._alike = sorted(alike.values(), key=lambda families: not _is_full(families))

    def look_up(self, content: BlockContent, tokens: int) -> Found:
        """Return the longest hit among ``tokens`` tokens, the last of which is always computed.

        Each kind of family accepts the length that the previous ones matched or shortens it. This is repeated
        until no kind shortens it further. A hit in full attention holds for every shorter length. A kind that
        drops a block looks for one more block, once for each length.
        """
        known, tokens = tokens, tokens - 1
        single = len(self._families) == 1 and self._families[0].width == 1
        dropped: set[int] = set()
        kinds = self._alike
        hits: list[Hits] = [[] for _ in kinds]
        length, longest = tokens, 0
        looked_up = False
        while True:
            found = length
            for number, alike in enumerate(kinds):
                size = alike[0].size
                if looked_up and _is_full(alike):
                    found = min(found, len(hits[number]) * size)
                    continue
                drops_block = alike[0].drops_block and number not in dropped
                most = found
                if drops_block and not single and not isinstance(alike[0], StateFamily):
                    most = min(found + size, known)
                hits[number] = alike[0].find(content, most, alike, drops_block=drops_block)
                before, found = found, len(hits[number]) * size
                if drops_block:
                    dropped.add(number)
                elif found < before:
                    dropped.clear()
                longest = max(longest, found)
            looked_up = True
            if found >= length:
                break
            length = found
            if len(kinds) == 1 or (len(kinds) == 2 and _is_full(kinds[0])):
                break
        blocks: dict[int, list[int]] = {}
        for alike, found_by in zip(kinds, hits, strict=True):
            kept = found_by[: -(-length // alike[0].size)]
            start = 0
            for family in alike:
                end, nothing = start + family.width, [NULL] * family.width
                blocks[family.first] = [
                    block for row in kept for block in (nothing if row is None else row[start:end])
                ]
                start = end
        in_order = tuple([blocks[family.first] for family in self._families])
        return Found(length, longest if longest > length else 0, in_order)


def _is_full(families: Sequence[FullFamily]) -> bool:
    return type(families[0]) is FullFamily
