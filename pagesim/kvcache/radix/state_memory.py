"""The block manager for pages and recurrent states with one radix tree, as in SGLang for hybrid models."""

from __future__ import annotations

from typing import NamedTuple

from pagesim.allocators import OutOfBlocks
from pagesim.kvcache.radix.eviction import EvictionPolicy
from pagesim.kvcache.radix.memory import Place, RadixManager
from pagesim.kvcache.radix.states import StateTree
from pagesim.kvcache.radix.tree import Node
from pagesim.kvcache.sequence_group import SequenceGroup


class StatePool(NamedTuple):
    """The pool of recurrent states, next to the pool of pages.

    Attributes:
        slots: number of states that it can store.
        chunk: tokens; the model's kernels can save a state at every multiple.
        state_bytes: bytes of a state in all recurrent layers, on each GPU.
    """

    slots: int
    chunk: int = 64
    state_bytes: int = 0


class StatePlace(Place):
    """What `StateRadixManager` keeps with a request, in addition to `RadixManager`.

    Attributes:
        slots: slots of the state pool that the request holds.
    """

    __slots__ = ("slots",)

    def __init__(self, node: Node, protected: int, slots: int) -> None:
        super().__init__(node, protected)
        self.slots = slots


class StateRadixManager(RadixManager):
    """A `RadixManager` with a state pool, whose slots are held by requests and by nodes of the tree.

    ``admit`` allocates a request's slots unless ``reserve_states`` has. Caching allocates one more slot for
    the tree; a request that has finished hands over one of its own instead. If slots are short, states of the
    tree are evicted. Blocks are the pages of tokens only.

    Args:
        num_pages: pages of tokens.
        page_size: tokens per page.
        pool: state pool.
        slots_per_request: slots that a request holds from its first prompt to its end.
        policy: which leaf is evicted first when pages are short.

    Attributes:
        pool: state pool.
        slots_per_request: slots that a request holds.
        free_states: slots that neither a request nor the tree holds.
        evicted_states: states evicted so far.
    """

    __slots__ = ("_copies", "_is_taken", "evicted_states", "free_states", "pool", "slots_per_request")

    tree: StateTree
    cuts_answers = False

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        pool: StatePool,
        *,
        slots_per_request: int = 1,
        policy: EvictionPolicy = "lru",
    ) -> None:
        super().__init__(num_pages, page_size, policy=policy)
        self.tree = StateTree(page_size, policy)
        self.pool = pool
        self.slots_per_request = slots_per_request
        self.free_states = pool.slots
        self.evicted_states = 0
        self._copies = 0  # slots for a request that was looked up but is not protected yet
        self._is_taken = False  # whether the tree stored the state that was inserted last

    # Questions

    @property
    def available_states(self) -> int:
        """Slots that no request holds, including those whose states can be evicted."""
        return self.free_states + self.tree.evictable_states

    @property
    def own_states(self) -> int:
        """Slots that requests hold, not the tree."""
        return self.pool.slots - self.free_states - self.tree.states

    def could_admit(self, request: SequenceGroup, tokens: int, spare: int = 0) -> bool:
        return self.slots_per_request <= self.pool.slots and super().could_admit(request, tokens, spare)

    def can_admit(self, request: SequenceGroup, tokens: int, spare: int = 0, length: int = 0) -> bool:
        # The state at the end of its own prefix cannot be evicted to make room.
        states = self.slots_per_request + self.tree.unlocked_states(self._found_for(request))
        return states <= self.available_states and super().can_admit(request, tokens, spare, length)

    # Changes

    def copy_state(self, request: SequenceGroup) -> None:
        """Allocate a slot for a copy of the state at the end of the prefix that was matched last."""
        node = self._found_for(request)
        if node is self.tree.root:
            return
        self.tree.lock(node)
        self._take_states(1)
        self.tree.unlock(node)
        self._copies = 1

    def drop_copy(self) -> None:
        """Free the slot that ``copy_state`` allocated for a request that is not protected after all."""
        self.free_states += self._copies
        self._copies = 0

    def reserve_states(self, request: SequenceGroup) -> None:
        """Allocate the slots that a request still lacks."""
        if request.block_state is None:
            self.protect(request)
        place: StatePlace = request.block_state
        self._take_states(self.slots_per_request - place.slots)
        place.slots = self.slots_per_request

    def unprotect(self, request: SequenceGroup) -> None:
        place: StatePlace = request.block_state
        self.free_states += place.slots
        super().unprotect(request)

    def admit(self, request: SequenceGroup, tokens: int) -> None:
        if request.block_state is None:
            self._check_room(self.blocks_to_admit(request, tokens))
        self.reserve_states(request)
        super().admit(request, tokens)

    def cache_tokens(self, request: SequenceGroup, tokens: int, *, over: bool = False) -> None:
        """Insert the leading tokens of a request into the tree, with the state after the last one.

        Args:
            request: request whose tokens were computed.
            tokens: number of leading tokens.
            over: whether the request is dropped next; then one of its own slots goes to the tree.
        """
        place: StatePlace = request.block_state
        if not over:
            self._take_states(1)
        self._is_taken = False
        super().cache_tokens(request, tokens, over=over)
        if over:
            place.slots -= self._is_taken
        elif not self._is_taken:
            self.free_states += 1

    def drop(self, request: SequenceGroup) -> None:
        place: StatePlace = request.block_state
        self.free_states += place.slots
        super().drop(request)

    def make_available(self, pages: int) -> int:
        before = self.tree.states
        available = super().make_available(pages)
        self._note_evicted_states(before)
        return available

    def check_integrity(self) -> None:
        super().check_integrity()
        tree = self.tree
        nodes = [node for node in tree if node.has_state]  # type: ignore[attr-defined]
        newest = list(tree.by_recency())
        assert len(newest) == len(nodes), "a node with a state is in no order of eviction, or a tombstone is"
        assert set(newest) == set(nodes), "a node in the order of eviction is not in the tree"
        held = sum([node.state_lock_ref > 0 for node in newest])
        assert (tree.protected_states, tree.evictable_states) == (held, len(nodes) - held), (
            "states are miscounted"
        )
        assert all(node.state_lock_ref <= node.lock_ref for node in newest), (
            "a state is held and not the node"
        )
        assert self.free_states >= 0, "states were taken that there are not"
        assert self.own_states >= 0, "states are miscounted"

    # Inside

    def _new_place(self, node: Node) -> StatePlace:
        copies, self._copies = self._copies, 0
        return StatePlace(node, node.end, copies)

    def _insert(self, request: SequenceGroup, end: int) -> tuple[int, Node]:
        there, node, self._is_taken = self.tree.add(request.content, end, request.block_state.seen)
        return there, node

    def _take_states(self, slots: int) -> None:
        """Allocate slots of the state pool, evicting states if too few are free."""
        short = slots - self.free_states
        if short > 0:
            before = self.tree.states
            self._note_evicted(self.tree.evict_states(short))
            self._note_evicted_states(before)
        if slots > self.free_states:
            raise OutOfBlocks(f"{slots} slots for states are needed, {self.free_states} are free")
        self.free_states -= slots

    def _note_evicted_states(self, before: int) -> None:
        evicted = before - self.tree.states
        self.evicted_states += evicted
        self.free_states += evicted
