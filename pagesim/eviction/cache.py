"""A prefix cache of blocks: prompts reuse their leading blocks and add the others; a policy makes room."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final

from pagesim.eviction.policy import CacheView, EvictionPolicy
from pagesim.setup.compiled import mypyc_attr

ROOT: Final = -1
"""The parent of a prompt's first block."""


@mypyc_attr(allow_interpreted_subclasses=True)
class PrefixCache:
    """A cache that only evicts leaves: blocks that are not in use and that no cached block follows.

    One prompt is served at a time. Its leading cached blocks are hits. The blocks after them are computed,
    and cached as long as there is room. All are in use until the prompt has finished. So all blocks before a
    cached block are cached, as in SGLang's radix tree. With LRU, vLLM's queue behaves the same.

    Args:
        view: the information available to the policy.
        policy: eviction policy of the cache, empty at first.

    Attributes:
        view: the information available to the policy.
        evictions: number of blocks evicted so far.
        not_cached: number of prompt blocks not cached, for lack of room or because the policy refused them.
        victims: blocks that the last prompt evicted, in order.
    """

    __slots__ = ("_children", "_parents", "_policy", "evictions", "not_cached", "victims", "view")

    def __init__(self, view: CacheView, policy: EvictionPolicy) -> None:
        self.view = view
        self._policy = policy
        self._children: dict[int, int] = {}  # per cached block: cached children, plus 1 if it is in use
        self._parents: dict[int, int] = {}
        self.evictions = self.not_cached = 0
        self.victims: list[int] = []

    def serve(self, blocks: Sequence[int], following: Sequence[float] = ()) -> int:
        """Serve a prompt, and return how many of its blocks were hits.

        Args:
            blocks: blocks of the prompt, first to last; each also identifies all blocks before it.
            following: for each block, the number of the next request that uses it, for offline policies.
        """
        view, policy, children = self.view, self._policy, self._children
        free = view.free
        self.victims = []
        hits, number = 0, len(blocks)
        following = following or [inf] * number
        while hits < number and blocks[hits] in children:
            block = blocks[hits]
            view.next_request = following[hits]
            free.discard(block)
            children[block] += 1  # while it is in use
            policy.hit(block)
            hits += 1
        used = hits
        for place in range(hits, number):
            block = blocks[place]
            view.next_request = following[place]
            if not policy.miss(block) or not self._make_room():
                self.not_cached += number - place
                break
            parent = blocks[place - 1] if place else ROOT
            self._parents[block] = parent
            children[block] = 1
            if place:
                children[parent] += 1
            policy.insert(block)
            used += 1
        for place in range(used - 1, -1, -1):
            self._release(blocks[place])
        policy.over(blocks[:hits], blocks[hits:used])
        return hits

    def __len__(self) -> int:
        return len(self._children)

    def _make_room(self) -> bool:
        """Evict until there is room for a block; return whether there is."""
        while len(self._children) >= self.view.capacity:
            victim = self._policy.evict()
            if victim is None:
                return False
            del self._children[victim]
            self.view.free.discard(victim)
            self.evictions += 1
            self.victims.append(victim)
            parent = self._parents.pop(victim)
            if parent != ROOT:
                self._release(parent)
        return True

    def _release(self, block: int) -> None:
        """Remove a use or a child of a block, which becomes evictable when it has none left."""
        self._children[block] -= 1
        if not self._children[block]:
            self.view.free.add(block)
            self._policy.freed(block)
