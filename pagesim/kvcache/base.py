"""The contract of block managers: what a scheduler may ask, in requests and blocks, and what must hold."""

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
    """How a prompt is cut into chunks so that recurrent states are left behind where they can be found.

    Attributes:
        block_size: tokens; chunks end where blocks do.
        checkpoint: tokens; within a chunk the kernels can leave a state behind at every multiple of them from
            its start. None where they cannot.
        alignment: tokens of which a hit is a multiple.
        hash_lookahead: tokens behind a block that its hash covers.
        drops_block: whether the last block of a hit is computed again.
    """

    block_size: int
    checkpoint: int | None
    alignment: int
    hash_lookahead: int = 0
    drops_block: bool = False


class BlockManagerError(Exception):
    """An operation that the contract forbids; the memory is as it was before the call."""


@mypyc_attr(allow_interpreted_subclasses=True)
class BlockManager:
    """A pool of ``num_blocks`` equal blocks, shared by the KV groups of a model and by all requests.

    Beside it stands a swap space of ``cpu_blocks`` blocks. Sizes are in blocks, lengths in tokens. An
    operation that raises leaves everything as it was.

    A request spends most of its life decoding: ``allocate_step(steps)`` gives every decoding request its
    next tokens at once, ``blocks_needed(steps)`` says how many blocks that takes, and ``steps_that_fit``
    for how many steps the free blocks last. A run of steps leaves what as many single steps leave.

    In a step a group first releases what no later token attends to, then takes blocks. ``allocate_step``
    asks for the blocks of all requests before it releases any.

    Args:
        num_blocks: on the device.
        groups: the KV groups of the model.
        cpu_blocks: of swap space.
        shares: whether samples of a request share the blocks of their prompt; if not, each has its own.

    Attributes:
        steps: decode steps taken so far.
        free_blocks: blocks that no request has.
        cached_blocks: free blocks whose content can still be found.
        free_cpu_blocks: blocks of the swap space that no request has.
        shared_blocks: over the blocks on the device, the requests' tables that name one beyond the first.
        block_size: tokens a block, of the first group.
        page_bytes: bytes of each block on each GPU; of the largest, where groups do not say.
        group_bytes: of what each group takes at a time: a block, unless ``equal_blocks`` is False.
        capacity_bytes: of all memory, on each GPU.
        is_hybrid: whether a block is not the same for all layers and for good: several groups, windows,
            chunks, states.
        is_plain: whether what a sequence holds is its length over the block size, rounded up.
        steps_in_flight: steps that are in flight when the next one is planned: 0, or 1 where batches are
            scheduled ahead.
        releases: whether a group may give blocks back before the end.
        state_chunks: how prompts are cut, where states can be found again.
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
    """The abstract methods, which compiled code does not tell."""

    grows: bool
    """Whether decoding requests take further blocks; if not, everything is taken at admission."""

    caches_prefixes: ClassVar[bool] = False
    """Whether full blocks can be found by their content until they are taken again."""

    names_blocks: ClassVar[bool] = False
    """Whether blocks have numbers: tables, extents and transfers can be asked for."""

    equal_blocks: ClassVar[bool] = True
    """Whether what groups take is as large in all of them."""

    cuts_blocks: ClassVar[bool] = False
    """Whether blocks are cut into what groups take; ``held_by_groups`` then ends with the blocks that are."""

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
        """Return the blocks of one sequence of so many tokens, on demand and with nothing released."""
        return sum([-(-tokens // group.block_size) for group in self.groups])

    def blocks_to_admit(self, request: SequenceGroup, tokens: int) -> int:
        """Return the free blocks that a request takes when it is admitted with so many tokens.

        What ``match_prefix`` found for it counts as far as it is free; an allocator may round the rest up.
        """
        blocks = 0
        for group in self.groups:
            blocks += group.blocks_at_admission(tokens, request.output)
        return blocks if self.shares else blocks * request.samples

    def can_admit(self, request: SequenceGroup, tokens: int, spare: int = 0, length: int = 0) -> bool:
        """Say whether a request could be admitted now.

        Args:
            request: to be admitted.
            tokens: its first ones.
            spare: blocks that are left free (a watermark).
            length: tokens, all of which must fit as memory is now; 0 where only the first ones must.
        """
        return self.blocks_to_admit(request, max(tokens, length)) + spare <= self.free_blocks

    def could_admit(self, request: SequenceGroup, tokens: int, spare: int = 0) -> bool:
        """Say whether a request could be admitted to empty memory, with ``spare`` blocks left free."""
        return self.blocks_to_admit(request, tokens) + spare <= self.num_blocks

    def match_prefix(self, request: SequenceGroup, tokens: int) -> int:
        """Look a request's first tokens up, all but the last; return how many are cached: whole blocks."""
        return 0

    @abstractmethod
    def held_blocks(self, request: SequenceGroup) -> int:
        """Return the distinct blocks that a request has, on the device or, swapped out, in the swap space."""

    def exclusive_blocks(self, requests: Sequence[SequenceGroup]) -> list[int]:
        """Return of each KV group the distinct blocks that only these requests have, and no other."""
        return [sum([self.held_blocks(request) for request in requests])]

    def length(self, request: SequenceGroup) -> int:
        """Return the tokens of each sample whose KV is held or, for a window, has been."""
        return request.length_offset + self.steps if request.decodes else request.tokens

    @abstractmethod
    def blocks_needed(self, steps: int = 1) -> int:
        """Return the blocks that decoding requests take over the next steps, not less what they release."""

    @abstractmethod
    def blocks_to_extend(self, request: SequenceGroup, tokens: int, computed: int | None = None) -> int:
        """Return the blocks that a request takes for further tokens of each sample, and to copy on write.

        Args:
            request: resting or decoding.
            tokens: how many more it is going to have.
            computed: those of a resting request that were computed before the step at hand, or found. Given,
                what it releases on the way to them all is counted; left out, it is not.
        """

    @abstractmethod
    def steps_that_fit(self, steps: int, spare: int) -> int:
        """Return for how many of the next steps the free blocks last, ``spare`` of them left over in each.

        What decides is that every step counted here can be taken, and looks like the others. So it is 0 where
        the next step copies on write, and where steps are in flight and a request's first one comes next,
        unless what it holds then follows from its length. Memory that gives blocks back may count on it, or
        say fewer steps.
        """

    def copies_due(self, request: SequenceGroup) -> int:
        """Return the blocks that the next step of a decoding request copies on write."""
        return 0

    def held_by_group(self, request: SequenceGroup) -> list[tuple[int, int]]:
        """Return of each KV group the tokens that it stores for a request of one sample, and its blocks."""
        return [(self.length(request), self.held_blocks(request))]

    def held_by_groups(self) -> Sequence[int] | None:
        """Return the distinct blocks of all requests in each KV group; None where their lengths tell."""
        return None

    def take_changes(self) -> Sequence[tuple[int, ...]]:
        """Hand over what decode steps changed since the last call, where lengths do not tell.

        Returns:
            In order of the steps, for each after which the counts differ, and maybe for others: the step, the
            cached blocks and, unless `held_by_groups` is None, these counts, as they were after it. No step
            is named for cached blocks that are taken only when nothing else is free: their number follows.
        """
        return ()

    def held_and_reserved(self, request: SequenceGroup) -> tuple[int, int] | None:
        """Return the blocks that each sample holds throughout and the tokens reserved for it.

        None where memory is taken on demand.
        """
        return None

    # Block numbers, of memory that names blocks

    def block_table(self, request: SequenceGroup, sample: int = 0, group: int = 0) -> list[int]:
        """Return a sample's blocks in a group, in token order, reserved ones left out.

        Of a group that gives blocks back they stand by position, with a number below 0 for one that is gone.
        """
        raise BlockManagerError("this memory counts blocks and gives them no numbers")

    def blocks_of(self, request: SequenceGroup, sample: int = 0) -> list[int]:
        """Return all blocks of a sample, reserved ones included, group by group."""
        return self.block_table(request, sample)

    def extents(self, request: SequenceGroup, sample: int = 0) -> list[Extent]:
        """Return where the blocks of a sample are, in token order; neighbouring blocks are joined."""
        return join_extents(self.blocks_of(request, sample))

    def free_blocks_in_order(self) -> list[int]:
        """Return the free blocks in the order in which they are going to be taken."""
        raise BlockManagerError("this memory counts blocks and gives them no numbers")

    def free_extents(self) -> list[Extent]:
        """Return the maximal runs of free blocks, by address."""
        return join_extents(sorted(self.free_blocks_in_order()))

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is free or held, and no bookkeeping disagrees."""
        return

    # Changes

    def new_plan(self) -> None:
        """Say that a plan begins: what was registered before it will have been computed."""
        return

    @abstractmethod
    def admit(self, request: SequenceGroup, tokens: int) -> None:
        """Give a new request room for its first tokens, what ``match_prefix`` found last included; it rests.

        Raises:
            OutOfBlocks: there are too few blocks, or no place for them.
        """

    def extend(self, request: SequenceGroup, tokens: int) -> None:
        """Make room for further tokens of a resting request of one sample: the next chunk of a prompt.

        What it releases at its beginning is released first, as by ``free_skipped_blocks``, in any case.

        Raises:
            OutOfBlocks: there are too few blocks.
            BlockManagerError: everything was taken at admission.
        """
        raise BlockManagerError("this memory takes all of a prompt at once; chunks need memory on demand")

    def append(self, request: SequenceGroup) -> int:
        """Make room for one more token of each sample of a resting request; return the blocks copied for it.

        A request of one sample releases for it what it would for a chunk.

        Raises:
            OutOfBlocks: there are too few blocks, or the reservation is full.
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
        """Let ``allocate_step`` give this request its tokens from now on."""
        request.length_offset = request.tokens - self.steps
        request.decodes = True

    def stop_decoding(self, request: SequenceGroup) -> None:
        """Let a decoding request rest at its present length."""
        request.tokens = self.length(request)
        request.decodes = False

    def free_skipped_blocks(self, request: SequenceGroup) -> None:
        """Release now what the next chunk of a resting request would release at its beginning."""
        return

    def cache_full_blocks(self, request: SequenceGroup) -> None:
        """Make the blocks findable that a decoding request has filled, where prefixes are cached."""
        return

    def reserve_free(self) -> None:
        """Let all blocks that are free now be taken before any that is given back from now on.

        Where a request is preempted in the middle of a plan, those ahead of it have taken every free block.
        Only memory in which it matters which blocks are taken looks.
        """
        return

    @abstractmethod
    def allocate_step(self, steps: int = 1) -> int:
        """Give every decoding request its tokens of so many steps; return the blocks copied on write.

        Raises:
            OutOfBlocks: ``blocks_needed(steps)`` exceeds the free blocks, and ``steps_that_fit`` says fewer
                steps.
        """

    def try_allocate_step(self, spare: int) -> int:
        """Take one decode step if that leaves ``spare`` blocks free, what it releases not counted.

        Returns:
            The blocks copied on write; -1 if it would leave fewer, and then nothing has changed. Memory that
            takes no blocks as it grows always grows.
        """
        if self.grows and self.free_blocks - self.blocks_needed(1) < spare:
            return -1
        return self.allocate_step(1)

    def release_together(self, request: SequenceGroup) -> None:
        """Take everything back at once, the last block of the last group first."""
        self.release(request)

    @abstractmethod
    def release(self, request: SequenceGroup) -> None:
        """Take everything back that a request has on the device."""

    def end_samples(self, request: SequenceGroup, samples: Sequence[int]) -> None:
        """Take back what some samples of a request have; at least one other remains.

        Args:
            request: its ``samples`` is lowered here.
            samples: their places among those that are not over, rising.

        Raises:
            BlockManagerError: the memory has no request of several samples.
        """
        raise BlockManagerError("this memory serves every sample as a request of its own")

    def swap_out(self, request: SequenceGroup) -> int:
        """Move a request to the swap space, sharing preserved; return the distinct blocks moved.

        Raises:
            OutOfBlocks: the swap space has too few free blocks.
        """
        raise BlockManagerError("this memory has no swap space")

    def swap_in(self, request: SequenceGroup) -> int:
        """Bring a request back, which rests as long as it was; return the distinct blocks moved.

        Raises:
            OutOfBlocks: the device has too few free blocks.
        """
        raise BlockManagerError("this memory has no swap space")

    def drop_swapped(self, request: SequenceGroup) -> None:
        """Give up a request in the swap space."""
        raise BlockManagerError("this memory has no swap space")

    def fork(self, request: SequenceGroup, dropped: int, survivor: int) -> int:
        """Let one sample of a decoding request go on from what another one holds, as a beam's fork does.

        Args:
            request: of samples of one length.
            dropped: the place of the one that is given up, among the samples.
            survivor: the place of the other.

        Returns:
            The blocks copied: none where memory shares.
        """
        raise BlockManagerError("this memory cannot fork samples; beams need block tables")

    # Used by subclasses

    def _check_single(self, request: SequenceGroup) -> None:
        """Refuse a request of several samples, where memory serves each as a request of its own."""
        if request.samples > 1:
            raise BlockManagerError("this memory serves every sample as a request of its own")

    def _check_room(self, blocks: int) -> None:
        """Refuse to take more blocks than are free."""
        if blocks > self.free_blocks:
            raise OutOfBlocks(f"{blocks} blocks are needed, {self.free_blocks} are free")
