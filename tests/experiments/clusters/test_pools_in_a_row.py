"""With a link that takes no time and without a lease, two pools are two clusters in a row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pagesim as ps
from pagesim.sim.clock import to_seconds, to_tick_column
from tests.experiments.clusters.slow_decoder import SlowDecoder


@pytest.mark.slow
@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**32 - 1),
    rate=st.sampled_from([2.0, 10.0, 40.0]),
    prefill=st.integers(1, 3),
    decode=st.integers(1, 3),
    num_blocks=st.integers(20, 60),
    max_num_seqs=st.sampled_from([3, 64]),
    budget=st.sampled_from([64, 256]),
)
def test_two_pools_are_two_clusters_in_a_row(
    seed: int, rate: float, prefill: int, decode: int, num_blocks: int, max_num_seqs: int, budget: int
) -> None:
    rng = np.random.default_rng(seed)
    size = 50
    trace = ps.Trace(
        np.cumsum(rng.exponential(1 / rate, size)), rng.integers(1, 180, size), rng.integers(1, 110, size)
    )
    options = {
        "num_blocks": num_blocks,
        "max_model_len": 300,
        "cost": "affine:0.02,1e-4,0",
        "async_scheduling": False,
        "enable_prefix_caching": False,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": budget,
    }
    apart = ps.simulate_pools(
        trace, prefill=prefill, decode=decode, link="infinite", lease=0, **options
    ).requests
    prompts_alone = trace.with_columns({"output_tokens": np.ones(size, np.int64)})
    first = ps.simulate_cluster(prompts_alone, "vllm-v1", replicas=prefill, **options).requests
    np.testing.assert_array_equal(apart["prefill_replica"], first["replica"])
    np.testing.assert_array_equal(apart["first_scheduled_s"], first["first_scheduled_s"])
    np.testing.assert_array_equal(apart["prefilled_s"], first["finish_s"])
    # Round-robin over the prompts as they are over, those of one instant in their order in the trace.
    served = np.flatnonzero(first["status"] == "finished")
    over = to_tick_column(first["finish_s"].to_numpy()[served])
    in_turn = served[np.lexsort((served, over))]
    np.testing.assert_array_equal(
        apart["decode_replica"].to_numpy()[in_turn], np.arange(len(in_turn)) % decode
    )
    ticks = dict(zip(served.tolist(), over.tolist(), strict=True))
    for number in range(decode):
        second = SlowDecoder(num_blocks - 1, max_num_seqs, budget, step=20 * 10**9, token=10**8)
        mine = [int(row) for row in in_turn[number::decode]]
        second.serve(
            [(ticks[row], row, int(trace.prompt_tokens[row]), int(trace.output_tokens[row])) for row in mine]
        )
        for column, times in (("first_token_s", second.first_token), ("finish_s", second.finish)):
            np.testing.assert_array_equal(
                apart[column].to_numpy()[mine], to_seconds(np.array([times[row] for row in mine]))
            )
