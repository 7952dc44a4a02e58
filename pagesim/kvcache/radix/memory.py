"""Memory whose prefix cache is a radix tree, as SGLang has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pagesim.kvcache.base import BlockManagerError
from pagesim.kvcache.groups import Full, KVGroup
from pagesim.kvcache.holder import Holder
from pagesim.kvcache.paged import PagedManager
from pagesim.kvcache.radix.eviction import EvictionPolicy
from pagesim.kvcache.radix.tree import Node, RadixTree
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Place:
    """What `RadixManager` keeps with a holder.

    Attributes:
        node: with which the part of it ends that is in the tree, and locked.
        begin: what ``RadixTree.lock`` returned.
        protected: tokens of that part.
        seen: tokens of it that were inserted at any time.
    """

    __slots__ = ("begin", "node", "protected", "seen")

    def __init__(self, node: Node, protected: int) -> None:
        self.node = node
        self.protected = protected
        self.seen = self.begin = 0


@mypyc_attr(allow_interpreted_subclasses=True)
class RadixManager(PagedManager):
    """A block manager of pages of one KV group of full attention, with a radix tree over those cached.

    A page is in the tree, or one sequence's own, or blank. What a sequence computes is its own until
    ``cache_tokens`` inserts it; pages that the tree had already are given back then. Free pages are the blank
    ones and those of the tree that no sequence holds, the cached ones; whole leaves are evicted, and only
    where blank pages run short.

    Args:
        num_pages: on the device.
        page_size: tokens a page.
        policy: which leaf is evicted first.

    Attributes:
        tree: the prefixes that are cached.
        evicted: tokens that were evicted since the beginning.
    """

    __slots__ = ("_found", "_named", "evicted", "tree")

    caches_prefixes = True

    cuts_answers: ClassVar[bool] = True
    """Whether the end of a prompt becomes the end of a node, so that what was generated can go alone."""

    def __init__(self, num_pages: int, page_size: int = 1, *, policy: EvictionPolicy = "lru") -> None:
        super().__init__(num_pages, (KVGroup(page_size, Full()),))
        self.tree = RadixTree(page_size, policy)
        self.evicted = 0
        self._named = 0  # pages of the tree that sequences hold, once for each of them
        # What was looked up last, and up to how many tokens.
        self._found: tuple[Holder, Node, int] | None = None

    # Questions

    @property
    def blank_blocks(self) -> int:
        """Pages that are neither held nor in the tree."""
        return self.free_blocks - self._cached

    def match_prefix(self, holder: Holder, tokens: int) -> int:
        if holder.content is None:
            return 0
        node = self.tree.match(holder.content, tokens - 1)
        self._found = holder, node, tokens - 1
        return node.end

    def could_admit(self, holder: Holder, tokens: int, spare: int = 0) -> bool:
        return self.blocks_for(tokens) + spare <= self.num_blocks  # empty memory has cached nothing

    def blocks_to_admit(self, holder: Holder, tokens: int) -> int:
        if holder.samples > 1:
            self._refuse_samples()
        node = self._found_for(holder)
        return -(-tokens // self.block_size) + (self.tree.unlocked(node) - node.end) // self.block_size

    def can_admit(self, holder: Holder, tokens: int, spare: int = 0) -> bool:
        return self.blocks_to_admit(holder, tokens) + spare <= self.free_blocks

    def caches_apart(self, holders: Sequence[Holder]) -> bool:
        """Say whether nothing that holders computed is in the tree already, nor the same for two of them.

        Then no count of pages changes where ``cache_tokens`` inserts it.
        """
        page = self.block_size
        begin: set[tuple[Node, int]] = set()
        for holder in holders:
            node: Node = holder.kv.node
            key = holder.content.key_at(node.end + page)
            if key in node.children or (node, key) in begin:
                return False
            begin.add((node, key))
        return True

    def exclusive_blocks(self, holders: Sequence[Holder]) -> int:
        locks: dict[Node, int] = {}
        blocks, page = 0, self.block_size
        for holder in holders:
            place: Place = holder.kv
            blocks += self.held_blocks(holder) - place.protected // page
            node = place.node
            while node.parent is not None:
                locks[node] = locks.get(node, 0) + 1
                node = node.parent
        return blocks + sum([node.tokens // page for node, count in locks.items() if count == node.lock_ref])

    # Changes

    def protect(self, holder: Holder) -> None:
        """Hold what ``match_prefix`` found last for a holder; ``admit`` takes it over."""
        node = self._found_for(holder)
        self._found = None
        holder.kv = place = self._new_place(node)
        self._named += place.protected // self.block_size
        place.begin = self.tree.lock(node)
        self._note()

    def unprotect(self, holder: Holder) -> None:
        """Hold no longer what is protected for a holder that is not admitted."""
        self._forget(holder)
        holder.kv = None

    def admit(self, holder: Holder, tokens: int) -> None:
        if holder.kv is None:
            blocks = self.blocks_to_admit(holder, tokens)
            self._check_room(blocks)
            self.protect(holder)
        place: Place = holder.kv
        holder.tokens = tokens
        self.free_blocks -= -(-tokens // self.block_size) - place.protected // self.block_size
        self._evict_overdraft()

    def extend(self, holder: Holder, tokens: int) -> None:
        super().extend(holder, tokens)
        self._evict_overdraft()

    def append(self, holder: Holder) -> int:
        self.extend(holder, 1)
        return 0

    def grow(self, steps: int = 1) -> int:
        PagedManager.grow(self, steps)
        self._evict_overdraft()
        return 0

    def cache_full_blocks(self, holder: Holder) -> None:
        if holder.content is not None:
            self.cache_tokens(holder, self.length(holder) - holder.unknown)

    def cache_tokens(self, holder: Holder, tokens: int, *, over: bool = False) -> None:
        """Insert the first tokens of a holder into the tree, whole pages, and hold them there.

        Args:
            holder: the request whose tokens were computed.
            tokens: how many.
            over: whether the holder is dropped next: then no more of it is held in the tree.
        """
        page = self.block_size
        place: Place = holder.kv
        end = max(tokens - tokens % page, place.protected)
        if not end:
            return
        there, node = self._insert(holder, end)
        # Its own pages are so many fewer: some the tree had already, the others are the tree's now.
        self.free_blocks += (there - place.protected) // page
        self._named += (end - place.protected) // page
        prompt = holder.prompt - holder.prompt % page
        if self.cuts_answers and 0 < prompt < end:
            self.tree.insert(holder.content, prompt, prompt)
        place.protected = end
        if over:
            return
        begin = self.tree.lock(node)
        self.tree.unlock(place.node, place.begin)
        place.node, place.begin, place.seen = node, begin, max(end, place.seen)
        self._note()

    def release(self, holder: Holder) -> None:
        if holder.content is not None:
            self.cache_tokens(holder, self.length(holder) - holder.unknown, over=True)
        self.drop(holder)

    def drop(self, holder: Holder) -> None:
        """Release a holder without inserting anything."""
        if holder.decodes:
            self.stop_decoding(holder)
        self.free_blocks += (-(-holder.tokens // self.block_size)) - holder.kv.protected // self.block_size
        self._forget(holder)

    def make_blank(self, pages: int) -> int:
        """Evict until so many pages are blank, or nothing is left to evict; return how many are."""
        short = pages - (self.free_blocks - self._cached)
        if short > 0 and self._cached:
            self._note_evicted(self.tree.evict(short * self.block_size))
        return self.free_blocks - self._cached

    def end_samples(self, holder: Holder, samples: Sequence[int]) -> None:
        self._refuse_samples()

    def swap_out(self, holder: Holder) -> int:
        raise BlockManagerError("this memory has no swap space")

    def check_integrity(self) -> None:
        """Raise AssertionError unless the counts agree with the tree."""
        page, nodes = self.block_size, list(self.tree)
        assert all(node.tokens > 0 and node.tokens % page == 0 for node in nodes), "a node has no whole pages"
        held = sum([node.tokens for node in nodes if node.lock_ref])
        cached = sum([node.tokens for node in nodes]) - held
        assert (self.tree.protected, self.tree.evictable) == (held, cached), (
            "the tree's tokens are miscounted"
        )
        assert self._cached == cached // page, "cached pages are miscounted"
        assert self.shared_blocks == self._named - held // page >= 0, "shared pages are miscounted"
        assert 0 <= self._cached <= self.free_blocks <= self.num_blocks, "pages are miscounted"
        for node in nodes:
            parent = node.parent
            assert parent is not None
            assert parent.end == node.start, "a node does not follow its parent"
            assert node.lock_ref >= sum([child.lock_ref for child in node.children.values()]), (
                "a lock is lost"
            )

    # Inside

    def _found_for(self, holder: Holder) -> Node:
        """Return what ``match_prefix`` found last for a holder, as far as it is still there."""
        if self._found is None or self._found[0] is not holder:
            return self.tree.root
        _, node, most = self._found
        if node.parent is None and node is not self.tree.root:
            node = self.tree.match(holder.content, most)
            self._found = holder, node, most
        return node

    def _new_place(self, node: Node) -> Place:
        return Place(node, node.end)

    def _insert(self, holder: Holder, end: int) -> tuple[int, Node]:
        """Insert whole pages of a holder; return the tokens that were there, and the last node."""
        return self.tree.insert(holder.content, end, holder.kv.seen)

    def _note_evicted(self, tokens: int) -> None:
        self.evicted += tokens
        self._cached -= tokens // self.block_size

    def _note(self) -> None:
        """Count cached and shared pages anew after a change of the tree."""
        cached = self.tree.evictable // self.block_size
        self.free_blocks += cached - self._cached
        self._cached = cached
        self.shared_blocks = self._named - self.tree.protected // self.block_size

    def _forget(self, holder: Holder) -> None:
        """Hold nothing in the tree for a holder any more."""
        place: Place = holder.kv
        self._named -= place.protected // self.block_size
        self.tree.unlock(place.node, place.begin)
        self._note()

    def _evict_overdraft(self) -> None:
        """Evict as many pages as were taken beyond the blank ones."""
        if self.free_blocks < self._cached:
            self.make_blank(0)

    def _refuse_samples(self) -> None:
        raise BlockManagerError("a prefix cache serves every sample as a request of its own")
