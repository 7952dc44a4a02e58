"""A radix tree with a tier on the host is as a slow one, and its memory loses no page of either side."""

from __future__ import annotations

from random import Random
from typing import get_args

import pytest

from pagesim.kvcache.radix import (
    EvictionPolicy,
    HostNode,
    HostPool,
    HostRadixManager,
    HostTree,
    WritePolicy,
)
from tests.kvcache.slow_host_tree import SlowHostTree
from tests.kvcache.slow_tree import Tokens
from tests.kvcache.test_radix import prefix_of, state, text
from tests.kvcache.text import Reader


def hosted(tree: HostTree) -> list[HostNode]:
    return [node for node in tree if isinstance(node, HostNode)]


@pytest.mark.slow_but("1-lru-write_through", "4-lfu-write_back")
@pytest.mark.parametrize("write_policy", get_args(WritePolicy))
@pytest.mark.parametrize("policy", ["lru", "lfu"])
@pytest.mark.parametrize("page", [1, 4])
def test_random_lives_are_those_of_a_slow_tree(
    page: int, policy: EvictionPolicy, write_policy: WritePolicy
) -> None:
    rnd = Random(f"{page} {policy} {write_policy}")
    room = 60 * page
    tree = HostTree(page, room, write_policy, policy)
    slow = SlowHostTree(page, policy, room, write_policy)
    writes: list[tuple[HostNode, Tokens]] = []
    loads: list[tuple[HostNode, Tokens]] = []
    written = demoted = loaded = 0
    for _ in range(600):
        change = rnd.choice(
            ("match", "insert", "insert", "load", "load", "load", "copied", "loaded", "evict", "evict")
        )
        content = text(rnd, page)
        tokens = content.tokens[: len(content.tokens) // page * page]
        if change == "match":
            node = tree.match(content, len(content.tokens))
            found = slow.match(tokens)
            assert tokens[: node.end] == found
            assert tree.device_part(node).end == len(slow.on_device(found))
        elif change == "insert" and tokens:
            seen = rnd.choice((0, rnd.randint(0, len(tokens))))
            twice, _ = tree.add(content, len(tokens), seen, seen)
            assert twice == slow.add(tokens, seen, seen)
            copied = slow.back_ups(tokens, seen)
            assert [(size, prefix_of(node, tree)) for size, node in tree.unsent] == [
                (slow.length(node), node) for node in copied
            ]
            writes += [(node, prefix_of(node, tree)) for _, node in tree.unsent]
            written += len(copied)
            tree.unsent.clear()
        elif change == "load":
            last = tree.match(content, len(content.tokens))
            found = slow.match(tokens)
            if isinstance(last, HostNode) and last.parent is not None and not last.on_device:
                tree.begin_load(last)
                tree.take_load(last)
                slow.load(found)
                loads.append((last, found))
                loaded += 1
        elif change == "copied" and writes:
            last, prefix = writes.pop(0)
            tree.release(last)
            slow.lock(prefix, -1)
        elif change == "loaded" and loads:
            last, prefix = loads.pop(0)
            tree.release(last)
            tree.end_load(last)
            slow.end_load(prefix)
        elif change == "evict" and len(slow.device) > 6:
            wanted, before = rnd.randint(1, 20 * page), len(slow.host - slow.device)
            sizes = slow.evictable
            slow.evict(wanted)
            assert tree.evict(wanted) == sizes - slow.evictable
            demoted += len(slow.host - slow.device) > before
        assert state(tree) == slow.state()
        assert {prefix_of(node, tree) for node in hosted(tree) if node.on_device} == slow.device
        assert {prefix_of(node, tree) for node in hosted(tree) if node.on_host} == slow.host
        assert tree.free_host == slow.room
        assert tree.evictable == slow.evictable
        assert tree.evictable + tree.protected == sum(slow.length(node) for node in slow.device)
    assert min(demoted, loaded) > 1
    assert write_policy == "write_back" or written > 5


def admitted(memory: HostRadixManager, tokens: str) -> Reader:
    """Return a request whose prompt has these tokens, admitted, with what it finds on the host loaded."""
    reader = Reader(tuple(map(ord, tokens)), 1)
    memory.match_prefix(reader, len(tokens))
    memory.protect(reader)
    memory.load_back(reader)
    memory.admit(reader, len(tokens))
    return reader


def served(memory: HostRadixManager, tokens: str) -> None:
    memory.release(admitted(memory, tokens))


def test_what_is_written_through_is_held_until_the_copy_is_over() -> None:
    memory = HostRadixManager(30, 1, HostPool(40))
    served(memory, "abcdefghijkl")
    assert (memory.tree.written, memory.tree.free_host) == (12, 28)
    assert memory.make_available(30) == 18
    assert (memory.free_blocks, memory.available_tokens) == (30, 18)
    memory.check_integrity()
    memory.end_write(memory.tree.unsent.pop()[1])
    assert memory.make_available(30) == 30
    assert (memory.evicted, memory.tree.free_host) == (12, 28)
    reader = admitted(memory, "abcdefghijklm")
    assert [tokens for tokens, _ in memory.unsent_loads] == [12]
    assert (reader.block_state.protected, memory.available_blocks) == (12, 17)
    memory.end_load(memory.unsent_loads.pop()[1])
    memory.check_integrity()


def test_fewer_than_ten_tokens_are_not_loaded() -> None:
    memory = HostRadixManager(30, 1, HostPool(40, "write_back"))
    served(memory, "abcdefghi")
    memory.make_available(30)
    assert (memory.tree.written, memory.tree.free_host) == (9, 31)
    assert admitted(memory, "abcdefghijklm").block_state.protected == 0
    assert not memory.unsent_loads


def test_a_second_insertion_is_copied_selectively() -> None:
    memory = HostRadixManager(30, 1, HostPool(40, "write_through_selective"))
    served(memory, "abcd")
    assert memory.tree.written == 0
    served(memory, "abcdxy")
    assert (memory.tree.written, memory.tree.free_host) == (4, 36)  # but not "xy"


def test_what_has_no_room_on_the_host_is_gone() -> None:
    memory = HostRadixManager(10, 1, HostPool(11, "write_back"))
    memory.tree.free_host = 3
    served(memory, "abcd")
    assert memory.make_available(10) == 10
    assert (memory.tree.written, list(memory.tree)) == (0, [])


def test_a_copy_now_makes_the_scheduler_wait() -> None:
    memory = HostRadixManager(10, 1, HostPool(11, "write_back"))
    waited: list[int] = []
    memory.tree.copy_at_once = waited.append
    served(memory, "abcd")
    memory.make_available(10)
    assert waited == [4]
