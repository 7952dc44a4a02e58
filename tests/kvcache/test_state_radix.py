"""A radix tree with recurrent states is as a slow one, and its memory loses no slot of either pool."""

from __future__ import annotations

from random import Random

import pytest

from pagesim.allocators import OutOfBlocks
from pagesim.kvcache import SequenceGroup
from pagesim.kvcache.radix import EvictionPolicy, Node, StatePool, StateRadixManager, StateTree
from pagesim.testing.requests import Prompt
from tests.kvcache.slow_state_tree import SlowStateTree
from tests.kvcache.test_radix import prefix_of, state, text


@pytest.mark.slow_but("1-lru", "4-lfu")
@pytest.mark.parametrize("policy", ["lru", "lfu"])
@pytest.mark.parametrize("page", [1, 4])
def test_random_lives_are_those_of_a_slow_tree(page: int, policy: EvictionPolicy) -> None:
    rnd = Random(f"{page} {policy}")
    tree, slow = StateTree(page, policy), SlowStateTree(page, policy)
    held: list[Node] = []
    buried = cut_short = refused = 0
    for _ in range(3000):
        change = rnd.choice(("match", "insert", "insert", "hold", "let go", "evict", "evict states"))
        content = text(rnd, page)
        tokens = content.tokens
        whole = len(tokens) - len(tokens) % page
        if change == "match":
            node = tree.match(content, len(tokens))
            assert tree.reached == len(slow.found(tokens))
            assert tokens[: node.end] == slow.match(tokens)
            cut_short += node.end < tree.reached
        elif change == "insert" and whole:
            seen = rnd.randint(0, whole)
            there, node, is_taken = tree.add(content, whole, seen)
            assert (there, is_taken) == slow.add(tokens[:whole], seen)
            assert node.end == whole
            refused += not is_taken
        elif change == "hold":
            held.append(tree.match(content, len(tokens)))
            found = slow.match(tokens)
            assert tree.unlocked_states(held[-1]) == (found in slow.states and not slow.holders[found])
            tree.lock(held[-1])
            slow.hold(found)
        elif change == "let go" and held:
            node = held.pop(rnd.randrange(len(held)))
            tree.unlock(node)
            slow.hold(prefix_of(node, tree), -1)
        elif change == "evict" and len(slow.nodes) > 12:
            wanted = rnd.randint(1, 40)
            sizes = slow.tokens(locked=False)
            slow.evict(wanted)
            assert tree.evict(wanted) == sizes - slow.tokens(locked=False)
        elif change == "evict states" and len(slow.states) > 8:
            wanted, nodes, states = rnd.randint(1, 6), len(slow.nodes), len(slow.states)
            assert tree.evict_states(wanted) == slow.evict_states(wanted)
            buried += (states - len(slow.states)) - (nodes - len(slow.nodes))
        assert state(tree) == slow.state()
        assert [prefix_of(node, tree) for node in tree.by_recency()] == slow.states[::-1]
        assert (tree.evictable_states, tree.protected_states) == (
            slow.count(held=False),
            slow.count(held=True),
        )
        assert (tree.evictable, tree.protected) == (slow.tokens(locked=False), slow.tokens(locked=True))
    assert min(buried, cut_short, refused) > 5


def request(tokens: str, memory: StateRadixManager) -> SequenceGroup:
    """Return a request whose prompt has these tokens, admitted, with a copy of the state that was found."""
    found = SequenceGroup(len(tokens))
    found.content, found.block_state = Prompt(tuple(map(ord, tokens)), 1), None
    memory.match_prefix(found, len(tokens))
    memory.copy_state(found)
    memory.admit(found, len(tokens))
    return found


def test_memory_without_a_slot_for_states_takes_no_request() -> None:
    memory = StateRadixManager(100, 1, StatePool(2), slots_per_request=2)
    request("ab", memory)
    other = SequenceGroup(2)
    other.content, other.block_state = Prompt((1, 2), 1), None
    assert not memory.can_admit(other, 2)
    with pytest.raises(OutOfBlocks, match="2 slots for states are needed, 0 are free"):
        memory.admit(other, 2)
