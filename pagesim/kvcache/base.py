"""The interface of block managers: what a scheduler may ask of them, and the invariants they maintain."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from pagesim.allocators import OutOfBlocks
from pagesim.allocators.extents import Extent, join_extents
from pagesim.kvcache.groups import Full, KVGroup, are_hybrid, check_groups, page_bytes_of
from pagesim.kvcache.sequence_group import SequenceGroup
from pagesim.setup.compiled import mypyc_attr


class StateChunks(NamedTuple):
    """How a prompt is split into chunks so that recurrent states are saved where look-ups can find them.

    Attributes:
        block_size: tokens per block; chunks end at block boundaries.
        checkpoint: tokens between the states that kernels can save within a chunk, counted from its start.
            None if they can save none there.
        alignment: tokens; the length of a hit is a multiple of this.
        hash_lookahead: tokens after a block that its hash also covers.
        drops_block: whether the last block of a hit is recomputed.
    """

    block_size: int
    checkpoint: int | None
    alignment: int
    hash_lookahead: int = 0
    drops_block: bool = False


class BlockManagerError(Exception):
    """An operation that the interface forbids; the memory is unchanged by the call."""


@mypyc_attr(allow_interpreted_subclasses=True)
class BlockManager:
    """A pool of ``num_blocks`` equal blocks, shared by all KV groups of a model and by all requests.

    It may also have a swap space of ``cpu_blocks`` blocks. Sizes are in blocks, lengths in tokens. An
    operation that raises leaves everything as it was.

    A request spends most of its life decoding. ``allocate_step(steps)`` allocates the next tokens of every
    decoding request at once, and ``blocks_needed(steps)`` returns how many blocks that takes.
    ``steps_that_fit`` returns how many steps the free blocks last. Running several steps in one call has
    the same result as running them one by one.

    In each step a group first releases blocks that no later token attends to, then allocates new ones.
    ``allocate_step`` requires the blocks of all requests to be free before it releases any.

    Args:
        num_blocks: blocks on the device.
        groups: the KV groups of the model.
        cpu_blocks: blocks of the swap space.
        shares: whether samples of a request share the blocks of their prompt; if not, each has its own.

    Attributes:
        steps: decode steps run so far.
        free_blocks: blocks that no request holds.
        cached_blocks: free blocks whose content is still cached.
        free_cpu_blocks: blocks of the swap space that no request holds.
        shared_blocks: references to device blocks in the requests' tables, beyond the first to each block.
        block_size: tokens per block, of the first group.
        page_bytes: bytes of each block on each GPU; those of the largest if groups do not specify them.
        group_bytes: bytes that each group allocates at a time: a block, unless ``equal_blocks`` is False.
        capacity_bytes: bytes of all memory on each GPU.
        is_hybrid: whether there are several groups, windows, chunks or states.
        is_plain: whether a sequence holds exactly its length divided by the block size, rounded up.
        steps_in_flight: steps in flight when the next one is planned: 0, or 1 if batches are scheduled ahead.
        releases: whether a group may free blocks before a request has finished.
        state_chunks: how prompts are split into chunks, if states are cached.
    """

    __slots__ = (
        "block_size",
        "cached_blocks",
        "capacity_bytes",
        "cpu_blocks",
        "free_blocks",
        "free_cpu_blocks",
        "group_bytes",
        "groups",
        "grows",
        "is_hybrid",
        "is_plain",
        "num_blocks",
        "page_bytes",
        "releases",
        "shared_blocks",
        "shares",
        "state_chunks",
        "steps",
        "steps_in_flight",
    )

    MUST_OVERRIDE: ClassVar[tuple[str, ...]] = (
        *("held_blocks", "blocks_needed", "blocks_to_extend", "steps_that_fit"),
        *("admit", "allocate_step", "release"),
    )
    """The abstract methods, which compiled code does not report."""

    grows: bool
    """Whether decoding requests allocate further blocks; if not, all are allocated at admission."""

    caches_prefixes: ClassVar[bool] = False
    """Whether full blocks can be found by their content until they are reused."""

    names_blocks: ClassVar[bool] = False
    """Whether blocks are numbered, so that tables, extents and transfers are available."""

    equal_blocks: ClassVar[bool] = True
    """Whether all groups allocate pages of the same size."""

    cuts_blocks: ClassVar[bool] = False
    """Whether blocks are split into the groups' pages; ``held_by_groups`` then ends with the split blocks."""

    steps: int
    free_blocks: int
    free_cpu_blocks: int
    shared_blocks: int

    def __init__(
        self, num_blocks: int, groups: Sequence[KVGroup], cpu_blocks: int = 0, *, shares: bool = True
    ) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks is {num_blocks}; at least 1 is needed")
        if cpu_blocks < 0:
            raise ValueError(f"cpu_blocks is {cpu_blocks}; it cannot be negative")
        self.groups = tuple(groups)
        check_groups(self.groups, equal_blocks=self.equal_blocks)
        self.num_blocks = num_blocks
        self.cpu_blocks = cpu_blocks
        self.block_size = self.groups[0].block_size
        self.page_bytes = page_bytes_of(self.groups)
        self.group_bytes = tuple(
            [self.page_bytes if self.equal_blocks else group.page_bytes or group.filled for group in groups]
        )
        self.capacity_bytes = num_blocks * self.page_bytes
        self.is_hybrid = are_hybrid(self.groups)
        self.grows = any(group.rule.grows for group in self.groups)
        self.shares = shares and all(group.rule.grows for group in self.groups)
        self.is_plain = len(self.groups) == 1 and self.groups[0].rule == Full()
        self.releases = False
        self.steps_in_flight = 0
        self.steps = 0
        self.free_blocks = num_blocks
        self.free_cpu_blocks = cpu_blocks
        self.shared_blocks = 0
        self.state_chunks: StateChunks | None = None
        self.cached_blocks = 0

    # Questions

    def blocks_for(self, tokens: int) -> int:
        """Return the blocks of one sequence of ``tokens`` tokens, without reservation or releases."""
        return sum([-(-tokens // group.block_size) for group in self.groups])

    def blocks_to_admit(self, request: SequenceGroup, tokens: int) -> int:
        """Return the free blocks that admitting a request with ``tokens`` tokens takes.

        Blocks that ``match_prefix`` matched count if they are free. An allocator may round the others up.
        """
        blocks = 0
        for group in self.groups:
            blocks += group.blocks_at_admission(tokens, request.output)
        return blocks if self.shares else blocks * request.samples

    def can_admit(self, request: SequenceGroup, tokens: int, spare: int = 0, length: int = 0) -> bool:
        """Return whether a request can be admitted now.

        Args:
            request: request to admit.
            tokens: leading tokens to make room for.
            spare: blocks to leave free (a watermark).
            length: tokens that must fit into present free memory in total; 0 if only the leading ones must.
        """
        return self.blocks_to_admit(request, max(tokens, length)) + spare <= self.free_blocks

    def could_admit(self, request: SequenceGroup, tokens: int, spare: int = 0) -> bool:
        """Return whether empty memory could admit a request and leave ``spare`` blocks free."""
        return self.blocks_to_admit(request, tokens) + spare <= self.num_blocks

    def match_prefix(self, request: SequenceGroup, tokens: int) -> int:
        """Look up a request's leading tokens except the last; return how many are cached, in whole blocks."""
        return 0

    @abstractmethod
    def held_blocks(self, request: SequenceGroup) -> int:
        """Return the distinct blocks that a request holds on the device or, if swapped out, in swap space."""

    def exclusive_blocks(self, requests: Sequence[SequenceGroup]) -> list[int]:
        """Return, for each KV group, the distinct blocks that no request other than these holds."""
        return [sum([self.held_blocks(request) for request in requests])]

    def length(self, request: SequenceGroup) -> int:
        """Return the tokens of each sample whose KV is stored, or was before it left a window."""
        return request.length_offset + self.steps if request.decodes else request.tokens

    @abstractmethod
    def blocks_needed(self, steps: int = 1) -> int:
        """Return the blocks that decoding requests allocate in the next steps, ignoring any releases."""

    @abstractmethod
    def blocks_to_extend(self, request: SequenceGroup, tokens: int, computed: int | None = None) -> int:
        """Return the blocks that a request needs for more tokens in each sample, copies on write included.

        Args:
            request: a resting or decoding request.
            tokens: further tokens of each sample.
            computed: tokens of a resting request that were cached or computed before the current step. If
                given, blocks that the request releases on the way are credited.
        """

    @abstractmethod
    def steps_that_fit(self, steps: int, spare: int) -> int:
        """Return how many of the next steps the free blocks allow while ``spare`` blocks stay free.

        Every step counted here can be run, and all are alike. So the result is 0 if the next step copies on
        write. It is also 0 if steps are in flight and the next one is a request's first, unless the blocks
        that the request then holds follow from its length. A manager that releases blocks on the way may
        count on them, or return fewer steps.
        """

    def copies_due(self, request: SequenceGroup) -> int:
        """Return the blocks that the next step of a decoding request copies on write."""
        return 0

    def held_by_group(self, request: SequenceGroup) -> list[tuple[int, int]]:
        """Return, for each KV group, the tokens and blocks that it stores for a request of one sample."""
        return [(self.length(request), self.held_blocks(request))]

    def held_by_groups(self) -> Sequence[int] | None:
        """Return the distinct blocks of all requests in each KV group; None if they follow from lengths."""
        return None

    def take_changes(self) -> Sequence[tuple[int, ...]]:
        """Return and clear the changes since the last call that do not follow from the requests' lengths.

        Returns:
            One entry per decode step that changed the counts, in order; others may be included. An entry is
            the step and the cached blocks after it, then the counts of `held_by_groups` unless that is None.
            Cached blocks that are reused only when nothing else is free add no entries: their number follows.
        """
        return ()

    def held_and_reserved(self, request: SequenceGroup) -> tuple[int, int] | None:
        """Return the blocks that each sample holds throughout, and the tokens reserved for it.

        None if memory is allocated on demand.
        """
        return None

    # Block numbers, for managers that number blocks

    def block_table(self, request: SequenceGroup, sample: int = 0, group: int = 0) -> list[int]:
        """Return a sample's blocks in a group, in token order, without unused reserved ones.

        In a group that frees blocks early, a negative number marks the position of a freed one.
        """
        raise BlockManagerError("this memory counts blocks and gives them no numbers")

    def blocks_of(self, request: SequenceGroup, sample: int = 0) -> list[int]:
        """Return all blocks of a sample, reserved ones included, group by group."""
        return self.block_table(request, sample)

    def extents(self, request: SequenceGroup, sample: int = 0) -> list[Extent]:
        """Return the extents of a sample's blocks, in token order; neighbouring blocks are joined."""
        return join_extents(self.blocks_of(request, sample))

    def free_blocks_in_order(self) -> list[int]:
        """Return the free blocks in the order in which they will be allocated."""
        raise BlockManagerError("this memory counts blocks and gives them no numbers")

    def free_extents(self) -> list[Extent]:
        """Return the maximal runs of free blocks, by address."""
        return join_extents(sorted(self.free_blocks_in_order()))

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is either free or held and all bookkeeping agrees."""
        return

    # Changes

    def new_plan(self) -> None:
        """Begin a plan: when it runs, all blocks registered earlier will have been computed."""
        return

    @abstractmethod
    def admit(self, request: SequenceGroup, tokens: int) -> None:
        """Allocate a new request's first tokens, reusing what ``match_prefix`` found last; it then rests.

        Raises:
            OutOfBlocks: too few blocks are free, or there is no suitable place for them.
        """

    def extend(self, request: SequenceGroup, tokens: int) -> None:
        """Allocate further tokens of a resting request of one sample, as for the next chunk of its prompt.

        Skipped blocks are released first, as by ``free_skipped_blocks``, even if this raises.

        Raises:
            OutOfBlocks: too few blocks are free.
            BlockManagerError: all memory was allocated at admission.
        """
        raise BlockManagerError("this memory takes all of a prompt at once; chunks need memory on demand")

    def append(self, request: SequenceGroup) -> int:
        """Allocate one more token for each sample of a resting request; return the blocks copied on write.

        A request of one sample first releases skipped blocks, as before a chunk.

        Raises:
            OutOfBlocks: too few blocks are free, or the reservation is full.
        """
        if self.grows:
            self.extend(request, 1)
            return 0
        _, reserved = self.held_and_reserved(request) or (0, 0)
        slots = -(-reserved // self.block_size) * self.block_size
        if request.tokens >= slots:
            raise OutOfBlocks(f"a reservation of {slots} tokens is full")
        request.tokens += 1
        return 0

    def start_decoding(self, request: SequenceGroup) -> None:
        """Include this request in ``allocate_step`` from now on."""
        request.length_offset = request.tokens - self.steps
        request.decodes = True

    def stop_decoding(self, request: SequenceGroup) -> None:
        """Stop decoding a request; it rests at its current length."""
        request.tokens = self.length(request)
        request.decodes = False

    def free_skipped_blocks(self, request: SequenceGroup) -> None:
        """Release now the blocks that the next chunk of a resting request would release when it starts."""
        return

    def cache_full_blocks(self, request: SequenceGroup) -> None:
        """Cache the blocks that a decoding request has filled, if prefixes are cached."""
        return

    def reserve_free(self) -> None:
        """Make all currently free blocks be allocated before any that is freed later.

        When a request is preempted in the middle of a plan, the requests before it have used all free blocks.
        Only managers for which the choice of blocks matters implement this.
        """
        return

    @abstractmethod
    def allocate_step(self, steps: int = 1) -> int:
        """Allocate ``steps`` steps of every decoding request; return the blocks copied on write.

        Raises:
            OutOfBlocks: ``blocks_needed(steps)`` exceeds the free blocks, and ``steps_that_fit`` returns
                fewer steps.
        """

    def try_allocate_step(self, spare: int) -> int:
        """Run one decode step if that leaves ``spare`` blocks free, not counting blocks that it releases.

        Returns:
            The blocks copied on write, or -1, with nothing changed, if fewer would stay free. Managers that
            allocate all blocks at admission always run the step.
        """
        if self.grows and self.free_blocks - self.blocks_needed(1) < spare:
            return -1
        return self.allocate_step(1)

    def release_together(self, request: SequenceGroup) -> None:
        """Free all blocks of a request at once, the last block of the last group first."""
        self.release(request)

    @abstractmethod
    def release(self, request: SequenceGroup) -> None:
        """Free everything that a request holds on the device."""

    def end_samples(self, request: SequenceGroup, samples: Sequence[int]) -> None:
        """Free the blocks of some samples of a request; at least one other sample remains.

        Args:
            request: request of the samples; its ``samples`` is lowered here.
            samples: ascending indices among the samples that have not finished.

        Raises:
            BlockManagerError: the manager supports no requests of several samples.
        """
        raise BlockManagerError("this memory serves every sample as a request of its own")

    def swap_out(self, request: SequenceGroup) -> int:
        """Move a request to the swap space, preserving sharing; return the distinct blocks moved.

        Raises:
            OutOfBlocks: the swap space has too few free blocks.
        """
        raise BlockManagerError("this memory has no swap space")

    def swap_in(self, request: SequenceGroup) -> int:
        """Swap a request back in, resting at its former length; return the distinct blocks moved.

        Raises:
            OutOfBlocks: the device has too few free blocks.
        """
        raise BlockManagerError("this memory has no swap space")

    def drop_swapped(self, request: SequenceGroup) -> None:
        """Discard a request in the swap space."""
        raise BlockManagerError("this memory has no swap space")

    def fork(self, request: SequenceGroup, dropped: int, survivor: int) -> int:
        """Replace one sample of a decoding request by a fork of another, as beam search does.

        Args:
            request: request whose samples have the same length.
            dropped: index of the sample that is replaced.
            survivor: index of the sample that is forked.

        Returns:
            The blocks copied: none if samples share blocks.
        """
        raise BlockManagerError("this memory cannot fork samples; beams need block tables")

    # Used by subclasses

    def _check_single(self, request: SequenceGroup) -> None:
        """Refuse a request of several samples; this manager serves each sample as its own request."""
        if request.samples > 1:
            raise BlockManagerError("this memory serves every sample as a request of its own")

    def _check_room(self, blocks: int) -> None:
        """Raise OutOfBlocks if more blocks are needed than are free."""
        if blocks > self.free_blocks:
            raise OutOfBlocks(f"{blocks} blocks are needed, {self.free_blocks} are free")
