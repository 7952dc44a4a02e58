"""SGLang's radix tree: the cached prefixes, in whole pages, and how they are touched and evicted.

Source: SGLang 0.5.23, ``srt/mem_cache/unified_radix_cache.py`` and the tree core behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar, Protocol, Self

from pagesim.kvcache.radix.eviction import EvictionOrder, EvictionPolicy
from pagesim.setup.compiled import mypyc_attr

_HAIR = 1e-5
"""How much older a matched node's last access is than that of its child on the path."""


class Text(Protocol):
    """The identity of a sequence's tokens, by which shared prefixes are recognised."""

    def key_at(self, tokens: int) -> int:
        """Return a name for the first ``tokens`` tokens; equal in two contents if all of these are equal."""

    def common_tokens(self, other: Self, most: int) -> int:
        """Return how many of the first ``most`` tokens are shared with another content."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Node:
    """A node of the tree: the tokens that continue its parent's, with their KV on the device.

    Attributes:
        content: content of a sequence that has these tokens.
        start, end: the node's range, in tokens from the beginning of the sequence; whole pages.
        key: name of its first page, its key in the parent's ``children``.
        parent: parent node; None for the root and for an evicted node.
        children: child nodes by the name of their first page, in insertion order.
        lock_ref: number of sequences that hold this node or a descendant.
        last_access: time of its last touch; the clock counts the tree's touches.
        created: time of its insertion.
        hit_count: number of insertions through it by sequences that had not been inserted this far.
    """

    __slots__ = (
        "children",
        "content",
        "created",
        "end",
        "hit_count",
        "key",
        "last_access",
        "lock_ref",
        "parent",
        "start",
    )

    last_access: float
    created: float
    hit_count: int

    def __init__(self, content: Text, start: int, end: int, parent: Node | None, used: float) -> None:
        self.content = content
        self.start = start
        self.end = end
        self.parent = parent
        self.children: dict[int, Node] = {}
        self.key = self.lock_ref = 0
        self.last_access = self.created = used
        self.hit_count = 0

    @property
    def tokens(self) -> int:
        """Number of tokens of the node."""
        return self.end - self.start

    @property
    def is_evictable(self) -> bool:
        """Whether the node can be evicted: it is a leaf that no sequence holds."""
        return not (self.lock_ref or self.children) and self.parent is not None


@mypyc_attr(allow_interpreted_subclasses=True)
class RadixTree:
    """The radix tree; a prefix is identified by the node at which it ends. Lengths are in tokens.

    If the tree is keyed by pairs, as with EAGLE, an entry is a token and its successor. N tokens are then
    N - 1 entries, and a prefix matches only if the token after it is equal, too.

    Args:
        page: tokens per page; the tree only stores whole pages.
        policy: which leaf is evicted first.
        by_pairs: whether the tree is keyed by pairs of tokens; its lengths are then in entries.

    Attributes:
        page: tokens per page.
        behind: further tokens that an entry covers: 1 if the tree is keyed by pairs, else 0.
        root: root node, without tokens; it is never evicted.
        evictable: tokens of nodes that no sequence holds.
        protected: tokens of all other nodes.
        touches: touches of nodes so far; the clock that dates them.
    """

    __slots__ = ("_order", "behind", "evictable", "page", "protected", "root", "touches")

    kind: ClassVar[type[Node]] = Node
    """The class of its nodes."""

    def __init__(self, page: int, policy: EvictionPolicy = "lru", *, by_pairs: bool = False) -> None:
        self.page = page
        self.behind = int(by_pairs)
        self.root = self.kind(_Nothing(), 0, 0, None, 0.0)
        self.evictable = 0
        self.protected = 0
        self.touches = 0.0
        self._order = EvictionOrder(policy)

    def __iter__(self) -> Iterator[Node]:
        """Yield every node except the root, parents before children, siblings in insertion order."""
        left = list(reversed(self.root.children.values()))
        while left:
            node = left.pop()
            yield node
            left.extend(reversed(node.children.values()))

    def whole_pages(self, tokens: int) -> int:
        """Return how many entries, in whole pages, of a prefix of ``tokens`` tokens the tree can store."""
        entries = tokens - self.behind
        return entries - entries % self.page if entries > 0 else 0

    def key(self, content: Text, at: int) -> int:
        """Return the key of a node whose first page begins at ``at``."""
        return content.key_at(at + self.page + self.behind)

    def match(self, content: Text, tokens: int) -> Node:
        """Return the node at which the longest cached prefix of the first ``tokens`` tokens ends.

        All nodes on the path are touched, the returned one last. A node that matches only in part is split.
        """
        end = self.whole_pages(tokens)
        if not end:
            return self.root
        node = self._walk(content, end)
        self._touch(node)
        return node

    def insert(
        self,
        content: Text,
        tokens: int,
        seen: int = 0,
        met: Callable[[Node, bool], None] | None = None,
    ) -> tuple[int, Node]:
        """Insert a prefix of whole pages; every node on the path is touched, the last one last.

        Args:
            content: content of a sequence that begins with the prefix.
            tokens: length of the prefix in whole pages; in entries if the tree is keyed by pairs.
            seen: tokens of this sequence that were inserted before; nodes up to there count no new hit.
            met: callback for each node on the path, given whether the node is new; it may split the node.

        Returns:
            The tokens that were in the tree already, and the node at which the prefix ends.
        """
        first, node, at = self.page + self.behind, self.root, 0
        self.touches += 1.0
        node.last_access = self.touches
        while at < tokens:
            key = content.key_at(at + first)
            child, there = node.children.get(key), at
            is_new = child is None
            self.touches += 1.0
            if child is None:
                child = node.children[key] = self.kind(content, at, tokens, node, self.touches)
                child.key = key
                self.evictable += tokens - at
                at = tokens
            else:
                child.last_access = self.touches
                at = self._same(content, child, tokens)
                if at < child.end:
                    child = self._split(child, at)
            node = child
            if met is not None:
                met(node, is_new)
            if at > seen:
                node.hit_count += 1
            if is_new:
                self._order.offer(node)
                return there, node
        return at, node

    def device_part(self, node: Node) -> Node:
        """Return the node at which the part of a prefix on the device ends: here, the node itself."""
        return node

    def lock(self, node: Node) -> int:
        """Lock a prefix so that none of it is evicted; return the token from which the lock applies."""
        newly = 0
        while (parent := node.parent) is not None:
            if not node.lock_ref:
                newly += node.end - node.start
            node.lock_ref += 1
            node = parent
        self.evictable -= newly
        self.protected += newly
        return 0

    def unlock(self, node: Node, begin: int = 0) -> None:
        """Unlock a prefix; ``begin`` is the value that ``lock`` returned."""
        gone = 0
        while (parent := node.parent) is not None:
            node.lock_ref = locks = node.lock_ref - 1
            if not locks:
                gone += node.end - node.start
                if node.is_evictable:
                    self._order.offer(node)
            node = parent
        self.evictable += gone
        self.protected -= gone

    def unlocked(self, node: Node) -> int:
        """Return the tokens of a prefix that no sequence holds."""
        tokens = 0
        while node.parent is not None and not node.lock_ref:
            tokens += node.end - node.start
            node = node.parent
        return tokens

    def held_alone(self, ends: Iterable[Node]) -> int:
        """Return the tokens held only by the sequences whose prefixes end at these nodes, one per node."""
        locks: dict[Node, int] = {}
        for node in ends:
            while node.parent is not None:
                locks[node] = locks.get(node, 0) + 1
                node = node.parent
        return sum([node.tokens for node, count in locks.items() if count == node.lock_ref])

    def evict(self, tokens: int) -> int:
        """Evict whole leaves until ``tokens`` tokens are evicted or no leaf is left; return how many were."""
        gone, order = 0, self._order
        while gone < tokens and (node := order.pop()) is not None:
            gone += node.end - node.start
            self._remove(node)
        self.evictable -= gone
        return gone

    def _walk(self, content: Text, end: int) -> Node:
        """Return the node at which the longest prefix in the tree ends, splitting a node if necessary."""
        first, node, at = self.page + self.behind, self.root, 0
        while at < end:
            child = node.children.get(content.key_at(at + first))
            if child is None:
                break
            at = self._same(content, child, end)
            if at < child.end:
                return self._split(child, at)
            node = child
        return node

    def _touch(self, node: Node) -> None:
        """Touch a matched node and its ancestors, each slightly earlier than the one below."""
        self.touches += 1.0
        used = self.touches
        while True:
            node.last_access = used
            parent = node.parent
            if parent is None:
                return
            used -= _HAIR
            node = parent

    def _remove(self, leaf: Node) -> None:
        """Remove a leaf from the tree."""
        parent = leaf.parent
        assert parent is not None
        del parent.children[leaf.key]
        leaf.parent = None
        if parent.is_evictable:
            self._order.offer(parent)

    def _tick(self) -> float:
        self.touches += 1.0
        return self.touches

    def _same(self, content: Text, child: Node, tokens: int) -> int:
        """Return the token up to which a content matches a child whose first page it shares."""
        most = child.end if child.end < tokens else tokens
        if child.content is content:
            return most
        return self.whole_pages(content.common_tokens(child.content, most + self.behind))

    def _split(self, node: Node, at: int) -> Node:
        """Split a node; return the new upper part. The lower one is touched last and keeps its identity."""
        parent = node.parent
        assert parent is not None
        upper = self.kind(node.content, node.start, at, parent, self._tick())
        upper.created, upper.lock_ref, upper.hit_count = node.created, node.lock_ref, node.hit_count
        upper.key, node.key = node.key, self.key(node.content, at)
        parent.children[upper.key] = upper
        upper.children[node.key] = node
        node.start, node.parent = at, upper
        node.last_access = self._tick()
        return upper


@mypyc_attr(allow_interpreted_subclasses=True)
class _Nothing:
    """The root's empty content."""

    def key_at(self, tokens: int) -> int:
        return 0

    def common_tokens(self, other: Text, most: int) -> int:
        return 0
