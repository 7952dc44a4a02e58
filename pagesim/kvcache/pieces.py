"""Pieces: stretches of blocks that are held, found and lost together, and the queue of the free ones."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, MutableSequence
from typing import Protocol, Self


class Content(Protocol):
    """What a sequence's tokens are, as far as another one may have the same ones, block by block."""

    def key(self, block: int) -> int:
        """Name a block: two contents have one name for it where all tokens up to its end are the same."""

    def common(self, other: Self) -> int:
        """Return how many leading blocks of this and of another content have the same name."""


def block_array(blocks: Iterable[int] = ()) -> array[int]:
    """Return numbers of blocks as an array."""
    return array("i", blocks)


class Piece:
    """Blocks of one table that follow one another.

    Attributes:
        blocks: their numbers, in token order; an array is cut and joined faster than a list.
        content: of whoever computed them; None where nobody can ask for them.
        start: the place of the first one in that content.
        key: its name there.
        users: the sequences that hold them.
    """

    __slots__ = ("_ahead", "_behind", "blocks", "content", "key", "start", "users")

    def __init__(
        self, blocks: MutableSequence[int], content: Content | None = None, start: int = 0, key: int = 0
    ) -> None:
        self.blocks = blocks
        self.content = content
        self.start = start
        self.key = key
        self.users: set[int] = set()
        self._ahead = self._behind = self

    def split(self, blocks: int) -> Piece:
        """Keep so many blocks; return a piece of the others, with the same users."""
        assert self.content is not None
        start = self.start + blocks
        rest = Piece(self.blocks[blocks:], self.content, start, self.content.key(start))
        del self.blocks[blocks:]
        rest.users = set(self.users)
        return rest


class FreeQueue:
    """Pieces that nobody uses, in the order in which they are taken; of a piece the last block first."""

    def __init__(self) -> None:
        self._ring = Piece(block_array())  # stands between the last one and the first

    @property
    def first(self) -> Piece:
        """The next to be taken; there is one."""
        return self._ring._behind

    def __iter__(self) -> Iterator[Piece]:
        piece = self._ring._behind
        while piece is not self._ring:
            yield piece
            piece = piece._behind

    def blocks(self) -> Iterator[int]:
        """Yield all blocks, in the order in which they are taken."""
        for piece in self:
            yield from reversed(piece.blocks)

    def push(self, piece: Piece) -> None:
        """Put a piece at the end."""
        self.push_ahead(piece, self._ring)

    def push_first(self, piece: Piece) -> None:
        """Put a piece at the very front."""
        self.push_ahead(piece, self._ring._behind)

    def push_ahead(self, piece: Piece, other: Piece) -> None:
        """Put a piece just ahead of another one."""
        piece._ahead, piece._behind = other._ahead, other
        other._ahead._behind = piece
        other._ahead = piece

    def remove(self, piece: Piece) -> None:
        """Take a piece out, wherever it is."""
        piece._ahead._behind = piece._behind
        piece._behind._ahead = piece._ahead
