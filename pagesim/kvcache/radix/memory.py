"""The block manager with a radix tree as its prefix cache, as in SGLang."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pagesim.kvcache.base import BlockManagerError
from pagesim.kvcache.groups import Full, KVGroup
from pagesim.kvcache.paged import PagedManager
from pagesim.kvcache.radix.eviction import EvictionPolicy
from pagesim.kvcache.radix.tree import Node, RadixTree
from pagesim.kvcache.sequence_group import SequenceGroup
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Place:
    """What `RadixManager` keeps with a request.

    Attributes:
        node: node at which the request's locked part of the tree ends.
        begin: the value that ``RadixTree.lock`` returned.
        protected: tokens of the locked part.
        seen: tokens of the request that were inserted at any time.
    """

    __slots__ = ("begin", "node", "protected", "seen")

    def __init__(self, node: Node, protected: int) -> None:
        self.node = node
        self.protected = protected
        self.seen = self.begin = 0


@mypyc_attr(allow_interpreted_subclasses=True)
class RadixManager(PagedManager):
    """A block manager for pages of one full-attention KV group, with a radix tree over the cached ones.

    A page is in the tree, owned by one sequence, or available. A sequence owns the pages that it computes
    until ``cache_tokens`` inserts them; pages that the tree already has are then freed. Free pages are the
    available ones and the cached ones: those in the tree that no sequence holds. Whole leaves are evicted,
    and only when available pages run short.

    Args:
        num_pages: pages on the device.
        page_size: tokens per page.
        policy: which leaf is evicted first.
        by_pairs: whether the tree is keyed by pairs of tokens.

    Attributes:
        tree: the cached prefixes.
        evicted: tokens evicted so far.
    """

    __slots__ = ("_found", "_named", "evicted", "tree")

    caches_prefixes = True

    cuts_answers: ClassVar[bool] = True
    """Whether a node is split at the end of the prompt, so that generated tokens can be evicted alone."""

    def __init__(
        self, num_pages: int, page_size: int = 1, *, policy: EvictionPolicy = "lru", by_pairs: bool = False
    ) -> None:
        super().__init__(num_pages, (KVGroup(page_size, Full()),))
        self.tree = RadixTree(page_size, policy, by_pairs=by_pairs)
        self.evicted = 0
        self._named = 0  # pages of the tree that sequences hold, counted once per sequence
        # The last look-up: request, matched node and tokens looked up.
        self._found: tuple[SequenceGroup, Node, int] | None = None

    # Questions

    @property
    def available_blocks(self) -> int:
        """Pages that are neither held nor in the tree."""
        return self.free_blocks - self.cached_blocks

    def match_prefix(self, request: SequenceGroup, tokens: int) -> int:
        if request.content is None:
            return 0
        node = self.tree.match(request.content, tokens - 1)
        self._found = request, node, tokens - 1
        return node.end

    def could_admit(self, request: SequenceGroup, tokens: int, spare: int = 0) -> bool:
        return self.blocks_for(tokens) + spare <= self.num_blocks  # empty memory has cached nothing

    def blocks_to_admit(self, request: SequenceGroup, tokens: int) -> int:
        self._check_single(request)
        node = self._found_for(request)
        return -(-tokens // self.block_size) + (self.tree.unlocked(node) - node.end) // self.block_size

    def caches_apart(self, requests: Sequence[SequenceGroup]) -> bool:
        """Return whether no page that these requests computed is in the tree or shared among them.

        If so, ``cache_tokens`` changes no page counts when it inserts them.
        """
        begin: set[tuple[Node, int]] = set()
        for request in requests:
            node: Node = request.block_state.node
            key = self.tree.key(request.content, node.end)
            if key in node.children or (node, key) in begin:
                return False
            begin.add((node, key))
        return True

    def exclusive_blocks(self, requests: Sequence[SequenceGroup]) -> list[int]:
        blocks, page = 0, self.block_size
        for request in requests:
            place: Place = request.block_state
            blocks += self.held_blocks(request) - place.protected // page
        own = self.tree.held_alone([request.block_state.node for request in requests])
        return [blocks + own // page]

    # Changes

    def protect(self, request: SequenceGroup) -> None:
        """Lock what ``match_prefix`` matched last for a request; ``admit`` takes it over."""
        node = self._found_for(request)
        self._found = None
        request.block_state = place = self._new_place(node)
        self._named += place.protected // self.block_size
        place.begin = self.tree.lock(node)
        self._note()

    def unprotect(self, request: SequenceGroup) -> None:
        """Unlock what is protected for a request that is not admitted."""
        self._forget(request)
        request.block_state = None

    def admit(self, request: SequenceGroup, tokens: int) -> None:
        if request.block_state is None:
            blocks = self.blocks_to_admit(request, tokens)
            self._check_room(blocks)
            self.protect(request)
        place: Place = request.block_state
        request.tokens = tokens
        self.free_blocks -= -(-tokens // self.block_size) - place.protected // self.block_size
        self._evict_overdraft()

    def extend(self, request: SequenceGroup, tokens: int) -> None:
        super().extend(request, tokens)
        self._evict_overdraft()

    def allocate_step(self, steps: int = 1) -> int:
        PagedManager.allocate_step(self, steps)
        self._evict_overdraft()
        return 0

    def cache_full_blocks(self, request: SequenceGroup) -> None:
        if request.content is not None:
            self.cache_tokens(request, self.length(request) - request.uncommitted_tokens)

    def cache_tokens(self, request: SequenceGroup, tokens: int, *, over: bool = False) -> None:
        """Insert the leading whole pages of a request into the tree and lock them there.

        Args:
            request: request whose tokens were computed.
            tokens: number of leading tokens.
            over: whether the request is dropped next; then no more of it is locked.
        """
        page, tree = self.block_size, self.tree
        place: Place = request.block_state
        end = max(tree.whole_pages(tokens), place.protected)
        if not end:
            return
        there, node = self._insert(request, end)
        # The request owns fewer pages now: the tree had some already and has taken over the others.
        self.free_blocks += (there - place.protected) // page
        self._named += (end - place.protected) // page
        prompt = tree.whole_pages(request.prompt)
        if self.cuts_answers and 0 < prompt < end:
            tree.insert(request.content, prompt, prompt)
        place.protected = end
        if over:
            return
        begin = tree.lock(node)
        tree.unlock(place.node, place.begin)
        place.node, place.begin, place.seen = node, begin, max(end, place.seen)
        self._note()

    def release(self, request: SequenceGroup) -> None:
        if request.content is not None:
            self.cache_tokens(request, self.length(request) - request.uncommitted_tokens, over=True)
        self.drop(request)

    def drop(self, request: SequenceGroup) -> None:
        """Release a request without inserting anything."""
        if request.decodes:
            self.stop_decoding(request)
        self.free_blocks += (
            -(-request.tokens // self.block_size)
        ) - request.block_state.protected // self.block_size
        self._forget(request)

    def make_available(self, pages: int) -> int:
        """Evict until ``pages`` pages are available or nothing is evictable; return the available pages."""
        short = pages - (self.free_blocks - self.cached_blocks)
        if short > 0 and self.cached_blocks:
            self._note_evicted(self.tree.evict(short * self.block_size))
        return self.free_blocks - self.cached_blocks

    def swap_out(self, request: SequenceGroup) -> int:
        raise BlockManagerError("this memory has no swap space")

    def check_integrity(self) -> None:
        """Raise AssertionError unless the counts agree with the tree."""
        page, nodes = self.block_size, self._nodes()
        assert all(node.tokens > 0 and node.tokens % page == 0 for node in nodes), "a node has no whole pages"
        held = sum([node.tokens for node in nodes if node.lock_ref])
        cached = sum([node.tokens for node in nodes]) - held
        assert (self.tree.protected, self.tree.evictable) == (held, cached), (
            "the tree's tokens are miscounted"
        )
        apart = self._held_by_copies()
        assert self.cached_blocks == (cached + apart) // page, "cached pages are miscounted"
        assert self.shared_blocks == self._named - (held - apart) // page >= 0, "shared pages are miscounted"
        assert 0 <= self.cached_blocks <= self.free_blocks <= self.num_blocks, "pages are miscounted"
        for node in nodes:
            parent = node.parent
            assert parent is not None
            assert parent.end == node.start, "a node does not follow its parent"
            assert node.lock_ref >= sum([child.lock_ref for child in node.children.values()]), (
                "a lock is lost"
            )

    # Inside

    def _found_for(self, request: SequenceGroup) -> Node:
        """Return what is still cached of the prefix that ``match_prefix`` matched last for a request."""
        if self._found is None or self._found[0] is not request:
            return self.tree.root
        _, node, most = self._found
        if node.parent is None and node is not self.tree.root:
            node = self.tree.match(request.content, most)
            self._found = request, node, most
        return self.tree.device_part(node)

    def _new_place(self, node: Node) -> Place:
        return Place(node, node.end)

    def _insert(self, request: SequenceGroup, end: int) -> tuple[int, Node]:
        """Insert whole pages of a request; return the tokens already in the tree, and the last node."""
        return self.tree.insert(request.content, end, request.block_state.seen)

    def _nodes(self) -> list[Node]:
        """Return the nodes on the device, except the root."""
        return list(self.tree)

    def _held_by_copies(self) -> int:
        """Return the tokens of the tree that copies in progress hold, but no sequence: here none."""
        return 0

    def _note_evicted(self, tokens: int) -> None:
        self.evicted += tokens
        self.cached_blocks -= tokens // self.block_size

    def _note(self) -> None:
        """Update the counts of cached and shared pages after a change of the tree."""
        apart = self._held_by_copies()
        cached = (self.tree.evictable + apart) // self.block_size
        self.free_blocks += cached - self.cached_blocks
        self.cached_blocks = cached
        self.shared_blocks = self._named - (self.tree.protected - apart) // self.block_size

    def _forget(self, request: SequenceGroup) -> None:
        """Unlock everything that a request holds in the tree."""
        place: Place = request.block_state
        self._named -= place.protected // self.block_size
        self.tree.unlock(place.node, place.begin)
        self._note()

    def _evict_overdraft(self) -> None:
        """Evict as many pages as were allocated beyond the available ones."""
        if self.free_blocks < self.cached_blocks:
            self.make_available(0)
