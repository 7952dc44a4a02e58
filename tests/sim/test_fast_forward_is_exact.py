"""Fast-forward is an optimisation and never an approximation: stepping gives the same records, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pagesim as ps

POLICIES = (
    "static",
    "contiguous-max",
    "orca-max",
    "orca-pow2",
    "orca-oracle",
    "vllm-sosp",
    "vllm-v0",
    "vllm-v1",
    "token-granular",
    "virtual-contiguous",
)
COSTS = ("affine:0.02,1e-4,1e-6", "affine:0.02,0,0", "affine:0,1e-3,0,1e-3", "roofline")


@st.composite
def runs(draw: st.DrawFn) -> tuple[ps.Trace, str, dict[str, Any]]:
    """A small trace with ties and bursts, a system that is often too small for it, and a cost model."""
    policy = draw(st.sampled_from(POLICIES))
    size = draw(st.integers(1, 30))
    gap = draw(st.sampled_from([0.0, 0.01, 0.1, 1.0, 5.0]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    # Multiples of 10 ms, so that arrivals coincide with one another and, at times, with the clock.
    arrivals = np.round(np.cumsum(rng.exponential(gap, size) if gap else np.zeros(size)), 2)
    longest = draw(st.sampled_from([3, 20, 120]))
    kinds = ["one", "one", "same", "mixed", "beams", "unequal"]
    samples = draw(st.sampled_from([kind for kind in kinds if (policy, kind) != ("vllm-v1", "beams")]))
    n = {
        "one": np.ones(size, int),
        "same": np.full(size, draw(st.integers(2, 4))),
    }.get(samples, rng.integers(1, 4, size))
    abort = None
    if policy != "static" and draw(st.booleans()):
        patience = rng.exponential(draw(st.sampled_from([0.05, 0.5, 5.0])), size)
        abort = np.where(rng.random(size) < 0.5, np.round(arrivals + patience, 2), np.inf)
    prompts, outputs = rng.integers(1, longest, size), rng.integers(1, longest, size)
    trace = ps.Trace(arrivals, prompts, outputs, n, abort_s=abort)
    if samples == "beams":
        trace = trace.with_columns({"n": np.ones(size, int), "beam_width": n})
    elif samples == "unequal":
        lengths = [tuple(rng.integers(1, longest, k).tolist()) for k in n.tolist()]
        trace = trace.with_columns(
            {"sample_tokens": lengths, "output_tokens": np.array([max(each) for each in lengths])}
        )
    block_size = 1 if policy == "token-granular" else draw(st.sampled_from([1, 2, 4, 16, 32]))
    sizes: dict[str, Any] = {"block_size": block_size, "cpu_blocks": draw(st.integers(0, 300))}
    if policy == "virtual-contiguous":
        pages = {"opt-175b": ("64K", 2), "opt-66b": ("64K", 3), "opt-13b": ("256K", 25)}
        model = draw(st.sampled_from(sorted(pages)))
        page_size, block_size = pages[model]
        sizes = {"model": model, "page_size": page_size}
    options: dict[str, Any] = {
        "num_blocks": draw(st.integers(1, 600)) // block_size + 1,
        **sizes,
        "max_model_len": draw(st.sampled_from([64, 256])),
        "cost": draw(st.sampled_from(COSTS)),
    }
    if policy == "static":
        options["max_batch"] = draw(st.integers(1, 6))
    else:
        options["max_num_batched_tokens"] = draw(st.sampled_from([32, 128, 2560]))
        options["max_num_seqs"] = draw(st.sampled_from([1, 3, 8, 256]))
        options["watermark"] = draw(st.sampled_from([0.0, 0.01, 0.2]))
    if policy == "vllm-v0":
        options["vllm_version"] = draw(st.sampled_from(["0.1.7", "0.2.0", "0.2.7"]))
        if options["vllm_version"] == "0.2.7":
            options["max_paddings"] = draw(st.sampled_from([0, 10, 256]))
    if policy == "vllm-v1":
        options["num_blocks"] += 1
        options["vllm_version"] = draw(st.sampled_from(["0.11.2", "0.19.0", "0.33.0"]))
        options["long_prefill_token_threshold"] = draw(st.sampled_from([0, 0, 5, 50]))
        options["max_num_seqs"] = min(options["max_num_seqs"], options["max_num_batched_tokens"])
        if options["vllm_version"] != "0.33.0":
            del options["watermark"]
        options["enable_prefix_caching"] = draw(st.sampled_from([False, True, True]))
        trace = trace.with_columns(shared(draw, rng, trace))
        options["enable_chunked_prefill"] = draw(st.booleans())
        if not options["enable_chunked_prefill"]:
            longest = options["max_model_len"]
            options["max_num_batched_tokens"] = max(options["max_num_batched_tokens"], longest)
        if options["vllm_version"] == "0.33.0":
            options["scheduler_reserve_full_isl"] = draw(st.booleans())
    if policy == "virtual-contiguous":
        options["preemption"] = draw(st.sampled_from(["default", "recompute"]))
    elif policy in ("vllm-sosp", "vllm-v0", "token-granular"):
        options["preemption"] = draw(
            st.sampled_from(["default", "swap", "auto", *(["recompute"] if samples == "one" else [])])
        )
    if draw(st.booleans()):
        options["until"] = draw(st.floats(0, 20))
    if draw(st.booleans()):
        options["window"] = draw(st.sampled_from(["0:1", "0.5:3.25", "2:1000"]))
    return trace, policy, options


def shared(draw: st.DrawFn, rng: np.random.Generator, trace: ps.Trace) -> dict[str, Any]:
    """Columns that say which prompts begin alike."""
    kind = draw(st.sampled_from(["nothing", "hash_ids", "prefix_tokens", "session_id"]))
    prompts = trace.prompt_tokens
    if kind == "hash_ids":
        size = draw(st.sampled_from([1, 3, 16]))
        ids = []
        for tokens in prompts.tolist():
            blocks = -(-tokens // size)
            same = int(rng.integers(0, blocks + 1))
            document = int(rng.integers(0, 2)) * 1000
            ids.append(
                tuple([document + i for i in range(same)] + rng.integers(0, 10**9, blocks - same).tolist())
            )
        return {"hash_ids": ids, "hash_block_size": size}
    if kind == "prefix_tokens":
        return {"prefix_tokens": np.minimum(prompts, rng.choice([0, 7, 40], len(trace)))}
    if kind == "session_id":
        sessions = rng.integers(0, 4, len(trace))
        longer, before = [], dict.fromkeys(range(4), 0)
        for session, tokens, output in zip(
            sessions.tolist(), prompts.tolist(), trace.output_tokens.tolist(), strict=True
        ):
            longer.append(before[session] + 1 + tokens // 8)
            before[session] = longer[-1] + output
        return {"session_id": sessions, "prompt_tokens": np.array(longer)}
    return {}


def comparable(result: ps.Result) -> pd.DataFrame:
    """The requests table with lists as texts: in a list, NaN is not equal to NaN."""
    lists = {c: str for c in ("sample_tokens", "sample_finish_s") if c in result.requests}
    return result.requests.astype(lists)


def without_sim(summary: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in summary.items() if key != "sim"}


@given(runs())
def test_stepping_gives_the_same_records_to_the_bit(run: tuple[ps.Trace, str, dict[str, Any]]) -> None:
    trace, policy, options = run
    fast = ps.simulate(trace, policy, steps="iterations", **options)
    stepping = ps.simulate(trace, policy, steps="iterations", fast_forward=False, **options)
    assert fast.steps is not None
    assert stepping.steps is not None
    pd.testing.assert_frame_equal(fast.steps, stepping.steps, check_exact=True)
    pd.testing.assert_frame_equal(comparable(fast), comparable(stepping), check_exact=True)
    assert without_sim(fast.summary) == without_sim(stepping.summary)
    assert stepping.summary["sim"]["rows"] == stepping.summary["iterations"]


@given(runs())
def test_every_request_ends_and_every_slot_is_accounted_for(
    run: tuple[ps.Trace, str, dict[str, Any]],
) -> None:
    trace, policy, options = run
    options.pop("until", None)
    result = ps.simulate(trace, policy, steps="iterations", **options)
    assert result.steps is not None
    requests = result.summary["requests"]
    assert requests["unfinished"] == 0
    ended = ("finished", "rejected", "unschedulable", "aborted")
    assert sum(requests[outcome] for outcome in ended) == len(result.requests)
    finished = result.requests[result.requests["status"] == "finished"]
    assert (finished["arrival_s"] <= finished["first_scheduled_s"]).all()
    assert (finished["first_scheduled_s"] < finished["first_token_s"]).all()
    assert (finished["first_token_s"] <= finished["finish_s"]).all()
    # Beams that were dropped got their tokens as well.
    wide = pd.Series(np.maximum(trace.n, trace.beam_width), trace.request_id)
    sequences = finished["n"] if policy == "vllm-v1" else wide[finished["request_id"]].to_numpy()
    if policy != "static" and len(finished) == result.requests["first_token_s"].notna().sum():
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
