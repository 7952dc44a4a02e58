"""Tabled memory: every block has a number, every sequence a table of them, every table an owner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pagesim.kvcache.base import Holder, KVCache, OutOfBlocks
from pagesim.kvcache.extents import Copy, Extent, join_extents
from pagesim.kvcache.groups import KVGroup, opening_step, period

Table = list[int]
"""The blocks of one sample in one KV group, in token order; of a window without those released."""


class Tables:
    """What `TabledKV` keeps with a holder.

    Attributes:
        on: the table of each sample in each group, ``[samples][groups]``.
        released: blocks that each group has released from the front of its tables, ``[groups]``.
        reserved: tokens that were reserved for each sample; 0 on demand.
    """

    __slots__ = ("on", "released", "reserved")

    def __init__(self, on: list[list[Table]], reserved: int, groups: int) -> None:
        self.on = on
        self.released = [0] * groups
        self.reserved = reserved


class TabledKV(KVCache):
    """See `KVCache`. Blocks get their numbers in the step in which they are taken.

    The free list is a stack, block 0 at its bottom, as in the paper's vLLM. Samples share blocks by reference
    counts: a block is free when no table names it, and is copied before a sample writes to one that others
    name as well.

    Decoding holders stand in buckets, by the steps modulo the period at which one of their groups takes or
    releases a block, so that a step looks at no others.

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
        self._period = period(self.groups)
        self._buckets: list[dict[Holder, None]] = [{} for _ in range(self._period)]
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
            return sum([len(table) for table in tables.on[0]])
        return len({block for sample in tables.on for table in sample for block in table})

    def blocks_needed(self, steps: int = 1) -> int:
        if not steps:
            return 0
        blocks = 0
        for step in range(min(steps, self._period)):
            rounds = -(-(steps - step) // self._period)
            for holder in self._buckets[(self.steps + 1 + step) % self._period]:
                blocks += rounds * holder.samples * self._taken_at(holder, self.steps + 1 + step)
        return blocks + sum([self.copies_due(holder) for holder in self._tails])

    def blocks_needed_by(self, holder: Holder) -> int:
        return self._taken_at(holder, self.steps + 1) * holder.samples + self.copies_due(holder)

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
            taken = sum(
                [
                    holder.samples * self._taken_at(holder, self.steps + 1 + step)
                    for holder in self._buckets[(self.steps + 1 + step) % self._period]
                ]
            )
            if taken > room:
                return step
            room -= taken
        return steps

    def held_and_reserved(self, holder: Holder) -> tuple[int, int] | None:
        if self.grows:
            return None
        tables: Tables = holder.kv
        return sum(len(table) for table in tables.on[0]), tables.reserved

    def held_by_group(self, holder: Holder) -> list[tuple[int, int]]:
        tables: Tables = holder.kv
        length = self.length(holder)
        return [
            (length - gone * group.block_size, len(table))
            for group, gone, table in zip(self.groups, tables.released, tables.on[0], strict=True)
        ]

    # Changes

    def admit(self, holder: Holder, tokens: int) -> None:
        if holder.samples > 1:
            self._check_samples()
        blocks = self.blocks_to_admit(holder, tokens)
        if blocks > self.free_blocks:
            raise OutOfBlocks(f"{blocks} blocks are needed, {self.free_blocks} are free")
        first = [self._take(group.blocks_at_admission(tokens, holder.output)) for group in self.groups]
        on = [first]
        for _ in range(holder.samples - 1):
            if self.shares:
                on.append([list(table) for table in first])
            else:
                on.append([self._take(len(table)) for table in first])
        if self.shares and holder.samples > 1:
            self._references.update({block: holder.samples for table in first for block in table})
            self.shared_blocks += (holder.samples - 1) * len(first[0])
        reserved = 0 if self.grows else self.groups[0].rule.reserved(tokens, holder.output)
        holder.kv = Tables(on, reserved, len(self.groups))
        holder.tokens = tokens
        holder.tail_shared = self.shares and holder.samples > 1 and tokens % self.block_size > 0
        self.holders[holder] = None

    def extend(self, holder: Holder, tokens: int) -> None:
        blocks = self.blocks_to_extend(holder, tokens)
        if blocks > self.free_blocks + self._trimmable(holder):
            raise OutOfBlocks(f"{blocks} blocks are needed, {self.free_blocks} are free")
        self.trim(holder)
        length = holder.tokens + tokens
        for group, gone, table in zip(self.groups, holder.kv.released, holder.kv.on[0], strict=True):
            table.extend(self._take(-(-length // group.block_size) - gone - len(table)))
        holder.tokens = length

    def append(self, holder: Holder) -> int:
        if not self.grows:
            return self._fill_reserved(holder)
        opens = holder.tokens % self.block_size == 0
        wanted = self.blocks_to_extend(holder, 1) * holder.samples + (0 if opens else _tail_copies(holder))
        if wanted > self.free_blocks:
            raise OutOfBlocks(f"{wanted} blocks are needed, {self.free_blocks} are free")
        copies = 0
        if not opens:
            copies = self._copy_tails(holder)
        holder.tokens += 1
        for sample in holder.kv.on:
            for group, gone, table in zip(self.groups, holder.kv.released, sample, strict=True):
                table.extend(self._take(-(-holder.tokens // group.block_size) - gone - len(table)))
        return copies

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

    def trim(self, holder: Holder) -> None:
        if self.releases:
            self._release_skipped(holder, self.length(holder))

    def set_aside(self, blocks: int) -> None:
        if blocks > len(self._aside):
            self._aside = _popped(self._free, blocks - len(self._aside))[::-1] + self._aside

    def grow(self, steps: int = 1) -> int:
        blocks, copies = self.blocks_needed(steps), 0
        if blocks > self.free_blocks:
            raise OutOfBlocks(f"{steps} more steps take {blocks} blocks, {self.free_blocks} are free")
        if self._tails and steps:
            copies = sum([self._copy_tails(holder) for holder in self._tails])
            self._tails.clear()
        for _ in range(steps):
            self._grow_once()
        return copies

    def release(self, holder: Holder) -> None:
        if holder.decodes:
            self._leave_buckets(holder)
        for sample in holder.kv.on:
            self._drop_all(sample)
        del self.holders[holder]

    def end_samples(self, holder: Holder, samples: Sequence[int]) -> None:
        for place in samples:
            self._drop_all(holder.kv.on[place])
        for place in reversed(samples):
            del holder.kv.on[place]
        holder.samples -= len(samples)
        if holder.tail_shared and not _tail_copies(holder):
            # Those that shared a last block are over: the next step copies nothing.
            holder.tail_shared = False
            self._tails.pop(holder, None)

    def swap_out(self, holder: Holder) -> int:
        tables = [table for sample in holder.kv.on for table in sample]
        blocks = list(dict.fromkeys(block for table in tables for block in table))
        if len(blocks) > self.free_cpu_blocks:
            raise OutOfBlocks(f"swapping out takes {len(blocks)} blocks, {self.free_cpu_blocks} are free")
        length = self.length(holder)
        away = {block: self._free_cpu.pop() for block in blocks}
        moved = [[[away[block] for block in table] for table in sample] for sample in holder.kv.on]
        self.release(holder)
        holder.kv.on, holder.tokens = moved, length
        self._cpu_references.update(_shared(table for sample in moved for table in sample))
        self.free_cpu_blocks -= len(blocks)
        self.swapped[holder] = None
        if self.notes_moves:
            self.swaps_out += away.items()
        return len(blocks)

    def swap_in(self, holder: Holder) -> int:
        tables = [table for sample in holder.kv.on for table in sample]
        blocks = list(dict.fromkeys(block for table in tables for block in table))
        if len(blocks) > self.free_blocks:
            raise OutOfBlocks(f"{len(blocks)} blocks are needed, {self.free_blocks} are free")
        back = dict(zip(blocks, self._take(len(blocks)), strict=True))
        self.drop_swapped(holder)
        holder.kv.on = [[[back[block] for block in table] for table in sample] for sample in holder.kv.on]
        shared = _shared(table for sample in holder.kv.on for table in sample)
        self._references.update(shared)
        self.shared_blocks += sum(shared.values()) - len(shared)
        self.holders[holder] = None
        if self.notes_moves:
            self.swaps_in += back.items()
        return len(blocks)

    def drop_swapped(self, holder: Holder) -> None:
        for sample in holder.kv.on:
            for table in sample:
                self._free_cpu += _dropped(table, self._cpu_references)
        self.free_cpu_blocks = len(self._free_cpu)
        del self.swapped[holder]

    def fork(self, holder: Holder, dropped: int, survivor: int) -> int:
        on = holder.kv.on
        if not self.shares:
            if self.notes_moves:
                self.copies += [
                    pair
                    for theirs, mine in zip(on[survivor], on[dropped], strict=True)
                    for pair in zip(theirs, mine, strict=True)
                ]
            return sum([len(table) for table in on[dropped]])
        table = on[survivor][0]
        for block in table:
            self._references[block] = self._references.get(block, 1) + 1
        self.shared_blocks += len(table)
        self._drop_all(on[dropped])
        on[dropped] = [list(table)]
        if self.length(holder) % self.block_size:
            holder.tail_shared = True
            self._tails[holder] = None
        return 0

    # Tables

    def block_table(self, holder: Holder, sample: int = 0, group: int = 0) -> list[int]:
        """Return a sample's blocks on the device in a group, in token order, reserved ones left out."""
        blocks = -(-self.length(holder) // self.groups[group].block_size) - holder.kv.released[group]
        return list(holder.kv.on[sample][group][:blocks])

    def blocks_of(self, holder: Holder, sample: int = 0) -> list[int]:
        """Return all blocks of a sample, in the order of its groups, on the device or in the swap space."""
        return [block for table in holder.kv.on[sample] for block in table]

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
        tables = [table for holder in self.holders for sample in holder.kv.on for table in sample]
        away = [table for holder in self.swapped for sample in holder.kv.on for table in sample]
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
            length = self.length(holder)
            for sample in holder.kv.on:
                for group, gone, table in zip(self.groups, holder.kv.released, sample, strict=True):
                    needed = -(-length // group.block_size) - gone
                    exact = group.rule.grows
                    assert len(table) == needed if exact else len(table) >= needed, "a table's length is off"
        assert all(holder in self.holders for holder in self._decoding)

    # Inside

    def _grow_once(self) -> None:
        """Take one step: first every block that is due, by holders, then release what no group needs."""
        if not self._in_order:
            self._buckets = [
                dict.fromkeys(sorted(bucket, key=lambda holder: holder.order)) for bucket in self._buckets
            ]
            self._in_order = True
        self.steps += 1
        for holder in self._buckets[self.steps % self._period]:
            length = holder.base + holder.growth * self.steps
            released = holder.kv.released
            for sample in holder.kv.on:
                for number, group in enumerate(self.groups):
                    table = sample[number]
                    missing = -(-length // group.block_size) - released[number] - len(table)
                    if missing > 0:
                        table += self._take(missing)
        if self.releases:
            for holder in self._decoding:
                self._release_skipped(holder, holder.base + holder.growth * (self.steps - 1))

    def _release_skipped(self, holder: Holder, processed: int) -> None:
        """Release blocks that no token after the first ``processed`` attends to, the last one first."""
        released = holder.kv.released
        for number, group in enumerate(self.groups):
            blocks = group.released(processed) - released[number]
            if blocks > 0:
                for sample in holder.kv.on:
                    table = sample[number]
                    self._give_back(table[blocks - 1 :: -1])
                    del table[:blocks]
                released[number] += blocks

    def _trimmable(self, holder: Holder) -> int:
        """Return the blocks that the next chunk of a resting holder releases."""
        return sum(
            [
                max(0, group.released(holder.tokens) - gone)
                for group, gone in zip(self.groups, holder.kv.released, strict=True)
            ]
        )

    def _taken_at(self, holder: Holder, step: int) -> int:
        """Return the blocks that each sample of a decoding holder takes at a step."""
        after = holder.base + holder.growth * step
        before, blocks = after - holder.growth, 0
        for group in self.groups:
            if group.rule.grows:
                blocks += -(-after // group.block_size) - -(-before // group.block_size)
        return blocks

    def _turns(self, holder: Holder) -> list[int]:
        """Return the steps, modulo the period, at which a decoding holder takes a block."""
        growth, size = holder.growth, self._period
        if len(self.groups) == 1 and growth == 1:
            return [opening_step(holder.base, size)]
        start = self.steps
        return [step % size for step in range(start + 1, start + size + 1) if self._taken_at(holder, step)]

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

    def _drop_all(self, sample: Sequence[Table]) -> None:
        """Drop a sample's names of its blocks."""
        for table in sample:
            if self._references:
                dropped = _dropped(table, self._references)
                self.shared_blocks -= len(table) - len(dropped)
                self._give_back(dropped)
            else:
                self._give_back(table)

    def _copy_tails(self, holder: Holder) -> int:
        """Give every sample a last block of its own, in their order; return the blocks copied."""
        copies = 0
        for sample in holder.kv.on:
            table, block = sample[0], sample[0][-1]
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
    return holder.samples - len({sample[0][-1] for sample in holder.kv.on})


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
