"""What a client waits beside the engine: it is added to what the client sees, and to nothing else."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import pagesim as ps
from pagesim.errors import PagesimError


def run(**options: object) -> ps.Result:
    trace = ps.make_trace("fixed:300,20", num_requests=40, rate=20.0)
    return ps.simulate(trace, "vllm-v1", **options)


def test_a_front_end_is_added_to_the_first_token_and_not_to_the_clock():
    bare, served = run(), run(frontend="0.012,1e-5")
    waits = 0.012 + 300 * 1e-5
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
