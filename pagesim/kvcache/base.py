"""The allocator's contract: what a scheduler may ask of a KV cache, and what must hold after each answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from enum import Enum

Extent = tuple[int, int]
"""A run of neighbouring blocks: (first block, number of blocks)."""

Copy = tuple[int, int]
"""A block to be copied: (from, to)."""


class Fit(Enum):
    """Whether memory can take a request."""

    NOW = "now"
    LATER = "later"
    NEVER = "never"


class AllocatorError(Exception):
    """An operation that the contract forbids; the allocator is as it was before the call."""


class UnknownSequence(AllocatorError):
    """The sequence is not in this memory (never was, or was freed)."""


class OutOfBlocks(AllocatorError):
    """There are not enough free blocks, or no place for them."""


class Allocator(ABC):
    """A KV cache of ``num_blocks`` blocks of ``block_size`` token slots, shared out among sequences.

    Beside it stands a swap space of ``cpu_blocks`` blocks, which only an allocator that can swap uses.

    A sequence is known by an integer that its owner chooses. Lengths are in tokens, sizes in blocks.
    An operation that raises leaves everything as it was.

    Most sequences spend their lives gaining one token an iteration. Such a sequence is *growing* (from
    ``start_growing`` on): ``grow(steps)`` gives every growing sequence its next tokens at once, and
    ``demand(steps)`` says beforehand how many blocks that will take. This is what lets an engine leap over
    iterations, and it takes as many blocks as ``append`` would, one token at a time.

    A subclass keeps ``_lengths`` for resting sequences and adds what it needs; it must implement the
    abstract methods and may override the rest.
    """

    grows_on_demand = False
    """Whether a growing sequence may take further blocks; if not, everything is taken at allocation."""

    sharing_tails: Collection[int] = ()
    """Growing sequences that may share a last block that is not full: their next token copies it."""

    shares = False
    """Whether a fork takes no block of its own until it is written to; if not, it is a second copy."""

    def __init__(self, num_blocks: int, block_size: int, cpu_blocks: int = 0) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks is {num_blocks}; at least 1 is needed")
        if block_size < 1:
            raise ValueError(f"block_size is {block_size}; at least 1 is needed")
        if cpu_blocks < 0:
            raise ValueError(f"cpu_blocks is {cpu_blocks}; it cannot be negative")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.cpu_blocks = cpu_blocks
        self.steps_grown = 0
        # A resting sequence has its length here; a growing one has length − steps_grown in _bases, so that a
        # step touches no sequence at all.
        self._lengths: dict[int, int] = {}
        self._bases: dict[int, int] = {}

    # Questions

    @property
    @abstractmethod
    def free_blocks(self) -> int:
        """Blocks that nobody holds."""

    @property
    def free_cpu_blocks(self) -> int:
        """Blocks of the swap space that nobody holds."""
        return self.cpu_blocks

    @property
    def shared_blocks(self) -> int:
        """What sharing saves: over the blocks on the device, the sequences that name one beyond the first."""
        return 0

    @property
    def cached_blocks(self) -> int:
        """Free blocks whose content can still be found."""
        return 0

    @property
    def blocks_taken(self) -> int:
        """How often a free block was taken since the beginning, where ``take_evictions`` counts by it."""
        return 0

    def accounts(self, steps: int = 0) -> tuple[int, int, int, int, int]:
        """Return free_blocks, free_cpu_blocks, shared_blocks, cached_blocks and blocks_taken at once.

        They are as they will be after so many steps of growth, of which none copies on write.
        """
        return (
            self.free_blocks - self.demand(steps),
            self.free_cpu_blocks,
            self.shared_blocks,
            self.cached_blocks,
            self.blocks_taken,
        )

    def take_evictions(self) -> Sequence[tuple[int, int]]:
        """Hand over when content was lost since the last call.

        Returns:
            For blocks that were taken in a row, the value of ``blocks_taken`` with the first, and how many.
        """
        return ()

    def copies_due(self, sequences: Iterable[int]) -> int:
        """Return the blocks that the next token of these growing sequences copies on write."""
        return 0

    @abstractmethod
    def blocks_for(self, tokens: int, output_tokens: int) -> int:
        """Return the blocks that one sequence asks for at allocation, before a placement rounds them."""

    @abstractmethod
    def probe(self, tokens: int, output_tokens: int, sequences: int = 1, spare: int = 0) -> Fit:
        """Say whether ``sequences`` samples of one request of ``tokens`` could be allocated.

        Args:
            tokens: length of the prompt (or of what must be recomputed).
            output_tokens: tokens still to come; only a reservation policy that is told the future looks.
            sequences: samples that share the prompt, each its own copy where memory cannot share.
            spare: blocks that must remain free afterwards (a watermark).
        """

    def demand(self, steps: int = 1) -> int:
        """Return the blocks that the growing sequences will take over the next ``steps`` iterations."""
        return 0

    def growable(self, steps: int, spare: int) -> int:
        """Return how many of the next ``steps`` iterations can grow and still leave ``spare`` blocks free.

        At most 1 while that step copies on write: copies end a leap. An allocator that takes everything at
        allocation can always grow, whatever is free.
        """
        return steps

    def length(self, sequence: int) -> int:
        """Return the tokens whose KV the sequence holds."""
        base = self._bases.get(sequence)
        if base is not None:
            return base + self.steps_grown
        try:
            return self._lengths[sequence]
        except KeyError:
            raise self._unknown(sequence) from None

    def sequences(self) -> Iterable[int]:
        """Return the sequences whose KV is on the device."""
        return (*self._lengths, *self._bases)

    @abstractmethod
    def extents(self, sequence: int) -> list[Extent]:
        """Return where the sequence's blocks are, in token order; neighbouring blocks are joined."""

    def held_blocks(self, sequence: int) -> int:
        """Return how many blocks the sequence names, shared ones included."""
        return sum(blocks for _, blocks in self.extents(sequence))

    def reserved_tokens(self, sequence: int) -> int:
        """Return the tokens that were reserved for the sequence; 0 where memory is taken on demand."""
        self.length(sequence)  # raises if the sequence is not here
        return 0

    @abstractmethod
    def block_table(self, sequence: int) -> list[int]:
        """Return the sequence's blocks, one for each ``block_size`` tokens, in token order."""

    @abstractmethod
    def free_extents(self) -> list[Extent]:
        """Return the maximal runs of free blocks, by address."""

    def free_chunks(self) -> list[Extent]:
        """Return the free runs by address as they are kept: a buddy's halves are two, though they touch."""
        return self.free_extents()

    def cached_extents(self) -> list[Extent]:
        """Return the maximal runs of free blocks whose content can still be found, by address."""
        return []

    @abstractmethod
    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is either free or held, and no bookkeeping disagrees."""

    # Changes

    @abstractmethod
    def allocate(self, sequence: int, tokens: int, output_tokens: int = 0) -> None:
        """Give a new sequence room for ``tokens`` (and for what its reservation policy adds).

        Raises:
            OutOfBlocks: ``probe`` would not have said NOW.
            AllocatorError: the sequence is already here, or ``tokens`` is below 1.
        """

    @abstractmethod
    def append(self, sequence: int) -> Copy | None:
        """Make room for one more token of a resting sequence; return the block copied for it, if any.

        Raises:
            UnknownSequence: the sequence is not here, or is growing.
            OutOfBlocks: no block is free, or a fixed reservation is full.
        """

    def extend(self, sequence: int, tokens: int) -> None:
        """Make room for more tokens of a resting sequence that shares nothing: the next chunk of a prompt.

        Raises:
            UnknownSequence: the sequence is not here, or is growing.
            OutOfBlocks: there is not enough room; the sequence is as it was.
        """
        raise AllocatorError("this memory takes all of a prompt at once; chunks need paged memory on demand")

    @abstractmethod
    def fork(self, parent: int, child: int) -> None:
        """Make a new sequence with the parent's tokens: shared where memory can share, else a second copy."""

    def adopt(self, sequence: int, parent: int) -> list[Copy]:
        """Replace what a sequence holds by the tokens of another of the same length, as a beam's fork does.

        Where memory can share, the two share; here every block that the sequence holds becomes a copy.

        Returns:
            The blocks to be copied.

        Raises:
            UnknownSequence: one of them is not here.
            AllocatorError: they are one, or differ in length or in the blocks that they hold.
        """
        self._check_adoption(sequence, parent)
        mine, theirs = self._blocks(sequence), self._blocks(parent)
        if len(mine) != len(theirs):
            raise AllocatorError(
                f"sequence {sequence} holds {len(mine)} blocks, {parent} holds {len(theirs)}: "
                "one cannot become the other"
            )
        return list(zip(theirs, mine, strict=True))

    @abstractmethod
    def free(self, sequence: int) -> None:
        """Take the sequence's blocks back (those that no other sequence shares)."""

    def start_growing(self, sequence: int) -> None:
        """From now on ``grow`` gives this sequence a token a step."""
        self._bases[sequence] = self._pop_resting(sequence) - self.steps_grown

    def stop_growing(self, sequence: int) -> None:
        """Let a growing sequence rest at its present length."""
        if sequence not in self._bases:
            raise self._unknown(sequence)
        self._lengths[sequence] = self._bases.pop(sequence) + self.steps_grown

    def grow(self, steps: int = 1) -> list[Copy]:
        """Give every growing sequence ``steps`` more tokens; return the blocks copied on write.

        Nobody looks at single sequences here: that none grows past a fixed reservation is its owner's care.

        Raises:
            OutOfBlocks: ``demand(steps)`` exceeds the free blocks.
        """
        self.steps_grown += steps
        return []

    # For subclasses

    def _unknown(self, sequence: int) -> UnknownSequence:
        return UnknownSequence(f"sequence {sequence} is not in memory")

    def _pop_resting(self, sequence: int) -> int:
        try:
            return self._lengths.pop(sequence)
        except KeyError:
            raise self._unknown(sequence) from None

    def _blocks(self, sequence: int) -> list[int]:
        return [b for first, count in self.extents(sequence) for b in range(first, first + count)]

    def _check_adoption(self, sequence: int, parent: int) -> None:
        if self.length(sequence) != self.length(parent) or sequence == parent:
            raise AllocatorError(
                f"sequence {sequence} of {self.length(sequence)} tokens cannot become a copy of {parent} of "
                f"{self.length(parent)}: two sequences of one length are needed"
            )

    def _check_new(self, sequence: int, tokens: int) -> None:
        if sequence in self._lengths or sequence in self._bases:
            raise AllocatorError(f"sequence {sequence} is already in memory")
        if tokens < 1:
            raise AllocatorError(f"sequence {sequence} asks for {tokens} tokens; at least 1 is needed")


def join_extents(blocks: Iterable[int]) -> list[Extent]:
    """Return runs of neighbouring blocks, in the order given."""
    runs: list[Extent] = []
    for block in blocks:
        if runs and block == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((block, 1))
    return runs
