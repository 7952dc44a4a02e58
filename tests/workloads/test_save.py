"""A saved trace is loaded back exactly, and is complete or not there."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagesim.errors import PagesimError
from pagesim.workloads import NO_ARRIVALS, has_recorded_arrivals, load, save
from pagesim.workloads.trace import Trace
from tests.workloads.conftest import assert_same


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_every_column_comes_back(tmp_path, suffix):
    trace = Trace(
        arrival_s=np.array([0.1, 1 / 3, 2e-7 + 3600]),
        prompt_tokens=np.array([1, 20, 10_000_000]),
        output_tokens=np.array([3, 9, 1]),
        n=np.array([1, 4, 1]),
        beam_width=np.array([8, 1, 1]),
        request_id=np.array(["a", "b,c", '"d"\n']),
        hash_ids=[(1,), (), (2**62, 3)],
        hash_block_size=16,
        prefix_tokens=np.array([0, 20, 7]),
        sample_tokens=[(3,), (2, 9, 5, 9), (1,)],
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


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Traces with any of the columns that there are, each row within its bounds."""
    tokens, ids = st.integers(1, 10**7), st.integers(-(2**63), 2**63 - 1)
    size = draw(st.integers(1, 5))

    def column(values: st.SearchStrategy[object]) -> list[object]:
        return draw(st.lists(values, min_size=size, max_size=size))

    def maybe(make: Callable[[], object]) -> object:
        return make() if draw(st.booleans()) else None

    prompts = column(tokens)
    arrivals = np.array(column(st.floats(0, 1e9)))
    width = np.array(column(st.sampled_from([1, 1, 2])))
    samples = [
        (draw(tokens),) * draw(st.integers(1, 4))
        if beams > 1 or draw(st.booleans())
        else tuple(draw(st.lists(tokens, min_size=1, max_size=4)))
        for beams in width.tolist()
    ]
    block_size = draw(st.sampled_from([512, 1, 10**6]))
    return Trace(
        arrivals,
        np.array(prompts),
        np.array([max(own) for own in samples]),
        np.array([len(own) for own in samples]),
        width,
        hash_ids=maybe(
            lambda: [
                tuple(draw(st.lists(ids, max_size=min(3, -(-tokens // block_size))))) for tokens in prompts
            ]
        ),
        hash_block_size=block_size,
        session_id=maybe(lambda: np.array(column(st.none() | st.integers(0, 2)), object)),
        abort_s=maybe(lambda: arrivals + column(st.sampled_from([0, 1.5, np.inf]))),
        sample_tokens=samples,
        prefix_tokens=maybe(lambda: np.array([draw(st.integers(0, tokens)) for tokens in prompts])),
    )


@given(trace=traces(), suffix=st.sampled_from([".csv", ".parquet"]))
def test_any_trace_comes_back(tmp_path_factory, trace, suffix):
    path = tmp_path_factory.getbasetemp() / f"saved{suffix}"
    save(trace, path)
    if trace.hash_ids is None:  # the size of blocks that there are not
        trace = trace.with_columns({"hash_block_size": 512})
    assert_same(load(path), trace)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_columns_that_say_nothing_are_left_out(tmp_path, suffix):
    path = tmp_path / f"t{suffix}"
    save(Trace(np.ones(1), np.array([900]), np.array([2]), hash_ids=[(1, 2)]), path)
    read = pd.read_csv if suffix == ".csv" else pd.read_parquet
    columns = ["request_id", "arrival_s", "prompt_tokens", "output_tokens", "hash_ids"]
    assert read(path).columns.tolist() == columns


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
