"""Under `trtllm` a request starts if it can run to its end, or if it fits now and may be paused."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

import pagesim as ps
from pagesim.errors import PagesimError
from pagesim.results.result import Result
from pagesim.workloads.trace import Trace
from tests.sim.trtllm_loop import Job, Loop
from tests.traces import trace_of as trace

STEP_S = 0.02
SMALL: dict[str, Any] = {"num_blocks": 10, "block_size": 10, "max_batch_size": 8, "max_num_tokens": 100}


def serve(requests: Trace, policy: str = "GUARANTEED_NO_EVICT", **options: Any) -> Result:
    how = {
        **SMALL,
        "cost": f"affine:{STEP_S},0,0",
        "capacity_scheduler_policy": policy,
        "disable_overlap_scheduler": True,
        **options,
    }
    return ps.simulate(requests, "trtllm", steps="iterations", **how)


def test_a_request_starts_only_if_blocks_suffice_for_all_that_it_asks_for() -> None:
    requests = trace((0, 30, 20), (0, 30, 21), (0, 30, 20))
    # 5 blocks, 6 blocks, 5 blocks: of 10, the second one waits, and the third one behind it.
    table = serve(requests).requests
    assert table["first_scheduled_s"].tolist() == pytest.approx([0, 0.4, 0.4 + 21 * STEP_S])
    table = serve(requests, "MAX_UTILIZATION").requests
    assert table["first_scheduled_s"].tolist() == [0, 0, 0]


def test_what_a_request_asks_for_counts_and_not_what_it_generates() -> None:
    requests = trace((0, 30, 20), (0, 30, 20))
    exact, much = (serve(requests, max_new_tokens=asked).requests for asked in (None, 21))
    assert exact["first_scheduled_s"].tolist() == [0, 0]
    assert much["first_scheduled_s"].tolist() == pytest.approx([0, 0.4])


def test_under_max_utilization_the_latest_is_paused_and_recomputed() -> None:
    result = serve(trace((0, 40, 30), (0, 40, 30)), "MAX_UTILIZATION")
    table, steps = result.requests, result.steps
    assert steps is not None
    assert table["recomputes"].tolist() == [0, 1]
    # Each holds 50 tokens after 10 steps of decoding; the next one of each needs a block.
    assert steps["num_preempted"].tolist().index(1) == 11
    # The first one ends after 30 iterations; 11 tokens of the other are there, so 51 are computed anew.
    assert 51 in steps["num_tokens"].tolist()
    assert serve(trace((0, 40, 30), (0, 40, 30))).requests["recomputes"].sum() == 0


def test_a_paused_request_keeps_its_place() -> None:
    requests = trace((0, 40, 30), (0, 40, 30), (0.1, 10, 5))
    table = serve(requests, "MAX_UTILIZATION").requests
    assert table["recomputes"].tolist() == [0, 1, 0]
    # The third one would fit beside the first; it waits for the second, which was there before it.
    assert table["first_scheduled_s"][2] >= table["finish_s"][0]


def test_prompts_are_cut_into_whole_blocks_and_a_short_one_takes_what_is_left() -> None:
    requests = trace((0, 95, 3), (0, 4, 3))
    how = {"num_blocks": 40, "max_num_tokens": 58, "enable_chunked_prefill": True}
    steps = serve(requests, **how).steps
    assert steps is not None
    assert steps["num_tokens"].tolist()[:3] == [50 + 4, 45 + 1, 2]
    equal = serve(requests, context_chunking_policy="EQUAL_PROGRESS", **how).steps
    assert equal is not None
    assert equal["num_tokens"].tolist()[:3] == [50 + 4, 45 + 1, 2]


def test_with_overlap_a_place_is_free_an_iteration_later() -> None:
    requests = trace((0, 40, 5), (0, 40, 9), (0, 40, 5))
    pair = {"max_batch_size": 2, "num_blocks": 40}
    after, ahead = (
        serve(requests, disable_overlap_scheduler=off, **pair).requests["first_token_s"].tolist()
        for off in (True, False)
    )
    assert after == pytest.approx([STEP_S, STEP_S, 6 * STEP_S])
    assert ahead == pytest.approx([STEP_S, STEP_S, 7 * STEP_S])


def test_two_prompts_make_equal_progress() -> None:
    requests = trace((0, 90, 2), (0, 90, 2))
    how = {"num_blocks": 40, "max_num_tokens": 60, "enable_chunked_prefill": True}
    first, equal = (
        serve(requests, context_chunking_policy=policy, **how).requests["first_token_s"].tolist()
        for policy in ("FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS")
    )
    assert first == pytest.approx([2 * STEP_S, 4 * STEP_S])  # 60, then 30 and 30, then 50, then 10
    assert equal == pytest.approx([3 * STEP_S, 3 * STEP_S])  # 30 each, three times


def test_an_uncut_prompt_that_was_paused_may_be_too_long_to_come_back() -> None:
    requests = trace((0, 40, 30), (0, 40, 30))
    result = serve(requests, "MAX_UTILIZATION", max_num_tokens=45)
    assert result.requests["status"].tolist() == ["finished", "unschedulable"]
    assert result.summary["failure_modes"]["never_resumed"] == 1
    chunks = serve(requests, "MAX_UTILIZATION", max_num_tokens=45, enable_chunked_prefill=True)
    assert (chunks.requests["status"] == "finished").all()


def test_what_the_cache_cannot_hold_or_no_iteration_can_run_is_rejected() -> None:
    requests = trace((0, 81, 20), (0, 80, 20), (0, 90, 2), (0, 40, 5))
    table = serve(requests, max_num_tokens=85).requests
    assert table["status"].tolist() == ["rejected", "finished", "rejected", "finished"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"enable_block_reuse": True}, "enable_block_reuse is true; under scheduler trtllm it must be false"),
        ({"max_num_tokens": 7}, "max_num_tokens is 7; it must be at least max_batch_size, 8"),
        (
            {"max_num_tokens": 9, "enable_chunked_prefill": True},
            "max_num_tokens is 9; with enable_chunked_prefill it must be at least block_size, 10",
        ),
        (
            {"max_new_tokens": 20, "disable_overlap_scheduler": False},
            "max_new_tokens is 20; under scheduler trtllm it needs disable_overlap_scheduler",
        ),
        ({"capacity_scheduler_policy": "STATIC_BATCH"}, "capacity_scheduler_policy is"),
        ({"allocator": "first-fit", "reservation": "oracle"}, "scheduler trtllm needs reservation on-demand"),
        ({"model": "gemma3-27b", "max_model_len": 100}, "choose another model"),
    ],
)
def test_what_is_not_simulated_is_refused_in_a_sentence(options: dict[str, Any], says: str) -> None:
    with pytest.raises(PagesimError, match=says):
        serve(trace((0, 10, 5)), **{"policy": "GUARANTEED_NO_EVICT", **options})


def test_several_samples_are_refused() -> None:
    with pytest.raises(PagesimError, match="under scheduler trtllm it must be 1"):
        serve(trace((0, 10, 5), n=np.array([2])))


def long_prompts(policy: str, num_blocks: int) -> Result:
    """Serve 16,384 + 512 tokens to 32 clients, as in NVIDIA/TensorRT-LLM#16827."""
    return ps.simulate(
        trace(*[(0.0, 16384, 512)] * 128),
        "trtllm",
        capacity_scheduler_policy=policy,
        enable_chunked_prefill=True,
        max_concurrency=32,
        model="llama-3.1-70b-fp8",
        gpu="h200",
        kv_cache_dtype="fp8",
        max_model_len=17000,
        num_blocks=num_blocks,
        cost="roofline",
    )


@pytest.mark.parametrize(
    ("num_blocks", "least", "most"), [(10900, 0.94, 0.99), (12600, 0.94, 0.99), (20000, 0.99, 1.01)]
)
def test_max_utilization_loses_under_pressure_and_nothing_off_it(
    num_blocks: int, least: float, most: float
) -> None:
    safe, eager = (long_prompts(policy, num_blocks) for policy in ("GUARANTEED_NO_EVICT", "MAX_UTILIZATION"))
    assert safe.requests["recomputes"].sum() == 0
    assert (eager.requests["recomputes"].sum() > 0) == (num_blocks < 20000)
    assert least < safe.requests["finish_s"].max() / eager.requests["finish_s"].max() < most


def test_its_policies_are_two_names_for_one_scheduler() -> None:
    requests = trace((0, 40, 30), (0, 40, 30))
    named = ps.simulate(requests, "trtllm-max-util", cost=f"affine:{STEP_S},0,0", **SMALL)
    ahead = serve(requests, "MAX_UTILIZATION", disable_overlap_scheduler=False)
    assert named.requests.equals(ahead.requests)
    with pytest.raises(PagesimError, match="this policy is about it"):
        ps.simulate(requests, "trtllm-max-util", capacity_scheduler_policy="GUARANTEED_NO_EVICT")


def random_loop(rnd: Random) -> Loop:
    """Return an engine that is short of memory, and requests; arrivals are in steps."""
    size = rnd.choice((1, 4, 16))
    blocks = rnd.choice((120, 320)) // size
    longest = blocks * size
    chunks = rnd.random() < 0.7
    jobs = []
    arrival, least = 0, rnd.choice((0, 0, 50))
    for number in range(rnd.randint(2, 25)):
        arrival += rnd.choice((0, 0, 1, 5))
        # Uncut, what is paused must not become too long for an iteration.
        prompt = rnd.choice((rnd.randint(1, 8), rnd.randint(1, min(90, longest // 2))))
        output = rnd.randint(1, 30 if not chunks else min(100, longest - prompt))
        asked = min(max(output, least), longest - prompt)
        jobs.append(Job(number, arrival, prompt, output, asked, context=prompt))
    return Loop(
        blocks,
        size,
        seats=rnd.choice((2, 5, 20)),
        tokens=rnd.choice((20, 40, 150)) if chunks else 150,
        chunks=chunks,
        policy=rnd.choice(("GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "MAX_UTILIZATION")),
        chunking=rnd.choice(("FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS")),
        overlap=rnd.random() < 0.5 and all(job.asked == job.output for job in jobs),
        jobs=jobs,
    )


def compare(seed: int) -> Loop:
    """Compare one random engine with pagesim, step by step; return it."""
    loop = random_loop(Random(seed))
    jobs = loop.jobs
    asks = any(job.asked > job.output for job in jobs)
    loop.run()
    requests = trace(*((job.arrival * STEP_S, job.prompt, job.output) for job in jobs))
    result = serve(
        requests,
        loop.policy,
        num_blocks=loop.blocks,
        block_size=loop.size,
        max_batch_size=loop.seats,
        max_num_tokens=loop.tokens,
        enable_chunked_prefill=loop.chunks,
        context_chunking_policy=loop.chunking,
        max_new_tokens=50 if asks else None,
        disable_overlap_scheduler=not loop.overlap,
    )
    steps, table = result.steps, result.requests
    assert steps is not None
    names = ["num_running", "num_waiting", "num_tokens", "num_preempted"]
    ours = [
        (round(start / STEP_S), *row)
        for start, row in zip(steps["start"], steps[names].itertuples(index=False), strict=True)
    ]
    assert [tuple(map(int, row)) for row in ours] == loop.rows, f"seed {seed}"
    assert [round(at / STEP_S) for at in table["finish_s"]] == [job.finish for job in jobs], f"seed {seed}"
    assert [round(at / STEP_S) for at in table["first_token_s"]] == [job.first_token for job in jobs]
    assert table["recomputes"].tolist() == [job.pauses for job in jobs], f"seed {seed}"
    return loop


@pytest.mark.parametrize("part", [0, *[pytest.param(k, marks=pytest.mark.slow) for k in range(1, 11)]])
def test_random_systems_decide_as_a_plain_walk_of_the_list_does(part: int) -> None:
    loops = [compare(seed) for seed in range(100 * part, 100 * part + (50 if part == 0 else 100))]
    assert sum(job.pauses for loop in loops for job in loop.jobs) > 10
    assert sum(loop.overtaken for loop in loops) > 5
    assert sum(job.pauses for loop in loops if loop.overlap for job in loop.jobs) > 5
