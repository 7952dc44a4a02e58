"""KV groups: layers that keep their keys and values by one rule, and share a pool of equal pages."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import Protocol

from pagesim.kvcache.reservation import Reservation


class Rule(Protocol):
    """By which blocks of a sequence a group of layers still needs.

    A rule is given the tokens whose KV exists when an iteration begins (``processed``), and says how many of
    them no later token attends to.
    """

    grows: bool
    """Whether a decoding sequence takes further blocks; if not, everything is taken at admission."""

    def skipped(self, processed: int) -> int:
        """Return the leading tokens that no token after the first ``processed`` attends to."""

    def reserved(self, tokens: int, output_tokens: int) -> int:
        """Return the tokens that a sequence takes room for at admission, at least ``tokens``."""


@dataclass(frozen=True, slots=True)
class Full:
    """Every token attends to all tokens before it: nothing is released before the end."""

    grows = True

    def skipped(self, processed: int) -> int:
        return 0

    def reserved(self, tokens: int, output_tokens: int) -> int:
        return tokens


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """A token attends to the last ``window`` tokens, itself included.

    Source: vLLM 0.33.0, ``SlidingWindowManager.get_num_skipped_tokens``.
    """

    window: int
    grows = True

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"window is {self.window}; at least 1 token is needed")

    def skipped(self, processed: int) -> int:
        return max(0, processed - self.window + 1)

    def reserved(self, tokens: int, output_tokens: int) -> int:
        return tokens


@dataclass(frozen=True, slots=True)
class Reserved:
    """Everything that a sequence may ever need is taken at admission, by a guess of its length."""

    reservation: Reservation
    grows = False

    def skipped(self, processed: int) -> int:
        return 0

    def reserved(self, tokens: int, output_tokens: int) -> int:
        return self.reservation.tokens(tokens, output_tokens)


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers whose keys and values are kept, found and freed together.

    Attributes:
        block_size: tokens whose KV one block of this group holds, for all of its layers.
        rule: which blocks are kept.
        layers: how many there are.
        page_bytes: bytes of a block; all groups of a pool have blocks of equal size.
    """

    block_size: int
    rule: Rule = Full()
    layers: int = 1
    page_bytes: int = 1

    def __post_init__(self) -> None:
        for name in ("block_size", "layers", "page_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; at least 1 is needed")

    def blocks_at_admission(self, tokens: int, output_tokens: int) -> int:
        """Return the blocks that a sequence takes when its first ``tokens`` are to be computed."""
        return -(-self.rule.reserved(tokens, output_tokens) // self.block_size)

    def released(self, processed: int) -> int:
        """Return the leading blocks that are not held any more once ``processed`` tokens have run."""
        return self.rule.skipped(processed) // self.block_size


def check_groups(groups: tuple[KVGroup, ...]) -> None:
    """Refuse groups that cannot share a pool.

    Raises:
        ValueError: there is none, their pages differ in size, or only some of them reserve.
    """
    if not groups:
        raise ValueError("there is no KV group; at least 1 is needed")
    if len({group.page_bytes for group in groups}) > 1:
        sizes = ", ".join(str(group.page_bytes) for group in groups)
        raise ValueError(f"page_bytes of the groups of one pool are {sizes}; they must be equal")
    if len({group.rule.grows for group in groups}) > 1:
        raise ValueError("some groups of one pool reserve and others grow; all must do the same")


def period(groups: tuple[KVGroup, ...]) -> int:
    """Return after how many tokens every group takes and releases blocks at the same places again."""
    return lcm(*(group.block_size for group in groups))


def opening_step(base: int, block_size: int) -> int:
    """Return the step, modulo a block size, at which a sequence takes its blocks.

    A sequence of ``base + steps`` tokens opens a block with each token that follows a multiple of the size.
    """
    return (1 - base) % block_size
