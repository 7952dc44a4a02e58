"""Replicas and ranks of one server of SGLang: who serves what, and that ranks wait for each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pagesim as ps
from pagesim.setup.scenario import SEVERAL
from pagesim.setup.serve import read_serve

SYSTEM: dict[str, Any] = {"num_blocks": 3000, "max_model_len": 2048, "cost": "affine:0.010,1e-5,1e-7"}
RANKS = {**SYSTEM, "tensor_parallel_size": 2, "attn_dp_size": 2}


@pytest.fixture
def trace() -> ps.Trace:
    return ps.make_trace("sharegpt", rate=20.0, num_requests=60)


def test_replicas_of_a_server_are_engines_of_their_own(trace: ps.Trace) -> None:
    together = ps.simulate_cluster(trace, "sglang", dp_size=3, **SYSTEM)
    assert together.summary["cluster"]["router"] == "SGLang's round robin"
    for number in range(3):
        alone = ps.simulate(trace.take(np.arange(number, 60, 3)), "sglang", **SYSTEM).requests
        mine = together.requests[together.requests["replica"] == number].reset_index(drop=True)
        for name in ("first_scheduled_s", "first_token_s", "finish_s"):
            assert mine[name].tolist() == alone[name].tolist()


def test_a_rank_without_requests_runs_as_often_as_the_others(trace: ps.Trace) -> None:
    one = ps.simulate_cluster(trace.take(np.arange(1)), "sglang", **RANKS)
    table = one.replicas
    assert table["requests"].tolist() == [1, 0]
    together = one.summary["cluster"]["lock_step"]
    assert table["iterations"].tolist() == [together["passes"]] * 2
    assert together == {**together, "dummy_batches": together["passes"], "waves": 1}
    alone = ps.simulate(trace.take(np.arange(1)), "sglang", **SYSTEM).requests
    assert one.requests["finish_s"].tolist() == alone["finish_s"].tolist()


def test_ranks_take_as_long_as_the_longest_of_them(trace: ps.Trace) -> None:
    """A long prompt at one rank holds the token back that the other one decodes beside it."""
    two = trace.take(np.arange(2)).with_columns(
        {
            "arrival_s": np.array([0.0, 0.05]),
            "prompt_tokens": np.array([10, 1000]),
            "output_tokens": np.array([8, 1]),
        }
    )
    requests = ps.simulate_cluster(two, "sglang", **{**RANKS, "cost": "affine:0.010,1e-4,0"}).requests
    decodes = 0.010 + 1e-4
    expected = (0.010 + 10 * 1e-4) + 6 * decodes + (0.010 + 1000 * 1e-4)
    assert requests["finish_s"][0] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("clients", [{"max_concurrency": 4}, {"until": 1.0}])
def test_ranks_serve_clients_that_wait_for_answers(trace: ps.Trace, clients: dict[str, Any]) -> None:
    result = ps.simulate_cluster(trace, "sglang", **RANKS, **clients)
    finished = int((result.requests["status"] == "finished").sum())
    assert (finished == 60) == ("until" not in clients)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({**RANKS, "attn_dp_size": 3}, "attn_dp_size is 3; it must divide tensor_parallel_size, which is 2"),
        (
            {**RANKS, "dp_size": 2},
            "attn_dp_size is 2 and dp_size is 2; what both do together is not modelled",
        ),
        ({**RANKS, "router": "least-loaded"}, "SGLang sends requests to its replicas and ranks in turn"),
        ({**SYSTEM, "dp_size": 2, "replicas": 2}, "replicas is 2, and dp_size 2; the replicas of a deploy"),
        (
            {**RANKS, "enable_prefill_delayer": True, "prefill_decode_interval": 4},
            "with enable_prefill_delayer ranks wait for each other",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(
    trace: ps.Trace, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ps.PagesimError, match=sentence):
        ps.simulate_cluster(trace, "sglang", **options)


@pytest.mark.parametrize("name", [name for name in SEVERAL if name != "data_parallel_size"])
def test_one_engine_is_not_several(trace: ps.Trace, name: str) -> None:
    with pytest.raises(ps.PagesimError, match=f"{name} is 2, and this replays one engine"):
        ps.simulate(trace, "sglang", **{**SYSTEM, "tensor_parallel_size": 2, name: 2})


@pytest.mark.parametrize(
    ("flags", "decided"),
    [
        ("--dp-size 4", {"dp_size": 4}),
        ("--data-parallel-size 1", {}),
        ("--tp 8 --dp 4 --enable-dp-attention", {"tensor_parallel_size": 8, "attn_dp_size": 4}),
        ("--tp 8 --attn-dp-size 4", {"tensor_parallel_size": 8, "attn_dp_size": 4}),
        ("--dp 2 --load-balance-method round_robin", {"dp_size": 2}),
    ],
)
def test_a_line_says_replicas_or_ranks(flags: str, decided: dict[str, Any]) -> None:
    # arg_groups/parallel_hook.py 39: --enable-dp-attention makes ranks of attention of --dp-size.
    plain = read_serve("sglang serve llama-3.1-8b").options
    assert read_serve(f"sglang serve llama-3.1-8b {flags}").options == {**plain, **decided}
