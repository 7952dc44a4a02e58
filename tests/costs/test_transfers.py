"""Copies over links: what they take, and how they wait for one another."""

import pytest

from pagesim.costs.links import host_links
from pagesim.costs.profiles import analytic_profile
from pagesim.costs.table import Table
from pagesim.costs.transfers import LinkQueue, transfer_ticks
from pagesim.hardware import Link, gpu
from pagesim.models import model
from pagesim.sim.clock import TICKS_PER_SECOND

LINK = Link(1e9, 1e-3, "a gigabyte a second, after a millisecond")
MS = TICKS_PER_SECOND // 1000
MB = 1_000_000
TINY = model("tiny")


def test_a_copy_takes_the_latency_and_its_bytes_over_the_bandwidth():
    assert transfer_ticks(LINK, 5 * MB) == 6 * MS
    assert transfer_ticks(LINK, 0) == 0
    assert transfer_ticks(Link(float("inf"), 0.0, ""), 1 << 60) == 0


def test_copies_in_one_direction_wait_for_one_another_and_no_longer():
    queue = LinkQueue(LINK)
    assert queue.send(0, 4 * MB) == (0, 5 * MS)
    assert queue.send(2 * MS, 1 * MB) == (5 * MS, 7 * MS)
    assert queue.send(20 * MS, 1 * MB) == (20 * MS, 22 * MS)
    assert (queue.busy, queue.sent) == (9 * MS, 6 * MB)


def measured(seconds):
    """Return a profile in which so many blocks of 16 tokens, 100 and 200, took so long out and in."""
    profile = analytic_profile(gpu("h200"), TINY, block_sizes=(16,))
    table = Table(axes={"blocks": (100, 200)}, seconds=seconds)
    terms = profile.terms.model_copy(update={"swap_in": {16: table}, "swap_out": {16: table}})
    return profile.model_copy(
        update={"name": "here", "terms": terms, "origins": {**profile.origins, "swap_in": "measured"}}
    )


def test_a_link_is_as_fast_as_it_was_measured_and_else_as_the_datasheet_says():
    block = 16 * TINY.kv_bytes_per_token("fp16", 1)
    load, store = host_links(gpu("h200"), measured((0.003, 0.005)), TINY)
    assert load.bytes_per_s == pytest.approx(100 * block / 0.002)
    assert load.latency_s == pytest.approx(0.001)
    assert load.note == "measured: swap in of profile here"
    assert store == gpu("h200").host
    assert host_links(gpu("h200")) == (gpu("h200").host, gpu("h200").host)
