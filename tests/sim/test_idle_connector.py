"""An engine with Nixl's connector that no request is transferred by: only its fences show."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

import pagesim as ps
from pagesim.workloads.trace import Trace

SYSTEM: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "gpu": "h100",
    "cost": "affine:0.010,1e-5,1e-7",
    "max_num_batched_tokens": 256,
    "max_model_len": 4096,
    "enable_prefix_caching": False,
}


def trace_of(seed: int) -> Trace:
    """Return requests that outgrow 120 blocks together, some of which clients abort."""
    rnd = Random(seed)
    arrival = np.sort([rnd.random() * 8 for _ in range(60)])
    return Trace(
        arrival,
        np.array([rnd.randint(20, 700) for _ in arrival]),
        np.array([rnd.randint(1, 120) for _ in arrival]),
        abort_s=arrival + np.array([rnd.choice((0.2, 1.0, 1e4)) for _ in arrival]),
    )


def served(trace: Trace, **options: Any) -> Any:
    return ps.simulate(trace, "vllm-v1", **{**SYSTEM, "num_blocks": 120, **options})


@pytest.mark.parametrize("seed", range(4))
def test_it_decides_as_a_connector_does_to_a_store_that_holds_nothing(seed: int) -> None:
    """``defer_block_free`` of 0.33.0 is of any consumer of KV: of a store on the host, whose logs show it."""
    trace = trace_of(seed)
    with_nixl = served(trace, kv_connector="nixl").requests
    with_store = served(trace, kv_offloading_chunks=0).requests
    assert set(with_store.columns) - set(with_nixl.columns) <= {"loaded_tokens"}
    assert with_nixl.equals(with_store[with_nixl.columns])
    assert with_nixl["recomputes"].sum() > 0


@pytest.mark.parametrize("method", ["ngram", "eagle3"])
def test_drafts_hash_as_beside_any_connector(method: str) -> None:
    """config/vllm.py 688: with a ``kv_transfer_config`` blocks keep the hashes that look ahead at nothing."""
    drafts = {"speculative_method": method, "speculative_tokens": 3, "acceptance": 0.7}
    options = {**drafts, "enable_prefix_caching": True}
    trace = trace_of(1)
    with_nixl = served(trace, kv_connector="nixl", **options).requests
    with_store = served(trace, kv_offloading_chunks=0, **options).requests
    assert with_nixl.equals(with_store[with_nixl.columns])


def test_without_batches_in_flight_it_changes_nothing() -> None:
    trace = trace_of(7)
    plain = served(trace, async_scheduling=False)
    assert served(trace, async_scheduling=False, kv_connector="nixl").requests.equals(plain.requests)
    fenced = served(trace, kv_connector="nixl").requests
    assert not fenced.equals(served(trace).requests)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kv_offloading_chunks": 8}, "what kv_offloading_size does beside it"),
        ({"vllm_version": "0.19.0"}, "what vLLM 0.19.0 does beside it"),
        ({"model": "gpt-oss-20b", "num_blocks": 4000}, "for models whose layers keep every token alike"),
    ],
)
def test_it_is_refused_beside_what_no_log_shows(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ps.PagesimError, match=said):
        ps.simulate(trace_of(0), "vllm-v1", **{**SYSTEM, "num_blocks": 120, **options}, kv_connector="nixl")
