"""A trace is columns of requests: a wrong one is refused with a reason, and no row loses its values."""

import numpy as np
import pytest

from pagesim.errors import TraceError
from pagesim.workloads.trace import Trace


def three(**columns) -> Trace:
    """Three requests, given in another order than that of their arrival."""
    given = {
        "arrival_s": np.array([2.0, 0.0, 1.0]),
        "prompt_tokens": np.array([20, 21, 22]),
        "output_tokens": np.array([5, 6, 7]),
    }
    return Trace(**{**given, **columns})


def test_rows_keep_their_values_when_they_are_sorted_and_taken():
    trace = three(
        n=np.array([1, 2, 3]),
        hash_ids=[(0,), (1,), (2,)],
        sample_tokens=[(5,), (6, 1), (7, 2, 3)],
        prefix_tokens=np.array([10, 11, 12]),
        session_id=np.array(["a", "b", "c"]),
    )
    assert trace.prompt_tokens.tolist() == [21, 22, 20]
    assert trace.hash_ids == [(1,), (2,), (0,)]
    assert trace.sample_tokens == [(6, 1), (7, 2, 3), (5,)]
    assert trace.prefix_tokens is not None
    assert trace.prefix_tokens.tolist() == [11, 12, 10]
    taken = trace.take(np.array([2, 1]))
    assert [(r.prompt_tokens, r.hash_ids, r.sample_tokens, r.prefix_tokens) for r in taken] == [
        (22, (2,), (7, 2, 3), 12),
        (20, (0,), (), 10),
    ]


def test_ids_may_come_as_arrays_of_a_table():
    table = np.empty(3, object)
    table[:] = [np.array([4]), np.array([5]), np.array([], np.int64)]
    assert three(hash_ids=table).hash_ids == [(5,), (), (4,)]


def test_the_smallest_priority_may_be_below_0():
    assert three(priority=np.array([-(2**31) + 1, 0, 7])).priority.tolist() == [0, 7, -(2**31) + 1]


def test_columns_that_say_nothing_are_none():
    trace = three(
        n=np.array([1, 2, 1]), sample_tokens=[(5,), (6, 6), (7,)], prefix_tokens=np.zeros(3, np.int64)
    )
    assert trace.sample_tokens is None
    assert trace.prefix_tokens is None
    mixed = three(n=np.array([1, 2, 1]), sample_tokens=[(5,), (6, 2), (7,)])
    assert mixed.take(slice(1, 3)).sample_tokens is None


def test_outputs_are_cut_sample_by_sample():
    trace = three(n=np.array([1, 2, 3]), sample_tokens=[(5,), (6, 1), (7, 2, 3)])
    cut = trace.with_outputs_cut(np.array([9, 2, 2]), "cut")
    assert cut.output_tokens.tolist() == [6, 2, 2]
    assert cut.sample_tokens == [(6, 1), (2, 2, 2), (2,)]
    assert cut.notes == ("cut",)


SAMPLES = "it must be n lengths, {}, from 1 to 10000000, the longest as output_tokens, {}"


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"prompt_tokens": np.array([1, 2.5, 3])}, "row 1: prompt_tokens is 2.5; it must be a whole number"),
        ({"n": np.array([1, 1025, 1])}, "row 1: n is 1025; it must be a whole number from 1 to 1024"),
        ({"beam_width": np.array([1, 1, 0])}, "row 2: beam_width is 0; it must be a whole number from 1"),
        ({"priority": np.array([0, 2**31, 0])}, "row 1: priority is 2147483648; it must be a whole number"),
        ({"sample_tokens": [(5,), (6,)]}, "column sample_tokens has 2 values, prompt_tokens has 3"),
        (
            {"sample_tokens": [(5, 5), (6,), (7,)]},
            "row 0: sample_tokens is (5, 5); " + SAMPLES.format(1, 5),
        ),
        (
            {"n": np.full(3, 2), "sample_tokens": [(5, 1), (5, 1), (7, 1)]},
            "row 1: sample_tokens is (5, 1); " + SAMPLES.format(2, 6),
        ),
        (
            {"n": np.full(3, 2), "sample_tokens": [(5, 0), (6, 1), (7, 1)]},
            "row 0: sample_tokens is (5, 0); " + SAMPLES.format(2, 5),
        ),
        ({"sample_tokens": [(5,), "6", (7,)]}, "row 1: sample_tokens is '6'; it must be a list of whole"),
        ({"sample_tokens": [(5,), (6.0,), (7,)]}, "row 1: sample_tokens is (6.0,); it must be a list of"),
        (
            {"n": np.full(3, 2), "beam_width": np.full(3, 2), "sample_tokens": [(5, 5), (6, 5), (7, 7)]},
            "row 1: sample_tokens is (6, 5) and beam_width is 2; with beam search all samples must be",
        ),
        ({"hash_ids": [(1,), (1, 2), ()]}, "row 1: hash_ids has 2 ids of 512 tokens each; a prompt of 21"),
        ({"hash_ids": [(1,), (True,), ()]}, "row 1: hash_ids is (True,); it must be a list of whole numbers"),
        ({"hash_block_size": 0}, "hash_block_size is 0; it must be a whole number from 1 to 10000000"),
        ({"hash_block_size": 2.5}, "hash_block_size is 2.5; it must be a whole number from 1"),
        ({"prefix_tokens": np.array([0, -1, 0])}, "row 1: prefix_tokens is -1; it must be a whole number"),
        ({"prefix_tokens": np.array([0, 1.5, 0])}, "row 1: prefix_tokens is 1.5; it must be a whole number"),
        ({"prefix_tokens": np.array([20, 21, 23])}, "row 2: prefix_tokens is 23; it must be at most prompt_"),
        ({"prefix_tokens": np.array([1])}, "column prefix_tokens has 1 values, prompt_tokens has 3"),
    ],
)
def test_a_column_out_of_bounds_is_refused_in_a_sentence(columns, said):
    with pytest.raises(TraceError) as caught:
        three(**columns)
    assert str(caught.value).startswith(said)
