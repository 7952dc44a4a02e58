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
        {"prefix_tokens": np.array([0, 16, 0])},
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


def test_blocks_that_the_same_requests_have_are_one_segment() -> None:
    found = contents(hash_ids=[(1, 2, 3), (1, 2, 4), (5, 6, 7)], hash_block_size=16)
    assert [each.ends[:-1] for each in found] == [[32, 40], [32, 40], [40]]
    assert found[0].names[0] == found[1].names[0]
    assert len({name for each in found for name in each.names}) == 1 + 2 + 1 + 3, "with three answers"
