"""Under `sglang` prompts come first, a full batch stays full, and what is cached is a tree."""

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

COST = "affine:0.01,1e-5,0"


def serve(requests: Trace, **options: Any) -> Result:
    how = {"policy": "sglang", "num_blocks": 1000, "max_model_len": 500, "cost": COST, **options}
    return ps.simulate(requests, steps="iterations", **how)


@pytest.mark.parametrize("fast_forward", [False, True])
def test_every_token_is_blank_evictable_protected_or_its_request_s_own(fast_forward: bool) -> None:
    turns = trace(*[(k / 2, 60 + k, 40) for k in range(40)], session_id=np.arange(40) % 7)
    result = serve(turns, num_blocks=800, max_model_len=400, fast_forward=fast_forward)
    tree, steps = result.tree, result.steps
    assert tree is not None
    assert steps is not None
    assert (tree[["blank", "evictable", "protected", "own"]].sum(axis=1) == 800).all()
    assert tree["evicted"].sum() > 0
    last = tree["iterations"].cumsum().to_numpy() - 1
    assert tree["evictable"].tolist() == steps["cached"].to_numpy()[last].tolist()
    assert tree["clock"].to_numpy() == pytest.approx(steps["start"].to_numpy()[last])
    # What several requests hold counts once in the tree, and so it does in the ledger.
    assert (tree["own"] + tree["protected"]).tolist() == (
        steps["num_physical_blocks"].to_numpy()[last].tolist()
    )


def test_a_prompt_takes_no_row_but_its_own_and_one_of_all_decodes_behind_it() -> None:
    # A prompt, decodes, the decode in which a last token is in flight, and decodes up to the next prompt.
    requests = trace(*[(k / 2, 60 + k, 100) for k in range(40)])
    for overlapped, most in ((True, 4), (False, 3)):
        result = serve(requests, num_blocks=10_000, disable_overlap_schedule=not overlapped)
        assert result.summary["sim"]["rows"] <= most * len(requests)


@pytest.mark.parametrize("overlapped", [True, False])
def test_the_tree_is_the_same_at_the_end_of_a_fast_forward_as_where_each_iteration_is_planned(
    overlapped: bool,
) -> None:
    rng = np.random.default_rng(5)
    arrival, alike = np.cumsum(rng.exponential(0.4, 60)), rng.integers(0, 6, 60)
    turns = trace(
        *[(at, 90, int(tokens)) for at, tokens in zip(arrival, rng.integers(1, 60, 60), strict=True)]
    )
    # Of some prompts a part is there that was computed while they waited, or they are alike to the end.
    columns = {"hash_block_size": 30, "hash_ids": [(k % 2, 10 + k, 100 + k) for k in alike.tolist()]}
    ahead, each = (
        serve(
            turns.with_columns(columns),
            num_blocks=700,
            max_model_len=300,
            fast_forward=forward,
            disable_overlap_schedule=not overlapped,
        ).tree
        for forward in (True, False)
    )
    assert ahead is not None
    assert each is not None
    last = ahead["iterations"].cumsum().to_numpy() - 1
    assert len(ahead) < len(each) / 3
    for name in ("clock", "blank", "evictable", "protected", "own", "holders", "is_full", "new_token_ratio"):
        assert ahead[name].tolist() == each[name].to_numpy()[last].tolist(), name


def test_a_stored_result_has_its_tree(tmp_path: Path) -> None:
    result = serve(trace((0, 100, 50)))
    result.save(tmp_path / "run")
    stored = ps.load(tmp_path / "run").tree
    assert stored is not None
    assert stored.equals(result.tree)


@pytest.mark.parametrize(
    ("requests", "options", "sentence"),
    [
        (trace((0, 5, 5), n=np.array([2])), {}, "request 0: n is 2; under scheduler sglang it must be 1"),
        (trace((0, 5, 5)), {"model": "nemotron-h-8b"}, "how many states there is room for beside them"),
        (trace((0, 5, 5)), {"chunked_prefill_size": 0}, "chunked_prefill_size is 0; it must be at least 1"),
        (trace((0, 5, 5)), {"reservation": "max"}, "scheduler sglang needs reservation on-demand"),
    ],
)
def test_what_is_not_simulated_is_refused(requests: Trace, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PagesimError, match=sentence):
        serve(requests, **options)


@pytest.mark.parametrize(
    ("prompt", "unfinished"),
    # SGLang 0.5.23's own loop, pages of 64 in a cache of 1472: a prompt of 1437 blocks the queue, as any from
    # 1472 - 64 does; from 1472 - 6 on a prompt is refused.
    [(1407, 0), (1408, 2), (1437, 2), (1465, 2), (1466, 0)],
)
def test_a_prompt_that_is_accepted_and_never_fits_blocks_the_queue_and_a_note_says_why(
    prompt: int, unfinished: int
) -> None:
    options = {"num_blocks": 23, "page_size": 64, "max_model_len": 2048}
    result = serve(trace((0, 100, 5), (1, prompt, 5), (2, 100, 5)), **options)
    assert result.summary["requests"]["unfinished"] == unfinished
    told = [note for note in result.notes if "never fit" in note]
    assert len(told) == (unfinished > 0)
    if told:
        assert f"request 1, {prompt} tokens" in told[0]
        assert "a page of 64 tokens" in told[0]
        assert "has 1472" in told[0]


@pytest.mark.parametrize(("prompt", "unfinished"), [(1408, 0), (1409, 2)])
def test_where_lengths_are_known_and_nothing_is_cached_whole_pages_have_to_fit(
    prompt: int, unfinished: int
) -> None:
    options = {"num_blocks": 23, "page_size": 64, "max_model_len": 2048, "ignore_eos": True}
    options |= {"disable_radix_cache": True}
    result = serve(trace((0, 100, 5), (1, prompt, 5), (2, 100, 5)), **options)
    assert result.summary["requests"]["unfinished"] == unfinished
    assert bool([note for note in result.notes if "never fit" in note]) == (unfinished > 0)


def test_without_a_tree_as_many_requests_run_at_once_as_there_are_states() -> None:
    """Each holds one, and admission looks at nothing else than their number."""
    options = {"num_blocks": None, "disable_radix_cache": True, "gpu": "h100", "mem_fraction_static": 0.3}
    requests = trace(*[(0, 100, 50)] * 100)
    result = serve(requests, model="nemotron-h-8b", **options)
    states = 41
    assert result.steps is not None
    assert result.steps["num_running"].max() == states
    told = next(note for note in result.notes if "takes by default" in note)
    assert f"max_running_requests {states}," in told


# Delays, priorities, limits


def test_a_full_queue_rejects_the_newest_or_the_least_important() -> None:
    requests = trace(*[(0.0, 60, 20)] * 4, priority=np.array([0, 0, 0, 9]))
    full = {"max_running_requests": 1, "max_queued_requests": 2}
    result = serve(requests, **full)
    assert result.requests["status"].tolist() == ["finished", "finished", "ignored", "ignored"]
    assert result.summary["rejections"] == {"max_queued_requests is 2; so many waited already": 2}
    important = serve(requests, enable_priority_scheduling=True, **full).requests
    assert important["status"].tolist() == ["finished", "ignored", "ignored", "finished"]


def test_a_client_may_go_away_when_the_queue_has_no_place_for_its_request() -> None:
    requests = trace(*[(0.0, 60, 20)] * 3, abort_s=np.array([9.0, 9.0, 0.0]))
    table = serve(requests, max_running_requests=1, max_queued_requests=2).requests
    assert table["status"].tolist() == ["finished", "finished", "aborted"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"enable_prefill_delayer": True, "disable_overlap_schedule": True}, "needs overlap"),
        ({"enable_priority_scheduling": True, "schedule_policy": "lpm"}, "must be fcfs or lof"),
    ],
)
def test_what_sglang_does_not_start_with_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(PagesimError, match=said):
        serve(trace((0, 60, 20)), **options)
