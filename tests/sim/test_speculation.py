"""Speculative decoding under vllm-v1: what a step verifies, what becomes of it, and what is counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pagesim as ps
from pagesim.errors import PagesimError
from pagesim.experiments.clusters import simulate_cluster
from tests.traces import trace_of as trace

DRAFTS: dict[str, Any] = {
    "speculative_method": "ngram",
    "speculative_tokens": 3,
    "acceptance": 0.6,
}
OPTIONS: dict[str, Any] = {
    "steps": "iterations",
    "cost": "affine:1,0,0",
    "num_blocks": 2001,
    "block_size": 4,
    "max_model_len": 256,
    "async_scheduling": False,
}


def run(requests: ps.Trace, **options: Any) -> Any:
    return ps.simulate(requests, "vllm-v1", **{**OPTIONS, **DRAFTS, **options})


def crowd(seed: int = 3, size: int = 30) -> ps.Trace:
    rng = np.random.default_rng(seed)
    return ps.Trace(np.sort(rng.random(size) * 40), rng.integers(2, 60, size), rng.integers(1, 60, size))


@pytest.mark.parametrize("rounds", [1, 2, 7])
def test_where_all_drafts_are_accepted_a_step_gives_one_token_more_than_it_has_drafts(rounds: int) -> None:
    result = run(trace((0.0, 5, 1 + 4 * rounds)), acceptance=1.0)
    assert result.steps["num_batched_tokens"].tolist()[: 1 + rounds] == [5] + [4] * rounds
    assert result.requests["finish_s"].tolist() == [1 + rounds]
    assert result.summary["speculation"] == {
        "drafted": 3 * rounds,
        "accepted": 3 * rounds,
        "wasted": 0,
        "acceptance_rate": 1.0,
        "mean_accepted_length": 4.0,
    }


def test_accepted_tokens_beyond_the_last_one_are_thrown_away() -> None:
    result = run(trace((0.0, 5, 4)), acceptance=1.0)
    assert result.requests["finish_s"].tolist() == [2.0]
    assert result.summary["speculation"]["accepted"] == 2
    assert result.summary["speculation"]["wasted"] == 1


def test_where_no_draft_is_accepted_requests_go_as_without_drafts() -> None:
    requests = crowd()
    rejected = run(requests, acceptance=0.0)
    without = ps.simulate(requests, "vllm-v1", **OPTIONS)
    for name in ("first_scheduled_s", "first_token_s", "finish_s"):
        assert rejected.requests[name].tolist() == without.requests[name].tolist()
    for name in ("num_running", "num_waiting", "used"):
        assert rejected.steps[name].tolist() == without.steps[name].tolist()
    drafts = (rejected.steps["num_batched_tokens"] - without.steps["num_batched_tokens"]).sum()
    assert rejected.summary["speculation"]["drafted"] == drafts > 0
    assert rejected.summary["speculation"]["accepted"] == 0


@pytest.mark.parametrize("method", ["ngram", "eagle3"])
@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("num_blocks", [40, 2001])
def test_every_draft_is_accepted_or_wasted(method: str, async_scheduling: bool, num_blocks: int) -> None:
    result = run(crowd(), speculative_method=method, async_scheduling=async_scheduling, num_blocks=num_blocks)
    assert set(result.requests["status"]) == {"finished"}
    found = result.summary["speculation"]
    assert found["drafted"] == found["accepted"] + found["wasted"]
    assert 0 < found["accepted"] < found["wasted"]
    assert found["acceptance_rate"] == found["accepted"] / found["drafted"]
    assert (result.summary["preemptions"]["recompute"] > 0) == (num_blocks == 40)


def test_no_drafts_are_as_without_a_method() -> None:
    none, without = run(crowd(), speculative_tokens=0), ps.simulate(crowd(), "vllm-v1", **OPTIONS)
    assert none.steps.equals(without.steps)
    assert none.requests.equals(without.requests)


def test_what_is_accepted_of_a_request_does_not_depend_on_what_runs_beside_it() -> None:
    alone, together = (run(crowd(), max_num_seqs=seqs) for seqs in (1, 30))
    assert alone.summary["iterations"] > together.summary["iterations"]
    assert alone.summary["speculation"] == together.summary["speculation"]
    other = run(crowd(), seed=1)
    assert other.summary["speculation"] != together.summary["speculation"]


def test_tokens_of_one_step_come_together_and_are_one_gap() -> None:
    summary = run(trace((0.0, 5, 9)), acceptance=1.0).summary
    assert summary["itl"]["mean"] == summary["itl"]["p99"] == 1.0
    assert summary["tpot"]["mean"] == 2 / 8


def test_a_preempted_requests_gap_lasts_from_its_last_tokens_to_its_next() -> None:
    result = run(crowd(), num_blocks=40)
    assert result.requests["recomputes"].sum() > 0
    assert result.summary["itl"]["p99"] > result.summary["itl"]["p50"] == 1.0


@pytest.mark.parametrize(
    ("others", "budget", "tokens"),
    [
        pytest.param([(0.5, 1, 2)], 64, [2], id="beside one that is admitted with it"),
        pytest.param([(0.5, 5, 2)], 64, [6], id="beside a prompt that is admitted with it"),
        pytest.param([(0.0, 5, 9)], 64, [5, 4 + 4], id="beside one that decodes"),
        pytest.param([(0.0, 13, 2)], 8, [8, 5 + 1], id="beside the last chunk of a prompt"),
        pytest.param([(0.0, 5, 9)], 7, [5, 4], id="beside one that decodes and leaves a budget of 3"),
    ],
)
def test_a_prompts_only_token_has_drafts_where_one_that_was_admitted_before_decodes(
    others: list[tuple[float, int, int]], budget: int, tokens: list[int]
) -> None:
    """As 0.33.0's ``Scheduler.schedule`` has it: ``scheduled_running_reqs`` and not ``prefill_scheduled``."""
    result = run(trace(*others, (0.5, 1, 2)), max_num_batched_tokens=budget, max_num_seqs=2)
    assert result.steps["num_batched_tokens"].tolist()[: len(tokens)] == tokens


def test_an_aborted_requests_tokens_are_those_of_the_steps_that_were_over_before() -> None:
    result = run(trace((0.0, 4, 40), abort_s=np.array([2.5])), acceptance=1.0)
    assert result.requests["finish_s"].tolist() == [3.0]
    assert result.summary["aborted_tokens"] == 1 + 4
    assert result.summary["speculation"]["accepted"] == result.summary["speculation"]["wasted"] == 3


def test_a_clusters_drafts_are_those_of_its_replicas() -> None:
    one = run(crowd()).summary["speculation"]
    two = simulate_cluster(
        crowd(), "vllm-v1", replicas=2, **{k: v for k, v in {**OPTIONS, **DRAFTS}.items() if k != "steps"}
    )
    assert two.summary["speculation"] == one


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"speculative_tokens": None}, "speculative_method goes with speculative_tokens: give"),
        ({"speculative_method": None}, "speculative_tokens goes with speculative_method: give"),
        ({"speculative_config": '{"method": "mtp"}'}, "speculative_config has no num_speculative_tokens"),
        ({"speculative_config": "ngram"}, "speculative_config is no JSON"),
        ({"speculative_config": "[]"}, "it must be a JSON object"),
        ({"speculative_config": '{"method": "medusa"}'}, "method is medusa; it must be one of ngram"),
        ({"speculative_config": '{"top_k": 3}'}, "speculative_config: top_k is 3: Extra inputs"),
        (
            {"speculative_config": '{"method": "ngram", "num_speculative_tokens": 4}'},
            "speculative_tokens is 3, and speculative_config says 4",
        ),
        (
            {"speculative_config": '{"model": "what/ever", "num_speculative_tokens": 3}'},
            "speculative_method is ngram, and speculative_config says draft_model",
        ),
        ({"acceptance": 1.5}, "acceptance is 1.5"),
        ({"acceptance": -0.1}, "acceptance is -0.1"),
        ({"speculative_tokens": -1}, "speculative_tokens is -1"),
        ({"speculative_method": "eagle7"}, "speculative_method is .?eagle7"),
        ({"vllm_version": "0.19.0"}, "speculative_tokens is for vLLM 0.33.0, not 0.19.0"),
        ({"vllm_version": "0.11.2"}, "speculative_tokens is for vLLM 0.33.0, not 0.11.2"),
        ({"max_num_batched_tokens": 3, "max_num_seqs": 2}, "a step with speculative_tokens 3 has 4"),
        ({"policy": "vllm-v0"}, "is for scheduler vllm-v1"),
    ],
)
def test_drafts_of_which_something_is_wrong_are_refused_in_a_sentence(
    options: dict[str, Any], sentence: str
) -> None:
    options = {**OPTIONS, **DRAFTS, "policy": "vllm-v1", **options}
    given = {name: value for name, value in options.items() if value is not None}
    if given["policy"] != "vllm-v1":
        del given["async_scheduling"]
    with pytest.raises(PagesimError, match=sentence):
        ps.simulate(trace((0.0, 5, 5)), **given)
