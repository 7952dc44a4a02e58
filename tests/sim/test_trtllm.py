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


@pytest.mark.parametrize("part", [0, *[pytest.param(k, marks=pytest.mark.slow) for k in range(1, 5)]])
def test_random_systems_decide_as_a_plain_walk_of_the_list_does(part: int) -> None:
    loops = [compare(seed) for seed in range(100 * part, 100 * part + (50 if part == 0 else 100))]
    assert sum(job.pauses for loop in loops for job in loop.jobs) > 10
    assert sum(loop.overtaken for loop in loops) > 5
    assert sum(job.pauses for loop in loops if loop.overlap for job in loop.jobs) > 5
