"""A request whose prompt is a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pagesim.kvcache import SequenceGroup
from pagesim.testing.requests import Prompt


class Reader(SequenceGroup):
    """A request that knows what its tokens are: those of its prompt, and then some of no other request's."""

    def __init__(self, tokens: Sequence[Any], block_size: int, order: int = 0) -> None:
        super().__init__(len(tokens))
        self.content = Prompt(tuple(tokens), block_size)
        self.order = order
