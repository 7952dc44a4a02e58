"""What requests' contents are, for memory that finds prefixes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pagesim.scheduling.content import Content, Contents
from pagesim.workloads.trace import Trace


def contents(request_of: list[int] | None = None, **columns: Any) -> list[Content]:
    """Return the contents of three requests of 40 tokens."""
    tokens = np.full(3, 40)
    made = Contents(
        Trace(np.arange(3.0), tokens, tokens, **columns),
        np.arange(3) if request_of is None else np.array(request_of),
        16,
    )
    return [made.of(row) for row in range(3)]


def test_requests_that_share_nothing_are_unseen() -> None:
    made = contents()
    assert all(each.unseen for each in made)
    assert len({each.key(0) for each in made}) == 3


@pytest.mark.parametrize(
    "how",
    [
        {"request_of": [0, 0, 2]},
        {"prefix_tokens": np.array([16, 16, 16])},
        {"session_id": ["a", "b", "a"]},
        {"hash_ids": [(1,), (1,), (1,)], "hash_block_size": 40},
    ],
    ids=lambda how: next(iter(how)),
)
def test_none_is_where_another_may_begin_alike(how: dict[str, Any]) -> None:
    assert not any(each.unseen for each in contents(**how))


def test_a_prompt_whose_first_block_no_other_has_is_unseen_among_those_that_share() -> None:
    found = contents(hash_ids=[(1,), (2,), (1,)], hash_block_size=40)
    assert [each.unseen for each in found] == [False, True, False]


@pytest.mark.parametrize(
    ("how", "shared"),
    [
        ({}, [0, 0, 0]),
        ({"prefix_tokens": np.array([0, 33, 15])}, [0, 2, 0]),
        ({"hash_ids": [(1, 2, 3), (1, 2, 4), (5, 6, 7)], "hash_block_size": 16}, [2, 2, 0]),
        ({"hash_ids": [(1, 2, 3), (1, 2, 3), (1, 4, 7)], "hash_block_size": 16}, [2, 2, 1]),
        ({"hash_ids": [(1, 2, 3), (), (1, 2)], "hash_block_size": 16}, [2, 0, 2]),
        ({"request_of": [0, 0, 2]}, [2, 2, 2]),
    ],
)
def test_another_request_may_have_as_many_leading_blocks(how: dict[str, Any], shared: list[int]) -> None:
    assert [each.shared for each in contents(**how)] == shared


@pytest.mark.parametrize(
    "how",
    [
        {"session_id": ["a", "b", "a"]},
        {"hash_ids": [(1, 2), (2, 1), (1, 2)], "hash_block_size": 16},
    ],
    ids=["the next turn begins with the answer", "an id does not stand for what comes before it"],
)
def test_another_request_may_have_any_block_where_that_is_not_known(how: dict[str, Any]) -> None:
    assert all(each.shared >= 1 << 20 for each in contents(**how))


def test_a_prompt_that_shares_less_than_a_block_is_looked_for() -> None:
    found = contents(prefix_tokens=np.array([0, 33, 15]))
    assert [each.unseen for each in found] == [True, False, False], "another block size may be shorter"


def test_blocks_that_the_same_requests_have_are_one_segment() -> None:
    found = contents(hash_ids=[(1, 2, 3), (1, 2, 4), (5, 6, 7)], hash_block_size=16)
    assert [each.ends[:-1] for each in found] == [[32, 40], [32, 40], [40]]
    assert found[0].names[0] == found[1].names[0]
    assert len({name for each in found for name in each.names}) == 1 + 2 + 1 + 3, "with three answers"
