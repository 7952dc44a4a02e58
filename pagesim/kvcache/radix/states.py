"""SGLang's radix tree for models with recurrent layers: prefixes that end with a cached state.

Source: SGLang 0.5.23, ``srt/mem_cache/unified_cache/components/mamba.py`` and the tree core behind it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import ClassVar

from pagesim.kvcache.radix.eviction import EvictionPolicy
from pagesim.kvcache.radix.tree import Node, RadixTree, Text


class StateNode(Node):
    """A node that may store the state after its last token; without one it is a tombstone.

    Attributes:
        has_state: whether it has a state, in a slot of the state pool.
        state_lock_ref: number of sequences that hold a prefix ending at this node.
    """

    __slots__ = ("has_state", "state_lock_ref")

    parent: StateNode | None

    def __init__(self, content: Text, start: int, end: int, parent: Node | None, used: float) -> None:
        super().__init__(content, start, end, parent, used)
        self.has_state = False
        self.state_lock_ref = 0


class StateTree(RadixTree):
    """A tree over tokens and states: each node has at most one state, after its last token.

    A hit always ends with a state. States have their own eviction order: a node becomes the newest when it is
    matched and when a sequence that ends at it is inserted.

    Args:
        page: tokens per page.
        policy: which leaf is evicted first when token slots are short.

    Attributes:
        evictable_states: states of nodes at which no sequence's prefix ends.
        protected_states: all other states.
        reached: tokens of the last look-up that are in the tree, whether or not a state follows them.
    """

    __slots__ = ("_by_use", "evictable_states", "protected_states", "reached")

    kind: ClassVar[type[Node]] = StateNode
    root: StateNode

    def __init__(self, page: int, policy: EvictionPolicy = "lru") -> None:
        super().__init__(page, policy)
        self.evictable_states = self.protected_states = self.reached = 0
        self._by_use: OrderedDict[StateNode, None] = OrderedDict()  # nodes with a state, the oldest first

    @property
    def states(self) -> int:
        """Number of states in the tree."""
        return self.evictable_states + self.protected_states

    def match(self, content: Text, tokens: int) -> StateNode:
        """Return the deepest node with a state along the first ``tokens`` tokens, or the root.

        Only the matched nodes are touched. ``reached`` is set to the tokens that are in the tree.
        """
        self.reached = 0
        end = tokens - tokens % self.page
        if not end:
            return self.root
        node = _stateful(self._walk(content, end))
        self.reached = node.end
        while not node.has_state and node.parent is not None:
            node = node.parent
        if node.has_state:
            self._by_use.move_to_end(node)
        self._touch(node)
        return node

    def add(self, content: Text, tokens: int, seen: int) -> tuple[int, StateNode, bool]:
        """Insert a prefix as ``insert`` does, together with the state after its last token.

        Returns:
            The tokens that were in the tree already, the node at which the prefix ends, and whether it stores
            the state, because it had none.
        """
        there, last = self.insert(content, tokens, seen)
        node = _stateful(last)
        if there == tokens:
            node.last_access = self._tick()
        if node.has_state:
            self._by_use.move_to_end(node)
            return there, node, False
        node.has_state = True
        self._by_use[node] = None
        if node.state_lock_ref:
            self.protected_states += 1
        else:
            self.evictable_states += 1
        return there, node, True

    def lock(self, node: Node) -> int:
        """Lock a prefix and the state at its end; states within it may still be evicted."""
        held = _stateful(node)
        if held.has_state and not held.state_lock_ref:
            self.evictable_states -= 1
            self.protected_states += 1
        held.state_lock_ref += 1
        return super().lock(node)

    def unlock(self, node: Node, begin: int = 0) -> None:
        held = _stateful(node)
        held.state_lock_ref -= 1
        if held.has_state and not held.state_lock_ref:
            self.evictable_states += 1
            self.protected_states -= 1
        super().unlock(node, begin)

    def unlocked_states(self, node: Node) -> int:
        """Return the number of states, 0 or 1, that ``lock`` would newly protect."""
        held = _stateful(node)
        return int(held.has_state and not held.state_lock_ref)

    def evict_states(self, count: int) -> int:
        """Evict ``count`` states, or all that no sequence holds; return the tokens evicted with them.

        An unlocked leaf is evicted as a whole; any other node becomes a tombstone.
        """
        gone = 0
        unheld = (node for node in self._by_use if not node.state_lock_ref)
        for node in list(islice(unheld, count)):
            if node.is_evictable:
                gone += node.tokens
                self._remove(node)
            else:
                self._bury(node)
        self.evictable -= gone
        return gone

    def by_recency(self) -> Iterator[StateNode]:
        """Yield the nodes with a state in reverse eviction order."""
        return reversed(self._by_use)

    def _bury(self, node: StateNode) -> None:
        """Evict the state of a node that no sequence holds."""
        node.has_state = False
        del self._by_use[node]
        self.evictable_states -= 1

    def _remove(self, leaf: Node) -> None:
        node = _stateful(leaf)
        if node.has_state:
            self._bury(node)
        super()._remove(leaf)


def _stateful(node: Node) -> StateNode:
    assert isinstance(node, StateNode)
    return node
