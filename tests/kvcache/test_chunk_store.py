"""The chunks of one tier: what is written, ready or pinned, and which of them go."""

from __future__ import annotations

import random

import pytest

from pagesim.kvcache.tiers import EVICTIONS, ChunkStore, Use


def store_of(capacity, eviction="lru", **more):
    return ChunkStore(capacity, EVICTIONS[eviction](capacity), **more)


def prompt(request, chunks, first=0):
    """Return the chunks of a prompt, 16 tokens each."""
    return [(16 * (place + 1), 0, 100 * request + place) for place in range(first, chunks)]


def serve(store, keys, *, finish=True):
    """Let a request read what is there of its prompt, and have the rest written; return what it did."""
    use = Use()
    found = [key for key in keys if store.is_ready(key)]
    store.pin(use, found)
    store.unpin(found)
    store.written(store.offer(use, keys) or ())
    if finish:
        store.finish(use)
    return use


def there(store, keys):
    """Return the places of the chunks of a prompt that are there."""
    return [key[0] // 16 - 1 for key in keys if key in store]


@pytest.mark.parametrize("eviction", EVICTIONS)
@pytest.mark.parametrize("threshold", [0, 2])
@pytest.mark.parametrize("steps", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_no_room_is_lost_or_counted_twice(eviction, threshold, steps):
    drawn, store = random.Random(steps), store_of(12, eviction, threshold=threshold, tracked=30)
    uses, writing, reading = {}, [], []
    for _ in range(steps):
        request, doing = drawn.randrange(8), drawn.random()
        use, keys = (
            uses.setdefault(request, Use()),
            prompt(request // 2, drawn.randint(1, 7), drawn.randrange(3)),
        )
        before = (store.used, store.writing, store.pinned, store.free)
        if doing < 0.4:
            missing = store.offer(use, keys)
            if missing is None:
                assert (store.used, store.writing, store.pinned, store.free) == before, "all or nothing"
            else:
                assert all(store.is_writing(key) for key in missing)
                assert store.writing == before[1] + len(missing)
                writing.append(missing)
        elif doing < 0.6:
            found = [key for key in keys if store.is_ready(key)]
            store.pin(use, found)
            reading.append(found)
        elif doing < 0.75 and writing:
            store.written(writing.pop(drawn.randrange(len(writing))))
        elif doing < 0.9 and reading:
            store.unpin(reading.pop(drawn.randrange(len(reading))))
        elif doing < 0.95:
            store.finish(uses.pop(request))
        else:
            store.give_up(keys)
        store.check_integrity()
        assert store.writing_keys() == {key for keys in writing for key in keys}
        assert store.readers().total() == sum(map(len, reading))
        assert store.writing + store.pinned + store.evictable + store.free == store.capacity
    assert store.evicted > 0 or eviction == "never"


@pytest.mark.parametrize("eviction", ["lru", "arc"])
def test_of_a_request_the_tail_goes_first(eviction):
    store = store_of(4, eviction)
    serve(store, prompt(1, 4))
    serve(store, prompt(2, 2))
    assert there(store, prompt(1, 4)) == [0, 1]


def test_by_chunk_the_head_goes_first():
    store = store_of(4, "lru-chunk")
    serve(store, prompt(1, 4))
    serve(store, prompt(2, 2))
    assert there(store, prompt(1, 4)) == [2, 3]


def test_the_request_that_was_active_longest_ago_loses_its_chunks_first():
    store = store_of(6)
    serve(store, prompt(1, 3))
    serve(store, prompt(2, 3))
    serve(store, prompt(1, 3))
    serve(store, prompt(3, 3))
    assert (there(store, prompt(1, 3)), there(store, prompt(2, 3))) == ([0, 1, 2], [])


def test_a_request_has_the_rank_of_its_first_use_until_it_is_over():
    store = store_of(4)
    long = serve(store, prompt(1, 1), finish=False)
    serve(store, prompt(2, 2), finish=False)
    store.written(store.offer(long, prompt(1, 2)))  # later, but of the request that came first
    serve(store, prompt(3, 1), finish=False)
    assert there(store, prompt(1, 2)) == [0]
    store.finish(long)
    serve(store, prompt(4, 2), finish=False)
    assert (there(store, prompt(1, 2)), there(store, prompt(2, 2))) == ([0], [])


def test_what_is_offered_read_or_written_never_goes():
    store = store_of(3)
    serve(store, prompt(1, 1))
    reader, writer = Use(), Use()
    store.pin(reader, prompt(1, 1))
    assert store.offer(writer, prompt(2, 1)) == prompt(2, 1)
    serve(store, prompt(3, 1))
    assert store.offer(Use(), prompt(4, 2)) is None, "one of three can go"
    assert store.offer(Use(), [*prompt(3, 1), *prompt(5, 1)]) is None, "and not what is offered beside it"
    assert store.offer(Use(), prompt(6, 1)) == prompt(6, 1)
    assert store.victims == prompt(3, 1)


def test_arc_keeps_what_a_second_request_used_when_that_is_over():
    store = store_of(4, "arc")
    serve(store, prompt(1, 2))
    serve(store, prompt(1, 2))
    for request in range(2, 9):
        serve(store, prompt(request, 2))
    assert there(store, prompt(1, 2)) == [0, 1]
    plain = store_of(4, "lru")
    serve(plain, prompt(1, 2))
    serve(plain, prompt(1, 2))
    for request in range(2, 9):
        serve(plain, prompt(request, 2))
    assert there(plain, prompt(1, 2)) == []


def test_arc_gives_recent_chunks_more_room_when_evicted_ones_come_back():
    """Each is a ghost of a recent chunk and raises the target, until the frequent one goes instead."""

    def frequent_after(requests):
        store = store_of(3, "arc")
        serve(store, prompt(1, 1))
        serve(store, prompt(1, 1))
        for request in requests:
            serve(store, prompt(request, 1))
        return there(store, prompt(1, 1))

    assert frequent_after([2, 3, 4, 5, 6, 7, 8, 9]) == [0]
    assert frequent_after([2, 3, 4, 2, 3, 4, 2, 3]) == []


def test_a_threshold_takes_a_chunk_when_it_was_offered_often_enough():
    store = store_of(4, threshold=3)
    offered = [store.offer(Use(), prompt(1, 1)) for _ in range(3)]
    assert offered == [[], [], prompt(1, 1)]


def test_only_the_chunks_that_were_offered_last_are_counted():
    store = store_of(4, threshold=2, tracked=1)
    assert store.offer(Use(), prompt(1, 1)) == []
    assert store.offer(Use(), prompt(2, 1)) == []
    assert store.offer(Use(), prompt(1, 1)) == [], "forgotten meanwhile"
    assert store.offer(Use(), prompt(1, 1)) == prompt(1, 1)


def test_what_never_goes_leaves_no_room():
    store = store_of(2, "never")
    serve(store, prompt(1, 2))
    assert store.offer(Use(), prompt(2, 1)) is None
    store.give_up(prompt(1, 1))
    assert store.offer(Use(), prompt(2, 1)) == prompt(2, 1)


def test_a_capacity_cannot_be_negative():
    with pytest.raises(ValueError, match="capacity is -1"):
        store_of(-1)
