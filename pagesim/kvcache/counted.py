"""Counted memory: how many blocks each request holds follows from its length, so none needs a number."""

from __future__ import annotations

from collections.abc import Sequence

from pagesim.kvcache.base import KVCache, OutOfBlocks
from pagesim.kvcache.groups import KVGroup, check_single
from pagesim.kvcache.holder import Holder
from pagesim.kvcache.ring import Ring
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class CountedKV(KVCache):
    """See `KVCache`: memory of one KV group, on demand or reserved. Blocks are counted and never named.

    What decoding holders take is a `Ring`.

    Beams share blocks in ways that lengths do not tell; they need tables.
    """

    __slots__ = ("_ring", "_size", "_tails")

    def __init__(
        self, num_blocks: int, groups: Sequence[KVGroup], cpu_blocks: int = 0, *, shares: bool = True
    ) -> None:
        super().__init__(num_blocks, groups, cpu_blocks, shares=shares)
        check_single(self.groups)
        self._ring = Ring(self.block_size)
        # The block size on demand, the ordinary case of every sum below; 0 where all is reserved.
        self._size = self.block_size if self.grows else 0
        self._tails: dict[Holder, None] = {}  # whose next step copies a shared last block

    # Questions

    def held_blocks(self, holder: Holder) -> int:
        return self._held(holder, self.length(holder))

    def blocks_for(self, tokens: int) -> int:
        size = self._size
        return -(-tokens // size) if size else super().blocks_for(tokens)

    def blocks_to_admit(self, holder: Holder, tokens: int) -> int:
        size = self._size
        if not size:
            return super().blocks_to_admit(holder, tokens)
        blocks = -(-tokens // size)
        return blocks if self.shares else blocks * holder.samples

    def blocks_needed(self, steps: int = 1) -> int:
        blocks = self._ring.total(self.steps, steps)
        return blocks + self._copies() if self._tails and steps else blocks

    def blocks_needed_by(self, holder: Holder) -> int:
        if not self.grows:
            return 0
        before = self.length(holder)
        taken = self.blocks_for(before + holder.growth) - self.blocks_for(before)
        return taken if holder.samples == 1 else taken * holder.samples + self.copies_due(holder)

    def blocks_to_extend(self, holder: Holder, tokens: int) -> int:
        self._check_extends()
        return self.blocks_for(holder.tokens + tokens) - self.blocks_for(holder.tokens)

    @property
    def copies_on_write(self) -> bool:
        return bool(self._tails)

    def can_admit(self, holder: Holder, tokens: int, spare: int = 0) -> bool:
        size = self._size
        if size and holder.samples == 1:
            return -(-tokens // size) + spare <= self.free_blocks
        return self.blocks_to_admit(holder, tokens) + spare <= self.free_blocks

    def steps_that_fit(self, steps: int, spare: int) -> int:
        if self._tails:
            return 0
        if not self.grows:
            return steps
        return self._ring.steps_that_fit(self.steps, steps, self.free_blocks - spare)

    def copies_due(self, holder: Holder) -> int:
        return holder.samples - 1 if holder.samples > 1 and holder.tail_shared else 0

    def held_and_reserved(self, holder: Holder) -> tuple[int, int] | None:
        if self.grows:
            return None
        blocks, reserved = holder.kv
        return blocks, reserved

    # Changes

    def admit(self, holder: Holder, tokens: int) -> None:
        size, plain = self._size, holder.samples == 1
        blocks = -(-tokens // size) if size and plain else self.blocks_to_admit(holder, tokens)
        if blocks > self.free_blocks:
            self._check_room(blocks)
        self.free_blocks -= blocks
        holder.tokens = tokens
        if not size:
            holder.kv = blocks // holder.samples, self.groups[0].rule.reserved(tokens, holder.output)
        if not plain:
            self._share(holder)

    def extend(self, holder: Holder, tokens: int) -> None:
        blocks = self.blocks_to_extend(holder, tokens)
        self._check_room(blocks)
        self.free_blocks -= blocks
        holder.tokens += tokens

    def append(self, holder: Holder) -> int:
        if not self.grows:
            return self._fill_reserved(holder)
        blocks = self.blocks_to_extend(holder, 1) * holder.samples
        copies = self.copies_due(holder)
        self._check_room(blocks + copies)
        if copies:
            holder.tail_shared = False
            self.shared_blocks -= copies
        self.free_blocks -= blocks + copies
        holder.tokens += 1
        return copies

    def start_decoding(self, holder: Holder) -> None:
        holder.base = holder.tokens - holder.growth * self.steps
        holder.decodes = True
        if self.grows:
            self._ring.enter(holder.base, holder.growth, holder.samples)
        if holder.samples > 1 and holder.tail_shared:
            self._tails[holder] = None

    def stop_decoding(self, holder: Holder) -> None:
        holder.tokens = self.length(holder)
        self._leave_ring(holder)

    def grow(self, steps: int = 1) -> int:
        blocks = self.blocks_needed(steps)
        if blocks > self.free_blocks:
            self._check_steps(steps)
        self.free_blocks -= blocks
        self.steps += steps
        return self._copy_tails() if self._tails and steps else 0

    def grow_leaving(self, spare: int) -> int:
        if not self._size or self._tails:
            return super().grow_leaving(spare)
        steps = self.steps + 1
        left = self.free_blocks - self._ring.at(steps)
        if left < spare:
            return -1
        self.free_blocks, self.steps = left, steps
        return 0

    def take(self, holder: Holder) -> None:
        self.free_blocks -= self.blocks_needed_by(holder)

    def release(self, holder: Holder) -> None:
        size = self._size
        if size and holder.samples == 1 and holder.growth == 1:
            tokens = holder.tokens
            if holder.decodes:
                holder.decodes = False
                tokens = holder.base + self.steps
                self._ring.leave(holder.base)
            self.free_blocks += -(-tokens // size)
            return
        length = self.length(holder)
        blocks = self._held(holder, length)
        if holder.samples > 1:
            self.shared_blocks -= self._saved(holder, length)
        if holder.decodes:
            self._leave_ring(holder)
        self.free_blocks += blocks

    def end_samples(self, holder: Holder, samples: Sequence[int]) -> None:
        over, length = len(samples), self.length(holder)
        held, saved = self._held(holder, length), self._saved(holder, length)
        if holder.decodes and self.grows:
            self._ring.leave(holder.base, holder.growth, over)
        holder.samples -= over
        if holder.samples == 1 and holder.tail_shared:
            holder.tail_shared = False
            self._tails.pop(holder, None)
        self.free_blocks += held - self._held(holder, length)
        self.shared_blocks += self._saved(holder, length) - saved

    def swap_out(self, holder: Holder) -> int:
        blocks = self.held_blocks(holder)
        if blocks > self.free_cpu_blocks:
            raise OutOfBlocks(f"swapping out takes {blocks} blocks, {self.free_cpu_blocks} are free")
        length = self.length(holder)
        self.release(holder)
        holder.tokens = length
        self.free_cpu_blocks -= blocks
        return blocks

    def swap_in(self, holder: Holder) -> int:
        blocks = self._held(holder, holder.tokens)
        self._check_room(blocks)
        self.free_cpu_blocks += blocks
        self.free_blocks -= blocks
        self.shared_blocks += self._saved(holder, holder.tokens)
        return blocks

    def drop_swapped(self, holder: Holder) -> None:
        self.free_cpu_blocks += self._held(holder, holder.tokens)

    # Inside

    def _held(self, holder: Holder, length: int) -> int:
        """Return the distinct blocks of a holder of this length."""
        if not self.grows:
            return holder.samples * int(holder.kv[0])
        blocks = self.blocks_for(length)
        if holder.samples == 1 or (self.shares and holder.tail_shared):
            return blocks
        shared = holder.shared if self.shares else 0
        return shared + holder.samples * (blocks - shared)

    def _saved(self, holder: Holder, length: int) -> int:
        """Return the names of blocks that sharing saves a holder of several samples."""
        if holder.samples == 1 or not self.shares:
            return 0
        return holder.samples * self.blocks_for(length) - self._held(holder, length)

    def _share(self, holder: Holder) -> None:
        holder.shared = holder.tokens // self.block_size if self.shares else 0
        holder.tail_shared = self.shares and holder.tokens % self.block_size > 0
        self.shared_blocks += self._saved(holder, holder.tokens)

    def _copies(self) -> int:
        return sum([holder.samples - 1 for holder in self._tails])

    def _leave_ring(self, holder: Holder) -> None:
        if self.grows:
            self._ring.leave(holder.base, holder.growth, holder.samples)
        self._tails.pop(holder, None)
        holder.decodes = False

    def _copy_tails(self) -> int:
        """Give every sample a last block of its own; return the blocks copied."""
        copies = self._copies()
        for holder in self._tails:
            holder.tail_shared = False
        self._tails.clear()
        self.shared_blocks -= copies
        return copies
