"""Copies along a chain of tiers, on the clock, worked out by hand."""

from __future__ import annotations

from pagesim.costs.specs import Link, TierSpec
from pagesim.costs.specs.tier_spec import EVICTIONS as NAMES
from pagesim.costs.transfers import ChainLinks
from pagesim.kvcache.tiers import DEVICE, EVICTIONS
from pagesim.setup.tiers import make_chain
from pagesim.sim.chain_copies import ChainCopies
from pagesim.sim.clock import TICKS_PER_SECOND

MB = 1_000_000
MS = TICKS_PER_SECOND // 1000
KEYS = [(16 * (place + 1), 0, place) for place in range(4)]
"""Four chunks of a megabyte each."""


def spec(name, capacity, load, store=None, **more):
    """Return a tier of so many MB, with links of so many MB a millisecond and no latency."""
    return TierSpec(
        name, capacity * MB, Link(load * 1e9, 0.0, ""), Link((store or load) * 1e9, 0.0, ""), **more
    )


def copies(*tiers):
    return ChainCopies(make_chain(tiers, MB), ChainLinks(tiers), MB)


def ends(copies, until=10**6):
    """Return from where to where each move went, and in which millisecond it was over."""
    return [(move.source, move.target, end / MS) for end, move in copies.advance(until * MS)]


def test_what_is_stored_is_written_on_and_loaded_through_each_link_in_turn():
    run = copies(spec("host", 4, 1), spec("ssd", 100, 0.5, 0.25))
    use = run.chain.new_use()
    run.send(0, run.chain.offer(use, KEYS))
    assert run.next_end == 4 * MS
    assert ends(run) == [(DEVICE, 0, 4.0), (0, 1, 4.0 + 16.0)]
    run.chain.finish(use)
    other = [(16 * (place + 1), 0, 100 + place) for place in range(4)]
    run.send(100 * MS, run.chain.offer(run.chain.new_use(), other))
    assert ends(run) == [(DEVICE, 0, 104.0), (0, 1, 120.0)]
    assert run.next_end is None
    run.send(200 * MS, run.chain.load(run.chain.new_use(), KEYS))
    assert ends(run) == [(1, 0, 208.0), (0, DEVICE, 212.0)]


def test_a_direct_tier_is_read_over_its_own_link_meanwhile():
    run = copies(spec("host", 2, 1), spec("store", 100, 0.5, direct=True))
    run.send(0, run.chain.offer(run.chain.new_use(), KEYS[:2]))
    assert ends(run) == [(DEVICE, 0, 2.0), (DEVICE, 1, 4.0)]
    run.send(10 * MS, run.chain.offer(run.chain.new_use(), KEYS[2:]))
    assert ends(run) == [(DEVICE, 0, 12.0), (DEVICE, 1, 14.0)]
    run.send(20 * MS, run.chain.load(run.chain.new_use(), KEYS))
    assert ends(run) == [(0, DEVICE, 22.0), (1, DEVICE, 24.0)], "two chunks each, side by side"


def test_both_directions_of_a_link_are_used_at_once_and_each_in_turn():
    run = copies(spec("host", 100, 1))
    run.send(0, run.chain.offer(run.chain.new_use(), KEYS[:2]))
    assert ends(run) == [(DEVICE, 0, 2.0)]
    run.send(5 * MS, run.chain.load(run.chain.new_use(), KEYS[:2]))
    run.send(5 * MS, run.chain.offer(run.chain.new_use(), KEYS[2:]))
    run.send(5 * MS, run.chain.load(run.chain.new_use(), KEYS[:1]))
    assert ends(run) == [(0, DEVICE, 7.0), (DEVICE, 0, 7.0), (0, DEVICE, 8.0)]


def test_a_place_is_written_when_what_was_there_has_gone_down():
    run = copies(spec("host", 4, 1), spec("ssd", 100, 0.5, 0.25, exclusive=True))
    run.send(0, run.chain.offer(run.chain.new_use(), KEYS))
    assert ends(run) == [(DEVICE, 0, 4.0)]
    other = [(16 * (place + 1), 0, 100 + place) for place in range(2)]
    run.send(10 * MS, run.chain.offer(run.chain.new_use(), other))
    assert ends(run) == [(0, 1, 18.0), (DEVICE, 0, 20.0)]


def test_a_tier_of_no_room_is_never_written_and_one_without_a_limit_holds_all():
    run = copies(spec("host", 0, 1))
    assert run.chain.offer(run.chain.new_use(), KEYS) is None
    endless = copies(TierSpec("host", None, Link(float("inf"), 0.0, ""), Link(float("inf"), 0.0, "")))
    endless.send(7 * MS, endless.chain.offer(endless.chain.new_use(), KEYS))
    assert ends(endless) == [(DEVICE, 0, 7.0)], "and at once, over a link without a limit"


def test_evictions_are_called_alike_where_they_are_written_and_where_they_are_made():
    assert tuple(EVICTIONS) == NAMES
