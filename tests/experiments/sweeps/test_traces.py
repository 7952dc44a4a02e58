"""A stored trace is the trace that was made, in every column."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

import pagesim as ps
from pagesim.experiments.sweeps import traces
from pagesim.experiments.sweeps.traces import StoredTrace

COLUMNS = {"arrival_s": [0.5, 0.0, 2.25], "prompt_tokens": [10, 20, 30], "output_tokens": [5, 6, 7]}

CASES = {
    "plain": {},
    "names": {"request_id": np.array(["a", "bb", "ccc"])},
    "names as objects": {"request_id": np.array(["a", "bb", "ccc"], dtype=object)},
    "sessions": {"session_id": np.array(["x", None, 3], dtype=object)},
    "hashes": {"hash_ids": [(1,), (2**70,), ()], "hash_block_size": 20},
    "samples": {"n": [1, 2, 1], "sample_tokens": [(5,), (6, 2), (7,)]},
    "clients that go away": {"abort_s": [np.inf, 3.0, np.inf]},
    "a shared prefix": {"prefix_tokens": [0, 10, 10]},
    "notes": {"notes": ("what was assumed: ü",)},
}


@pytest.mark.parametrize("case", CASES)
def test_a_trace_comes_back_as_it_was(case, tmp_path):
    trace = ps.Trace(**COLUMNS, **CASES[case])
    traces.write(trace, tmp_path / "t.npz")
    again = StoredTrace(tmp_path / "t.npz").load()
    for field in fields(trace):
        one, other = getattr(trace, field.name), getattr(again, field.name)
        if isinstance(one, np.ndarray):
            assert one.dtype == other.dtype
            assert one.tolist() == other.tolist()
        else:
            assert one == other


def test_a_digest_is_of_the_content_and_not_of_the_notes(tmp_path):
    def digest(name, **columns):
        traces.write(ps.Trace(**{**COLUMNS, **columns}), tmp_path / f"{name}.npz")
        return StoredTrace(tmp_path / f"{name}.npz").digest()

    plain = digest("plain")
    assert digest("again") == digest("noted", notes=("from elsewhere",)) == plain
    others = {digest(str(k), **columns) for k, columns in enumerate(CASES.values())}
    assert len(others) == len(CASES) - 1, "each but the one with notes differs from the plain one"
    assert digest("later", arrival_s=[0.5, 0.0, 2.250000001]) != plain
