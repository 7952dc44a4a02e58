"""KV cache groups: layers that keep keys and values by the same rule and share a pool of equal pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pagesim.kvcache.reservation import Reservation

NEVER: Final = (1 << 62) - 1
"""A bound above the tokens of any sequence and the blocks of any pool."""


class Rule:
    """Decides which blocks of a sequence a group of layers still needs; by default all, allocated on demand.

    A rule gets the number of tokens whose KV exists when an iteration begins (``processed``). It returns how
    many leading ones no later token attends to.
    """

    __slots__ = ()

    grows = True
    """Whether a decoding sequence allocates further blocks; if not, all are allocated at admission."""

    def skipped(self, processed: int) -> int:
        """Return the number of leading tokens that no token after the first ``processed`` attends to."""
        return 0

    def processed_at(self, skipped: int) -> int:
        """Return the number of tokens after which ``skipped`` (at least 1) are skipped, or `NEVER`."""
        return NEVER

    def reserved(self, tokens: int, output_tokens: int) -> int:
        """Return the tokens that a sequence allocates at admission: at least ``tokens``."""
        return tokens

    def most_blocks(self, block_size: int, longest: int, in_flight: int) -> int | None:
        """Return the most blocks that a sequence holds at once; None if none is freed before it has finished.

        Args:
            block_size: tokens per block.
            longest: tokens of the longest sequence.
            in_flight: tokens of it that can be scheduled but not yet computed.
        """
        return None


@dataclass(frozen=True, slots=True)
class Full(Rule):
    """Full attention: no block is released before the sequence has finished."""


@dataclass(frozen=True, slots=True)
class SlidingWindow(Rule):
    """A token attends to the last ``window`` tokens, including itself.

    Attributes:
        window: tokens of the window.
        retained: tokens kept before the window, for MTP modules that read further back.

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
        """Tokens kept before the current one."""
        return self.window - 1 + self.retained

    def skipped(self, processed: int) -> int:
        return max(0, processed - self.window + 1 - self.retained)

    def processed_at(self, skipped: int) -> int:
        return skipped + self.behind

    def most_blocks(self, block_size: int, longest: int, in_flight: int) -> int | None:
        # A window that begins within a block extends into one more.
        return -(-min(self.behind + in_flight, longest) // block_size) + 1


@dataclass(frozen=True, slots=True)
class ChunkedLocal(Rule):
    """A token attends to the tokens since the last multiple of ``chunk``, including itself.

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
    """A recurrent state: one block, regardless of the sequence's length.

    If prefixes are cached (``aligned``), the state after the last token of a block can be matched. A sequence
    then allocates a block for its current state, and keeps the previous one until it has been copied.
    Otherwise its block is as long as the longest sequence.

    Source: vLLM 0.33.0, ``MambaManager``.

    Attributes:
        aligned: whether prefixes are cached, so that the state at the end of a block can be matched.
        checkpoint: tokens between the states that kernels can save within a chunk of a prompt, counted from
            its start; None if they can save none there.
        drafts: additional states per sequence, one after each draft token, kept until it is known which are
            accepted.
    """

    aligned: bool = False
    checkpoint: int | None = None
    drafts: int = 0

    def skipped(self, processed: int) -> int:
        return max(0, processed - 1)

    def most_blocks(self, block_size: int, longest: int, in_flight: int) -> int | None:
        if not self.aligned:
            return None  # one block is as long as the longest sequence
        return 2 + self.drafts + (self.checkpoint is not None)


@dataclass(frozen=True, slots=True)
class Reserved(Rule):
    """All blocks that a sequence may need are allocated at admission, for a guess of its final length."""

    reservation: Reservation
    grows = False

    def reserved(self, tokens: int, output_tokens: int) -> int:
        return self.reservation.tokens(tokens, output_tokens)


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers whose keys and values are stored, matched and freed together.

    Attributes:
        block_size: tokens whose KV one block stores, for all layers of the group.
        rule: which blocks are kept.
        layers: number of layers.
        page_bytes: bytes of a block on each GPU, equal in all groups of a pool. If left out, those of the
            pool's largest block.
        filled_bytes: bytes of a block that the layers fill; the rest is padding. If left out, as many as its
            tokens can fill evenly, or one byte per token if ``page_bytes`` is left out, too.
        drops_block: whether the last block of a hit is recomputed, because the drafter's KV for it depends on
            the next token.
        drafts: whether the group contains the KV of such a drafter.
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
        """Bytes that a token fills in all layers; 0 for a state, which belongs to no single token."""
        return 0 if isinstance(self.rule, State) else self.filled // self.block_size

    @property
    def is_one_block(self) -> bool:
        """Whether a sequence holds all blocks of this group from the start: states that are not cached."""
        return isinstance(self.rule, State) and not self.rule.aligned

    @property
    def draft_states(self) -> int:
        """States that a sequence keeps for draft tokens, each in a block of its own."""
        return self.rule.drafts if isinstance(self.rule, State) else 0

    @property
    def kind(self) -> str:
        """The name of its rule, with its tokens: ``full``, ``window-1024``, ``chunk-8192``, ``state``."""
        rule = self.rule
        if isinstance(rule, SlidingWindow):
            return f"window-{rule.window}"
        if isinstance(rule, ChunkedLocal):
            return f"chunk-{rule.chunk}"
        return "state" if isinstance(rule, State) else "full"

    def blocks_at_admission(self, tokens: int, output_tokens: int) -> int:
        """Return the blocks that a sequence allocates to be admitted with ``tokens`` tokens."""
        return -(-self.rule.reserved(tokens, output_tokens) // self.block_size)

    def released(self, processed: int) -> int:
        """Return the number of leading blocks that have been released after ``processed`` tokens."""
        return self.rule.skipped(processed) // self.block_size

    def most(self, tokens: int, longest: int, in_flight: int) -> int:
        """Return the most blocks that a sequence of ``tokens`` tokens holds at once.

        Args:
            tokens: tokens of the sequence, none of them cached.
            longest: tokens of the longest sequence.
            in_flight: tokens of it that can be scheduled but not yet computed.
        """
        blocks = -(-tokens // self.block_size) + self.draft_states
        kept = self.rule.most_blocks(self.block_size, longest, in_flight)
        return blocks if kept is None or blocks < kept else kept


def check_groups(groups: tuple[KVGroup, ...], *, equal_blocks: bool = True) -> None:
    """Refuse KV groups that cannot share memory.

    Args:
        groups: KV groups of the block manager.
        equal_blocks: whether they allocate blocks of one pool.

    Raises:
        ValueError: there is no group, page sizes differ within one pool, or only some groups reserve.
    """
    if not groups:
        raise ValueError("there is no KV group; at least 1 is needed")
    if equal_blocks and len({group.page_bytes for group in groups}) > 1:
        sizes = ", ".join(str(group.page_bytes) for group in groups)
        raise ValueError(f"page_bytes of the groups of one pool are {sizes}; they must be equal")
    if len({group.rule.grows for group in groups}) > 1:
        raise ValueError("some groups of one pool reserve and others grow; all must do the same")


def are_hybrid(groups: tuple[KVGroup, ...]) -> bool:
    """Return whether there are several groups, or one that does not simply keep every token."""
    return len(groups) > 1 or groups[0].drops_block or not isinstance(groups[0].rule, Full | Reserved)


def page_bytes_of(groups: tuple[KVGroup, ...]) -> int:
    """Return the bytes of each block of a pool."""
    return groups[0].page_bytes or max(group.filled for group in groups)


def check_single(groups: tuple[KVGroup, ...]) -> None:
    """Refuse groups other than a single one that frees no block before the end.

    Raises:
        ValueError: there are several groups, or a rule that frees blocks before a sequence has finished.
    """
    if are_hybrid(groups):
        raise ValueError(
            "this memory has one KV group, of full attention or reserved; others need a HybridManager"
        )
