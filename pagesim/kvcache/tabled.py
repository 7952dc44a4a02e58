"""Tabled memory: every block has a number, every sequence a table of them, every table an owner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pagesim.kvcache.base import KVCache, OutOfBlocks
from pagesim.kvcache.extents import Copy, Extent, join_extents
from pagesim.kvcache.groups import KVGroup, check_single
from pagesim.kvcache.holder import Holder
from pagesim.kvcache.ring import opening_step, passing_steps

Table = list[int]
"""The blocks of one sample, in token order."""


class Tables:
    """What `TabledKV` keeps with a holder.

    Attributes:
        on: the table of each sample.
        reserved: tokens that were reserved for each sample; 0 on demand.
    """

    __slots__ = ("on", "reserved")

    def __init__(self, on: list[Table], reserved: int) -> None:
        self.on = on
        self.reserved = reserved


class TabledKV(KVCache):
    """See `KVCache`: memory of one KV group, on demand or reserved.

    Blocks get their numbers in the step in which they are taken.

    The free list is a stack, block 0 at its bottom, as in the paper's vLLM. Samples share blocks by reference
    counts: a block is free when no table names it, and is copied before a sample writes to one that others
    name as well.

    Decoding holders stand in buckets, by the steps modulo the block size at which they take a block, so that
    a step looks at no others.

    Attributes:
        notes_moves: whether the following are kept; whatever asks for it must take them.
        copies: blocks copied on write since they were last taken, as (from, to).
        swaps_in, swaps_out: blocks moved between device and host since then, as (from, to).
    """

    names_blocks = True

    def __init__(
        self, num_blocks: int, groups: Sequence[KVGroup], cpu_blocks: int = 0, *, shares: bool = True
    ) -> None:
        super().__init__(num_blocks, groups, cpu_blocks, shares=shares)
        self._free = list(range(num_blocks))
        self._aside: list[int] = []  # a stack, too: of blocks set aside for what is taken next
        self._free_cpu = list(range(cpu_blocks))
        # Only blocks that several tables name have an entry.
        self._references: dict[int, int] = {}
        self._cpu_references: dict[int, int] = {}
        check_single(self.groups)
        self._buckets: list[dict[Holder, None]] = [{} for _ in range(self.block_size)]
        self._in_order = True  # whether every bucket is in the order of the holders
        self._decoding: dict[Holder, None] = {}
        self._tails: dict[Holder, None] = {}  # whose next step may copy a shared last block
        self.holders: dict[Holder, None] = {}
        self.swapped: dict[Holder, None] = {}
        self.notes_moves = True
        self.copies: list[Copy] = []
        self.swaps_in: list[Copy] = []
        self.swaps_out: list[Copy] = []

    # Questions

    def held_blocks(self, holder: Holder) -> int:
        tables: Tables = holder.kv
        if len(tables.on) == 1:
            return len(tables.on[0])
        return len({block for table in tables.on for block in table})

    def blocks_needed(self, steps: int = 1) -> int:
        if not steps:
            return 0
        blocks, size = 0, self.block_size
        for step in range(min(steps, size)):
            blocks += -(-(steps - step) // size) * self._taken_at(self.steps + 1 + step)
        return blocks + sum([self.copies_due(holder) for holder in self._tails])

    def blocks_needed_by(self, holder: Holder) -> int:
        if not self.grows:
            return 0
        length = self.length(holder)
        taken = self.blocks_for(length + holder.growth) - self.blocks_for(length)
        return taken * holder.samples + self.copies_due(holder)

    def blocks_to_extend(self, holder: Holder, tokens: int) -> int:
        self._check_extends()
        return self.blocks_for(holder.tokens + tokens) - self.blocks_for(holder.tokens)

    def copies_due(self, holder: Holder) -> int:
        return _tail_copies(holder) if holder in self._tails else 0

    @property
    def copies_on_write(self) -> bool:
        return bool(self._tails)

    def steps_that_fit(self, steps: int, spare: int) -> int:
        room = self.free_blocks - spare
        if self._tails:
            return 0
        if not self.grows:
            return steps
        if self.blocks_needed(steps) <= room:
            return steps
        for step in range(steps):
            room -= self._taken_at(self.steps + 1 + step)
            if room < 0:
                return step
        return steps

    def held_and_reserved(self, holder: Holder) -> tuple[int, int] | None:
        if self.grows:
            return None
        tables: Tables = holder.kv
        return len(tables.on[0]), tables.reserved

    # Changes

    def admit(self, holder: Holder, tokens: int) -> None:
        blocks = self.blocks_to_admit(holder, tokens)
        self._check_room(blocks)
        group = self.groups[0]
        first = self._take(group.blocks_at_admission(tokens, holder.output))
        on = [first]
        for _ in range(holder.samples - 1):
            on.append(list(first) if self.shares else self._take(len(first)))
        if self.shares and holder.samples > 1:
            self._references.update(dict.fromkeys(first, holder.samples))
            self.shared_blocks += (holder.samples - 1) * len(first)
        holder.kv = Tables(on, 0 if self.grows else group.rule.reserved(tokens, holder.output))
        holder.tokens = tokens
        holder.tail_shared = self.shares and holder.samples > 1 and tokens % self.block_size > 0
        self.holders[holder] = None

    def extend(self, holder: Holder, tokens: int) -> None:
        blocks = self.blocks_to_extend(holder, tokens)
        self._check_room(blocks)
        holder.kv.on[0].extend(self._take(blocks))
        holder.tokens += tokens

    def append(self, holder: Holder) -> int:
        if not self.grows:
            return self._fill_reserved(holder)
        opens = holder.tokens % self.block_size == 0
        wanted = holder.samples if opens else _tail_copies(holder)
        self._check_room(wanted)
        holder.tokens += 1
        if not opens:
            return self._copy_tails(holder)
        for table in holder.kv.on:
            table.extend(self._take(1))
        return 0

    def start_decoding(self, holder: Holder) -> None:
        holder.base = holder.tokens - holder.growth * self.steps
        holder.decodes = True
        self._decoding[holder] = None
        if self.grows:
            for step in self._turns(holder):
                bucket = self._buckets[step]
                if bucket and next(reversed(bucket)).order > holder.order:
                    self._in_order = False
                bucket[holder] = None
        if holder.samples > 1 and holder.tail_shared:
            self._tails[holder] = None

    def stop_decoding(self, holder: Holder) -> None:
        holder.tokens = self.length(holder)
        self._leave_buckets(holder)

    def take(self, holder: Holder) -> None:
        holder.kv.on[0].extend(self._take(self.blocks_needed_by(holder)))

    def reserve_free(self) -> None:
        self._aside = self._free + self._aside
        self._free = []

    def grow(self, steps: int = 1) -> int:
        self._check_steps(steps)
        copies = 0
        if self._tails and steps:
            copies = sum([self._copy_tails(holder) for holder in self._tails])
            self._tails.clear()
        for _ in range(steps):
            self._grow_once()
        return copies

    def release(self, holder: Holder) -> None:
        if holder.decodes:
            self._leave_buckets(holder)
        for table in holder.kv.on:
            self._drop(table)
        del self.holders[holder]

    def end_samples(self, holder: Holder, samples: Sequence[int]) -> None:
        for place in samples:
            self._drop(holder.kv.on[place])
        for place in reversed(samples):
            del holder.kv.on[place]
        holder.samples -= len(samples)
        if holder.tail_shared and not _tail_copies(holder):
            # Those that shared a last block are over: the next step copies nothing.
            holder.tail_shared = False
            self._tails.pop(holder, None)

    def swap_out(self, holder: Holder) -> int:
        blocks = list(dict.fromkeys(block for table in holder.kv.on for block in table))
        if len(blocks) > self.free_cpu_blocks:
            raise OutOfBlocks(f"swapping out takes {len(blocks)} blocks, {self.free_cpu_blocks} are free")
        length = self.length(holder)
        away = {block: self._free_cpu.pop() for block in blocks}
        moved = [[away[block] for block in table] for table in holder.kv.on]
        self.release(holder)
        holder.kv.on, holder.tokens = moved, length
        self._cpu_references.update(_shared(moved))
        self.free_cpu_blocks -= len(blocks)
        self.swapped[holder] = None
        if self.notes_moves:
            self.swaps_out += away.items()
        return len(blocks)

    def swap_in(self, holder: Holder) -> int:
        blocks = list(dict.fromkeys(block for table in holder.kv.on for block in table))
        self._check_room(len(blocks))
        back = dict(zip(blocks, self._take(len(blocks)), strict=True))
        self.drop_swapped(holder)
        holder.kv.on = [[back[block] for block in table] for table in holder.kv.on]
        shared = _shared(holder.kv.on)
        self._references.update(shared)
        self.shared_blocks += sum(shared.values()) - len(shared)
        self.holders[holder] = None
        if self.notes_moves:
            self.swaps_in += back.items()
        return len(blocks)

    def drop_swapped(self, holder: Holder) -> None:
        for table in holder.kv.on:
            self._free_cpu += _dropped(table, self._cpu_references)
        self.free_cpu_blocks = len(self._free_cpu)
        del self.swapped[holder]

    def fork(self, holder: Holder, dropped: int, survivor: int) -> int:
        on = holder.kv.on
        if not self.shares:
            if self.notes_moves:
                self.copies += zip(on[survivor], on[dropped], strict=True)
            return len(on[dropped])
        table = on[survivor]
        for block in table:
            self._references[block] = self._references.get(block, 1) + 1
        self.shared_blocks += len(table)
        self._drop(on[dropped])
        on[dropped] = list(table)
        if self.length(holder) % self.block_size:
            holder.tail_shared = True
            self._tails[holder] = None
        return 0

    # Tables

    def block_table(self, holder: Holder, sample: int = 0, group: int = 0) -> list[int]:
        """Return a sample's blocks on the device, in token order, reserved ones left out."""
        return list(holder.kv.on[sample][: -(-self.length(holder) // self.block_size)])

    def blocks_of(self, holder: Holder, sample: int = 0) -> list[int]:
        """Return all blocks of a sample, on the device or in the swap space."""
        return list(holder.kv.on[sample])

    def extents(self, holder: Holder, sample: int = 0) -> list[Extent]:
        """Return where the blocks of a sample are, in token order; neighbouring blocks are joined."""
        return join_extents(self.blocks_of(holder, sample))

    def free_extents(self) -> list[Extent]:
        """Return the maximal runs of free blocks, by address."""
        return join_extents(sorted(self._free_list()))

    def free_chunks(self) -> list[Extent]:
        """As ``free_extents``: a free list keeps no runs."""
        return self.free_extents()

    def cached_extents(self) -> list[Extent]:
        """Return the maximal runs of free blocks whose content can still be found, by address."""
        return []

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is free or held, and no bookkeeping disagrees."""
        tables = [table for holder in self.holders for table in holder.kv.on]
        away = [table for holder in self.swapped for table in holder.kv.on]
        assert all(len(set(table)) == len(table) for table in tables), "a table names a block twice"
        shared, named = _shared(tables), {block for table in tables for block in table}
        assert shared == self._sharing(), "reference counts are off"
        assert self.shared_blocks == sum(shared.values()) - len(shared), "shared blocks are miscounted"
        free = [*self._free_list()]
        assert sorted([*named, *free]) == list(range(self.num_blocks)), "blocks are owned twice or lost"
        assert self.free_blocks == len(free), "free blocks are miscounted"
        assert _shared(away) == self._cpu_references, "reference counts of the swap space are off"
        moved = {block for table in away for block in table}
        assert sorted([*moved, *self._free_cpu]) == list(range(self.cpu_blocks)), "CPU blocks are lost"
        assert self.free_cpu_blocks == len(self._free_cpu), "free CPU blocks are miscounted"
        for holder in (*self.holders, *self.swapped):
            assert len(holder.kv.on) == holder.samples, "a holder's samples have a table each"
            needed = -(-self.length(holder) // self.block_size)
            for table in holder.kv.on:
                exact = self.grows
                assert len(table) == needed if exact else len(table) >= needed, "a table's length is off"
        assert all(holder in self.holders for holder in self._decoding)

    # Inside

    def _grow_once(self) -> None:
        """Take one step: every block that is due, by holders."""
        if not self._in_order:
            self._buckets = [
                dict.fromkeys(sorted(bucket, key=lambda holder: holder.order)) for bucket in self._buckets
            ]
            self._in_order = True
        self.steps += 1
        for holder in self._buckets[self.steps % self.block_size]:
            blocks = self.blocks_for(holder.base + holder.growth * self.steps)
            for table in holder.kv.on:
                table += self._take(blocks - len(table))

    def _taken_at(self, step: int) -> int:
        """Return the blocks that all decoding holders take at a step."""
        blocks = 0
        for holder in self._buckets[step % self.block_size]:
            after = holder.base + holder.growth * step
            taken = self.blocks_for(after) - self.blocks_for(after - holder.growth)
            blocks += taken * holder.samples
        return blocks

    def _turns(self, holder: Holder) -> Sequence[int]:
        """Return the steps, modulo the block size, at which a decoding holder takes a block."""
        size = self.block_size
        if holder.growth == 1:
            return (opening_step(holder.base, size),)
        return sorted(set(passing_steps((holder.base - 1) % size, size, holder.growth, size)))

    def _leave_buckets(self, holder: Holder) -> None:
        if self.grows:
            for step in self._turns(holder):
                del self._buckets[step][holder]
        del self._decoding[holder]
        self._tails.pop(holder, None)
        holder.decodes = False

    def _sharing(self) -> dict[int, int]:
        """Return how many tables name each block that several do."""
        return self._references

    def _free_list(self) -> Iterable[int]:
        """Return the free blocks."""
        return [*self._free, *self._aside]

    def _take(self, blocks: int) -> Table:
        """Take so many free blocks, which there are."""
        if not blocks:
            return []
        self.free_blocks -= blocks
        if self._aside:
            aside = min(blocks, len(self._aside))
            taken = _popped(self._aside, aside)
            return taken + _popped(self._free, blocks - aside) if aside < blocks else taken
        return _popped(self._free, blocks)

    def _give_back(self, blocks: Sequence[int]) -> None:
        """Take blocks back that no table names any more."""
        self._free += blocks
        self.free_blocks += len(blocks)

    def _drop(self, table: Table) -> None:
        """Drop a sample's names of its blocks."""
        if self._references:
            dropped = _dropped(table, self._references)
            self.shared_blocks -= len(table) - len(dropped)
            self._give_back(dropped)
        else:
            self._give_back(table)

    def _copy_tails(self, holder: Holder) -> int:
        """Give every sample a last block of its own, in their order; return the blocks copied."""
        copies = 0
        for table in holder.kv.on:
            block = table[-1]
            users = self._references.get(block, 1)
            if users > 1:
                (own,) = self._take(1)
                _dropped([block], self._references)
                self.shared_blocks -= 1
                table[-1] = own
                if self.notes_moves:
                    self.copies.append((block, own))
                copies += 1
        holder.tail_shared = False
        return copies


def _tail_copies(holder: Holder) -> int:
    """Return how many samples write to a last block that others name: the last to write keeps it."""
    return holder.samples - len({table[-1] for table in holder.kv.on})


def _dropped(table: Sequence[int], references: dict[int, int]) -> list[int]:
    """Drop one table's names of its blocks; return those that no table names any more."""
    unnamed = []
    for block in table:
        count = references.get(block, 1)
        if count == 1:
            unnamed.append(block)
        elif count == 2:
            del references[block]
        else:
            references[block] = count - 1
    return unnamed


def _shared(tables: Iterable[Sequence[int]]) -> dict[int, int]:
    """Return for each block that several tables name how many do."""
    counts: dict[int, int] = {}
    for table in tables:
        for block in table:
            counts[block] = counts.get(block, 0) + 1
    return {block: count for block, count in counts.items() if count > 1}


def _popped(stack: list[int], blocks: int) -> list[int]:
    """Take so many blocks off a stack; return them, the uppermost first."""
    taken = stack[: -blocks - 1 : -1]
    del stack[len(stack) - blocks :]
    return taken
