"""Paged memory with one KV group; blocks are only counted unless something needs their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pagesim.allocators import OutOfBlocks
from pagesim.kvcache.base import BlockManager, BlockManagerError
from pagesim.kvcache.groups import KVGroup, check_single
from pagesim.kvcache.paged_tables import PagedTables
from pagesim.kvcache.ring import Ring
from pagesim.kvcache.sequence_group import SequenceGroup
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class PagedManager(BlockManager):
    """A block manager for one KV group, on demand or reserved, whose samples share the prompt's blocks.

    How many blocks a request holds follows from its length. How many decoding requests allocate in a step
    follows from their lengths modulo the block size (`Ring`). So it suffices to count blocks. If ``tables``
    are kept, they track every change and number the blocks.

    Beam search needs tables: after a fork, lengths do not determine which blocks the samples share.

    Args:
        num_blocks: blocks on the device.
        groups: one KV group, of full attention or reserved.
        cpu_blocks: blocks of the swap space.
        shares: whether samples of a request share the blocks of their prompt; if not, each has its own.
        tables: whether blocks are numbered.

    Attributes:
        tables: the block tables and free lists; None if blocks are only counted.

    Raises:
        ValueError: there are several groups, or a rule that frees blocks before a sequence has finished.
    """

    __slots__ = ("_ring", "_tails", "tables")

    def __init__(
        self,
        num_blocks: int,
        groups: Sequence[KVGroup],
        cpu_blocks: int = 0,
        *,
        shares: bool = True,
        tables: bool = False,
    ) -> None:
        super().__init__(num_blocks, groups, cpu_blocks, shares=shares)
        check_single(self.groups)
        self._ring = Ring(self.block_size)  # blocks that decoding requests allocate
        self._tails: dict[
            SequenceGroup, None
        ] = {}  # decoding requests whose next step copies a shared last block
        self.tables = PagedTables(num_blocks, cpu_blocks, self.block_size) if tables else None

    # Questions

    @property
    def names_blocks(self) -> bool:  # type: ignore[override]
        """Whether blocks are numbered."""
        return self.tables is not None

    def held_blocks(self, request: SequenceGroup) -> int:
        return self._held(request, self.length(request))

    def blocks_needed(self, steps: int = 1) -> int:
        blocks = self._ring.total(self.steps, steps)
        if self._tails and steps:
            blocks += sum([self.copies_due(request) for request in self._tails])
        return blocks

    def blocks_to_extend(self, request: SequenceGroup, tokens: int, computed: int | None = None) -> int:
        if not self.grows:
            return 0
        length, size = self.length(request), self.block_size
        opened = -(-(length + tokens) // size) - -(-length // size)
        return opened if request.samples == 1 else opened * request.samples + self.copies_due(request)

    def steps_that_fit(self, steps: int, spare: int) -> int:
        if self._tails:
            return 0
        if not self.grows:
            return steps
        return self._ring.steps_that_fit(self.steps, steps, self.free_blocks - spare)

    def copies_due(self, request: SequenceGroup) -> int:
        if request.samples == 1 or not request.tail_shared:
            return 0
        # The last sample that writes to a block keeps it.
        return request.samples - (1 if self.tables is None else self.tables.last_blocks(request))

    def held_and_reserved(self, request: SequenceGroup) -> tuple[int, int] | None:
        if self.grows:
            return None
        blocks, reserved = request.block_state
        return blocks, reserved

    # Changes

    def admit(self, request: SequenceGroup, tokens: int) -> None:
        blocks = self.blocks_to_admit(request, tokens)
        self._check_room(blocks)
        self.free_blocks -= blocks
        request.tokens = tokens
        each = blocks if self.shares else blocks // request.samples
        if not self.grows:
            request.block_state = each, self.groups[0].rule.reserved(tokens, request.output)
        if self.tables is not None:
            self.tables.admit(request, each, shares=self.shares)
        if request.samples > 1:
            request.shared = tokens // self.block_size if self.shares else 0
            request.tail_shared = self.shares and tokens % self.block_size > 0
            self.shared_blocks += self._saved(request, tokens)

    def extend(self, request: SequenceGroup, tokens: int) -> None:
        if not self.grows:
            super().extend(request, tokens)
        blocks = self.blocks_to_extend(request, tokens)
        self._check_room(blocks)
        self._take(request, blocks)
        request.tokens += tokens

    def append(self, request: SequenceGroup) -> int:
        if not self.grows:
            return super().append(request)
        blocks, copies = self.blocks_to_extend(request, 1), self.copies_due(request)
        self._check_room(blocks)
        if copies:
            self._copy_tail(request, copies)
        self._take(request, (blocks - copies) // request.samples)
        request.tokens += 1
        return copies

    def start_decoding(self, request: SequenceGroup) -> None:
        super().start_decoding(request)
        if self.grows:
            self._ring.enter(request.length_offset, request.samples)
            if self.tables is not None:
                self.tables.start_decoding(request)
        if request.samples > 1 and request.tail_shared:
            self._tails[request] = None

    def stop_decoding(self, request: SequenceGroup) -> None:
        super().stop_decoding(request)
        if self.grows:
            self._ring.leave(request.length_offset, request.samples)
            if self.tables is not None:
                self.tables.stop_decoding(request)
        self._tails.pop(request, None)

    def allocate_step(self, steps: int = 1) -> int:
        before, blocks = self.free_blocks, self._ring.total(self.steps, steps)
        if blocks > before or self._tails:
            self._check_room(self.blocks_needed(steps))
        if self._tails and steps:
            for request in self._tails:
                self._copy_tail(request, self.copies_due(request))
            self._tails.clear()
        copies = before - self.free_blocks
        self.free_blocks -= blocks
        if self.tables is not None:
            self.tables.allocate_step(self.steps, steps)
        self.steps += steps
        return copies

    def reserve_free(self) -> None:
        if self.tables is not None:
            self.tables.device.reserve_free()

    def release(self, request: SequenceGroup) -> None:
        self._give_back(request)
        if self.tables is not None:
            self.tables.release(request)

    def end_samples(self, request: SequenceGroup, samples: Sequence[int]) -> None:
        length = self.length(request)
        held, saved = self._held(request, length), self._saved(request, length)
        if request.decodes and self.grows:
            self._ring.leave(request.length_offset, len(samples))
        if self.tables is not None:
            self.tables.end_samples(request, samples)
        request.samples -= len(samples)
        if request.tail_shared and not self.copies_due(request):
            request.tail_shared = False
            self._tails.pop(request, None)
        self.free_blocks += held - self._held(request, length)
        self.shared_blocks += self._saved(request, length) - saved

    def swap_out(self, request: SequenceGroup) -> int:
        blocks = self.held_blocks(request)
        if blocks > self.free_cpu_blocks:
            raise OutOfBlocks(f"swapping out takes {blocks} blocks, {self.free_cpu_blocks} are free")
        self._give_back(request)
        self.free_cpu_blocks -= blocks
        if self.tables is not None:
            self.tables.swap_out(request)
        return blocks

    def swap_in(self, request: SequenceGroup) -> int:
        blocks = self._held(request, request.tokens)
        self._check_room(blocks)
        self.free_cpu_blocks += blocks
        self.free_blocks -= blocks
        self.shared_blocks += self._saved(request, request.tokens)
        if self.tables is not None:
            self.tables.swap_in(request)
        return blocks

    def drop_swapped(self, request: SequenceGroup) -> None:
        self.free_cpu_blocks += self._held(request, request.tokens)
        if self.tables is not None:
            self.tables.drop_swapped(request)

    def fork(self, request: SequenceGroup, dropped: int, survivor: int) -> int:
        if not self.shares:
            return self._held(request, self.length(request)) // request.samples
        if self.tables is None:
            return super().fork(request, dropped, survivor)
        freed = self.tables.fork(request, dropped, survivor)
        self.free_blocks += freed
        self.shared_blocks += freed
        if self.length(request) % self.block_size:
            request.tail_shared = True
            self._tails[request] = None
        return 0

    # Block numbers, if there are any

    @property
    def requests(self) -> Iterable[SequenceGroup]:
        """Requests that hold blocks on the device."""
        return self._numbered().on_device

    def block_table(self, request: SequenceGroup, sample: int = 0, group: int = 0) -> list[int]:
        return self.blocks_of(request, sample)[: self.blocks_for(self.length(request))]

    def blocks_of(self, request: SequenceGroup, sample: int = 0) -> list[int]:
        """Return all blocks of a sample, on the device or in the swap space."""
        return list(self._numbered().of(request)[sample])

    def free_blocks_in_order(self) -> list[int]:
        return self._numbered().device.free[::-1]

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is either free or held, as the counts and tables say."""
        tables = self._numbered()
        tables.check_integrity()
        names = sum([len(table) for samples in tables.on_device.values() for table in samples])
        assert self.free_blocks == len(tables.device.free), "free blocks are miscounted"
        assert self.shared_blocks == names - (self.num_blocks - self.free_blocks), (
            "shared blocks are miscounted"
        )
        assert self.free_cpu_blocks == len(tables.host.free), "free CPU blocks are miscounted"
        for request in (*tables.on_device, *tables.swapped):
            each = [len(table) for table in tables.of(request)]
            needed = self.blocks_for(self.length(request))
            assert len(each) == request.samples, "a request's samples have a table each"
            assert self.grows or needed <= request.block_state[0], "a reservation was outgrown"
            assert set(each) == {needed if self.grows else request.block_state[0]}, "a table's length is off"

    # Inside

    def _held(self, request: SequenceGroup, length: int) -> int:
        """Return the distinct blocks of a request of this length."""
        blocks: int = -(-length // self.block_size) if self.grows else request.block_state[0]
        if request.samples == 1:
            return blocks
        if self.tables is not None:
            return self.tables.distinct(request)
        if request.tail_shared:
            return blocks
        return request.shared + request.samples * (blocks - request.shared)

    def _saved(self, request: SequenceGroup, length: int) -> int:
        """Return how many more blocks a request of this length would hold if its samples shared none."""
        if request.samples == 1 or not self.shares:
            return 0
        return request.samples * self.blocks_for(length) - self._held(request, length)

    def _take(self, request: SequenceGroup, blocks: int) -> None:
        """Allocate ``blocks`` blocks for each sample of a request; enough are free."""
        self.free_blocks -= blocks * request.samples
        if self.tables is not None:
            self.tables.extend(request, blocks)

    def _give_back(self, request: SequenceGroup) -> None:
        """Count the blocks that a request holds on the device as free; it rests at its current length."""
        if request.decodes:
            self.stop_decoding(request)
        self.free_blocks += self._held(request, request.tokens)
        self.shared_blocks -= self._saved(request, request.tokens)

    def _copy_tail(self, request: SequenceGroup, copies: int) -> None:
        """Give every sample of a request its own last block, allocating ``copies`` free blocks."""
        request.tail_shared = False
        self.free_blocks -= copies
        self.shared_blocks -= copies
        if self.tables is not None:
            self.tables.copy_tail(request)

    def _numbered(self) -> PagedTables:
        if self.tables is None:
            raise BlockManagerError("this memory counts blocks and gives them no numbers")
        return self.tables
