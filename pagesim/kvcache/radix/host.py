"""The radix tree of SGLang with a tier on the host behind it (HiCache): which prefixes are where.

Source: SGLang 0.5.23, ``srt/mem_cache/unified_radix_cache.py`` and the tree core behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import ClassVar, Literal

from pagesim.kvcache.radix.eviction import EvictionOrder, EvictionPolicy
from pagesim.kvcache.radix.tree import Node, RadixTree, Text

WritePolicy = Literal["write_through", "write_through_selective", "write_back"]

_THRESHOLDS: dict[WritePolicy, int] = {"write_through": 1, "write_through_selective": 2}
"""Hits of a node with which it is copied to the host."""


class HostNode(Node):
    """A stretch of tokens whose KV is on the device, on the host, or on both.

    What is on the device hangs together from the root.

    Attributes:
        on_device, on_host: where it is.
        loads: the last node of the load by which it comes to the device; None where none is under way.
    """

    __slots__ = ("loads", "on_device", "on_host")

    parent: HostNode | None
    loads: HostNode | None

    def __init__(self, content: Text, start: int, end: int, parent: Node | None, used: float) -> None:
        super().__init__(content, start, end, parent, used)
        self.on_device = True
        self.on_host = False
        self.loads = None

    @property
    def is_evictable(self) -> bool:
        if not self.on_device or self.lock_ref or self.parent is None:
            return False
        return all(not _hosted(child).on_device for child in self.children.values())

    @property
    def is_host_leaf(self) -> bool:
        """Whether its copy on the host can be evicted, and it is gone then."""
        waits = self.on_device or self.loads is not None or self.parent is None
        return self.on_host and not (waits or self.children)


class HostTree(RadixTree):
    """A tree of which some nodes are on the host alone; ``evictable`` and ``protected`` are of the device.

    A node is copied to the host when it has been inserted often enough, or, under ``write_back``, when it is
    evicted from the device. It is held until the copy is over.

    Args:
        page: tokens of a page.
        host_tokens: that the host has room for.
        write_policy: when a node is copied to the host.
        policy: which leaf is evicted first, on the device and on the host.
        by_pairs: whether it is keyed by pairs of tokens.

    Attributes:
        writes_back: whether nodes are copied when they are evicted.
        free_host: tokens for which there is room on the host.
        written: tokens that were copied to the host since the beginning.
        unsent: the tokens, and the node, of copies to the host that were not started.
        copied: the nodes with which the prefixes end that copies hold, one for each copy.
        copy_at_once: waits for a copy of so many tokens to the host.
    """

    __slots__ = (
        "_both",
        "_host_order",
        "_threshold",
        "copied",
        "copy_at_once",
        "free_host",
        "unsent",
        "writes_back",
        "written",
    )

    kind: ClassVar[type[Node]] = HostNode

    def __init__(
        self,
        page: int,
        host_tokens: int,
        write_policy: WritePolicy,
        policy: EvictionPolicy = "lru",
        *,
        by_pairs: bool = False,
    ) -> None:
        super().__init__(page, policy, by_pairs=by_pairs)
        self._host_order = EvictionOrder(policy, attrgetter("is_host_leaf"))
        self.writes_back = write_policy == "write_back"
        self._threshold = _THRESHOLDS.get(write_policy, 0)
        self.free_host = host_tokens
        self.written = 0
        self.copied: list[HostNode] = []
        self.unsent: list[tuple[int, HostNode]] = []
        self.copy_at_once: Callable[[int], None] = lambda tokens: None
        # Nodes on both sides in the order in which they became so; one that left a side goes when it is met.
        self._both: dict[HostNode, None] = {}

    def device_part(self, node: Node) -> HostNode:
        """Return the node with which the part of a prefix ends that is on the device."""
        found = _hosted(node)
        while not found.on_device:
            assert found.parent is not None
            found = found.parent
        return found

    def add(self, content: Text, tokens: int, seen: int, protected: int) -> tuple[int, Node]:
        """Insert some first tokens, as ``insert`` does; what was on the host alone is on both sides then.

        Args:
            content: of a sequence that begins with them.
            tokens: whole pages, of entries where it is keyed by pairs.
            seen: tokens of this sequence that were inserted before.
            protected: tokens of it that are held in the tree.

        Returns:
            The tokens behind those that were on the device already, and the node with which the others end.
        """
        twice = 0

        def met(node: Node, is_new: bool) -> None:
            nonlocal twice
            found = _hosted(node)
            if not found.on_device:
                found.on_device = True
                self.evictable += found.tokens
                self._order.offer(found)
                self._note_both(found)
            elif not is_new:
                twice += max(0, found.end - max(found.start, protected))
            is_hit = not self.writes_back and found.end > seen
            if is_hit and not found.on_host and found.hit_count + 1 >= self._threshold:
                self._back_up(found)

        _, last = self.insert(content, tokens, tokens if self.writes_back else seen, met)
        return twice, last

    def evict(self, tokens: int) -> int:
        """Evict leaves from the device until so many tokens are gone, or none is left; return how many are.

        One with a copy on the host stays in the tree.
        """
        gone, order = 0, self._order
        while gone < tokens and (popped := order.pop()) is not None:
            node = _hosted(popped)
            gone += node.tokens
            if not node.on_host and not (self.writes_back and self._copy_now(node)):
                for child in list(node.children.values()):
                    self._drop(_hosted(child))
                self._both.pop(node, None)
                self._remove(node)
                continue
            node.on_device = False
            self._host_order.offer(node)
            if node.parent is not None and node.parent.is_evictable:
                order.offer(node.parent)
        self.evictable -= gone
        return gone

    # Copies

    def begin_load(self, last: HostNode) -> None:
        """Keep a prefix on the host, of which room is made for a part on the device."""
        node = last
        while not node.on_device:
            node.loads = last
            assert node.parent is not None
            node = node.parent

    def take_load(self, last: HostNode) -> None:
        """Put that part on the device, where there is room for it now, and hold it until it is loaded."""
        node: HostNode | None = last
        while node is not None and node.loads is last:
            node.on_device = True
            self.evictable += node.tokens
            node = node.parent
        self.hold(last)

    def end_load(self, last: HostNode) -> None:
        """Learn that a load is over, or that there was no room for it."""
        node: HostNode | None = last
        while node is not None:
            if node.loads is last:
                node.loads = None
                self._note_both(node)
            node = node.parent
        self._host_order.offer(last)

    def hold(self, node: HostNode) -> None:
        """Hold a prefix until a copy of the node with which it ends is over."""
        self.lock(node)
        self.copied.append(node)

    def release(self, node: HostNode) -> None:
        """Learn that the copy is over for which a prefix was held."""
        self.unlock(node)
        self.copied.remove(node)

    def _back_up(self, node: HostNode) -> None:
        """Copy a node to the host, behind its ancestors that are not there, as far as there is room."""
        chain = [node]
        while (parent := chain[-1].parent) is not None and parent is not self.root and not parent.on_host:
            chain.append(parent)
        for each in reversed(chain):
            if not self._take_host(each):
                return
            self.hold(each)
            self.unsent.append((each.tokens, each))

    def _copy_now(self, node: HostNode) -> bool:
        """Copy a node to the host that is evicted; say whether there is room."""
        if not self._take_host(node):
            return False
        self.copy_at_once(node.tokens)
        self._note_both(node)
        return True

    # The host

    def _take_host(self, node: HostNode) -> bool:
        """Take room on the host for a node, evicting there; say whether that is enough."""
        tokens = node.tokens
        if self.free_host < tokens:
            self._evict_host(tokens - self.free_host)
        if self.free_host < tokens:
            return False
        self.free_host -= tokens
        self.written += tokens
        node.on_host = True
        return True

    def _evict_host(self, tokens: int) -> None:
        """Evict from the host until so many tokens are gone, or nothing is left that may go.

        Under ``write_back`` copies of what is on the device go first, of these the leaves of the device last,
        which are copied back as soon as they are evicted; then leaves that are on the host alone.
        """
        enough = self.free_host + tokens
        for spares in (True, False) if self.writes_back else ():
            for node in list(self._both):
                if self.free_host >= enough:
                    return
                if not (node.on_device and node.on_host):
                    del self._both[node]
                elif node.loads is None and not (spares and node.is_evictable):
                    del self._both[node]
                    node.on_host = False
                    self.free_host += node.tokens
        while self.free_host < enough and (leaf := self._host_order.pop()) is not None:
            parent = _hosted(leaf).parent
            assert parent is not None
            self._drop(_hosted(leaf))
            if parent.is_host_leaf:
                self._host_order.offer(parent)

    def _drop(self, node: HostNode) -> None:
        """Take a node that is on the host alone out of the tree, with all behind it."""
        for child in list(node.children.values()):
            self._drop(_hosted(child))
        self._both.pop(node, None)
        self.free_host += node.tokens
        assert node.parent is not None
        del node.parent.children[node.key]
        node.parent = None

    def _note_both(self, node: HostNode) -> None:
        """Note that a node is on the device and on the host, if it is and is not being loaded."""
        if self.writes_back and node.on_device and node.on_host and node.loads is None:
            self._both.setdefault(node, None)
        else:
            self._both.pop(node, None)

    def _split(self, node: Node, at: int) -> Node:
        upper, lower = _hosted(super()._split(node, at)), _hosted(node)
        upper.on_device, upper.on_host, upper.loads = lower.on_device, lower.on_host, lower.loads
        self._note_both(upper)
        return upper


def _hosted(node: Node) -> HostNode:
    assert isinstance(node, HostNode)
    return node
