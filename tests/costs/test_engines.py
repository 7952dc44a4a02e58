"""The engine's own time: by engine and release, and never guessed without saying so."""

from __future__ import annotations

import numpy as np
import pytest

from pagesim.costs import EngineTime, engine_time
from pagesim.costs.engines import ENGINES, UNKNOWN, FrontEnd
from pagesim.errors import PagesimError
from pagesim.models import model
from pagesim.setup.registry import SCHEDULERS


def test_every_scheduler_of_pagesim_has_an_engine():
    assert set(ENGINES) == set(SCHEDULERS.own())


def test_an_engine_that_nobody_measured_borrows_numbers_and_says_so():
    for ahead in (False, True):
        theirs, borrowed = (engine_time(name, asynchronous=ahead) for name in ("sglang", "vllm-v1"))
        assert (theirs.iteration_s, theirs.sequence_s) == (borrowed.iteration_s, borrowed.sequence_s)
        assert "not measured" in theirs.source
    assert "not measured" in engine_time("trtllm").source
    assert "not measured" in engine_time("lightllm").source


def test_a_release_takes_the_newest_numbers_that_are_not_newer_than_it():
    sync, overlapped = (engine_time("vllm-v1", "0.19.0", asynchronous=each) for each in (False, True))
    assert sync.iteration_s > overlapped.iteration_s, "what runs beside the GPU is not waited for"
    assert sync.sequence_s > overlapped.sequence_s
    assert engine_time("vllm-v1", "0.33.0", asynchronous=True) == overlapped
    assert engine_time("vllm-v1", "0.16.0", asynchronous=True) == overlapped
    assert engine_time("vllm-v1", "0.9.1") == sync, "before any that was measured, the oldest"
    assert engine_time("vllm-v1") == sync


def test_a_kind_of_model_has_numbers_of_its_own():
    of = {
        name: engine_time("vllm-v1", "0.19.0", asynchronous=True, model=model(name))
        for name in ("llama-3.1-8b", "qwen3-32b", "minimax-m2.5", "mixtral-8x7b", "gpt-oss-20b")
    }
    assert of["llama-3.1-8b"] == of["qwen3-32b"]
    assert of["minimax-m2.5"] == of["mixtral-8x7b"]
    assert len({each.iteration_s for each in of.values()}) == 3
    waiting = engine_time("vllm-v1", "0.12.0", model=model("gpt-oss-20b"))
    assert waiting == engine_time("vllm-v1", "0.12.0"), "a loop that waits was measured of one kind alone"


def test_an_engine_that_nobody_measured_takes_a_rule_of_thumb():
    assert engine_time("theirs") == UNKNOWN
    assert "rule of thumb" in UNKNOWN.source


@pytest.mark.parametrize("numbers", [(-1e-3, 0), (11, 0), (0, -1e-6), (0, 2), (float("nan"), 0)])
def test_times_that_make_no_sense_are_refused(numbers):
    with pytest.raises(PagesimError, match="it must be from 0 to"):
        EngineTime(*numbers)


def test_a_tokenizer_takes_one_prompt_at_a_time():
    """The second prompt waits for the first until 0.1 s, and is through at 0.2; the last waits for none."""
    waits = FrontEnd(0.01, 1e-3).waits_s(np.array([0.0, 0.05, 1.0]), np.array([100, 100, 10]))
    assert waits == pytest.approx([0.11, 0.16, 0.02])
