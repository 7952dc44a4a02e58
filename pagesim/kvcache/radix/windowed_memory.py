"""The block manager with two pools and one radix tree, as in SGLang for models with sliding windows."""

from __future__ import annotations

from typing import NamedTuple

from pagesim.allocators import OutOfBlocks
from pagesim.kvcache.radix.eviction import EvictionPolicy
from pagesim.kvcache.radix.memory import Place, RadixManager
from pagesim.kvcache.radix.tree import Node
from pagesim.kvcache.radix.windowed import WindowedTree
from pagesim.kvcache.sequence_group import SequenceGroup


class WindowPool(NamedTuple):
    """The second pool, of the layers with a sliding window.

    Attributes:
        window: tokens of the window.
        num_blocks: pages of the pool, each with as many tokens as one of the first pool.
    """

    window: int
    num_blocks: int


class WindowPlace(Place):
    """What `WindowedRadixManager` keeps with a request, in addition to `RadixManager`.

    Attributes:
        gone: leading tokens whose window slots it has freed.
        branch: leading tokens with full slots in the tree, if these are more than the hit; else 0.
        parts: number of iterations in which its prompt has run.
    """

    __slots__ = ("branch", "gone", "parts")

    def __init__(self, node: Node, protected: int, branch: int) -> None:
        super().__init__(node, protected)
        self.branch = branch
        self.gone = 0
        self.parts = 1


class WindowedRadixManager(RadixManager):
    """A `RadixManager` with two pools: one of full-attention layers, one of layers with a window.

    Pages are always allocated from both pools. In the second, a request frees what has left its window
    (``slide``), and the tree may have evicted what it still has in the first. All counts of blocks are those
    of the first pool. Blocks can be allocated only if the second pool has as many.

    Args:
        num_pages: pages of the first pool.
        page_size: tokens per page.
        windows: the second pool.
        policy: which leaf is evicted first.
        caches: whether requests have contents to cache.
        by_pairs: whether the tree is keyed by pairs of tokens.

    Attributes:
        windows: the second pool, of the layers with a window.
    """

    __slots__ = ("_ahead", "_kept", "_reached", "windows")

    tree: WindowedTree
    cuts_answers = False

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        windows: WindowPool,
        *,
        policy: EvictionPolicy = "lru",
        caches: bool = True,
        by_pairs: bool = False,
    ) -> None:
        super().__init__(num_pages, page_size, policy=policy, by_pairs=by_pairs)
        self.tree = WindowedTree(page_size, windows.window, policy, by_pairs=by_pairs)
        self.windows = windows
        # How many more available pages the first pool has; allocations take from both.
        self._ahead = num_pages - windows.num_blocks
        self._kept = self.tree.span if caches else windows.window
        self._reached = 0  # tokens of the last look-up that have full slots

    # Questions

    @property
    def available_window_blocks(self) -> int:
        """Pages of the second pool that are neither held nor in the tree."""
        return self.available_blocks - self._ahead

    @property
    def free_window_blocks(self) -> int:
        """Pages of the second pool that no sequence holds."""
        return self.available_window_blocks + self.tree.window_evictable // self.block_size

    def match_prefix(self, request: SequenceGroup, tokens: int) -> int:
        self.tree.reached = 0
        found = super().match_prefix(request, tokens)
        self._reached = self.tree.reached
        return found

    def could_admit(self, request: SequenceGroup, tokens: int, spare: int = 0) -> bool:
        fits = self.blocks_for(tokens) <= self.windows.num_blocks
        return fits and super().could_admit(request, tokens, spare)

    def can_admit(self, request: SequenceGroup, tokens: int, spare: int = 0, length: int = 0) -> bool:
        if not super().can_admit(request, tokens, spare, length):
            return False
        node = self._found_for(request)
        pages = (
            self.blocks_for(max(tokens, length))
            + (self.tree.unlocked_window(node) - node.end) // self.block_size
        )
        return pages <= self.free_window_blocks

    def steps_that_fit(self, steps: int, spare: int) -> int:
        steps = super().steps_that_fit(steps, spare)
        # The second pool must have room, too; its free pages include those that the tree can evict.
        return super().steps_that_fit(steps, self.free_blocks - self.free_window_blocks) if steps else 0

    # Changes

    def protect(self, request: SequenceGroup) -> None:
        if self._found is None or self._found[0] is not request:
            self._reached = 0
        super().protect(request)

    def admit(self, request: SequenceGroup, tokens: int) -> None:
        if request.block_state is None and not self.can_admit(request, tokens):
            self._check_room(self.blocks_to_admit(request, tokens))
            raise OutOfBlocks(f"the window pool has {self.free_window_blocks} blocks free; more are needed")
        super().admit(request, tokens)

    def allocate_step(self, steps: int = 1) -> int:
        self._check_room(self.blocks_needed(steps))
        return super().allocate_step(steps)

    def try_allocate_step(self, spare: int) -> int:
        return super().try_allocate_step(spare) if self.blocks_needed(1) <= self.free_window_blocks else -1

    def slide(self, request: SequenceGroup, computed: int) -> None:
        """Free a request's window slots that no token after the first ``computed`` attends to."""
        place: WindowPlace = request.block_state
        if computed - self.windows.window < place.gone + 1:
            return
        page, first = self.block_size, max(place.gone, place.protected)
        left = max(first, computed - self._kept)
        place.gone = gone = left - left % page
        self._ahead -= (gone - first) // page

    def cache_tokens(self, request: SequenceGroup, tokens: int, *, over: bool = False) -> None:
        """Insert the leading tokens of a request into the tree, and free what has left its window.

        If more of its prompt had full slots in the tree than matched, only that much is inserted: otherwise
        the window slots at the end of that part would be lost.
        """
        place: WindowPlace = request.block_state
        behind = self.tree.behind
        entries = tokens - behind
        branches = place.protected < place.branch <= entries
        end = place.branch if branches else entries
        if not over:
            self.slide(request, end - 1)
        super().cache_tokens(request, end + behind, over=over)
        if branches:
            place.branch = 0
            if not over:
                self.slide(request, entries - 1)

    def drop(self, request: SequenceGroup) -> None:
        place: WindowPlace = request.block_state
        self._ahead += (max(place.protected, place.gone) - place.protected) // self.block_size
        super().drop(request)

    def make_available(self, pages: int) -> int:
        """Evict until ``pages`` pages are available in both pools, or nothing evictable is left.

        Returns:
            The pages available in both.
        """
        tree, page = self.tree, self.block_size
        if pages > self.available_blocks:
            live, available = tree.window_tokens, self.available_blocks
            super().make_available(pages)
            self._ahead += self.available_blocks - available - (live - tree.window_tokens) // page
        short = pages - self.available_window_blocks
        if short > 0 and tree.window_evictable:
            live = tree.window_tokens
            gone = tree.evict_windows(short * page)
            self._note_evicted(gone)
            self._ahead += (gone - (live - tree.window_tokens)) // page
        return min(self.available_blocks, self.available_window_blocks)

    def check_integrity(self) -> None:
        super().check_integrity()
        tree, page, live = self.tree, self.block_size, list(self.tree.by_recency())
        nodes = [node for node in tree if node.is_live]  # type: ignore[attr-defined]
        assert len(live) == len(nodes), "a live node is in no order of eviction, or a tombstone is"
        assert set(live) == set(nodes), "a node in the order of eviction is not in the tree"
        held = sum([node.tokens for node in live if node.window_lock_ref])
        cached = sum([node.tokens for node in live]) - held
        assert (tree.window_protected, tree.window_evictable) == (held, cached), (
            "window tokens are miscounted"
        )
        assert all(node.window_lock_ref <= node.lock_ref for node in live), (
            "window slots are held and not the node"
        )
        left = self.windows.num_blocks - self.available_window_blocks - (held + cached) // page
        assert 0 <= left <= self.num_blocks, "pages of the window pool are miscounted"
        assert self.available_window_blocks >= 0, "pages of the window pool were taken that there are not"

    # Inside

    def _new_place(self, node: Node) -> WindowPlace:
        reached = self._reached
        self._reached = 0
        return WindowPlace(node, node.end, reached if reached > node.end else 0)

    def _insert(self, request: SequenceGroup, end: int) -> tuple[int, Node]:
        place: WindowPlace = request.block_state
        tree, own = self.tree, max(place.protected, place.gone)
        live = tree.window_tokens
        there, node = tree.add(request.content, end, place.seen, own)
        # Pages that it no longer owns now belong to the tree, or are available if the tree had them.
        available = max(end, own) - own - (tree.window_tokens - live)
        self._ahead += (there - place.protected - available) // self.block_size
        return there, node

    def _check_room(self, blocks: int) -> None:
        super()._check_room(blocks)
        if blocks > self.free_window_blocks:
            raise OutOfBlocks(
                f"{blocks} blocks are needed, {self.free_window_blocks} of the window pool are free"
            )

    def _evict_overdraft(self) -> None:
        if self.available_blocks < 0 or self.available_window_blocks < 0:
            self.make_available(0)
