"""What counted memory keeps of KV groups that give blocks back, and of each sequence that decodes."""

from __future__ import annotations

from typing import Final, NamedTuple

from pagesim.kvcache.groups import ChunkedLocal, SlidingWindow
from pagesim.setup.compiled import mypyc_attr

NEVER: Final = (1 << 62) - 1
"""A step, or a length in tokens, that no sequence reaches."""

RINGED: Final = -1
"""Stands for the blocks that a kind has given back where these follow from the length: it is in the ring."""


class Kind(NamedTuple):
    """Groups of one rule and one block size that give blocks back before the end.

    Attributes:
        rule: see above.
        block_size: tokens.
        groups: how many there are.
    """

    rule: SlidingWindow | ChunkedLocal
    block_size: int
    groups: int

    def released(self, processed: int) -> int:
        """Return the leading blocks that each group does not need once ``processed`` tokens have run."""
        skipped = self.rule.skipped(processed)
        return skipped // self.block_size if skipped else 0

    def processed_at(self, released: int) -> int:
        """Return after how many tokens it does not need so many leading blocks (1 or more)."""
        return self.rule.processed_at(released * self.block_size)


@mypyc_attr(allow_interpreted_subclasses=True)
class Decoding:
    """What is kept with a request that decodes; with one that rests stands ``released`` alone, as a tuple.

    Attributes:
        released: of each kind, the blocks that each of its groups has given back, or `RINGED`.
        since: steps of growth that had been taken when it began to decode.
    """

    __slots__ = ("released", "since")

    def __init__(self, released: tuple[int, ...], since: int) -> None:
        self.released = list(released)
        self.since = since
