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


def test_requests_that_share_nothing_have_no_block_in_common() -> None:
    made = contents()
    assert len({each.key(block) for each in made for block in range(3)}) == 9


@pytest.mark.parametrize(
    ("how", "common"),
    [
        ({"prefix_tokens": np.array([0, 33, 35])}, [0, 0, 2]),
        ({"hash_ids": [(1, 2, 3), (1, 2, 4), (5, 6, 7)], "hash_block_size": 16}, [2, 0, 0]),
        ({"hash_ids": [(1, 2, 3), (1, 2, 3), (1, 4, 7)], "hash_block_size": 16}, [2, 1, 1]),
        ({"hash_ids": [(1, 2, 3), (), (1, 2)], "hash_block_size": 16}, [0, 2, 0]),
        ({"hash_ids": [(1, 2), (2, 1), (1, 2)], "hash_block_size": 16}, [0, 2, 0]),
        ({"request_of": [0, 0, 2]}, [2, 0, 0]),
    ],
)
def test_two_requests_have_as_many_leading_blocks_in_common(how: dict[str, Any], common: list[int]) -> None:
    first, second, third = contents(**how)
    pairs = [(first, second), (first, third), (second, third)]
    assert [one.common(other, 2) for one, other in pairs] == common
    for (one, other), blocks in zip(pairs, common, strict=True):
        assert [one.key(block) == other.key(block) for block in range(2)] == [True] * blocks + [False] * (
            2 - blocks
        )
