"""Under `sglang` layers with a window have a pool of their own, of which a request holds about a window."""

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

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "sglang"
WINDOW = 128


def serve(requests: Trace, **options: Any) -> Result:
    how = {
        "policy": "sglang",
        "model": str(GOLDEN / f"window{WINDOW}.toml"),
        "num_blocks": 2000,
        "max_model_len": 1500,
        "cost": "affine:0.01,1e-5,0",
        **options,
    }
    return ps.simulate(requests, steps="iterations", **how)


TURNS = trace(*[(k / 2, 200 + 9 * k, 180) for k in range(40)], session_id=np.arange(40) % 7)


@pytest.mark.parametrize("caches", [False, True], ids=["no tree", "tree"])
@pytest.mark.parametrize("fast_forward", [False, True])
def test_every_token_of_both_pools_is_somewhere(fast_forward: bool, caches: bool) -> None:
    options = {"fast_forward": fast_forward, "disable_radix_cache": not caches}
    result = serve(TURNS, swa_full_tokens_ratio=0.5, **options)
    tree, steps = result.tree, result.steps
    assert tree is not None
    assert steps is not None
    assert (tree[["blank", "evictable", "protected", "own"]].sum(axis=1) == 2000).all()
    pool = tree[[f"window_{name}" for name in ("blank", "evictable", "protected", "own")]]
    assert (pool.sum(axis=1) == 1000).all()
    assert (pool >= 0).all(axis=None)
    live = tree["window_evictable"] + tree["window_protected"]
    assert (tree["tombstones"] + live == tree["evictable"] + tree["protected"]).all()
    assert (tree["tombstones"].max() > 0) == caches
    last = tree["iterations"].cumsum().to_numpy() - 1
    assert tree["evictable"].tolist() == steps["cached"].to_numpy()[last].tolist()
    assert (result.requests["status"] == "finished").all()


def test_fast_forward_takes_many_steps_at_once_and_shows_each_as_it_is() -> None:
    ahead, stepped = (serve(TURNS, num_blocks=9000, fast_forward=each) for each in (True, False))
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
        tree = serve(requests, **options).tree
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
        serve(TURNS, **options)
