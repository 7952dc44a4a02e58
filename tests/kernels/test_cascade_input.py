"""What the op of shared prefixes refuses, in one sentence that names the argument."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pagesim import PagesimError  # noqa: E402
from pagesim.kernels import SharedPrefixes, cascade_decode_attention, cascade_plan  # noqa: E402
from pagesim.kernels.cases import make_case  # noqa: E402

CASE = make_case([40, 33, 70])
Q, CACHE, TABLE, LENGTHS = CASE.arguments
SAME = TABLE.clone()
SAME[1, :2] = SAME[0, :2]


def share(*groups, table=SAME):
    return SharedPrefixes(CACHE, table, LENGTHS, list(groups))


REFUSED = {
    "no groups": (lambda: share(), r"groups is empty; at least one group is needed, or decode_attention"),
    "a group of none": (lambda: share(([], 1)), r"groups\[0\] has no rows; at least one is needed"),
    "no blocks": (lambda: share(([0, 1], 0)), r"groups\[0\] shares 0 blocks; 1 to 5 are allowed"),
    "more blocks than the table has": (lambda: share(([2], 6)), r"groups\[0\] shares 6 blocks; 1 to 5 are"),
    "a row that is not there": (lambda: share(([0, 3], 1)), r"groups\[0\] holds row 3; 0 to 2 is allowed"),
    "a row twice": (lambda: share(([0, 1], 1), ([1], 1)), r"groups\[1\] holds row 1 again; a row is in one"),
    "a context that is too short": (
        lambda: share(([0, 1], 3)),
        r"groups\[0\] shares 3 blocks of 16 tokens; context_lens\[0\] is 40, at least 48 is needed",
    ),
    "other blocks": (
        lambda: share(([0, 1], 2), table=TABLE),
        r"groups\[0\] shares 2 blocks; block_table\[1\] begins with others than block_table\[0\]",
    ),
    "a table for prefixes": (
        lambda: cascade_decode_attention(Q, CACHE, SAME),
        r"prefixes is a Tensor; SharedPrefixes\(cache, block_table, …\) is needed",
    ),
    "fewer queries": (
        lambda: cascade_decode_attention(Q[:2], CACHE, share(([0, 1], 2))),
        r"prefixes has 3 sequences; 2 are needed, as many as q has rows",
    ),
    "splits": (
        lambda: cascade_plan(Q, CACHE, share(([0, 1], 2)), num_splits=(0, 1)),
        r"num_splits is 0; at least 1 is needed",
    ),
}


@pytest.mark.parametrize(("call", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_is_off_is_named(call, sentence):
    with pytest.raises(PagesimError, match=sentence):
        call()


def test_what_is_shared_and_what_is_not():
    prefixes = share(([1, 0], 2))
    assert prefixes.members.tolist() == [[1, 0]]
    assert prefixes.places.tolist() == [1, 0, -1]
    assert prefixes.shared_lens.tolist() == [32]
    assert prefixes.own_lens.tolist() == [8, 1, 70]
    assert prefixes.shared_tables.tolist() == [SAME[0, :2].tolist()]
    assert [row[0] for row in prefixes.own_tables.tolist()] == [SAME[0, 2], SAME[1, 2], SAME[2, 0]]


def test_groups_of_unlike_size_take_a_row_again():
    prefixes = share(([0, 1], 1), ([2], 4))
    assert prefixes.members.tolist() == [[0, 1], [2, 2]]
    assert prefixes.places.tolist() == [0, 1, 2]
    assert prefixes.shared_lens.tolist() == [16, 64]


def test_queries_of_a_group_stand_side_by_side():
    """Of 4 query heads on 2 KV heads the first two of both rows come first."""
    q = torch.arange(3 * 4)[:, None].view(3, 4, 1)
    assert share(([1, 0], 2)).gather_queries(q, 2).flatten().tolist() == [4, 5, 0, 1, 6, 7, 2, 3]


def test_on_a_cpu_the_reference_runs():
    output = cascade_decode_attention(Q, CACHE, share(([0, 1], 2)))
    assert output.isfinite().all()
