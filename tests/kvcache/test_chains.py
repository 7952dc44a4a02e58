"""Chains of tiers: no room is lost or counted twice, and each place in a chain means what it says."""

from __future__ import annotations

import random

import pytest

from pagesim.kvcache.tiers import (
    DEVICE,
    ENTRIES,
    EVICTIONS,
    ChunkStore,
    LruByRequest,
    RequestUse,
    Tier,
    TierChain,
    TierCounts,
    new_eviction,
    segment,
    singles,
)


def tier(capacity, *, name="tier", eviction="lru", exclusive=False, direct=False):
    return Tier(name, ChunkStore(capacity, new_eviction(eviction, capacity)), exclusive, direct)


def keys(request, count, first=0):
    """Return the chunks of a prompt of 16 tokens a chunk, one by one."""
    return singles([(segment(request, 16), first, count)])


def place_of(chain, key):
    """Return the nearest tier in which a chunk is ready; None where it is in none."""
    ((_, place),) = chain.places(key)
    return place


def settle(chain, moves):
    """Carry out moves, and what follows from them, in order; return all of them."""
    done = []
    waiting = list(moves)
    while waiting:
        move = next(each for each in waiting if not any(other in chain.moves for other in each.after))
        waiting.remove(move)
        done.append(move)
        waiting += chain.over(move)
    return done


def routes(moves):
    return [(move.source, move.target, move.chunks) for move in moves]


KINDS = {
    "vllm": lambda: [tier(8)],
    "write-through": lambda: [tier(6), tier(10), tier(30)],
    "demotion": lambda: [tier(6), tier(10, exclusive=True), tier(20, exclusive=True)],
    "side-by-side": lambda: [tier(6), tier(10, direct=True), tier(20)],
    "demoted-to-arc": lambda: [tier(5), tier(9, eviction="arc", exclusive=True)],
    **{f"drawn-{seed}": lambda seed=seed: drawn_chain(seed) for seed in range(5)},
}


def drawn_chain(seed):
    drawn = random.Random(seed)
    tiers = [tier(drawn.randint(1, 12))]
    for _ in range(drawn.randint(0, 3)):
        exclusive = drawn.random() < 0.5
        tiers.append(
            tier(
                drawn.randrange(16),
                eviction=drawn.choice([*EVICTIONS, "lru-chunk", "sieve", "s3fifo"]),
                exclusive=exclusive,
                direct=not exclusive and drawn.random() < 0.3,
            )
        )
    return tiers


class Life:
    """Random operations on a chain: offers, losses of the device, loads, ends of requests, ends of moves."""

    def __init__(self, tiers, seed):
        self.chain = TierChain(tiers)
        self.drawn = random.Random(seed)
        self.uses = {}
        self.begun = 0

    def step(self):
        drawn, chain = self.drawn, self.chain
        request = drawn.randrange(6)
        use = self.uses.setdefault(request, chain.new_use())
        count = drawn.randint(1, 5)
        some = keys(request // 2, count + 3, first=drawn.randrange(4))  # two requests share a prompt
        doing = drawn.random()
        if doing < 0.35:
            self.count(chain.offer(use, some))
        elif doing < 0.6:
            self.count(chain.load(use, [key for key in some if place_of(chain, key) is not None]))
        elif doing < 0.65:
            chain.finish(self.uses.pop(request))
        elif chain.moves:
            ready = [move for move in chain.moves if not any(other in chain.moves for other in move.after)]
            self.count(chain.over(drawn.choice(ready)))

    def count(self, moves):
        self.begun += len(moves or ())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [200, pytest.param(3_000, marks=pytest.mark.slow)])
def test_no_room_is_lost_or_counted_twice(kind, steps):
    life = Life(KINDS[kind](), seed=steps)
    chain, device = life.chain, set(keys(0, 8)[::2])
    for step in range(steps):
        life.step()
        for each in chain.tiers:
            entries = TierCounts("", each.store, lambda: device).entries()
            assert tuple(entries) == ENTRIES
            assert min(entries.values()) >= 0
            assert sum(entries.values()) == each.store.capacity
        if step % 5 == 0:
            chain.check_integrity()
    settle(chain, list(chain.moves))
    chain.check_integrity()
    assert not chain.moves
    for each in chain.tiers:
        entries = TierCounts("", each.store, lambda: device).entries()
        assert entries["pending"] == entries["pinned"] == 0
    assert life.begun > 5, "something was moved"


def test_vllms_tier_is_a_chain_of_one_inclusive_tier():
    """The same offers, loads and ends leave the same chunks in the chain and in a store alone."""
    chain, store, drawn = TierChain([tier(7)]), ChunkStore(7, LruByRequest()), random.Random(1)
    for _ in range(2000):
        request = drawn.randrange(9)
        ours, theirs = chain.new_use(), RequestUse()
        some = keys(request, drawn.randint(1, 5))
        found = [key for key in some if key in store]
        assert [key for key in some if place_of(chain, key) is not None] == found
        moves = chain.load(ours, found)
        store.pin(theirs, found)
        assert routes(settle(chain, moves)) == ([(0, DEVICE, len(found))] if found else [])
        store.unpin(found)
        moves, missing = chain.offer(ours, some), store.offer(theirs, some)
        assert [list(move.runs) for move in settle(chain, moves or [])] == ([missing] if missing else [])
        store.written(missing or ())
        chain.finish(ours)
        store.finish(theirs)
        assert chain.tiers[0].store.chunks() == store.chunks()


def test_what_is_written_goes_on_to_inclusive_tiers_and_comes_back_through_them():
    chain = TierChain([tier(2), tier(8), tier(8)])
    first = chain.new_use()
    written = settle(chain, chain.offer(first, keys(1, 2)))
    assert routes(written) == [(DEVICE, 0, 2), (0, 1, 2), (1, 2, 2)]
    chain.finish(first)
    settle(chain, chain.offer(chain.new_use(), keys(2, 2)))
    assert {place_of(chain, key) for key in keys(1, 2)} == {1}, "evicted from the first, found in the second"
    loaded = settle(chain, chain.load(chain.new_use(), keys(1, 2)))
    assert routes(loaded) == [(1, 0, 2), (0, DEVICE, 2)]
    assert {place_of(chain, key) for key in keys(1, 2)} == {0}, "and kept on the way"
    assert {place_of(chain, key) for key in keys(2, 2)} == {1}


def test_what_is_evicted_goes_down_to_an_exclusive_tier_before_its_place_is_written():
    chain = TierChain([tier(2), tier(8, exclusive=True)])
    settle(chain, chain.offer(chain.new_use(), keys(1, 2)))
    demotion, write = chain.offer(chain.new_use(), keys(2, 2))
    assert routes([demotion, write]) == [(0, 1, 2), (DEVICE, 0, 2)]
    assert write.after == (demotion,)
    with pytest.raises(ValueError, match="is over before what it comes after"):
        chain.over(write)
    settle(chain, [demotion, write])
    assert [each.store.used for each in chain.tiers] == [2, 2]
    demotion, promotion = chain.load(chain.new_use(), keys(1, 2))
    assert routes([demotion, promotion]) == [(0, 1, 2), (1, 0, 2)]
    assert promotion.after == (demotion,)
    settle(chain, [demotion, promotion])
    assert {place_of(chain, key) for key in keys(1, 2)} == {0}
    assert {place_of(chain, key) for key in keys(2, 2)} == {1}, "the two have changed places"
    assert [each.store.used for each in chain.tiers] == [2, 2], "nothing is there twice"


def test_tiers_side_by_side_are_written_and_read_without_one_another():
    chain = TierChain([tier(2), tier(8, direct=True)])
    written = settle(chain, chain.offer(chain.new_use(), keys(1, 2)))
    assert routes(written) == [(DEVICE, 0, 2), (DEVICE, 1, 2)]
    settle(chain, chain.offer(chain.new_use(), keys(2, 2)))
    assert routes(settle(chain, chain.load(chain.new_use(), keys(1, 2)))) == [(1, DEVICE, 2)]


def test_what_finds_no_room_above_passes_through():
    chain = TierChain([tier(1), tier(8)])
    settle(chain, chain.offer(chain.new_use(), keys(1, 1)))
    pinned = chain.load(chain.new_use(), keys(1, 1))
    chain.tiers[1].store.written(chain.tiers[1].store.offer(RequestUse(), keys(2, 3)))
    loaded = settle(chain, chain.load(chain.new_use(), keys(2, 3)))
    assert routes(loaded) == [(1, 0, 3), (0, DEVICE, 3)]
    assert {place_of(chain, key) for key in keys(2, 3)} == {1}
    settle(chain, pinned)


def test_the_first_tier_decides_whether_an_offer_must_be_made_again():
    chain = TierChain([tier(1), tier(8, direct=True)])
    assert chain.offer(chain.new_use(), keys(1, 2)) is None
    assert chain.tiers[1].store.used == 0
    small = TierChain([tier(8), tier(1, direct=True)])
    assert routes(small.offer(small.new_use(), keys(1, 2))) == [(DEVICE, 0, 2)]


def test_nothing_leads_to_an_exclusive_direct_tier():
    for tiers in (
        [tier(1), tier(1, name="far", exclusive=True, direct=True)],
        [tier(1, name="far", exclusive=True)],
    ):
        with pytest.raises(ValueError, match="tier far is exclusive and no tier is above it"):
            TierChain(tiers)
    with pytest.raises(KeyError, match="are ready in no tier"):
        TierChain([tier(1)]).load(TierChain([tier(1)]).new_use(), keys(1, 1))
