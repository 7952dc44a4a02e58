"""A text as a content that a cache is asked for: a prompt, and then tokens that are no other request's."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from pagesim.kvcache import SequenceGroup


class Text:
    """See `pagesim.kvcache.runs.Content`.

    Args:
        prompt: tokens.
        block_size: tokens.
    """

    def __init__(self, prompt: Sequence[Hashable], block_size: int) -> None:
        self.prompt = tuple(prompt)
        self.block_size = block_size

    def key(self, block: int) -> int:
        return self.key_at((block + 1) * self.block_size)

    def key_at(self, tokens: int) -> int:
        own = (id(self), tokens) if tokens > len(self.prompt) else None
        return hash((self.prompt[:tokens], own))

    def common(self, other: Text, most: int) -> int:
        if self is other:
            return most
        tokens = 0
        for mine, theirs in zip(self.prompt, other.prompt, strict=False):
            if mine != theirs:
                break
            tokens += 1
        return min(tokens // self.block_size, most)


class Reader(SequenceGroup):
    """A request whose prompt is a text."""

    def __init__(self, text: Text, order: int = 0) -> None:
        super().__init__(len(text.prompt))
        self.content = text
        self.order = order
