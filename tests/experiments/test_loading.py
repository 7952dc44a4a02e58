"""Loading or recomputing a prefix, by hand: what each takes until the first token."""

from __future__ import annotations

import pytest

from pagesim.costs import Affine
from pagesim.experiments.offload.loading import (
    NAP,
    DecodingLoad,
    OffloadServer,
    path_to_device,
    place_at,
    reaches,
    returning,
)
from pagesim.hardware import Link, TierSpec
from pagesim.sim.clock import TICKS_PER_SECOND

GIB = 1 << 30
KB = 1000
COST = Affine(0.010, 1e-5, 0.0)
"""An iteration takes 10 ms, and 10 µs a token."""

ALONE = DecodingLoad(sequences=0)


def tier(name, gib, rate, **more):
    return TierSpec(
        name, None if gib is None else gib * GIB, Link(rate, 1e-3, ""), Link(rate, 1e-3, ""), **more
    )


def server(tp=1, budget=8192):
    return OffloadServer("a model", tp, 100 * KB, 20 * GIB, COST, budget)


def point(tiers, tokens, *, new=1, beside=ALONE, **of):
    """Return what a prefix in the last tier takes."""
    return list(returning(server(**of), tiers, [tokens], new=new, beside=beside))[-1]


def test_a_load_waits_for_two_iterations_and_a_copy_and_computes_what_is_new():
    found = point([tier("host", 64, 1e9)], 1000, beside=DecodingLoad(sequences=10, context=100))
    step = 0.010 + 10e-5
    assert found.transfer_s == pytest.approx(0.001 + 1000 * 100 * KB / 1e9)
    assert found.load_s == pytest.approx(2 * step + found.transfer_s + 0.010 + 11e-5)
    assert found.recompute_s == pytest.approx(0.010 + 1011e-5)
    assert found.ratio == pytest.approx(found.load_s / found.recompute_s)


def test_where_nothing_runs_a_load_waits_for_two_empty_iterations():
    found = point([tier("host", 64, float("inf"))], 1000)
    assert found.load_s == pytest.approx(2 * NAP / TICKS_PER_SECOND + 0.001 + 0.010 + 1e-5)


def test_a_long_prompt_is_computed_in_chunks_of_the_budget_beside_what_decodes():
    found = point([tier("host", 64, 1e9)], 999, budget=110, beside=DecodingLoad(sequences=10, context=100))
    assert found.recompute_s == pytest.approx(10 * (0.010 + 110e-5)), "1,000 tokens, 100 an iteration"


def test_a_tier_in_line_is_read_over_all_links_above_it_and_a_direct_one_over_its_own():
    chain = [tier("host", 64, 1e9), tier("ssd", 1000, 0.5e9)]
    assert path_to_device(chain, 1) == [1, 0]
    assert point(chain, 1000).transfer_s == pytest.approx(0.001 + 0.1 + 0.001 + 0.2)
    apart = [tier("host", 64, 1e9), tier("far", 1000, 0.5e9, direct=True), tier("disk", 9000, 0.1e9)]
    assert path_to_device(apart, 1) == [1]
    assert path_to_device(apart, 2) == [2, 1]
    assert point(apart[:2], 1000).transfer_s == pytest.approx(0.001 + 0.2)


def test_each_gpu_has_a_link_of_its_own_and_all_share_those_between_tiers():
    chain = [tier("host", 64, 1e9), tier("ssd", 1000, 0.5e9)]
    assert point(chain[:1], 1000, tp=4).transfer_s == pytest.approx(0.101)
    assert point(chain, 1000, tp=4).transfer_s == pytest.approx(0.101 + 0.001 + 4 * 0.2)


def test_recomputing_a_long_prefix_is_slower_and_a_short_one_faster():
    found = list(returning(server(), [tier("host", 64, 50e9)], [10, 100, 1000, 10_000], beside=ALONE))
    ratios = [each.ratio for each in found]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] > 1 > ratios[-1]


def test_the_distance_of_a_hit_says_in_which_tier_it_is():
    inclusive = [tier("host", 64, 1e9), tier("ssd", 1000, 1e9)]
    assert reaches(inclusive, 20 * GIB) == [64 * GIB, 1000 * GIB]
    exclusive = [tier("host", 64, 1e9, exclusive=True), tier("ssd", 1000, 1e9, exclusive=True)]
    assert reaches(exclusive, 20 * GIB) == [84 * GIB, 1084 * GIB]
    assert reaches([tier("host", None, 1e9), tier("ssd", 9, 1e9, exclusive=True)], 0) == [None, None]
    found = [place_at(inclusive, 20 * GIB, each * GIB) for each in (20, 21, 64, 65, 1000, 1001)]
    assert found == [-1, 0, 0, 1, 1, None]
