"""The block manager with a radix tree and a host tier, as in SGLang (HiCache)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pagesim.kvcache.radix.eviction import EvictionPolicy
from pagesim.kvcache.radix.host import HostNode, HostTree, WritePolicy
from pagesim.kvcache.radix.memory import RadixManager
from pagesim.kvcache.radix.tree import Node
from pagesim.kvcache.sequence_group import SequenceGroup

LOAD_BACK_THRESHOLD = 10
"""Tokens; fewer are recomputed instead of loaded (``load_back_threshold``)."""


class HostPool(NamedTuple):
    """The pool of pages on the host.

    Attributes:
        tokens: capacity in tokens, a whole number of pages.
        write_policy: when a node is copied to it.
    """

    tokens: int
    write_policy: WritePolicy = "write_through"


class HostRadixManager(RadixManager):
    """A `RadixManager` whose tree extends to the host, from where evicted prefixes can be loaded back.

    Blocks are those of the device. Pages that only a copy in progress holds count as free and cached, but
    cannot be evicted before it has finished. This class decides on copies; others carry them out.
    ``tree.unsent`` and ``unsent_loads`` list copies to start; ``end_write`` and ``end_load`` end one.

    Args:
        num_pages: pages on the device.
        page_size: tokens per page.
        host: the pool on the host.
        policy: which leaf is evicted first, on either side.
        by_pairs: whether the tree is keyed by pairs of tokens.

    Attributes:
        host: the pool on the host.
        loaded: tokens loaded so far.
        unsent_loads: loads that have not started, as (tokens, last node).
    """

    __slots__ = ("_behind", "host", "loaded", "unsent_loads")

    tree: HostTree

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        host: HostPool,
        *,
        policy: EvictionPolicy = "lru",
        by_pairs: bool = False,
    ) -> None:
        super().__init__(num_pages, page_size, policy=policy, by_pairs=by_pairs)
        self.tree = HostTree(page_size, host.tokens, host.write_policy, policy, by_pairs=by_pairs)
        self.host = host
        self.loaded = 0
        self.unsent_loads: list[tuple[int, HostNode]] = []
        # The last look-up: request and last matched node, on the device or on the host.
        self._behind: tuple[SequenceGroup, HostNode] | None = None

    # Questions

    @property
    def available_tokens(self) -> int:
        """Tokens that neither a sequence nor a copy holds."""
        return self.available_blocks * self.block_size + self.tree.evictable

    def match_prefix(self, request: SequenceGroup, tokens: int) -> int:
        super().match_prefix(request, tokens)
        self._behind = None
        if self._found is None or self._found[0] is not request:
            return 0
        node = self._found[1]
        assert isinstance(node, HostNode)
        held = self.tree.device_part(node)
        self._found, self._behind = (request, held, tokens - 1), (request, node)
        return held.end

    def host_tokens(self, request: SequenceGroup) -> int:
        """Return the tokens, only on the host, after what ``match_prefix`` matched last for a request."""
        if self._behind is None or self._behind[0] is not request:
            return 0
        node = self._behind[1]
        return node.end - self.tree.device_part(node).end

    def caches_apart(self, requests: Sequence[SequenceGroup]) -> bool:
        return not requests  # inserting may start a copy

    # Changes

    def load_back(self, request: SequenceGroup) -> int:
        """Allocate pages for ``host_tokens`` of a protected request and lock its prefix; return the tokens.

        That is 0, and nothing is allocated, if there are too few tokens to load or too few pages for them.
        """
        tokens, tree, place = self.host_tokens(request), self.tree, request.block_state
        if tokens < LOAD_BACK_THRESHOLD:
            return 0
        assert self._behind is not None
        node, pages = self._behind[1], tokens // self.block_size
        tree.begin_load(node)
        if self.make_available(pages) < pages:
            tree.end_load(node)
            return 0
        self.free_blocks -= pages
        tree.take_load(node)
        begin = tree.lock(node)
        tree.unlock(place.node, place.begin)
        place.node, place.begin, place.protected = node, begin, node.end
        self._named += pages
        self._note()
        self.loaded += tokens
        self.unsent_loads.append((tokens, node))
        return tokens

    def end_write(self, node: HostNode) -> None:
        """End the copy of a node to the host."""
        self.tree.release(node)
        self._note()

    def end_load(self, node: HostNode) -> None:
        """End the load of the prefix that ends at a node."""
        self.tree.release(node)
        self.tree.end_load(node)
        self._note()

    def check_integrity(self) -> None:
        super().check_integrity()
        nodes = [node for node in self.tree if isinstance(node, HostNode)]
        taken = sum([node.tokens for node in nodes if node.on_host])
        assert self.tree.free_host == self.host.tokens - taken >= 0, "tokens on the host are miscounted"
        for node in nodes:
            assert node.on_device or node.on_host, "a node is nowhere"
            parent = node.parent
            assert not node.on_device or parent is None or parent.on_device, "a node hangs behind the host"

    # Inside

    def _insert(self, request: SequenceGroup, end: int) -> tuple[int, Node]:
        place = request.block_state
        twice, node = self.tree.add(request.content, end, place.seen, place.protected)
        return place.protected + twice, node

    def _nodes(self) -> list[Node]:
        return [node for node in self.tree if isinstance(node, HostNode) and node.on_device]

    def _held_by_copies(self) -> int:
        return self.tree.held_alone(self.tree.copied)
