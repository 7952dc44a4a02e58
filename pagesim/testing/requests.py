"""Requests for the conformance suites, and the tokens of their prompts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Self

from pagesim.allocators import OutOfBlocks
from pagesim.allocators.extents import Extent
from pagesim.kvcache.base import BlockManager, BlockManagerError
from pagesim.kvcache.sequence_group import SequenceGroup
from pagesim.testing.copied import copied


class Prompt:
    """A request's tokens, for block managers that match prefixes; each token is a segment of its own."""

    lookahead = 0

    def __init__(self, tokens: tuple[int, ...], block_size: int) -> None:
        self.tokens = tokens
        self.block_size = block_size
        places = range(1, len(tokens) + 1)
        self.ends = [*places, 1 << 32]
        self.names = [*[hash(tokens[:place]) for place in places], id(self)]

    def key(self, block: int) -> int:
        return self.key_at((block + 1) * self.block_size)

    def key_at(self, tokens: int) -> int:
        return hash((self.tokens[:tokens], None if tokens <= len(self.tokens) else (id(self), tokens)))

    def common(self, other: Self, most: int) -> int:
        return self.common_tokens(other, most * self.block_size) // self.block_size

    def common_tokens(self, other: Self, most: int) -> int:
        if self is other:
            return most
        pairs = zip(self.tokens, other.tokens, strict=False)
        alike = next((place for place, (a, b) in enumerate(pairs) if a != b), None)
        return min(most, min(len(self.tokens), len(other.tokens)) if alike is None else alike)

    def __deepcopy__(self, memo: object) -> Self:
        return self


class LivingRequest(SequenceGroup):
    """A request with its prompt's content and the number of prompt tokens not computed yet."""

    __slots__ = ("left",)

    content: Prompt | None
    left: int

    def __init__(self, tokens: int, output: int = 0, samples: int = 1) -> None:
        super().__init__(tokens, output, samples)
        self.left = 0


class Tokens:
    """Numbers tokens uniquely, but equally for equal prompt tokens after equal prefixes."""

    def __init__(self) -> None:
        self._numbers = count()
        self._found: dict[tuple[int, ...], int] = {}

    def next(self, request: LivingRequest, place: int) -> int:
        content = request.content
        if content is None or place >= len(content.tokens):
            return next(self._numbers)
        return self._found.setdefault(content.tokens[: place + 1], next(self._numbers))

    def __deepcopy__(self, memo: object) -> Self:
        return self


def takes_samples(memory: BlockManager) -> bool:
    """Return whether a block manager supports requests with several samples; it may refuse them."""
    copy, request = copied(memory), LivingRequest(1, 1, 2)
    try:
        copy.admit(request, 1)
    except OutOfBlocks:
        return True
    except BlockManagerError:
        return False
    return True


def numbers(extents: Iterable[Extent]) -> Iterator[int]:
    """Yield the blocks of extents one by one."""
    for first, blocks in extents:
        yield from range(first, first + blocks)
