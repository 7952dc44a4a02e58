"""SGLang's radix tree with a host tier (HiCache): which prefixes are on the device or on the host.

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
"""Number of hits at which a node is copied to the host."""


class HostNode(Node):
    """A node whose KV is on the device, on the host, or on both.

    The nodes on the device are connected to the root through nodes on the device.

    Attributes:
        on_device, on_host: where its KV is.
        loads: last node of the load that is bringing it to the device; None if there is none.
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
        """Whether its host copy can be evicted, which removes the node from the tree."""
        waits = self.on_device or self.loads is not None or self.parent is None
        return self.on_host and not (waits or self.children)


class HostTree(RadixTree):
    """A tree some of whose nodes are only on the host; ``evictable`` and ``protected`` count the device.

    A node is copied to the host once it has enough hits or, with ``write_back``, when it is evicted from the
    device. It is locked until the copy has finished.

    Args:
        page: tokens per page.
        host_tokens: capacity of the host tier, in tokens.
        write_policy: when a node is copied to the host.
        policy: which leaf is evicted first, on the device and on the host.
        by_pairs: whether the tree is keyed by pairs of tokens.

    Attributes:
        writes_back: whether nodes are copied when they are evicted.
        free_host: free capacity of the host tier, in tokens.
        written: tokens copied to the host so far.
        unsent: copies to the host that have not started, as (tokens, node).
        copied: last nodes of the prefixes that copies lock, one per copy.
        copy_at_once: waits for a copy of a number of tokens to the host.
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
        # Nodes on both sides, in the order in which they got there; outdated ones are removed lazily.
        self._both: dict[HostNode, None] = {}

    def device_part(self, node: Node) -> HostNode:
        """Return the node at which the part of a prefix on the device ends."""
        found = _hosted(node)
        while not found.on_device:
            assert found.parent is not None
            found = found.parent
        return found

    def add(self, content: Text, tokens: int, seen: int, protected: int) -> tuple[int, Node]:
        """Insert a prefix as ``insert`` does; nodes that were only on the host are then on both sides.

        Args:
            content: content of a sequence that begins with the prefix.
            tokens: length of the prefix in whole pages; in entries if the tree is keyed by pairs.
            seen: tokens of this sequence that were inserted before.
            protected: tokens of it that are locked in the tree.

        Returns:
            The tokens after the protected ones that were on the device already, and the last node.
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
        """Evict leaves from the device until ``tokens`` tokens are evicted or none is left.

        Return how many were evicted. A leaf with a copy on the host stays in the tree.
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
        """Keep the part of a prefix that is only on the host while room is made for it on the device."""
        node = last
        while not node.on_device:
            node.loads = last
            assert node.parent is not None
            node = node.parent

    def take_load(self, last: HostNode) -> None:
        """Put that part on the device, where it now fits, and lock the prefix until it is loaded."""
        node: HostNode | None = last
        while node is not None and node.loads is last:
            node.on_device = True
            self.evictable += node.tokens
            node = node.parent
        self.hold(last)

    def end_load(self, last: HostNode) -> None:
        """End a load that has finished, or for which there was no room."""
        node: HostNode | None = last
        while node is not None:
            if node.loads is last:
                node.loads = None
                self._note_both(node)
            node = node.parent
        self._host_order.offer(last)

    def hold(self, node: HostNode) -> None:
        """Lock a prefix until a copy of its last node has finished."""
        self.lock(node)
        self.copied.append(node)

    def release(self, node: HostNode) -> None:
        """Unlock a prefix whose copy has finished."""
        self.unlock(node)
        self.copied.remove(node)

    def _back_up(self, node: HostNode) -> None:
        """Copy a node to the host, after its ancestors that are not there, as long as there is room."""
        chain = [node]
        while (parent := chain[-1].parent) is not None and parent is not self.root and not parent.on_host:
            chain.append(parent)
        for each in reversed(chain):
            if not self._take_host(each):
                return
            self.hold(each)
            self.unsent.append((each.tokens, each))

    def _copy_now(self, node: HostNode) -> bool:
        """Copy an evicted node to the host; return whether there was room."""
        if not self._take_host(node):
            return False
        self.copy_at_once(node.tokens)
        self._note_both(node)
        return True

    # The host

    def _take_host(self, node: HostNode) -> bool:
        """Allocate host room for a node, evicting if necessary; return whether that succeeded."""
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
        """Evict from the host until ``tokens`` tokens are evicted or nothing evictable is left.

        With ``write_back``, copies of nodes on the device go first. Among these, device leaves go last, as
        they are copied again once they are evicted. Leaves that are only on the host follow.
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
        """Remove a node that is only on the host from the tree, with all its descendants."""
        for child in list(node.children.values()):
            self._drop(_hosted(child))
        self._both.pop(node, None)
        self.free_host += node.tokens
        assert node.parent is not None
        del node.parent.children[node.key]
        node.parent = None

    def _note_both(self, node: HostNode) -> None:
        """Update whether a node counts as being on both sides; one being loaded does not."""
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
