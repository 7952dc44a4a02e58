"""A radix tree over two pools is as a slow one, and its memory loses no page of either."""

from __future__ import annotations

from random import Random

import pytest

from pagesim.allocators import OutOfBlocks
from pagesim.kvcache import SequenceGroup
from pagesim.kvcache.radix import EvictionPolicy, WindowedRadixManager, WindowedTree, WindowPool
from pagesim.testing.requests import Prompt
from tests.kvcache.slow_windowed_tree import SlowWindowedTree
from tests.kvcache.test_radix import entries, prefix_of, state, text


@pytest.mark.slow_but("1-3-lru", "4-10-lfu", "1 by pairs-10-lru")
@pytest.mark.parametrize("policy", ["lru", "lfu"])
@pytest.mark.parametrize("window", [3, 10])
@pytest.mark.parametrize(
    ("page", "by_pairs"),
    [(1, False), (4, False), (1, True), (4, True)],
    ids=["1", "4", "1 by pairs", "4 by pairs"],
)
def test_random_lives_are_those_of_a_slow_tree(
    page: int, by_pairs: bool, window: int, policy: EvictionPolicy
) -> None:
    rnd = Random(f"{page} {window} {policy}")
    tree = WindowedTree(page, window, policy, by_pairs=by_pairs)
    slow = SlowWindowedTree(page, window, policy)
    held = []
    buried = cut_short = revived = 0
    for _ in range(600):
        change = rnd.choice(("match", "insert", "insert", "hold", "let go", "evict", "evict windows"))
        content = text(rnd, page)
        count, tokens = len(content.tokens), entries(content, tree)
        whole = len(tokens) - len(tokens) % page
        live = slow.live.copy()
        if change == "match":
            node = tree.match(content, count)
            assert tree.reached == len(slow.found(tokens))
            assert tokens[: node.end] == slow.match(tokens)
            cut_short += node.end < tree.reached
        elif change == "insert" and whole:
            seen, own = rnd.randint(0, whole), rnd.randint(0, whole // page) * page
            there, node = tree.add(content, whole, seen, own)
            revived += len(slow.found(tokens[:whole])) > own
            assert there == slow.add(tokens[:whole], seen, own)
            assert node.end == whole
        elif change == "hold":
            node = tree.match(content, count)
            found = slow.match(tokens)
            slow.lock(found)
            held.append((node, tree.lock(node)))
            assert held[-1][1] == slow.lock_window(found)
        elif change == "let go" and held:
            node, begin = held.pop(rnd.randrange(len(held)))
            prefix = prefix_of(node, tree)
            slow.unlock_window(prefix, begin)
            slow.lock(prefix, -1)
            tree.unlock(node, begin)
        elif change == "evict" and len(slow.nodes) > 12:
            wanted = rnd.randint(1, 40)
            sizes = slow.tokens(locked=False)
            slow.evict(wanted)
            assert tree.evict(wanted) == sizes - slow.tokens(locked=False)
        elif change == "evict windows" and len(slow.live) > 8:
            wanted = rnd.randint(1, 20)
            assert tree.evict_windows(wanted) == slow.evict_windows(wanted)
            buried += sum(node in slow.nodes for node in live) - len(slow.live)
        assert state(tree) == slow.state()
        assert [prefix_of(node, tree) for node in tree.by_recency()] == slow.live
        assert (tree.window_evictable, tree.window_protected) == (
            slow.window_tokens(locked=False),
            slow.window_tokens(locked=True),
        )
        assert (tree.evictable, tree.protected) == (slow.tokens(locked=False), slow.tokens(locked=True))
    assert min(buried, cut_short, revived) > 5


def request(tokens: str) -> SequenceGroup:
    """Return a request whose prompt has these tokens."""
    found = SequenceGroup(len(tokens))
    found.content, found.block_state = Prompt(tuple(map(ord, tokens)), 1), None
    return found


def admitted(tokens: str, memory: WindowedRadixManager) -> SequenceGroup:
    found = request(tokens)
    memory.match_prefix(found, len(tokens))
    memory.admit(found, len(tokens))
    return found


def test_memory_whose_window_pool_is_short_takes_no_sequence() -> None:
    memory = WindowedRadixManager(100, 1, WindowPool(4, 10))
    admitted("abcdef", memory)
    assert not memory.can_admit(request("uvwxyz"), 6)
    with pytest.raises(OutOfBlocks, match="window pool"):
        memory.admit(request("uvwxyz"), 6)
    assert memory.free_blocks == 94
