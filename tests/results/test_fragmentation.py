"""`Result.fragmentation` of runs that are worked out by hand, one second an iteration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import pagesim as ps

SECOND: dict[str, Any] = {"cost": "affine:1,0,0"}

PARTS = ["unused reservation", "rounding", "padding"]


def assert_shares(result: ps.Result, column: str, of: int, **slots: int) -> None:
    """Compare a column with slots of ``of``; rows that are not named are 0."""
    found = result.fragmentation()[column]
    names = {name.replace("_", " "): amount for name, amount in slots.items()}
    assert set(names) <= set(found.index)
    expected = pd.Series({name: names.get(name, 0) / of for name in found.index})
    pd.testing.assert_series_equal(found, expected, check_names=False)


def test_contiguous_max_length() -> None:
    # 10 blocks of 4: 40 slots. Each request reserves 14 tokens, for which it takes 4 blocks, 16 slots:
    # rounding 2. The first has 3 + 3 = 6 tokens in the end, so 14 - 6 = 8 of its reservation are never used.
    # With lengths of 3, 4, 5 it has 3, 2, 1 tokens to come. The second has 2 + 1 = 3: 11 are never used, and
    # it runs once, with 2 tokens and 1 to come. 24 slots are free in each of the four iterations, and all 40
    # in the two idle seconds.
    trace = ps.Trace(np.array([0.0, 5.0]), np.array([3, 2]), np.array([3, 1]))
    result = ps.simulate(trace, "contiguous-max", num_blocks=10, block_size=4, max_model_len=14, **SECOND)
    held = {"used": 3 + 4 + 5 + 2, "reserved": 3 + 2 + 1 + 1}
    lost = {"internal_fragmentation": 35 + 8, "unused_reservation": 8 + 8 + 8 + 11, "rounding": 4 * 2}
    assert_shares(result, "mean over iterations", 4 * 40, **held, **lost, free=4 * 24)
    assert_shares(result, "mean over time", 6 * 40, **held, **lost, free=4 * 24 + 2 * 40)
    highest = {"internal_fragmentation": 11 + 2, "unused_reservation": 11, "rounding": 2}
    assert_shares(result, "peak", 40, used=5, reserved=3, **highest, free=24)


def test_buddy() -> None:
    # 7 blocks of 4, 28 slots, in chunks of 4, 2 and 1 blocks. Each of two equal requests guesses an output of
    # 4, the power of two from 3 on: 6 + 4 = 10 tokens are 3 blocks, and the buddy gives a chunk of 4, 16
    # slots: rounding 6. In the end it has 9 tokens, so 1 of its reservation is never used; with lengths of 6,
    # 7, 8 it has 3, 2, 1 to come. Beside it 12 slots are free. The second arrives after the first iteration:
    # in the next two it waits for 3 blocks, 3 are free, and no chunk of 4 is: external fragmentation. Then it
    # runs alone.
    trace = ps.Trace(np.array([0.0, 0.5]), np.array([6, 6]), np.array([3, 3]))
    result = ps.simulate(trace, "orca-pow2", num_blocks=7, block_size=4, max_model_len=16, **SECOND)
    shares = {
        **{"used": 2 * (6 + 7 + 8), "reserved": 2 * (3 + 2 + 1)},
        **{"internal_fragmentation": 6 * (1 + 6), "unused_reservation": 6, "rounding": 6 * 6},
        **{"external_fragmentation": 2 * 12, "free": 4 * 12},
    }
    assert_shares(result, "mean over iterations", 6 * 28, **shares)
    assert_shares(result, "mean over time", 6 * 28, **shares)
    highest = {"internal_fragmentation": 7, "unused_reservation": 1, "rounding": 6}
    assert_shares(result, "peak", 28, used=8, reserved=3, **highest, external_fragmentation=12, free=12)


def test_paged() -> None:
    # 4 blocks of 4: 16 slots. Lengths of 3, 4, 5 of 6 tokens in the end: one block with 1 slot to come, one
    # full block, two blocks. Of the last one 1 slot is filled, 1 to come, and 2 that no token fills:
    # rounding.
    trace = ps.Trace(np.zeros(1), np.array([3]), np.array([3]))
    result = ps.simulate(trace, "vllm-sosp", num_blocks=4, block_size=4, watermark=0.0, **SECOND)
    lost = {"internal_fragmentation": 2, "rounding": 2}
    assert_shares(result, "mean over iterations", 3 * 16, used=12, reserved=1 + 1, **lost, free=12 + 12 + 8)
    assert_shares(result, "peak", 16, used=5, reserved=1, **lost, free=12)


def test_a_window_bounds_the_peak() -> None:
    # As above, but only the iterations at 0 and 1 s count.
    trace = ps.Trace(np.zeros(1), np.array([3]), np.array([3]))
    options: dict[str, Any] = {"num_blocks": 4, "block_size": 4, "watermark": 0.0, "window": "0:1", **SECOND}
    result = ps.simulate(trace, "vllm-sosp", **options)
    assert_shares(result, "peak", 16, used=4, reserved=1, free=12)


def test_blocks_of_finished_requests_are_cached() -> None:
    # One block of the five is the null block: 16 slots. Of the first request's 5 stored tokens a block of 4
    # is full: it can still be found when the second one runs.
    trace = ps.Trace(np.array([0.0, 9.0]), np.array([4, 1]), np.array([2, 1]))
    result = ps.simulate(trace, "vllm-v1", num_blocks=5, block_size=4, **SECOND)
    assert result.fragmentation().loc["cached", "peak"] == 4 / 16


@pytest.mark.parametrize("model", ["gpt-oss-20b", "gemma3-27b", "jamba-1.5-mini"])
def test_a_hybrid_cache_has_further_rows_and_padding_is_internal_fragmentation(model: str) -> None:
    trace = ps.make_trace("sharegpt", arrivals="poisson", rate=8.0, num_requests=40, seed=2)
    sizes: dict[str, Any] = {"num_blocks": 400, "max_model_len": 2048, "tensor_parallel_size": 2}
    result = ps.simulate(trace, "vllm-v1", model=model, gpu="h200", steps="iterations", **sizes)
    shares, steps = result.fragmentation(), result.steps
    assert {"recurrent states", "padding", "out of window"} <= set(shares.index)
    for mean in ("mean over iterations", "mean over time"):
        assert shares[mean].drop(PARTS).sum() == pytest.approx(1)
        assert shares[mean][PARTS].sum() == pytest.approx(shares[mean]["internal fragmentation"])
    assert steps is not None
    lost = (steps["unused_reservation"] + steps["rounding"] + steps["padding"]).max()
    capacity = result.summary["memory"]["capacity_bytes"]
    assert lost > 0
    assert shares.loc["internal fragmentation", "peak"] == pytest.approx(lost / capacity)
    assert shares.loc["out of window", "peak"] == pytest.approx(steps["out_of_window"].max() / capacity)


def test_it_is_the_same_after_saving_and_loading(tmp_path: Any) -> None:
    trace = ps.Trace(np.zeros(1), np.array([3]), np.array([3]))
    result = ps.simulate(trace, "vllm-sosp", num_blocks=4, **SECOND)
    loaded = ps.load(result.save(tmp_path / "run"))
    pd.testing.assert_frame_equal(result.fragmentation(), loaded.fragmentation())


def test_where_no_iteration_ran_there_are_no_shares() -> None:
    trace = ps.Trace(np.zeros(1), np.array([5000]), np.array([10]))
    result = ps.simulate(trace, "vllm-sosp", num_blocks=4, **SECOND)
    assert result.fragmentation().isna().all(axis=None)
