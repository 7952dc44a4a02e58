"""SGLang's radix tree for models with sliding windows: which prefixes also have their window's KV.

Source: SGLang 0.5.23, ``srt/mem_cache/unified_radix_cache.py`` and the tree core behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

from pagesim.kvcache.radix.eviction import EvictionPolicy
from pagesim.kvcache.radix.tree import Node, RadixTree, Text


class WindowNode(Node):
    """A node that may also have the window layers' KV on the device; without it, it is a tombstone.

    Attributes:
        is_live: whether it has window slots.
        window_lock_ref: number of sequences that hold its window slots, or would if it had any.
        newer, older: neighbours in the eviction order of window slots, for live nodes.
    """

    __slots__ = ("is_live", "newer", "older", "window_lock_ref")

    parent: WindowNode | None

    def __init__(self, content: Text, start: int, end: int, parent: Node | None, used: float) -> None:
        super().__init__(content, start, end, parent, used)
        self.is_live = False
        self.window_lock_ref = 0
        self.newer = self.older = self


class WindowedTree(RadixTree):
    """A tree over two pools: every node has full slots, and live nodes have window slots as well.

    A prefix is a hit if live nodes cover its last window, or all of it. Window slots have their own eviction
    order. A node moves in it only when it is matched or inserted, when it becomes live, and when it is split.

    Args:
        page: tokens per page.
        window: tokens of the window.
        policy: which leaf is evicted first when full slots are short.
        by_pairs: whether the tree is keyed by pairs of tokens.

    Attributes:
        window: tokens of the window.
        span: tokens of the pages that a window occupies.
        window_evictable: tokens of live nodes whose window slots no sequence holds.
        window_protected: tokens of all other live nodes.
        reached: tokens of the last look-up that have full slots, whether or not they were a hit.
    """

    __slots__ = ("reached", "span", "window", "window_evictable", "window_protected")

    kind: ClassVar[type[Node]] = WindowNode
    root: WindowNode

    def __init__(
        self, page: int, window: int, policy: EvictionPolicy = "lru", *, by_pairs: bool = False
    ) -> None:
        super().__init__(page, policy, by_pairs=by_pairs)
        self.window = window
        self.window_evictable = self.window_protected = 0
        self.reached = 0
        self.span = -(-window // page) * page

    @property
    def window_tokens(self) -> int:
        """Tokens that have window slots."""
        return self.window_evictable + self.window_protected

    def match(self, content: Text, tokens: int) -> WindowNode:
        """Return the node at which the longest prefix that also has its window slots ends.

        Only the matched nodes are touched. ``reached`` is set to the tokens that have full slots.
        """
        self.reached = 0
        end = self.whole_pages(tokens)
        if not end:
            return self.root
        deepest = self._walk(content, end)
        self.reached = deepest.end
        node = self._usable(_windowed(deepest))
        self._renew(node)
        self._touch(node)
        return node

    def add(self, content: Text, tokens: int, seen: int, own: int) -> tuple[int, Node]:
        """Insert a prefix as ``insert`` does, together with the window slots that the sequence owns.

        Args:
            content: content of the sequence.
            tokens: length of the prefix in whole pages; in entries if the tree is keyed by pairs.
            seen: tokens of this sequence that were inserted before; nodes up to there count no new hit.
            own: first token from which on the sequence owns the window slots. They become the slots of nodes
                that have none.

        Returns:
            The tokens that were in the tree already, and the node at which the prefix ends.
        """
        there, node = self.insert(content, tokens, seen, partial(self._supply, own))
        self._renew(_windowed(node))
        return there, node

    def lock(self, node: Node) -> int:
        """Lock a prefix and, in whole nodes, the window slots at its end; return where these begin."""
        super().lock(node)
        begin = node.start
        for held in self._ending(node, self.window):
            if held.is_live and not held.window_lock_ref:
                self.window_evictable -= held.tokens
                self.window_protected += held.tokens
            held.window_lock_ref += 1
            begin = held.start
        return begin

    def unlock(self, node: Node, begin: int = 0) -> None:
        """Undo ``lock``; nodes may have been split since."""
        held = _windowed(node)
        while held.end > begin and (parent := held.parent) is not None:
            held.window_lock_ref -= 1
            if held.is_live and not held.window_lock_ref:
                self.window_evictable += held.tokens
                self.window_protected -= held.tokens
            held = parent
        super().unlock(node)

    def unlocked_window(self, node: Node) -> int:
        """Return the tokens of window slots that ``lock`` would newly protect."""
        nodes = self._ending(node, self.window)
        return sum([each.tokens for each in nodes if each.is_live and not each.window_lock_ref])

    def evict_windows(self, tokens: int) -> int:
        """Evict window slots until ``tokens`` are evicted or all that remain are locked.

        An unlocked leaf is evicted as a whole; any other node becomes a tombstone.

        Returns:
            The tokens whose full slots were evicted, too.
        """
        enough, gone = self.window_tokens - tokens, 0
        node = self.root.newer
        while self.window_tokens > enough and node is not self.root:
            newer = node.newer
            if not node.window_lock_ref:
                if node.is_evictable:
                    gone += node.tokens
                    self._remove(node)
                else:
                    self._bury(node)
            node = newer
        self.evictable -= gone
        return gone

    def by_recency(self) -> Iterator[WindowNode]:
        """Yield the live nodes in reverse eviction order."""
        node = self.root.older
        while node is not self.root:
            yield node
            node = node.older

    # Inside

    def _usable(self, node: WindowNode) -> WindowNode:
        """Return the deepest node on the path whose last window, or whole prefix, live nodes cover."""
        last, covered, each = node, 0, node
        while (parent := each.parent) is not None:
            if each.is_live:
                covered += each.tokens
                if covered >= self.window:
                    return last
            else:
                last, covered = parent, 0
            each = parent
        return last

    def _ending(self, node: Node, tokens: int) -> list[WindowNode]:
        """Return the nodes that contain the last ``tokens`` tokens of a prefix, the last node first."""
        found, covered, each = [], 0, _windowed(node)
        while covered < tokens and (parent := each.parent) is not None:
            found.append(each)
            covered += each.tokens
            each = parent
        return found

    def _renew(self, node: WindowNode) -> None:
        """Make a node the newest and its ancestors the next newest, as far as a window plus a page reach."""
        newer = self.root
        for each in self._ending(node, self.window + self.page):
            if each.is_live:
                _take_out(each)
                _put_behind(newer, each)
                newer = each

    def _supply(self, own: int, node: Node, is_new: bool) -> None:
        """Make the part of a tombstone live whose window slots a sequence owns, from token ``own`` on."""
        lower = _windowed(node)
        if lower.is_live or own >= lower.end:
            return
        if own > lower.start:
            self._split(lower, own)
        if is_new and lower.tokens > self.span:
            # A sequence that locks the leaf then locks only a window of it.
            self._revive(self._split(lower, lower.end - self.span))
        self._revive(lower)

    def _revive(self, node: WindowNode) -> None:
        node.is_live = True
        _put_behind(self.root, node)
        if node.window_lock_ref:
            self.window_protected += node.tokens
        else:
            self.window_evictable += node.tokens

    def _bury(self, node: WindowNode) -> None:
        """Evict the window slots of a node that no sequence holds."""
        node.is_live = False
        _take_out(node)
        self.window_evictable -= node.tokens

    def _remove(self, leaf: Node) -> None:
        leaf = _windowed(leaf)
        if leaf.is_live:
            self._bury(leaf)
        super()._remove(leaf)

    def _split(self, node: Node, at: int) -> WindowNode:
        lower, upper = _windowed(node), _windowed(super()._split(node, at))
        upper.is_live, upper.window_lock_ref = lower.is_live, lower.window_lock_ref
        if upper.is_live:
            _put_behind(lower, upper)
        return upper


def _windowed(node: Node) -> WindowNode:
    assert isinstance(node, WindowNode)
    return node


# A ring: the root, which is never live, links the newest node to the oldest one.


def _put_behind(newer: WindowNode, node: WindowNode) -> None:
    older = newer.older
    node.newer, node.older = newer, older
    newer.older = older.newer = node


def _take_out(node: WindowNode) -> None:
    node.newer.older, node.older.newer = node.older, node.newer
    node.newer = node.older = node
