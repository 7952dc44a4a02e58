"""Under `sglang` layers with a window or a state have a second pool, of which a request holds a part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pagesim as ps
from pagesim.errors import PagesimError
from pagesim.results.result import Result
from pagesim.workloads.trace import Trace
from tests.traces import trace_of as trace

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
WINDOWS = {"model": str(GOLDEN / "sglang" / "window128.toml"), "num_blocks": 2000}
STATES = {
    "model": str(GOLDEN / "sglang-today" / "states64.toml"),
    "num_blocks": 4000,
    "max_mamba_cache_size": 30,
}
PLACES = ("blank", "evictable", "protected", "own")


def serve(requests: Trace, pools: dict[str, Any], **options: Any) -> Result:
    how = {"policy": "sglang", "max_model_len": 1500, "cost": "affine:0.01,1e-5,0", **pools, **options}
    return ps.simulate(requests, steps="iterations", **how)


TURNS = trace(*[(k / 2, 200 + 9 * k, 180) for k in range(40)], session_id=np.arange(40) % 7)


@pytest.mark.parametrize(
    ("pools", "second", "size", "options"),
    [
        (WINDOWS, "window", 1000, {"disable_radix_cache": True}),
        (WINDOWS, "window", 1000, {}),
        (STATES, "state", 30, {"disable_radix_cache": True}),
        (STATES, "state", 30, {}),
        (STATES, "state", 30, {"disable_overlap_schedule": True}),
        (STATES, "state", 30, {"block_size": 16, "num_blocks": 250, "chunked_prefill_size": 128}),
    ],
    ids=["windows, no tree", "windows", "states, no tree", "extra_buffer", "no_buffer", "pages"],
)
@pytest.mark.parametrize("fast_forward", [False, True])
def test_every_token_of_both_pools_is_somewhere(
    fast_forward: bool, pools: dict[str, Any], second: str, size: int, options: dict[str, Any]
) -> None:
    ratio = {"swa_full_tokens_ratio": 0.5} if second == "window" else {}
    result = serve(TURNS, pools, fast_forward=fast_forward, **ratio, **options)
    tree, steps = result.tree, result.steps
    assert tree is not None
    assert steps is not None
    page, caches = options.get("block_size", 1), "disable_radix_cache" not in options
    assert set(tree[list(PLACES)].sum(axis=1)) == {page * options.get("num_blocks", pools["num_blocks"])}
    pool = tree[[f"{second}_{name}" for name in PLACES]]
    assert set(pool.sum(axis=1)) == {size}
    assert (pool >= 0).all(axis=None)
    if second == "window":
        live = tree["window_evictable"] + tree["window_protected"]
        assert (tree["tombstones"] + live == tree["evictable"] + tree["protected"]).all()
        assert (tree["tombstones"].max() > 0) == caches
    else:
        assert (pool["state_evictable"].max() > 0) == caches
    last = tree["iterations"].cumsum().to_numpy() - 1
    assert (tree["evictable"] // page).tolist() == (steps["cached"].to_numpy()[last] // page).tolist()
    assert (result.requests["status"] == "finished").all()


@pytest.mark.parametrize("pools", [WINDOWS | {"num_blocks": 9000}, STATES], ids=["windows", "states"])
def test_fast_forward_takes_many_steps_at_once_and_shows_each_as_it_is(pools: dict[str, Any]) -> None:
    ahead, stepped = (serve(TURNS, pools, fast_forward=each) for each in (True, False))
    assert ahead.steps is not None
    assert stepped.steps is not None
    assert ahead.steps.equals(stepped.steps)
    assert ahead.requests.equals(stepped.requests)
    assert ahead.tree is not None
    assert stepped.tree is not None
    assert len(ahead.tree) < len(stepped.tree) / 2


def test_models_without_two_pools_keep_all_tokens_in_one() -> None:
    requests = trace((0, 300, 900))
    for options in ({"model": "gemma3-12b"}, {"disable_hybrid_swa_memory": True}):
        tree = serve(requests, WINDOWS, **options).tree
        assert tree is not None
        assert "window_own" not in tree


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"swa_full_tokens_ratio": 0.05}, "swa_full_tokens_ratio is 0.05, which leaves the pool"),
        ({"model": "glm-5.3-flash"}, "beside states SGLang is simulated for layers that attend to all"),
    ],
)
def test_what_does_not_start_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PagesimError, match=sentence):
        serve(TURNS, WINDOWS, **options)


def test_the_summary_says_how_many_bytes_states_take() -> None:
    states = serve(trace((0, 300, 200)), STATES).summary["memory"]["states"]
    # A convolution of 3 · 64 numbers in 16 bits, a state of 2 · 16 · 16 in 32.
    assert states["bytes_per_slot"] == 3 * 64 * 2 + 2 * 16 * 16 * 4
    assert (states["slots"], states["slots_per_request"], states["evicted"]) == (30, 3, 0)


def test_one_hybrid_model_under_two_engines() -> None:
    """vLLM keeps states at the ends of long blocks, SGLang at multiples of its kernels' 64 tokens."""
    turns = GOLDEN / "sglang" / "turns.csv"
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
