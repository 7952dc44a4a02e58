"""Under `lightllm` a request starts if the tokens of all fit at the worst instant to come."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import pagesim as ps
from pagesim.errors import PagesimError
from pagesim.results.result import Result
from pagesim.scheduling.lightllm import peak
from pagesim.workloads.trace import Trace
from tests.traces import trace_of as trace

STEP_S = 0.02


def serve(requests: Trace, **options: Any) -> Result:
    how = {"num_blocks": 100, "cost": f"affine:{STEP_S},0,0", **options}
    return ps.simulate(requests, "lightllm", steps="iterations", **how)


@pytest.mark.parametrize("seed", range(20))
def test_the_peak_is_that_of_a_walk_through_all_instants_to_come(seed: int) -> None:
    rnd = Random(seed)
    futures = [(rnd.randint(0, 30), rnd.randint(1, 50)) for _ in range(rnd.randint(1, 12))]
    held = [sum(own + step for to_come, own in futures if to_come >= step) for step in range(31)]
    assert peak(futures) == max(held)


def test_a_request_waits_until_others_are_so_far_that_all_fit_at_the_worst_instant() -> None:
    table = serve(trace((0, 10, 40), (0, 10, 40))).requests
    # 10 + 40 and 6 more, of each: 112 of 100. Once the first one is ahead by d, it holds 56 at its end and
    # the other one 56 - d beside it; what the other one takes after that is free by then.
    assert table["first_scheduled_s"].tolist() == pytest.approx([0, 13 * STEP_S])
    assert table["recomputes"].sum() == 0


def test_together_they_may_ask_for_more_than_there_is() -> None:
    steps = serve(trace(*[(0.02 * k, 10, 40) for k in range(40)]), num_blocks=200).steps
    assert steps is not None
    assert steps["num_running"].max() * (10 + 40) > 200
    assert steps["num_preempted"].sum() == 0


def test_what_it_asks_for_counts_and_not_what_it_generates() -> None:
    exact, much = (
        serve(trace((0, 10, 20), (0, 10, 20)), max_new_tokens=asked).requests for asked in (None, 60)
    )
    assert exact["first_scheduled_s"].tolist() == [0, 0]
    assert much["first_scheduled_s"].tolist()[1] > 0


def test_a_request_that_never_fits_is_rejected() -> None:
    assert serve(trace((0, 50, 44), (0, 50, 43))).requests["status"].tolist() == ["rejected", "finished"]


def test_an_iteration_takes_the_longest_prompt_unless_it_is_told_less() -> None:
    requests = trace((0, 9000, 5))
    for tokens, status in ((None, "finished"), (8192, "rejected")):
        table = serve(requests, num_blocks=20000, max_model_len=10000, batch_max_tokens=tokens).requests
        assert table["status"].tolist() == [status]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"block_size": 16}, "block_size is 16; it must be 1 or left out"),
        ({"reservation": "oracle"}, "scheduler lightllm needs reservation on-demand, not oracle"),
        ({"model": "gemma3-27b", "max_model_len": 90}, "choose another model"),
    ],
)
def test_what_is_not_simulated_is_refused_in_a_sentence(options: dict[str, Any], says: str) -> None:
    with pytest.raises(PagesimError, match=says):
        serve(trace((0, 10, 5)), **options)
