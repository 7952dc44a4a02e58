"""A saved trace is loaded back exactly, and is complete or not there."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagesim.errors import PagesimError
from pagesim.request import Trace
from pagesim.workloads import NO_ARRIVALS, has_recorded_arrivals, load, save


def assert_same(left: Trace, right: Trace) -> None:
    for name in ("arrival_s", "prompt_tokens", "output_tokens", "n", "beam_width", "request_id"):
        assert getattr(left, name).tolist() == getattr(right, name).tolist(), name
    for name in ("session_id", "abort_s"):
        a, b = getattr(left, name), getattr(right, name)
        assert (a is None) == (b is None), name
        assert a is None or a.tolist() == b.tolist(), name
    assert left.hash_ids == right.hash_ids


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_every_column_comes_back(tmp_path, suffix):
    trace = Trace(
        arrival_s=np.array([0.1, 1 / 3, 2e-7 + 3600]),
        prompt_tokens=np.array([1, 20, 10_000_000]),
        output_tokens=np.array([3, 2, 1]),
        n=np.array([1, 4, 1]),
        beam_width=np.array([8, 1, 1]),
        request_id=np.array(["a", "b,c", '"d"\n']),
        hash_ids=[(1, 2), (), (2**62,)],
        session_id=np.array([7, None, 9], object),
        abort_s=np.array([np.inf, 5.5, np.inf]),
    )
    save(trace, tmp_path / f"t{suffix}")
    assert_same(load(tmp_path / f"t{suffix}"), trace)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_arrivals_that_were_never_recorded_are_not_written(tmp_path, suffix):
    trace = Trace(np.zeros(2), np.array([1, 2]), np.array([3, 4]), notes=(NO_ARRIVALS,))
    save(trace, tmp_path / f"t{suffix}")
    assert not has_recorded_arrivals(load(tmp_path / f"t{suffix}"))


@settings(max_examples=50, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.floats(0, 1e9), st.integers(1, 10**7), st.integers(1, 10**7), st.integers(1, 1024)),
        min_size=1,
        max_size=5,
    ),
    suffix=st.sampled_from([".csv", ".parquet"]),
)
def test_any_trace_comes_back(tmp_path_factory, rows, suffix):
    arrivals, prompts, outputs, n = map(np.array, zip(*rows, strict=True))
    path = tmp_path_factory.getbasetemp() / f"saved{suffix}"
    trace = Trace(arrivals, prompts, outputs, n)
    save(trace, path)
    assert_same(load(path), trace)


def test_nothing_but_the_trace_is_left_in_the_folder(tmp_path):
    trace = Trace(np.zeros(1), np.array([1]), np.array([2]))
    save(trace, tmp_path / "t.csv")
    save(trace, tmp_path / "t.csv")
    assert [p.name for p in tmp_path.iterdir()] == ["t.csv"]


def test_another_suffix_is_refused(tmp_path):
    trace = Trace(np.zeros(1), np.array([1]), np.array([2]))
    with pytest.raises(PagesimError, match=r"saved as \.csv or \.parquet, not as '\.xlsx'"):
        save(trace, tmp_path / "t.xlsx")


def test_a_folder_that_is_not_there_is_named(tmp_path):
    trace = Trace(np.zeros(1), np.array([1]), np.array([2]))
    with pytest.raises(PagesimError, match=r"missing/t\.csv: cannot be written \(No such file"):
        save(trace, tmp_path / "missing" / "t.csv")
