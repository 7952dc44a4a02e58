"""The radix tree finds, splits, touches and evicts as one does whose every node is a whole prefix."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any, get_args

import pytest

from pagesim.kvcache import SequenceGroup
from pagesim.kvcache.radix import EvictionPolicy, Node, RadixManager, RadixTree
from pagesim.testing.requests import Prompt
from tests.kvcache.slow_tree import SlowTree, Tokens

LETTERS = 3
LONGEST = 24


def text(rnd: Random, page: int) -> Prompt:
    """Return random tokens, of few kinds, so that prefixes are met again."""
    tokens = [rnd.randrange(LETTERS) for _ in range(rnd.randint(1, LONGEST))]
    return Prompt(tuple(token for token in tokens for _ in range(rnd.choice((1, page)))), page)


def entries(content: Prompt, tree: RadixTree) -> tuple[Any, ...]:
    """Return what a tree is keyed by: the tokens, or each with the one behind it."""
    return tuple(pairwise(content.tokens)) if tree.behind else content.tokens


def prefix_of(node: Node, tree: RadixTree) -> Tokens:
    return entries(node.content, tree)[: node.end] if node.end else ()  # type: ignore[arg-type]


def state(tree: RadixTree) -> dict[Tokens, tuple[float, ...]]:
    return {
        prefix_of(node, tree): (node.last_access, node.created, node.hit_count, node.lock_ref)
        for node in tree
    }


@pytest.mark.slow_but("1-lru", "4-lfu", "1 by pairs-lfu", "4 by pairs-lru")
@pytest.mark.parametrize("policy", get_args(EvictionPolicy))
@pytest.mark.parametrize(
    ("page", "by_pairs"),
    [(1, False), (4, False), (1, True), (4, True)],
    ids=["1", "4", "1 by pairs", "4 by pairs"],
)
def test_random_lives_are_those_of_a_slow_tree(page: int, by_pairs: bool, policy: EvictionPolicy) -> None:
    rnd = Random(f"{page} {policy}")
    tree, slow = RadixTree(page, policy, by_pairs=by_pairs), SlowTree(page, policy)
    held: list[Node] = []
    evicted = split = 0
    for _ in range(900):
        change = rnd.choice(("match", "insert", "insert", "hold", "go on", "let go", "evict"))
        content = text(rnd, page)
        count, tokens = len(content.tokens), entries(content, tree)
        whole = len(tokens) - len(tokens) % page
        before = len(slow.nodes)
        if change == "match":
            node = tree.match(content, count)
            assert tokens[: node.end] == slow.match(tokens)
            split += len(slow.nodes) > before
        elif change == "insert" and whole:
            seen = rnd.randint(0, whole)
            there, node = tree.insert(content, whole, seen)
            assert there == slow.insert(tokens[:whole], seen)
            assert node.end == whole
        elif change == "hold":
            held.append(tree.match(content, count))
            tree.lock(held[-1])
            slow.lock(slow.match(tokens))
        elif change == "go on" and held:
            place = rnd.randrange(len(held))
            start = prefix_of(held[place], tree)
            own = held[place].content.tokens[: len(start) + tree.behind] if start else ()  # type: ignore[attr-defined]
            longer = Prompt(own + content.tokens, page)
            further = entries(longer, tree)
            whole = len(further) - len(further) % page
            seen = rnd.randint(0, whole)
            there, node = tree.insert(longer, whole, seen) if whole else (0, tree.root)
            assert there == (slow.insert(further[:whole], seen) if whole else 0)
            tree.unlock(held.pop(place))
            slow.lock(start, -1)
            if rnd.random() < 0.5:
                held.append(node)
                tree.lock(node)
                slow.lock(further[:whole])
        elif change == "let go" and held:
            node = held.pop(rnd.randrange(len(held)))
            tree.unlock(node)
            slow.lock(prefix_of(node, tree), -1)
        elif change == "evict" and len(slow.nodes) > 12:
            wanted = rnd.randint(1, 40)
            sizes = sum(slow.length(node) for node in slow.nodes)
            gone = slow.evict(wanted)
            assert tree.evict(wanted) == sizes - sum(slow.length(node) for node in slow.nodes)
            evicted += len(gone)
        assert state(tree) == slow.state()
        assert (tree.evictable, tree.protected) == (slow.tokens(locked=False), slow.tokens(locked=True))
    assert evicted > 30
    assert split > 5


def counts(memory: RadixManager) -> tuple[int, ...]:
    return memory.free_blocks, memory.cached_blocks, memory.shared_blocks


def admitted(lives: Random, memory: RadixManager) -> SequenceGroup | None:
    """Return a request of random tokens, of which a part may be no prompt's, if there is room for it."""
    content = text(lives, memory.block_size)
    request = SequenceGroup(lives.randint(1, len(content.tokens)))
    request.content = content
    request.prompt = lives.randint(0, request.tokens)
    memory.match_prefix(request, request.tokens)
    if not memory.can_admit(request, request.tokens):
        return None
    memory.admit(request, request.tokens)
    return request


@pytest.mark.parametrize("page", [1, 4])
def test_what_is_cached_apart_changes_no_count(page: int) -> None:
    rnd = Random(page)
    apart = changed = 0
    for _ in range(600):
        memory = RadixManager(200, page)
        for _ in range(rnd.randint(0, 3)):
            if (cached := admitted(rnd, memory)) is not None:
                memory.release(cached)
        requests = [each for _ in range(2) if (each := admitted(rnd, memory)) is not None]
        is_apart, before = memory.caches_apart(requests), counts(memory)
        for request in requests:
            memory.cache_tokens(request, request.tokens)
        apart += is_apart
        changed += counts(memory) != before
        assert not is_apart or counts(memory) == before
    assert apart > 50
    assert changed > 50
