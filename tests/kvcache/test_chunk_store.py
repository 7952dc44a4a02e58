"""The chunks of one tier: what is written, ready or pinned, and which of them go."""

from __future__ import annotations

import random

import pytest

from pagesim.kvcache.tiers import (
    EVICTIONS,
    WRITING,
    ChunkStore,
    Eviction,
    RequestUse,
    group_of,
    new_eviction,
    segment,
    singles,
)

POLICIES = ("lru-chunk", "arc-textbook", "fifo", "lfu", "sieve", "s3fifo")


def store_of(capacity, eviction="lru", **more):
    return ChunkStore(capacity, new_eviction(eviction, capacity), **more)


def prompt(request, chunks, first=0):
    """Return the chunks of a prompt, 16 tokens each, one by one."""
    return singles([(segment(request, 16), first, chunks)])


def serve(store, keys, *, finish=True):
    """Let a request read what is there of its prompt, and have the rest written; return what it did."""
    use = RequestUse()
    found = [part for key in keys for part in store.ready(key)]
    store.pin(use, found)
    store.unpin(found)
    store.written(store.offer(use, keys) or ())
    if finish:
        store.finish(use)
    return use


def there(store, keys):
    """Return the places of the chunks of a prompt that are there."""
    return [key[1] for key in keys if key in store]


class SlowLru(Eviction):
    """LRU by request, chunk by chunk: each has a rank, and all are sorted whenever one must go."""

    def __init__(self):
        self.rank_of, self.clock, self.alive, self.used = {}, 0, {}, {}

    def rank(self, use):
        if use not in self.alive:
            self.clock += 1
            self.alive[use] = self.clock
        return self.alive[use]

    def missed(self, use, runs):
        self.used.setdefault(use, set()).update(singles(runs))

    def touched(self, use, runs):
        seen = self.used.setdefault(use, set())
        for chunk in set(singles(runs)) - seen:
            self.rank_of[chunk] = max(self.rank_of[chunk], (self.rank(use), True))
        seen.update(singles(runs))
        self.rank(use)

    def inserted(self, use, runs):
        self.rank_of.update(dict.fromkeys(singles(runs), (self.rank(use), True)))

    def forgotten(self, run):
        for chunk in singles([run]):
            del self.rank_of[chunk]

    def finished(self, use):
        there = self.used.pop(use, set()) & self.rank_of.keys()
        if there:
            self.clock += 1
            self.rank_of.update(dict.fromkeys(there, (self.clock, False)))
        self.alive.pop(use, None)

    def choose(self, chunks, may_go):
        def place(chunk):
            (rank, alive), group = self.rank_of[chunk], group_of(chunk)
            return (
                rank,
                -chunk[2] * (16, 32)[group],
                group if alive else -group,
                chunk[0] if alive else -chunk[0],
            )

        chosen = sorted((chunk for chunk in self.rank_of if may_go(chunk)), key=place)[:chunks]
        if len(chosen) < chunks:
            return None
        for chunk in chosen:
            del self.rank_of[chunk]
        return chosen

    def knows(self):
        return set(self.rank_of)


class Twins:
    """A store that is told of runs of chunks, and one that is told of every chunk alone."""

    def __init__(self, eviction, seed):
        self.drawn = random.Random(seed)
        capacity, threshold = self.drawn.choice((1, 5, 12, 40)), self.drawn.choice((0, 0, 2))
        slow = SlowLru() if eviction == "lru" else new_eviction(eviction, capacity)
        self.stores = [
            ChunkStore(capacity, each, threshold=threshold, tracked=30)
            for each in (new_eviction(eviction, capacity), slow)
        ]
        self.uses = {}
        self.writing, self.reading = [], []

    def step(self):
        drawn = self.drawn
        runs, alone = self.stores
        request = drawn.randrange(8)
        uses = self.uses.setdefault(request, (RequestUse(), RequestUse()))
        some = drawn_runs(drawn, request // 2)
        doing = drawn.random()
        before = runs.chunks()
        if doing < 0.4:
            found = [
                store.offer(use, each) for store, use, each in zip(self.stores, uses, both(some), strict=True)
            ]
            assert (found[0] is None) == (found[1] is None)
            if found[0] is None:
                assert runs.chunks() == before, "all or nothing"
            if found[0] is not None:
                assert singles(found[0]) == singles(found[1])
                self.writing.append(found)
            gone = [
                [chunk for run in store.victims for chunk in singles([run])[::-1]] for store in self.stores
            ]
            assert gone[0] == gone[1]
        elif doing < 0.6:
            ready = [part for run in some for part in runs.ready(run)]
            assert singles(ready) == [part for run in singles(some) for part in alone.ready(run)]
            for store, use, each in zip(self.stores, uses, both(ready), strict=True):
                store.pin(use, each)
            self.reading.append(both(ready))
        elif doing < 0.75 and self.writing:
            for store, each in zip(
                self.stores, self.writing.pop(drawn.randrange(len(self.writing))), strict=True
            ):
                store.written(each)
        elif doing < 0.9 and self.reading:
            for store, each in zip(
                self.stores, self.reading.pop(drawn.randrange(len(self.reading))), strict=True
            ):
                store.unpin(each)
        elif doing < 0.97:
            for store, use in zip(self.stores, self.uses.pop(request), strict=True):
                store.finish(use)
        else:
            for store, each in zip(self.stores, both(some), strict=True):
                store.give_up(each)
        assert runs.chunks() == alone.chunks()
        for place, store in enumerate(self.stores):
            store.check_integrity()
            chunks = store.chunks()
            writing = [chunk for offered in self.writing for chunk in singles(offered[place])]
            assert {chunk for chunk in chunks if chunks[chunk] == WRITING} == set(writing)
            assert (+chunks).total() == sum(len(singles(read[place])) for read in self.reading)
            assert store.counts() == (store.writing, store.pinned, store.free)
            assert store.writing + store.pinned + store.evictable + store.free == store.capacity


def both(runs):
    return runs, singles(runs)


def drawn_runs(drawn, content):
    """Return runs in a prompt of two KV groups, with one of two tails; chunks are of one and two blocks."""
    first, end = sorted(drawn.sample(range(15), 2))
    fork = 3 + content % 5
    tail = 2 * content + drawn.randrange(2)
    runs = []
    for group, tokens in ((0, 16), (1, 32)):
        head = (segment(100 + content // 2, tokens, group), first, min(fork, end))
        rest = (segment(200 + tail, tokens, group), max(first, fork), end)
        runs += [run for run in (head, rest) if run[1] < run[2]]
    return runs


@pytest.mark.parametrize("eviction", [*EVICTIONS, *POLICIES])
@pytest.mark.parametrize("seeds", [range(5), pytest.param(range(5, 25), marks=pytest.mark.slow)])
def test_runs_of_chunks_fare_as_each_chunk_alone(eviction, seeds):
    evicted = 0
    for seed in seeds:
        twins = Twins(eviction, seed)
        for _ in range(400):
            twins.step()
        evicted += twins.stores[0].evicted
    assert evicted > 0 or eviction == "never"


def test_what_is_offered_read_or_written_never_goes():
    store = store_of(3)
    serve(store, prompt(1, 1))
    reader, writer = RequestUse(), RequestUse()
    store.pin(reader, prompt(1, 1))
    assert store.offer(writer, prompt(2, 1)) == prompt(2, 1)
    serve(store, prompt(3, 1))
    assert store.offer(RequestUse(), prompt(4, 2)) is None, "one of three can go"
    assert store.offer(RequestUse(), [*prompt(3, 1), *prompt(5, 1)]) is None, (
        "and not what is offered beside it"
    )
    assert store.offer(RequestUse(), prompt(6, 1)) == prompt(6, 1)
    assert store.victims == prompt(3, 1)


def test_a_threshold_takes_a_chunk_when_it_was_offered_often_enough():
    store = store_of(4, threshold=3)
    offered = [store.offer(RequestUse(), prompt(1, 1)) for _ in range(3)]
    assert offered == [[], [], prompt(1, 1)]


def test_only_the_chunks_that_were_offered_last_are_counted():
    store = store_of(4, threshold=2, tracked=1)
    assert store.offer(RequestUse(), prompt(1, 1)) == []
    assert store.offer(RequestUse(), prompt(2, 1)) == []
    assert store.offer(RequestUse(), prompt(1, 1)) == [], "forgotten meanwhile"
    assert store.offer(RequestUse(), prompt(1, 1)) == prompt(1, 1)


def test_what_never_goes_leaves_no_room():
    store = store_of(2, "never")
    serve(store, prompt(1, 2))
    assert store.offer(RequestUse(), prompt(2, 1)) is None
    store.give_up(prompt(1, 1))
    assert store.offer(RequestUse(), prompt(2, 1)) == prompt(2, 1)


def test_a_capacity_cannot_be_negative():
    with pytest.raises(ValueError, match="capacity is -1"):
        store_of(-1)
