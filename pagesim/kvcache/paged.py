"""Paged memory: one KV group, whose blocks are counted, and numbered where something looks at them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pagesim.kvcache.base import BlockManager, BlockManagerError, OutOfBlocks
from pagesim.kvcache.extents import Extent, join_extents
from pagesim.kvcache.groups import KVGroup, check_single
from pagesim.kvcache.holder import Holder
from pagesim.kvcache.paged_tables import PagedTables
from pagesim.kvcache.ring import Ring
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class PagedManager(BlockManager):
    """A block manager of one KV group, on demand or reserved, whose samples share the prompt's blocks.

    How many blocks a request holds follows from its length, and what decoding requests take at a step from
    their lengths modulo the block size (`Ring`). So blocks are counted. Where ``tables`` are kept, these are
    told of every change and give the blocks their numbers.

    Beams need tables: after a fork no length tells which blocks samples share.

    Args:
        num_blocks: on the device.
        groups: one KV group, of full attention or reserved.
        cpu_blocks: of swap space.
        shares: whether samples of a request share the blocks of their prompt; if not, each has its own.
        tables: whether blocks have numbers.

    Attributes:
        tables: the block tables and free lists; None where blocks are only counted.

    Raises:
        ValueError: there are several groups, or a rule by which blocks are given back before the end.
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
        self._ring = Ring(self.block_size)  # what decoding holders take
        self._tails: dict[Holder, None] = {}  # decoding holders whose next step copies a shared last block
        self.tables = PagedTables(num_blocks, cpu_blocks, self.block_size) if tables else None

    # Questions

    @property
    def names_blocks(self) -> bool:  # type: ignore[override]
        """Whether blocks have numbers."""
        return self.tables is not None

    def held_blocks(self, holder: Holder) -> int:
        return self._held(holder, self.length(holder))

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def blocks_to_admit(self, holder: Holder, tokens: int) -> int:
        if not self.grows:
            tokens = self.groups[0].rule.reserved(tokens, holder.output)
        blocks = -(-tokens // self.block_size)
        return blocks if self.shares else blocks * holder.samples

    def blocks_needed(self, steps: int = 1) -> int:
        blocks = self._ring.total(self.steps, steps)
        if self._tails and steps:
            blocks += sum([self.copies_due(holder) for holder in self._tails])
        return blocks

    def blocks_needed_by(self, holder: Holder) -> int:
        if not self.grows:
            return 0
        before = self.length(holder)
        opened = self.blocks_for(before + holder.growth) - self.blocks_for(before)
        return opened * holder.samples + self.copies_due(holder)

    def blocks_to_extend(self, holder: Holder, tokens: int) -> int:
        self._check_extends()
        return self.blocks_for(holder.tokens + tokens) - self.blocks_for(holder.tokens)

    def steps_that_fit(self, steps: int, spare: int) -> int:
        if self._tails:
            return 0
        if not self.grows:
            return steps
        return self._ring.steps_that_fit(self.steps, steps, self.free_blocks - spare)

    @property
    def copies_on_write(self) -> bool:
        return bool(self._tails)

    def copies_due(self, holder: Holder) -> int:
        if holder.samples == 1 or not holder.tail_shared:
            return 0
        # The last sample that writes to a block keeps it.
        return holder.samples - (1 if self.tables is None else self.tables.last_blocks(holder))

    def held_and_reserved(self, holder: Holder) -> tuple[int, int] | None:
        if self.grows:
            return None
        blocks, reserved = holder.kv
        return blocks, reserved

    # Changes

    def admit(self, holder: Holder, tokens: int) -> None:
        blocks = self.blocks_to_admit(holder, tokens)
        self._check_room(blocks)
        self.free_blocks -= blocks
        holder.tokens = tokens
        each = blocks if self.shares else blocks // holder.samples
        if not self.grows:
            holder.kv = each, self.groups[0].rule.reserved(tokens, holder.output)
        if self.tables is not None:
            self.tables.admit(holder, each, shares=self.shares)
        if holder.samples > 1:
            holder.shared = tokens // self.block_size if self.shares else 0
            holder.tail_shared = self.shares and tokens % self.block_size > 0
            self.shared_blocks += self._saved(holder, tokens)

    def extend(self, holder: Holder, tokens: int) -> None:
        blocks = self.blocks_to_extend(holder, tokens)
        self._check_room(blocks)
        self._take(holder, blocks)
        holder.tokens += tokens

    def append(self, holder: Holder) -> int:
        if not self.grows:
            return self._fill_reserved(holder)
        opened, copies = self.blocks_to_extend(holder, 1), self.copies_due(holder)
        self._check_room(opened * holder.samples + copies)
        if copies:
            self._copy_tail(holder, copies)
        self._take(holder, opened)
        holder.tokens += 1
        return copies

    def start_decoding(self, holder: Holder) -> None:
        holder.base = holder.tokens - holder.growth * self.steps
        holder.decodes = True
        if self.grows:
            self._ring.enter(holder.base, holder.growth, holder.samples)
            if self.tables is not None:
                self.tables.start_decoding(holder)
        if holder.samples > 1 and holder.tail_shared:
            self._tails[holder] = None

    def stop_decoding(self, holder: Holder) -> None:
        holder.tokens = self.length(holder)
        holder.decodes = False
        if self.grows:
            self._ring.leave(holder.base, holder.growth, holder.samples)
            if self.tables is not None:
                self.tables.stop_decoding(holder)
        self._tails.pop(holder, None)

    def grow(self, steps: int = 1) -> int:
        before, blocks = self.free_blocks, self._ring.total(self.steps, steps)
        if blocks > before or self._tails:
            self._check_steps(steps)
        if self._tails and steps:
            for holder in self._tails:
                self._copy_tail(holder, self.copies_due(holder))
            self._tails.clear()
        copies = before - self.free_blocks
        self.free_blocks -= blocks
        if self.tables is not None:
            self.tables.grow(self.steps, steps)
        self.steps += steps
        return copies

    def reserve_free(self) -> None:
        if self.tables is not None:
            self.tables.device.reserve_free()

    def release(self, holder: Holder) -> None:
        self._give_back(holder)
        if self.tables is not None:
            self.tables.release(holder)

    def end_samples(self, holder: Holder, samples: Sequence[int]) -> None:
        length = self.length(holder)
        held, saved = self._held(holder, length), self._saved(holder, length)
        if holder.decodes and self.grows:
            self._ring.leave(holder.base, holder.growth, len(samples))
        if self.tables is not None:
            self.tables.end_samples(holder, samples)
        holder.samples -= len(samples)
        if holder.tail_shared and not self.copies_due(holder):
            holder.tail_shared = False
            self._tails.pop(holder, None)
        self.free_blocks += held - self._held(holder, length)
        self.shared_blocks += self._saved(holder, length) - saved

    def swap_out(self, holder: Holder) -> int:
        blocks = self.held_blocks(holder)
        if blocks > self.free_cpu_blocks:
            raise OutOfBlocks(f"swapping out takes {blocks} blocks, {self.free_cpu_blocks} are free")
        self._give_back(holder)
        self.free_cpu_blocks -= blocks
        if self.tables is not None:
            self.tables.swap_out(holder)
        return blocks

    def swap_in(self, holder: Holder) -> int:
        blocks = self._held(holder, holder.tokens)
        self._check_room(blocks)
        self.free_cpu_blocks += blocks
        self.free_blocks -= blocks
        self.shared_blocks += self._saved(holder, holder.tokens)
        if self.tables is not None:
            self.tables.swap_in(holder)
        return blocks

    def drop_swapped(self, holder: Holder) -> None:
        self.free_cpu_blocks += self._held(holder, holder.tokens)
        if self.tables is not None:
            self.tables.drop_swapped(holder)

    def fork(self, holder: Holder, dropped: int, survivor: int) -> int:
        if not self.shares:
            return self._held(holder, self.length(holder)) // holder.samples
        if self.tables is None:
            return super().fork(holder, dropped, survivor)
        freed = self.tables.fork(holder, dropped, survivor)
        self.free_blocks += freed
        self.shared_blocks += freed
        if self.length(holder) % self.block_size:
            holder.tail_shared = True
            self._tails[holder] = None
        return 0

    # Block numbers, where there are any

    @property
    def holders(self) -> Iterable[Holder]:
        """The requests that hold blocks on the device."""
        return self._numbered().on_device

    def block_table(self, holder: Holder, sample: int = 0, group: int = 0) -> list[int]:
        """Return a sample's blocks on the device, in token order, reserved ones left out."""
        return self.blocks_of(holder, sample)[: self.blocks_for(self.length(holder))]

    def blocks_of(self, holder: Holder, sample: int = 0) -> list[int]:
        """Return all blocks of a sample, on the device or in the swap space."""
        return list(self._numbered().of(holder)[sample])

    def extents(self, holder: Holder, sample: int = 0) -> list[Extent]:
        """Return where the blocks of a sample are, in token order; neighbouring blocks are joined."""
        return join_extents(self.blocks_of(holder, sample))

    def free_extents(self) -> list[Extent]:
        """Return the maximal runs of free blocks, by address."""
        return join_extents(sorted(self._numbered().device.free))

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is free or held, and the counts agree with the tables."""
        tables = self._numbered()
        tables.check_integrity()
        names = sum([len(table) for samples in tables.on_device.values() for table in samples])
        assert self.free_blocks == len(tables.device.free), "free blocks are miscounted"
        assert self.shared_blocks == names - (self.num_blocks - self.free_blocks), (
            "shared blocks are miscounted"
        )
        assert self.free_cpu_blocks == len(tables.host.free), "free CPU blocks are miscounted"
        for holder in (*tables.on_device, *tables.swapped):
            each = [len(table) for table in tables.of(holder)]
            needed = self.blocks_for(self.length(holder))
            assert len(each) == holder.samples, "a holder's samples have a table each"
            assert self.grows or needed <= holder.kv[0], "a reservation was outgrown"
            assert set(each) == {needed if self.grows else holder.kv[0]}, "a table's length is off"

    # Inside

    def _held(self, holder: Holder, length: int) -> int:
        """Return the distinct blocks of a holder of this length."""
        blocks: int = -(-length // self.block_size) if self.grows else holder.kv[0]
        if holder.samples == 1:
            return blocks
        if self.tables is not None:
            return self.tables.distinct(holder)
        if holder.tail_shared:
            return blocks
        return holder.shared + holder.samples * (blocks - holder.shared)

    def _saved(self, holder: Holder, length: int) -> int:
        """Return how many more blocks a holder of this length would have if its samples shared none."""
        if holder.samples == 1 or not self.shares:
            return 0
        return holder.samples * self.blocks_for(length) - self._held(holder, length)

    def _take(self, holder: Holder, blocks: int) -> None:
        """Take so many free blocks, which there are, for each sample of a holder."""
        self.free_blocks -= blocks * holder.samples
        if self.tables is not None:
            self.tables.extend(holder, blocks)

    def _give_back(self, holder: Holder) -> None:
        """Count what a holder has on the device as free; it rests at its present length."""
        if holder.decodes:
            self.stop_decoding(holder)
        self.free_blocks += self._held(holder, holder.tokens)
        self.shared_blocks -= self._saved(holder, holder.tokens)

    def _copy_tail(self, holder: Holder, copies: int) -> None:
        """Give every sample of a holder a last block of its own, which takes so many free blocks."""
        holder.tail_shared = False
        self.free_blocks -= copies
        self.shared_blocks -= copies
        if self.tables is not None:
            self.tables.copy_tail(holder)

    def _numbered(self) -> PagedTables:
        if self.tables is None:
            raise BlockManagerError("this memory counts blocks and gives them no numbers")
        return self.tables
