"""Fast-forward is an optimisation and never an approximation: stepping gives the same records, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import pagesim as ps
from tests.sim.random_systems import random_case, replay

COSTS = ("affine:0.02,1e-4,1e-6", "affine:0.02,0,0", "affine:0,1e-3,0,1e-3", "roofline")


@st.composite
def runs(draw: st.DrawFn) -> tuple[ps.Trace, dict[str, Any]]:
    """A random system that is often too small for its trace, by any cost model, and a window."""
    case = random_case(draw(st.integers(0, 2**32 - 1)))
    # Of the one model that is drawn only what it keeps is known, so that a roofline has no weights.
    costs = COSTS[:-1] if "model" in case.options else COSTS
    options = {**case.options, "cost": draw(st.sampled_from(costs))}
    if draw(st.booleans()):
        options["window"] = draw(st.sampled_from(["0:1", "0.5:3.25", "2:1000"]))
    assume(not isinstance(replay(case, fast_forward=True, tables=False), str))
    return case.trace, options


@given(runs())
def test_every_request_ends_and_every_slot_is_accounted_for(run: tuple[ps.Trace, dict[str, Any]]) -> None:
    trace, options = run
    assume(options["policy"] not in ("sglang", "trtllm", "lightllm") and "speculative_method" not in options)
    assume("model" not in options)  # of groups there are other entries
    assume("max_concurrency" not in options and trace.think_s is None)  # clients round the times of sending
    options.pop("until", None)
    result = ps.simulate(trace, steps="iterations", **options)
    assert result.steps is not None
    requests = result.summary["requests"]
    assert requests["unfinished"] == 0
    ended = ("finished", "rejected", "unschedulable", "aborted")
    assert sum(requests[outcome] for outcome in ended) == len(result.requests)
    finished = result.requests[result.requests["status"] == "finished"]
    tick = 1.1e-12  # to which times are rounded
    assert (finished["arrival_s"] <= finished["first_scheduled_s"] + tick).all()
    assert (finished["first_scheduled_s"] < finished["first_token_s"]).all()
    assert (finished["first_token_s"] <= finished["finish_s"]).all()
    # Beams that were dropped got their tokens as well.
    wide = pd.Series(np.maximum(trace.n, trace.beam_width), trace.request_id)
    sequences = finished["n"] if options["policy"] == "vllm-v1" else wide[finished["request_id"]].to_numpy()
    all_got = len(finished) == result.requests["first_token_s"].notna().sum()
    if options["policy"] != "static" and all_got:
        # Requests that got a token got them all: the gaps between a sequence's tokens add up to the time from
        # its first token to its last.
        gaps = (sequences * (finished["output_tokens"] - 1)).sum()
        total = (sequences * (finished["finish_s"] - finished["first_token_s"])).sum()
        if "sample_tokens" in finished:
            gaps = (finished["sample_tokens"].map(sum) - finished["n"]).sum()
            total = (finished["sample_finish_s"].map(sum) - finished["n"] * finished["first_token_s"]).sum()
        assert (result.summary["itl"]["mean"] or 0.0) * gaps == pytest.approx(total, rel=1e-9, abs=1e-9)
    if len(result.steps):
        entries = ["used", "reserved", "unused_reservation", "rounding", "external", "cached", "free"]
        entries += [name for name in ("loading", "fenced") if name in result.steps]
        capacity = result.summary["memory"]["num_blocks"] * result.summary["memory"]["block_size"]
        assert (result.steps[entries].sum(axis=1) == capacity).all()
        assert (result.steps[entries] >= 0).all(axis=None)
        assert (np.diff(result.steps["clock"]) >= 0).all()


def test_a_stretch_row_shows_its_first_iteration() -> None:
    trace = ps.Trace(np.array([0.0, 0.3]), np.array([10, 5]), np.array([40, 30]))
    options: dict[str, Any] = {"num_blocks": 20, "block_size": 4, "cost": COSTS[0]}
    every = ps.simulate(trace, steps="iterations", **options).steps
    stretches = ps.simulate(trace, steps="stretches", **options).steps
    assert every is not None
    assert stretches is not None
    assert stretches["iterations"].sum() == len(every)
    assert len(stretches) < len(every) / 2
    heads = every.iloc[stretches["step"].to_numpy()].reset_index(drop=True)
    pd.testing.assert_frame_equal(stretches.drop(columns="iterations"), heads)
