"""Copies along a chain of tiers, on the clock, worked out by hand."""

from __future__ import annotations

from operator import itemgetter

from pagesim.costs.transfers import ChainLinks
from pagesim.hardware import Link, TierSpec
from pagesim.hardware.tier_spec import EVICTIONS as NAMES
from pagesim.kvcache.tiers import DEVICE, EVICTIONS, ChainBacking, new_eviction, segment, singles
from pagesim.scheduling.arrivals import NEVER
from pagesim.scheduling.offload.jobs import Job, Transfers
from pagesim.scheduling.offload.tracked import Tracked
from pagesim.setup.offload import copy_time, make_chain
from pagesim.sim.clock import TICKS_PER_SECOND
from pagesim.sim.copies import TierCopies, TierLinks

MB = 1_000_000
MS = TICKS_PER_SECOND // 1000
CHUNKS = singles([(segment(1, 16), 0, 4)])
"""Four chunks of a megabyte each."""


def spec(name, capacity, load, store=None, **more):
    """Return a tier of so many MB, with links of so many MB a millisecond and no latency."""
    return TierSpec(
        name, capacity * MB, Link(load * 1e9, 0.0, ""), Link((store or load) * 1e9, 0.0, ""), **more
    )


class Recorded(TierCopies):
    """Notes from where to where each move goes, and when it is over, in ticks."""

    def __init__(self, *tiers):
        links = TierLinks(
            ChainLinks(tiers),
            MB,
            1,
            MB,
            [copy_time(tier.load, MB) for tier in tiers],
            [copy_time(tier.store, MB) for tier in tiers],
        )
        self.backing = ChainBacking(make_chain(tiers, MB))
        self.seen = []
        super().__init__(self.backing, links)

    def _send(self, move, now):
        super()._send(move, now)
        self.seen.append((move.source, move.target, self._ends[move]))

    def _occupy(self, move, job, times, ready):
        end = super()._occupy(move, job, times, ready)
        self.seen.append((move.source, move.target, end))
        return end

    def start(self, now, copy):
        """Start a copy with an iteration that takes no time."""
        job, transfers = Job(Tracked.__new__(Tracked), copy, blocks=copy.chunks), Transfers()
        (transfers.stores if job.is_store else transfers.loads).append(job)
        self.before(transfers, now, now)
        self.finish(self.after(transfers, now, now, naps=False), now)

    def store(self, now, chunks, use=None):
        self.start(now, self.backing.offer(use or self.backing.chain.new_use(), chunks))

    def load(self, now, chunks):
        self.start(now, self.backing.load(self.backing.chain.new_use(), chunks))

    def finish(self, jobs, now):
        for job in jobs:
            self.backing.over(job.copy)
        self.advance(now)

    def ends(self):
        """Carry out all; return from where to where each move went, and in which millisecond it was over."""
        while self.backing.chain.moves:
            now = min(self.due or NEVER, self._moving[0][0] if self._moving else NEVER)
            self.advance(now)
            self.finish(self.finished_by(now), now)
        found, self.seen = sorted(self.seen, key=itemgetter(2)), []
        return [(source, target, end / MS) for source, target, end in found]


def test_what_is_stored_is_written_on_and_loaded_through_each_link_in_turn():
    run = Recorded(spec("host", 4, 1), spec("ssd", 100, 0.5, 0.25))
    use = run.backing.chain.new_use()
    run.store(0, CHUNKS, use)
    assert run.due == 4 * MS
    assert run.ends() == [(DEVICE, 0, 4.0), (0, 1, 4.0 + 16.0)]
    run.backing.chain.finish(use)
    other = [(segment(2, 16), 0, 4)]
    run.store(100 * MS, other)
    assert run.ends() == [(DEVICE, 0, 104.0), (0, 1, 120.0)]
    assert not run.backing.chain.moves
    run.load(200 * MS, CHUNKS)
    assert run.due == 0, "its end is not known before it is on the last link"
    assert run.ends() == [(1, 0, 208.0), (0, DEVICE, 212.0)]


def test_a_direct_tier_is_read_over_its_own_link_meanwhile():
    run = Recorded(spec("host", 2, 1), spec("store", 100, 0.5, direct=True))
    run.store(0, CHUNKS[:2])
    assert run.ends() == [(DEVICE, 0, 2.0), (DEVICE, 1, 4.0)]
    run.store(10 * MS, CHUNKS[2:])
    assert run.ends() == [(DEVICE, 0, 12.0), (DEVICE, 1, 14.0)]
    run.load(20 * MS, CHUNKS)
    assert run.ends() == [(0, DEVICE, 22.0), (1, DEVICE, 24.0)], "two chunks each, side by side"


def test_both_directions_of_a_link_are_used_at_once_and_each_in_turn():
    run = Recorded(spec("host", 100, 1))
    run.store(0, CHUNKS[:2])
    assert run.ends() == [(DEVICE, 0, 2.0)]
    run.load(5 * MS, CHUNKS[:2])
    run.store(5 * MS, CHUNKS[2:])
    run.load(5 * MS, CHUNKS[:1])
    assert run.due == 7 * MS
    assert run.ends() == [(0, DEVICE, 7.0), (DEVICE, 0, 7.0), (0, DEVICE, 8.0)]


def test_a_place_is_written_when_what_was_there_has_gone_down():
    run = Recorded(spec("host", 4, 1), spec("ssd", 100, 0.5, 0.25, exclusive=True))
    run.store(0, CHUNKS)
    assert run.ends() == [(DEVICE, 0, 4.0)]
    other = [(segment(2, 16), 0, 2)]
    run.store(10 * MS, other)
    assert run.ends() == [(0, 1, 18.0), (DEVICE, 0, 20.0)]


def test_a_tier_of_no_room_is_never_written_and_one_without_a_limit_holds_all():
    run = Recorded(spec("host", 0, 1))
    assert run.backing.offer(run.backing.chain.new_use(), CHUNKS) is None
    endless = Recorded(TierSpec("host", None, Link(float("inf"), 0.0, ""), Link(float("inf"), 0.0, "")))
    endless.store(7 * MS, CHUNKS)
    assert endless.ends() == [(DEVICE, 0, 7.0)], "and at once, over a link without a limit"


def test_evictions_are_called_alike_where_they_are_written_and_where_they_are_made():
    assert tuple(EVICTIONS) == NAMES[: len(EVICTIONS)]
    assert {new_eviction(name, 4).knows() == set() for name in NAMES} == {True}
