"""Random systems whose prefill is apart from their decode, and the traces that they serve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import pagesim as ps

COST = "affine:0.02,1e-4,1e-6"


@dataclass(frozen=True)
class Case:
    """A trace and the keywords of `simulate_pools`."""

    trace: ps.Trace
    options: dict[str, Any]


@st.composite
def cases(draw: st.DrawFn, *, closed: bool = True) -> Case:
    """Draw a system of two small pools in short memory, and a trace with aborts and shared prompts."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size, prefill, decode = 40, draw(st.integers(1, 3)), draw(st.integers(1, 3))
    arrival = np.cumsum(rng.exponential(1 / draw(st.sampled_from([3.0, 8.0, 30.0])), size))
    bins = draw(st.booleans())
    if bins:  # equal arrivals, and arrivals at the very end of an iteration
        arrival = np.floor(arrival * 50) / 50
    columns: dict[str, Any] = {}
    if draw(st.booleans()):
        when = arrival + rng.exponential(draw(st.sampled_from([0.05, 1.0])), size)
        if bins:
            when = np.ceil(when * 50) / 50
        columns["abort_s"] = np.where(rng.random(size) < 0.5, when, np.inf)
    if draw(st.booleans()):
        columns["prefix_tokens"] = np.full(size, 33)
    trace = ps.Trace(arrival, rng.integers(34, 200, size), rng.integers(1, 120, size)).with_columns(columns)
    options: dict[str, Any] = {
        "prefill": prefill,
        "decode": decode,
        "prefill_router": draw(st.sampled_from(["round-robin", "least-loaded", "fewest-kv-tokens"])),
        "decode_router": draw(st.sampled_from(["round-robin", "least-loaded", "fewest-kv-tokens"])),
        "link": draw(st.sampled_from(["infinite", "10GB/s:5ms", "300MB/s", "50MB/s:1ms"])),
        "lease": draw(st.sampled_from([0, 1, 2, 30])),
        "handover": draw(st.sampled_from([0.0, 0.01, 0.5])),
        "num_blocks": draw(st.integers(20, 80)),
        "max_model_len": 320,
        "cost": "affine:0.02,0,0" if bins else COST,
        "enable_prefix_caching": draw(st.booleans()),
        "async_scheduling": draw(st.booleans()),
        "watermark": draw(st.sampled_from([0.0, 0.1])),
        "max_num_batched_tokens": draw(st.sampled_from([64, 512])),
        "max_num_seqs": draw(st.sampled_from([4, 64])),
    }
    if closed and draw(st.booleans()):
        options["max_concurrency"] = draw(st.integers(1, 12))
    return Case(trace, options)
