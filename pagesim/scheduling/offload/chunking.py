"""Chunking: how a KV group is cut into chunks, which are stored and loaded as a whole."""

from __future__ import annotations

from dataclasses import dataclass

from pagesim.kvcache import Full, KVGroup, SlidingWindow, State


@dataclass(frozen=True, slots=True)
class OffloadGroup:
    """How a KV group is cut into chunks.

    Attributes:
        number: of the group.
        group: see there.
        blocks: a chunk.
        tokens: a chunk.
    """

    number: int
    group: KVGroup
    blocks: int

    @property
    def tokens(self) -> int:
        """Token slots a chunk."""
        return self.blocks * self.group.block_size

    @property
    def keeps_all(self) -> bool:
        """Whether its layers attend to all tokens."""
        return isinstance(self.group.rule, Full)

    @property
    def has_states(self) -> bool:
        """Whether it keeps recurrent states."""
        return isinstance(self.group.rule, State)

    @property
    def window(self) -> int:
        """Chunks in a row that a load needs, where the group does not keep all."""
        rule = self.group.rule
        return -(-rule.window // self.tokens) if isinstance(rule, SlidingWindow) else 1

    def window_before(self, tokens: int) -> int:
        """Return the chunks in a row that a load needs which ends after so many tokens."""
        rule = self.group.rule
        if not isinstance(rule, SlidingWindow):
            return self.window
        return max(self.window, -(-(rule.window - 1 + -tokens % self.tokens) // self.tokens))
