"""Under `sglang` layers that keep a state have a pool of their own, for requests and for the tree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pagesim as ps
from pagesim.results.result import Result
from pagesim.workloads.trace import Trace
from tests.traces import trace_of as trace

STATES64 = Path(__file__).resolve().parents[1] / "golden" / "sglang-today" / "states64.toml"


def serve(requests: Trace, **options: Any) -> Result:
    how = {
        "policy": "sglang",
        "model": str(STATES64),
        "num_blocks": 4000,
        "max_model_len": 1500,
        "cost": "affine:0.01,1e-5,0",
        "max_mamba_cache_size": 30,
        **options,
    }
    return ps.simulate(requests, steps="iterations", **how)


TURNS = trace(*[(k / 2, 200 + 9 * k, 180) for k in range(40)], session_id=np.arange(40) % 7)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"disable_radix_cache": True},
        {"disable_overlap_schedule": True},
        {"block_size": 16, "num_blocks": 250, "chunked_prefill_size": 128},
    ],
    ids=["extra_buffer", "no tree", "no_buffer", "pages"],
)
@pytest.mark.parametrize("fast_forward", [False, True])
def test_every_token_and_every_state_is_somewhere(fast_forward: bool, options: dict[str, Any]) -> None:
    result = serve(TURNS, fast_forward=fast_forward, **options)
    tree, steps = result.tree, result.steps
    assert tree is not None
    assert steps is not None
    assert (tree[["blank", "evictable", "protected", "own"]].sum(axis=1) == 4000).all()
    pool = tree[[f"state_{name}" for name in ("blank", "evictable", "protected", "own")]]
    assert (pool.sum(axis=1) == 30).all()
    assert (pool >= 0).all(axis=None)
    caches = "disable_radix_cache" not in options
    assert (pool["state_evictable"].max() > 0) == caches
    last = tree["iterations"].cumsum().to_numpy() - 1
    page = options.get("block_size", 1)
    assert (tree["evictable"] // page).tolist() == (steps["cached"].to_numpy()[last] // page).tolist()
    assert (result.requests["status"] == "finished").all()


def test_fast_forward_changes_nothing() -> None:
    ahead, stepped = (serve(TURNS, fast_forward=each) for each in (True, False))
    assert ahead.steps is not None
    assert stepped.steps is not None
    assert ahead.steps.equals(stepped.steps)
    assert ahead.requests.equals(stepped.requests)
    assert ahead.tree is not None
    assert stepped.tree is not None
    assert len(ahead.tree) < len(stepped.tree) / 2


def test_the_summary_says_how_many_bytes_states_take() -> None:
    states = serve(trace((0, 300, 200))).summary["memory"]["states"]
    # A convolution of 3 · 64 numbers in 16 bits, a state of 2 · 16 · 16 in 32.
    assert states["bytes_per_slot"] == 3 * 64 * 2 + 2 * 16 * 16 * 4
    assert (states["slots"], states["slots_per_request"], states["evicted"]) == (30, 3, 0)


def test_one_hybrid_model_under_two_engines() -> None:
    """vLLM keeps states at the ends of long blocks, SGLang at multiples of its kernels' 64 tokens."""
    turns = STATES64.parents[1] / "sglang" / "turns.csv"
    how = {"model": "qwen3-next-80b", "gpu": "h100", "tensor_parallel_size": 4, "cost": "affine:0.01,1e-5,0"}
    vllm = ps.simulate(turns, policy="vllm-v1", enable_prefix_caching=True, **how)
    sglang = ps.simulate(turns, policy="sglang", **how)
    block = vllm.summary["memory"]["block_size"]
    assert block > 64
    assert (vllm.requests["cached_tokens"] % block == 0).all()
    assert (sglang.requests["cached_tokens"] % 64 == 0).all()
    assert sglang.requests["cached_tokens"].sum() > 1.2 * vllm.requests["cached_tokens"].sum()
    # Where memory goes: to blocks that are all alike, or to states and tokens, 9 to 10, and a padding state.
    memory = sglang.summary["memory"]
    states, tokens = memory["states"], memory["num_blocks"] * 12 * 2 * 256 * 2
    assert states["slots"] * states["bytes_per_slot"] == pytest.approx(0.9 * tokens, rel=0.01)
    assert {"0:state", "3:full"} <= set(vllm.summary["memory"]["groups"])
    assert (vllm.requests["status"] == "finished").all()
    assert (sglang.requests["status"] == "finished").all()
