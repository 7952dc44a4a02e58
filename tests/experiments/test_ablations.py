"""Ablations: a crossover that is known is found, and the same memory is compared."""

from __future__ import annotations

import numpy as np
import pytest

import pagesim as ps
from pagesim.costs.profiles import Profile, analytic_profile
from pagesim.costs.table import Table, constant
from pagesim.experiments.ablations import best, crossover, notes_on, serve, sizes_of, undo
from pagesim.hardware import gpu
from pagesim.models import model
from pagesim.setup.system import System, checked

TINY = model("tiny")
SIZES = (1, 2, 4, 8, 16, 32, 64)


def synthetic(block_s: float, iteration_s: float, token_s: float = 0.0) -> Profile:
    """Return a profile by which a block takes so long each way, and an iteration so long, and a token."""
    profile = analytic_profile(gpu("h200"), TINY, block_sizes=SIZES)
    prefill = profile.terms.prefill[1].scaled(0.0)
    swap = Table(axes={"blocks": (1, 1000)}, seconds=(block_s, 1000 * block_s))
    return profile.model_copy(
        update={
            "kind": "measured",
            "name": "synthetic",
            "origins": {**profile.origins, "overhead": "measured"},
            "terms": profile.terms.model_copy(
                update={
                    "head": constant("sequences", 0.0),
                    "write": constant("tokens", 0.0),
                    "linear": Table(axes={"tokens": (0, 1000)}, seconds=(0.0, 1000 * token_s)),
                    "overhead": constant("sequences", iteration_s),
                    "prefill": dict.fromkeys(SIZES, prefill),
                    "swap_out": dict.fromkeys(SIZES, swap),
                    "swap_in": dict.fromkeys(SIZES, swap),
                }
            ),
        }
    )


@pytest.mark.parametrize(
    ("recompute_s", "expected"),
    # 256 tokens are 256 / size blocks of 0.1 ms, out and in: 51.2 ms at size 1 and half as long at each next.
    [(0.06, 1), (0.0512, 1), (0.051, 2), (0.02, 4), (0.01, 8), (0.0009, 64), (0.0007, None)],
)
def test_a_known_crossover_is_found(recompute_s, expected):
    found = undo(synthetic(1e-4, recompute_s), TINY, SIZES, 256)
    for each in found:
        assert each.swap_out_s == each.swap_in_s == pytest.approx(256 / each.block_size * 1e-4)
        assert each.recompute_s == pytest.approx(recompute_s)
    swap = {each.block_size: each.swap_s for each in found}
    recompute = {each.block_size: each.recompute_s for each in found}
    assert crossover(swap, recompute) == expected


def test_a_context_that_ends_within_a_block_moves_the_whole_block():
    by_size = {each.block_size: each for each in undo(synthetic(1e-4, 0.01), TINY, (16, 64), 65)}
    assert by_size[16].swap_out_s == pytest.approx(5e-4)
    assert by_size[64].swap_out_s == pytest.approx(2e-4)


def test_a_crossover_is_from_where_on_and_not_a_lucky_point():
    recompute = dict.fromkeys((1, 2, 4, 8), 1.0)
    assert crossover({1: 3.0, 2: 0.9, 4: 1.1, 8: 0.5}, recompute) == 8


def test_end_to_end_the_crossover_follows_what_transfers_cost(tmp_path):
    """Swaps of small blocks are dear and of large ones cheap; recomputing a token costs the same at all."""
    profile = synthetic(2e-4, 1e-3, token_s=1e-4)
    profile.save(tmp_path / "p.json")
    options = {"policy": "vllm-sosp", "model": "tiny", "num_blocks": 40}
    system = checked(System, {**options, "cost": f"profile:{tmp_path / 'p.json'}"})
    trace = ps.Trace(np.zeros(12), np.full(12, 60), np.full(12, 60))
    lines: dict[str, dict[int, float]] = {}
    for way, size, result in serve(system, trace, (1, 8, 32), ("recompute", "swap")):
        memory = result.summary["memory"]
        assert memory["num_blocks"] * memory["block_size"] == 640, "the same memory for all"
        assert sum(result.summary["preemptions"].values()) > 0
        lines.setdefault(way, {})[size] = result.summary["normalized_latency"]["mean"]
    assert lines["swap"][1] > lines["recompute"][1]
    assert lines["swap"][32] < lines["recompute"][32]
    assert crossover(lines["swap"], lines["recompute"]) in (8, 32)


def test_a_policy_without_a_way_to_preempt_is_swept_over_block_sizes():
    system = checked(System, {"policy": "vllm-v1", "model": "tiny", "num_blocks": 41, "cost": "affine:1,0,0"})
    trace = ps.Trace(np.zeros(4), np.full(4, 60), np.full(4, 60))
    found = [(way, size) for way, size, _ in serve(system, trace, (8, 16), ("default",))]
    assert found == [("default", 8), ("default", 16)]


def test_the_best_is_named_with_those_that_are_as_good():
    assert best({8: 1.04, 16: 1.0, 32: 1.049, 64: 1.06}) == (16, [8, 16, 32])


def test_a_block_size_that_was_not_measured_is_refused_with_those_that_were():
    with pytest.raises(ps.PagesimError, match=r"synthetic was not measured at block_size 24; it knows 1, 2,"):
        sizes_of(synthetic(1e-4, 0.01), (16, 24))
    assert sizes_of(synthetic(1e-4, 0.01), None) == SIZES


def test_a_profile_that_knows_no_difference_says_so():
    analytic = analytic_profile(gpu("h200"), TINY, block_sizes=SIZES)
    said = notes_on(analytic, SIZES)
    assert "knows no difference between block sizes in attention" in said[0]
    assert "is analytic" in said[1]
    slower = analytic.terms.decode[1].scaled(2.0)
    decode = {**analytic.terms.decode, 1: slower}
    measured = analytic.model_copy(
        update={"kind": "measured", "terms": analytic.terms.model_copy(update={"decode": decode})}
    )
    assert notes_on(measured, SIZES) == []
