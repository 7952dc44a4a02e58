"""Look-up: the longest prefix that is there in all groups, each by its own rule.

Source: vLLM 0.33.0, ``HybridKVCacheCoordinator.find_longest_cache_hit``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagesim.kvcache.hybrid.blocks import NULL
from pagesim.kvcache.hybrid.kinds import FullGroup, Hits
from pagesim.kvcache.runs import Content
from pagesim.setup.compiled import mypyc_attr


@dataclass(frozen=True, slots=True)
class Found:
    """A hit.

    Attributes:
        tokens: how many.
        junction: tokens that a group alone would have found, if these are more; else 0. Requests parted there
            before, and the other groups keep what is needed to go on from there.
        blocks: of each group, by position, with null entries where a hit needs none.
    """

    tokens: int
    junction: int
    blocks: tuple[list[int], ...]


@mypyc_attr(allow_interpreted_subclasses=True)
class Families:
    """The groups of a memory, those of one rule and block size together, full attention first."""

    __slots__ = ("_families", "_groups")

    def __init__(self, groups: Sequence[FullGroup]) -> None:
        self._groups = len(groups)
        alike: dict[object, list[FullGroup]] = {}
        for group in groups:
            alike.setdefault((type(group), group.group.rule, group.size), []).append(group)
        self._families = sorted(alike.values(), key=lambda family: not _is_full(family))

    def look_up(self, content: Content, tokens: int) -> Found:
        """Return the longest hit of at most so many tokens.

        Each family in turn takes the length that those before it found, or makes it shorter; they begin again
        until none does. What full attention finds is there for every shorter length.
        """
        families = self._families
        hits: list[Hits] = [[] for _ in families]
        length, longest = tokens, 0
        looked_up = False
        while True:
            found = length
            for number, family in enumerate(families):
                first = family[0]
                if looked_up and _is_full(family):
                    found = min(found, len(hits[number]) * first.size)
                    continue
                hits[number] = first.find(content, found, family)
                found = len(hits[number]) * first.size
                longest = max(longest, found)
            looked_up = True
            if found >= length:
                break
            length = found
            if len(families) == 1 or (len(families) == 2 and _is_full(families[0])):
                break
        blocks: list[list[int]] = [[]] * self._groups
        for family, found_by in zip(families, hits, strict=True):
            kept = found_by[: -(-length // family[0].size)]
            for place, group in enumerate(family):
                blocks[group.number] = [NULL if each is None else each[place] for each in kept]
        return Found(length, longest if longest > length else 0, tuple(blocks))


def _is_full(family: Sequence[FullGroup]) -> bool:
    return type(family[0]) is FullGroup
