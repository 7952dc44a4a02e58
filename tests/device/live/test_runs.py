"""Live runs on the CPU: every policy, every kind of trouble, and always the right tokens."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import pagesim as ps
from pagesim.api import run
from pagesim.device.live import run_live, warmup

PARTS = ["prepare_s", "move_s", "compute_s", "prompt_tokens", "decode_sequences", "decode_context"]


class Replayed:
    """An executor that knows beforehand what each iteration takes."""

    def __init__(self, ticks):
        self.ticks = iter(ticks)

    def execute(self, batch):
        return next(self.ticks)

    def decode_run(self, sequences, context):
        return None


@pytest.mark.slow_but("sosp, swap", "v0, two samples", "v1, chunks", "contiguous, beams", "static")
def test_every_sequence_reads_its_own_tokens(any_case, cases, live, make_trace):
    options, columns, kinds = cases[any_case]
    trace = make_trace(**columns)
    result = live(trace, options)
    check = result.summary["live"]["check"]
    assert check["passed"], check
    assert kinds <= check["sequences"].keys(), "the run got into the trouble that it was made for"
    assert max(check["max_relative_error"].values()) < 1e-5, "fp32 is far better than its bound"
    assert result.summary["requests"]["finished"] == len(result.requests) >= len(trace)


@pytest.mark.slow_but("sosp, two samples", "v1, prefixes")
@pytest.mark.parametrize("name", ["sosp, two samples", "v0", "v1, chunks", "v1, prefixes", "static"])
def test_a_live_run_decides_as_the_simulator_does_with_the_same_times(name, cases, make_trace, system_of):
    options, columns, _ = cases[name]
    count = columns.get("count", 8)
    spread = np.sort(np.random.default_rng(5).uniform(0, 0.05, count))
    trace = make_trace(**columns, arrival_s=spread)
    result = run_live(system_of(**options), trace, device="cpu")
    steps = result.steps
    ticks = np.rint(steps["step_s"].to_numpy() * 1e12).astype(np.int64).tolist()
    again = run(
        result.scenario, trace, steps="iterations", executor=lambda scheduler, sized, served: Replayed(ticks)
    )
    pd.testing.assert_frame_equal(steps.drop(columns=PARTS), again.steps)
    pd.testing.assert_frame_equal(result.requests, again.requests)


def test_what_was_carried_out_is_what_the_table_of_steps_counts(live, make_trace):
    result = live(make_trace(), {"num_blocks": 30, "preemption": "swap"}, check=False)
    steps, summary = result.steps, result.summary
    assert len(steps) == summary["iterations"]
    computed = steps["prompt_tokens"] + steps["decode_sequences"]
    assert (computed == steps["num_tokens"]).all()
    assert (steps["decode_context"] <= steps["sum_context_tokens"]).all()
    assert steps["blocks_swapped_out"].sum() > 0
    assert (steps[["step_s", "prepare_s", "move_s", "compute_s"]] > 0).all(axis=None)
    parts = steps["prepare_s"] + steps["move_s"] + steps["compute_s"]
    assert (parts <= steps["step_s"]).all(), "on a CPU the parts follow one another"
    assert summary["clock"] == "measured"
    live_on = summary["live"]
    assert (live_on["device"], live_on["dtype"]) == ("cpu", "fp32")
    assert live_on["machine"]["torch"]
    assert "check" not in live_on


@pytest.mark.slow_but("copy-each")
@pytest.mark.parametrize("swap", ["copy-each", "copy-batch"])
def test_every_swap_strategy_brings_back_what_it_took(swap, live, cases, make_trace):
    options, columns, _ = cases["sosp, swap"]
    try:
        check = live(make_trace(**columns), options, swap=swap).summary["live"]["check"]
    except ps.PagesimError as error:
        pytest.skip(str(error))
    assert check["passed"]
    assert check["sequences"]["swapped"]


def test_a_client_that_goes_away_leaves_nothing_behind(live, make_trace):
    trace = make_trace(abort_s=np.array([1e-9, *[np.inf] * 6, 0.01]))
    summary = live(trace, {"num_blocks": 30, "preemption": "swap"}).summary
    assert summary["requests"]["aborted"]
    assert summary["live"]["check"]["passed"]


def test_beams_that_were_to_be_copied_are_not_once_their_client_has_gone(live, make_trace):
    options = {"policy": "contiguous-max", "num_blocks": 100, "max_model_len": 64, "beam_drop": 0.6}
    columns = {"prompt_tokens": np.array([9, 9]), "output_tokens": np.array([30, 30])}
    gone = np.array([1e-9, np.inf])  # after the first iteration, whose end forks beams
    result = live(make_trace(2, beam_width=np.full(2, 3), abort_s=gone, **columns), options)
    both = live(make_trace(2, beam_width=np.full(2, 3), **columns), options)
    assert result.summary["live"]["check"]["passed"]
    copied = [each.steps["blocks_copied"].tolist() for each in (result, both)]
    assert copied[1][2] > copied[0][2] > 0


def test_a_result_is_saved_and_read_back(live, make_trace, tmp_path):
    result = live(make_trace(3), {"num_blocks": 60})
    loaded = ps.load(result.save(tmp_path / "out"))
    assert loaded.summary == result.summary
    assert loaded.scenario == result.scenario
    pd.testing.assert_frame_equal(loaded.steps, result.steps)


def test_requests_that_can_never_be_served_run_nothing(live, make_trace):
    trace = make_trace(2, prompt_tokens=np.array([3000, 3000]))
    result = live(trace, {"num_blocks": 1000})
    assert result.summary["requests"]["rejected"] == 2
    assert result.summary["iterations"] == 0
    assert not result.summary["live"]["check"]["passed"], "nothing was looked at, so nothing is proven"


# vLLM 0.2.7: 256 sequences, and as many tokens as the model is long, but 2,048 at least (`SchedulerConfig`);
# vLLM 0.33 on a GPU of 40 GB: 256 and 2,048 (`EngineArgs.get_batch_defaults`).
@pytest.mark.parametrize("policy", ["vllm-v0", "vllm-v1"])
def test_the_warm_up_is_of_the_limits_that_the_scheduler_resolved(policy, live, make_trace, monkeypatch):
    asked = []
    monkeypatch.setattr(warmup, "warm_up", lambda _, **limits: asked.append(tuple(limits.values())))
    live(make_trace(), {"policy": policy, "num_blocks": 40}, check=False)
    assert asked == [(256, 2048)]
