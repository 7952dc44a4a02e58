"""Counting by the piece decides and names what counting block by block would."""

import random
from itertools import chain

import pytest

from pagesim.kvcache import PrefixCachingAllocator
from tests.kvcache.block_by_block import BlockByBlock
from tests.kvcache.text import Text

BLOCKS = 29
CHANGES = 400


class Life:
    """The same requests, in chunks and then growing, in both."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        size, first = self.random.choice((1, 2, 3)), self.random.random() < 0.5
        self.cache = PrefixCachingAllocator(BLOCKS, size, reuses_unfilled_first=first)
        self.cache.names_at_once = True
        self.rule = BlockByBlock(BLOCKS, size, reuses_unfilled_first=first)
        self.rest: dict[int, int] = {}  # tokens of its prompt that a sequence has not computed
        self.growing: list[int] = []
        self.sequences = 0
        self.found = self.lost = self.doubles = 0

    def change(self) -> None:
        kind = self.random.choices(
            ("admit", "chunk", "grow", "publish", "free", "aside"), (6, 6, 5, 1, 4, 1)
        )[0]
        getattr(self, kind)()
        self.compare()

    def admit(self) -> None:
        choose, rule, cache = self.random, self.rule, self.cache
        prompt = choose.choices((0, 1), (8, 1), k=choose.randint(1, 24))
        text = Text(prompt, rule.size)
        hits = rule.hits(text, len(prompt))
        assert cache.hits(text, len(prompt)) == hits
        if choose.random() < 0.2:
            hits = choose.randint(0, hits)  # somebody who does not take over all that is there
        tokens = min(len(prompt), hits * rule.size + choose.randint(1, 16))
        wanted = rule.wanted(text, hits, tokens)
        assert cache.blocks_wanted(text, hits, tokens) == wanted
        if wanted > len(rule.queue):
            self.free()
            return
        self.sequences += 1
        self.found += hits
        rule.allocate(self.sequences, text, hits, tokens)
        cache.allocate_cached(self.sequences, text, hits, tokens)
        self.rest[self.sequences] = len(prompt) - tokens

    def chunk(self) -> None:
        if not self.rest:
            return
        sequence = self.random.choice(list(self.rest))
        tokens = min(self.rest[sequence], self.random.randint(1, 16))
        held = self.rule.tokens[sequence]
        if not tokens:
            del self.rest[sequence]
            self.growing.append(sequence)
            self.cache.start_growing(sequence)
        elif -(-(held + tokens) // self.rule.size) - len(self.rule.tables[sequence]) <= len(self.rule.queue):
            self.rest[sequence] -= tokens
            self.rule.extend(sequence, tokens)
            self.rule.publish(sequence)
            self.cache.extend(sequence, tokens)

    def grow(self) -> None:
        if self.cache.demand(1) > self.cache.free_blocks:
            self.free()
            return
        self.cache.grow(1)
        for sequence in self.growing:
            self.rule.extend(sequence, 1)

    def publish(self) -> None:
        for sequence in self.random.sample(self.growing, min(1, len(self.growing))):
            self.rule.publish(sequence)
            self.cache.publish(sequence)

    def free(self) -> None:
        if not self.rule.tables:
            return
        sequence = self.random.choice(list(self.rule.tables))
        self.rest.pop(sequence, None)
        if sequence in self.growing:
            self.growing.remove(sequence)
        self.rule.free(sequence)
        self.cache.free(sequence)

    def aside(self) -> None:
        """Somebody goes after blocks were set aside for who grows then."""
        due = self.cache.demand(1)
        if not self.growing or due > self.cache.free_blocks:
            return
        waiting = [sequence for sequence in self.rule.tables if sequence not in self.growing]
        self.cache.set_aside(due)
        for sequence in self.growing:
            self.rule.extend(sequence, 1)
        for sequence in waiting[:1]:
            self.rest.pop(sequence, None)
            self.cache.free(sequence)
            self.rule.free(sequence)
        self.cache.grow(1)

    def compare(self) -> None:
        rule, cache = self.rule, self.cache
        cache.check_integrity()
        assert list(cache._free_list()) == list(rule.queue)
        assert {sequence: cache.block_table(sequence) for sequence in rule.tables} == rule.tables
        assert (cache.cached_blocks, cache.blocks_taken) == (rule.cached, rule.taken)
        assert cache.shared_blocks == sum(users - 1 for users in rule.users.values() if users > 1)
        lost = [range(first, first + blocks) for first, blocks in cache.take_evictions()]
        assert list(chain.from_iterable(lost)) == rule.evictions
        self.lost += len(rule.evictions)
        rule.evictions.clear()
        self.doubles += sum(len(blocks) > 1 for blocks in rule.with_key.values())


@pytest.mark.parametrize("seeds", [range(each, each + 10) for each in range(0, 40, 10)])
def test_pieces_are_taken_found_and_lost_as_their_blocks_would_be(seeds: range) -> None:
    found = lost = doubles = 0
    for seed in seeds:
        life = Life(seed)
        for _ in range(CHANGES):
            life.change()
        found, lost, doubles = found + life.found, lost + life.lost, doubles + life.doubles
    assert min(found, lost, doubles) > 1000, "that is what these lives are about"
