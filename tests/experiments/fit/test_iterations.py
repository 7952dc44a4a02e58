"""The iterations of a simulated load: what they sum to does not depend on how it was simulated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pagesim.costs import Profiled
from pagesim.costs.profiles import find_profile
from pagesim.errors import PagesimError
from pagesim.experiments.fit.iterations import check, replay
from pagesim.experiments.recorded.recording import RecordedRun
from pagesim.models import model
from pagesim.workloads.naming import named

from .conftest import AFFINE, CONTEXT_S, STEP_S, SYSTEM, TOKEN_S, cost_of, served


def test_windows_times_coefficients_are_the_simulated_times() -> None:
    # Under asynchronous scheduling the affine model also counts the context of requests that rest.
    system = SYSTEM.model_copy(update={"vllm_version": "0.11.2"})
    load = served(8, cost_of(AFFINE), system=system, requests=40, noise=0.0)
    run = replay(load, system, cost_of(AFFINE))
    sums = run.windows.between(run.at("first_token"), run.at("finish"))
    affine = [STEP_S, TOKEN_S, CONTEXT_S, TOKEN_S + CONTEXT_S]
    alone = sums[:, 3] == 0
    assert alone.any()
    assert sums[alone, :4] @ affine == pytest.approx((run.at("finish") - run.at("first_token"))[alone] / 1e12)


def test_a_decoding_request_has_an_iteration_a_token() -> None:
    load = served(8, cost_of(AFFINE), requests=40)
    run = replay(load, SYSTEM, cost_of(AFFINE))
    assert (
        run.windows.between(run.at("first_token"), run.at("finish"))[:, 0] == load.output_tokens - 1
    ).all()


@pytest.mark.parametrize("release", ["0.11.2", "0.19.0"])
def test_fast_forward_changes_no_sum(release: str) -> None:
    start = Profiled(find_profile("analytic-h100", model=model(SYSTEM.model)), model(SYSTEM.model))
    system = SYSTEM.model_copy(update={"vllm_version": release, "num_blocks": 600})
    load = served(None, cost_of(AFFINE), system=system, requests=60, rate=20.0)
    fast = replay(load, system, start)
    slow = replay(load, system.model_copy(update={"fast_forward": False}), start)
    assert fast.result.request_columns["recomputes"].sum() > 0
    assert (fast.windows.ends == slow.windows.ends).all()
    assert fast.windows.sums == pytest.approx(slow.windows.sums)


def test_tokens_found_in_the_prefix_cache_are_not_computed() -> None:
    load = served(None, cost_of(AFFINE), requests=30)
    prompts = replace(
        load,
        prompt_tokens=np.full(30, 160),
        hash_ids=named([[*range(128), *range(1000 * row, 1000 * row + 32)] for row in range(30)], 16),
    )
    run = replay(prompts, SYSTEM.model_copy(update={"enable_prefix_caching": True}), cost_of(AFFINE))
    cached = run.result.request_columns["cached_tokens"]
    assert cached[1:].min() == 128
    assert run.windows.sums[-1, 3] == 160 * 30 - cached.sum()


def load_of(**columns: object) -> RecordedRun:
    size = 30
    plain = {
        "name": "run.json",
        "arrival_s": np.arange(size, dtype=float),
        "prompt_tokens": np.full(size, 10),
        "output_tokens": np.full(size, 5),
        "ttft_s": np.full(size, 0.1),
        "e2e_s": np.full(size, 0.5),
    }
    return RecordedRun(**{**plain, **columns})


def test_a_load_of_answers_that_came_at_once_is_refused() -> None:
    with pytest.raises(PagesimError, match="a log of streamed tokens is needed"):
        check(load_of(e2e_s=np.full(30, 0.1)))


def test_a_load_of_few_requests_is_refused() -> None:
    few = {name: getattr(load_of(), name)[:5] for name in ("arrival_s", "ttft_s", "e2e_s")}
    with pytest.raises(PagesimError, match="has 5 requests that were answered; at least 20 are needed"):
        check(load_of(**few, prompt_tokens=np.full(5, 10), output_tokens=np.full(5, 5)))
