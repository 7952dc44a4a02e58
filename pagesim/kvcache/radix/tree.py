"""The radix tree of SGLang: which prefixes are cached, page by page, and what touches them.

Source: SGLang 0.5.23, ``srt/mem_cache/unified_radix_cache.py`` and the tree core behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar, Protocol, Self

from pagesim.kvcache.radix.eviction import EvictionOrder, EvictionPolicy
from pagesim.setup.compiled import mypyc_attr

_HAIR = 1e-5
"""By how much a node is older than its child that was found with it."""


class Text(Protocol):
    """What a sequence's tokens are, as far as another one may have the same ones."""

    def key_at(self, tokens: int) -> int:
        """Name the first tokens: two contents have one name for them where all of them are the same."""

    def common_tokens(self, other: Self, most: int) -> int:
        """Return how many of so many first tokens are the same as another content's."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Node:
    """A stretch of tokens that follows its parent's; its KV is on the device.

    Attributes:
        content: of a sequence that has these tokens.
        start, end: the stretch, in tokens from the beginning of the sequence; whole pages.
        key: the name of its first page, by which its parent has it.
        parent: None for the root, and for a node that was evicted.
        children: by the name of their first page, in the order in which they were inserted.
        lock_ref: sequences that hold this stretch or one behind it.
        last_access: when it was touched last; the tree counts touches.
        created: when it was inserted.
        hit_count: how often a sequence was inserted through it that had not been before.
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
        """Tokens of the stretch."""
        return self.end - self.start

    @property
    def is_evictable(self) -> bool:
        """Whether it can be evicted: a leaf that no sequence holds."""
        return not (self.lock_ref or self.children) and self.parent is not None


@mypyc_attr(allow_interpreted_subclasses=True)
class RadixTree:
    """The tree; a prefix in it is named by the node with which it ends. Lengths are in tokens.

    Keyed by pairs, as under EAGLE, a token is in it together with the one behind it: N tokens are N - 1
    entries, and a prefix of so many entries is found only where the token behind it is the same, too.

    Args:
        page: tokens of a page; a part of one is never in the tree.
        policy: which leaf is evicted first.
        by_pairs: whether it is keyed by pairs of tokens; its lengths are in entries then.

    Attributes:
        page: tokens of a page.
        behind: tokens behind an entry that belong to it: 1 by pairs, or 0.
        root: of no tokens; it is never evicted.
        evictable: tokens of nodes that no sequence holds.
        protected: tokens of all others.
        touches: of nodes since the beginning, by which each node's are dated.
    """

    __slots__ = ("_order", "behind", "evictable", "page", "protected", "root", "touches")

    kind: ClassVar[type[Node]] = Node
    """Of what its nodes are."""

    def __init__(self, page: int, policy: EvictionPolicy = "lru", *, by_pairs: bool = False) -> None:
        self.page = page
        self.behind = int(by_pairs)
        self.root = self.kind(_Nothing(), 0, 0, None, 0.0)
        self.evictable = 0
        self.protected = 0
        self.touches = 0.0
        self._order = EvictionOrder(policy)

    def __iter__(self) -> Iterator[Node]:
        """Yield every node but the root, a node before its children, in the order of insertion."""
        left = list(reversed(self.root.children.values()))
        while left:
            node = left.pop()
            yield node
            left.extend(reversed(node.children.values()))

    def whole_pages(self, tokens: int) -> int:
        """Return how much of so many first tokens can be in the tree: entries of whole pages."""
        entries = tokens - self.behind
        return entries - entries % self.page if entries > 0 else 0

    def key(self, content: Text, at: int) -> int:
        """Name the page that begins there, by which its node's parent has it."""
        return content.key_at(at + self.page + self.behind)

    def match(self, content: Text, tokens: int) -> Node:
        """Return the node with which the longest cached prefix of some first tokens ends.

        Every node up to it is touched, the one found last; a node of which only a part is found is split.
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
        """Insert some first tokens, whole pages; every node on the way is touched, the last one last.

        Args:
            content: of a sequence that begins with them.
            tokens: whole pages, of entries where it is keyed by pairs.
            seen: tokens of this sequence that were inserted before; a node that ends there has no new hit.
            met: called with each node on the way, and whether it is new; it may split the node.

        Returns:
            The tokens that were there already, and the node with which the others end.
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
        """Return the node with which the part of a prefix ends that is on the device: here all of it."""
        return node

    def lock(self, node: Node) -> int:
        """Hold a prefix: nothing of it is evicted; return from which token on that is so."""
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
        """Hold a prefix no longer; ``begin`` is what ``lock`` returned."""
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
        """Return the tokens that only those hold whose prefixes end with these nodes, one for each."""
        locks: dict[Node, int] = {}
        for node in ends:
            while node.parent is not None:
                locks[node] = locks.get(node, 0) + 1
                node = node.parent
        return sum([node.tokens for node, count in locks.items() if count == node.lock_ref])

    def evict(self, tokens: int) -> int:
        """Evict whole leaves until so many tokens are gone, or none is left; return how many are."""
        gone, order = 0, self._order
        while gone < tokens and (node := order.pop()) is not None:
            gone += node.end - node.start
            self._remove(node)
        self.evictable -= gone
        return gone

    def _walk(self, content: Text, end: int) -> Node:
        """Return the node with which the longest prefix ends that is in the tree, splitting it off."""
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
        """Touch a node that was found, and those above it, each a hair before the one below."""
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
        """Take a leaf out."""
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
        """Return up to where a content is the same as a child, of which it has the first page."""
        most = child.end if child.end < tokens else tokens
        if child.content is content:
            return most
        return self.whole_pages(content.common_tokens(child.content, most + self.behind))

    def _split(self, node: Node, at: int) -> Node:
        """Split a node; return the upper part. The lower one is touched after it, and stays what it is."""
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
    """The content of the root."""

    def key_at(self, tokens: int) -> int:
        return 0

    def common_tokens(self, other: Text, most: int) -> int:
        return 0
