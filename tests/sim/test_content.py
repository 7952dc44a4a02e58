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
        {"hash_ids": [(1,), (2,), (3,)], "hash_block_size": 40},
    ],
    ids=lambda how: next(iter(how)),
)
def test_none_is_where_another_may_begin_alike(how: dict[str, Any]) -> None:
    assert not any(each.unseen for each in contents(**how))
