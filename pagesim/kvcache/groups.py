"""KV groups: layers that keep their keys and values by one rule, and share a pool of equal pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pagesim.kvcache.reservation import Reservation

NEVER: Final = (1 << 62) - 1
"""More tokens than a sequence has, and more blocks than a pool."""


class Rule:
    """By which blocks of a sequence a group of layers still needs; here all, taken as it grows.

    A rule is given the tokens whose KV exists when an iteration begins (``processed``), and says how many of
    them no later token attends to.
    """

    __slots__ = ()

    grows = True
    """Whether a decoding sequence takes further blocks; if not, everything is taken at admission."""

    def skipped(self, processed: int) -> int:
        """Return the leading tokens that no token after the first ``processed`` attends to."""
        return 0

    def processed_at(self, skipped: int) -> int:
        """Return after how many tokens at least so many (1 or more) are skipped; or `NEVER`."""
        return NEVER

    def reserved(self, tokens: int, output_tokens: int) -> int:
        """Return the tokens that a sequence takes room for at admission, at least ``tokens``."""
        return tokens

    def most_blocks(self, block_size: int, longest: int, in_flight: int) -> int | None:
        """Return the blocks that a sequence ever holds at once; None where none is given back before the end.

        Args:
            block_size: tokens a block.
            longest: tokens of the longest sequence.
            in_flight: tokens of it that can be scheduled and not be computed yet.
        """
        return None


@dataclass(frozen=True, slots=True)
class Full(Rule):
    """Every token attends to all tokens before it: nothing is released before the end."""


@dataclass(frozen=True, slots=True)
class SlidingWindow(Rule):
    """A token attends to the last ``window`` tokens, itself included.

    Attributes:
        window: tokens.
        retained: further tokens before them that are kept, for MTP modules that read behind.

    Source: vLLM 0.33.0, ``SlidingWindowManager.get_num_skipped_tokens`` and
    ``SlidingWindowSpec.max_admission_blocks_per_request``.
    """

    window: int
    retained: int = 0

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"window is {self.window}; at least 1 token is needed")

    @property
    def behind(self) -> int:
        """Tokens before the one at hand that are kept."""
        return self.window - 1 + self.retained

    def skipped(self, processed: int) -> int:
        return max(0, processed - self.window + 1 - self.retained)

    def processed_at(self, skipped: int) -> int:
        return skipped + self.behind

    def most_blocks(self, block_size: int, longest: int, in_flight: int) -> int | None:
        # Where a window begins within a block, it reaches into one more.
        return -(-min(self.behind + in_flight, longest) // block_size) + 1


@dataclass(frozen=True, slots=True)
class ChunkedLocal(Rule):
    """A token attends to those since the last multiple of ``chunk``, itself included.

    Source: vLLM 0.33.0, ``ChunkedLocalAttentionManager.get_num_skipped_tokens`` and
    ``ChunkedLocalAttentionSpec.max_admission_blocks_per_request``.
    """

    chunk: int

    def __post_init__(self) -> None:
        if self.chunk < 1:
            raise ValueError(f"chunk is {self.chunk}; at least 1 token is needed")

    def skipped(self, processed: int) -> int:
        return processed // self.chunk * self.chunk

    def processed_at(self, skipped: int) -> int:
        return -(-skipped // self.chunk) * self.chunk

    def most_blocks(self, block_size: int, longest: int, in_flight: int) -> int | None:
        return -(-min(self.chunk + in_flight, longest) // block_size)


@dataclass(frozen=True, slots=True)
class State(Rule):
    """A recurrent state, one block however many tokens came before.

    Where prefixes are cached (``aligned``) a state that a block's last token leaves behind can be found; then
    a sequence takes a block for the state at hand, and keeps the one before until it was copied. Else its
    block is as long as the longest sequence.

    Source: vLLM 0.33.0, ``MambaManager``.

    Attributes:
        aligned: whether prefixes are cached, so that the state at the end of a block can be found.
        checkpoint: where the kernels can leave a state behind within a chunk of a prompt: at every multiple
            of so many tokens from its start; None where they cannot.
        drafts: states that a sequence keeps besides, one after each draft, because it is not known yet which
            of them are accepted.
    """

    aligned: bool = False
    checkpoint: int | None = None
    drafts: int = 0

    def skipped(self, processed: int) -> int:
        return max(0, processed - 1)

    def most_blocks(self, block_size: int, longest: int, in_flight: int) -> int | None:
        if not self.aligned:
            return None  # one is as long as the longest sequence
        return 2 + self.drafts + (self.checkpoint is not None)


@dataclass(frozen=True, slots=True)
class Reserved(Rule):
    """Everything that a sequence may ever need is taken at admission, by a guess of its length."""

    reservation: Reservation
    grows = False

    def reserved(self, tokens: int, output_tokens: int) -> int:
        return self.reservation.tokens(tokens, output_tokens)


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers whose keys and values are kept, found and freed together.

    Attributes:
        block_size: tokens whose KV one block of this group holds, for all of its layers.
        rule: which blocks are kept.
        layers: how many there are.
        page_bytes: bytes of a block on each GPU, equal in all groups of a pool; left out where they do not
            matter: then those of the pool's largest block.
        filled_bytes: those of them that the layers fill, the rest is padding; left out, as many as its tokens
            can fill alike, or a byte a token where ``page_bytes`` are left out, too.
        drops_block: whether the last block of a hit is computed again, because a drafter's KV of it reads
            the token behind.
        drafts: whether the KV of such a drafter is in it.
    """

    block_size: int
    rule: Rule = Full()
    layers: int = 1
    page_bytes: int | None = None
    filled_bytes: int | None = None
    drops_block: bool = False
    drafts: bool = False

    def __post_init__(self) -> None:
        for name in ("block_size", "layers", "page_bytes", "filled_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; at least 1 is needed")
        filled = self.filled
        if self.page_bytes is not None and filled > self.page_bytes:
            raise ValueError(f"filled_bytes is {filled}; a block has {self.page_bytes}")
        if not isinstance(self.rule, State) and filled % self.block_size:
            raise ValueError(
                f"filled_bytes is {filled}; the {self.block_size} tokens of a block fill equal parts of it"
            )

    @property
    def filled(self) -> int:
        """Bytes of a block that the layers fill."""
        if self.filled_bytes is not None or self.page_bytes is None:
            return self.filled_bytes or self.block_size
        return (
            self.page_bytes
            if isinstance(self.rule, State)
            else self.page_bytes // self.block_size * self.block_size
        )

    @property
    def slot_bytes(self) -> int:
        """Bytes that a token fills in all layers; of a state, which no token fills, 0."""
        return 0 if isinstance(self.rule, State) else self.filled // self.block_size

    @property
    def is_one_block(self) -> bool:
        """Whether a sequence has all blocks of this group from the first: of states that are not found."""
        return isinstance(self.rule, State) and not self.rule.aligned

    @property
    def draft_states(self) -> int:
        """States that a sequence keeps for drafts, each in a block of its own."""
        return self.rule.drafts if isinstance(self.rule, State) else 0

    @property
    def kind(self) -> str:
        """What its rule is called, with its tokens: ``full``, ``window-1024``, ``chunk-8192``, ``state``."""
        rule = self.rule
        if isinstance(rule, SlidingWindow):
            return f"window-{rule.window}"
        if isinstance(rule, ChunkedLocal):
            return f"chunk-{rule.chunk}"
        return "state" if isinstance(rule, State) else "full"

    def blocks_at_admission(self, tokens: int, output_tokens: int) -> int:
        """Return the blocks that a sequence takes when its first ``tokens`` are to be computed."""
        return -(-self.rule.reserved(tokens, output_tokens) // self.block_size)

    def released(self, processed: int) -> int:
        """Return the leading blocks that are not held any more once ``processed`` tokens have run."""
        return self.rule.skipped(processed) // self.block_size

    def most(self, tokens: int, longest: int, in_flight: int) -> int:
        """Return the blocks that a sequence of so many tokens ever holds at once.

        Args:
            tokens: of which nothing was found in a cache.
            longest: tokens of the longest sequence.
            in_flight: tokens of it that can be scheduled and not be computed yet.
        """
        blocks = -(-tokens // self.block_size) + self.draft_states
        kept = self.rule.most_blocks(self.block_size, longest, in_flight)
        return blocks if kept is None or blocks < kept else kept


def check_groups(groups: tuple[KVGroup, ...], *, equal_blocks: bool = True) -> None:
    """Refuse groups that cannot share memory.

    Args:
        groups: of the memory.
        equal_blocks: whether they take blocks of one pool.

    Raises:
        ValueError: there is none, their pages differ in size in one pool, or only some of them reserve.
    """
    if not groups:
        raise ValueError("there is no KV group; at least 1 is needed")
    if equal_blocks and len({group.page_bytes for group in groups}) > 1:
        sizes = ", ".join(str(group.page_bytes) for group in groups)
        raise ValueError(f"page_bytes of the groups of one pool are {sizes}; they must be equal")
    if len({group.rule.grows for group in groups}) > 1:
        raise ValueError("some groups of one pool reserve and others grow; all must do the same")


def are_hybrid(groups: tuple[KVGroup, ...]) -> bool:
    """Say whether there are several groups, or one that does not simply keep every token."""
    return len(groups) > 1 or groups[0].drops_block or not isinstance(groups[0].rule, Full | Reserved)


def page_bytes_of(groups: tuple[KVGroup, ...]) -> int:
    """Return the bytes of each block of a pool."""
    return groups[0].page_bytes or max(group.filled for group in groups)


def check_single(groups: tuple[KVGroup, ...]) -> None:
    """Refuse what memory of one group that gives nothing back cannot hold.

    Raises:
        ValueError: there are several groups, or a rule by which blocks are given back before the end.
    """
    if are_hybrid(groups):
        raise ValueError(
            "this memory has one KV group, of full attention or reserved; others need a HybridManager"
        )
