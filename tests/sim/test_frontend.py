"""What a client waits beside the engine: it is added to what the client sees, and to nothing else."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import pagesim as ps
from pagesim.costs.engines import FrontEnd
from pagesim.errors import PagesimError


def run(**options: object) -> ps.Result:
    trace = ps.make_trace("fixed:300,20", num_requests=40, rate=20.0)
    return ps.simulate(trace, "vllm-v1", **options)


def test_a_front_end_is_added_to_the_first_token_and_not_to_the_clock():
    bare, served = run(frontend="0"), run(frontend="0.012")
    waits = 0.012
    for name in ("ttft", "latency"):
        for key, seconds in bare.summary[name].items():
            assert served.summary[name][key] == pytest.approx(seconds + waits)
    mean = bare.summary["normalized_latency"]["mean"] + waits / 20
    assert served.summary["normalized_latency"]["mean"] == pytest.approx(mean)
    for name in ("tpot", "queueing", "itl", "throughput"):
        assert served.summary[name] == bare.summary[name]
    own = served.requests.drop(columns="frontend_s")
    pd.testing.assert_frame_equal(own, bare.requests)
    assert np.allclose(served.requests["frontend_s"], waits)


def test_one_tokenizer_takes_a_prompt_at_a_time():
    # Tokens of 1 ms. The second prompt waits for the first one, done at 0.3 s; the third finds it idle.
    front = FrontEnd(0.5, 1e-3)
    sent, tokens = np.array([0.0, 0.1, 2.0]), np.array([300, 50, 100])
    assert front.waits_s(sent, tokens) == pytest.approx([0.8, 0.5 + 0.2 + 0.05, 0.6])
    # In any order of rows, and none waits for a prompt of another replica.
    assert front.waits_s(sent[::-1], tokens[::-1]) == pytest.approx([0.6, 0.75, 0.8])
    assert front.waits_s(sent, tokens, np.array([0, 1, 0])) == pytest.approx([0.8, 0.55, 0.6])
    # A request that was never sent keeps no other one waiting.
    assert front.waits_s(np.array([np.nan, 0.0]), np.array([9, 100]))[1] == pytest.approx(0.6)


def test_requests_that_come_at_once_wait_for_the_tokenizer_in_turn():
    trace = ps.make_trace("fixed:300,20", num_requests=4, arrivals="all-at-once")
    served = ps.simulate(trace, "vllm-v1", frontend="0.01,1e-5")
    assert served.requests["frontend_s"].tolist() == pytest.approx([0.013, 0.016, 0.019, 0.022])


@pytest.mark.parametrize(
    ("policy", "served", "borrowed"),
    [
        ("vllm-v1", True, False),
        ("vllm-v0", True, True),
        ("sglang", True, True),
        ("trtllm", True, True),
        ("lightllm", True, True),
        ("vllm-sosp", False, False),
        ("orca-max", False, False),
        ("static", False, False),
    ],
)
def test_an_engine_that_serves_has_a_front_end_and_says_so(policy, served, borrowed):
    trace = ps.make_trace("fixed:1000,20", num_requests=1)
    result = ps.simulate(trace, policy)
    notes = [note for note in result.notes if "front end" in note]
    assert len(notes) == served
    assert ("frontend_s" in result.requests) is served
    if served:
        # 12 ms, and 7 us a token.
        assert result.requests["frontend_s"].tolist() == pytest.approx([0.019])
        assert "12 ms a request and 7 us a prompt token" in notes[0]
        assert ("not measured for" in notes[0]) is borrowed
    bare = ps.simulate(trace, policy, frontend="0")
    assert "frontend_s" not in bare.requests
    assert not any("front end" in note for note in bare.notes)


@pytest.mark.parametrize(("policy", "engine"), [("sglang", "SGLang"), ("trtllm", "TensorRT-LLM")])
def test_an_engines_time_that_is_borrowed_is_said_to_be(policy, engine):
    trace = ps.make_trace("fixed:100,20", num_requests=1)
    options = {"model": "llama-3.1-8b", "gpu": "h100"}
    for cost, said in (("auto", True), ("roofline", True), ("affine:0.02,1e-4,1e-7", False)):
        notes = ps.simulate(trace, policy, cost=cost, **options).notes
        assert any(f"was not measured for {engine}; vLLM's" in note for note in notes) is said
    by_hand = ps.simulate(trace, policy, cost="roofline:overhead_s=0.001", **options).notes
    assert not any("own time" in note for note in by_hand)
    assert not any("own time" in note for note in ps.simulate(trace, "vllm-v1", **options).notes)


def test_it_is_stored_with_the_result(tmp_path):
    served = run(frontend="0.012")
    served.save(tmp_path / "out")
    loaded = ps.load(tmp_path / "out")
    assert loaded.summary["ttft"] == served.summary["ttft"]
    assert loaded.scenario == served.scenario


@pytest.mark.parametrize("text", ["fast", "0.01,", "1,2,3", "-1", "61", "0.01,2", "nan"])
def test_a_front_end_that_makes_no_sense_is_refused(text):
    with pytest.raises(PagesimError, match="frontend"):
        run(frontend=text)
