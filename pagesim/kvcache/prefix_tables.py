"""Prefix caching with block tables: every block of the cache has a number."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from pagesim.kvcache.extents import Extent, join_extents
from pagesim.kvcache.holder import Holder
from pagesim.kvcache.queued_prefix import QueuedPrefixKV
from pagesim.kvcache.ring import opening_step
from pagesim.kvcache.run_index import Prefix, RunIndex
from pagesim.kvcache.runs import FreeQueue, Run, block_array


class _NumberedIndex(RunIndex):
    """See `RunIndex`: of blocks that have numbers."""

    __slots__ = ()

    names_blocks = True

    def cut(self, run: Run, blocks: int) -> Run:
        rest = super().cut(run, blocks)
        rest.blocks = run.blocks[blocks:]
        del run.blocks[blocks:]
        return rest

    def name(self, prefix: Prefix, run: Run, start: int, blocks: int) -> None:
        named = prefix.table[start : start + blocks]
        if run.count:
            run.blocks.extend(named)
        else:
            run.blocks = named


class PrefixCachedKV(QueuedPrefixKV):
    """As its parent, with numbers: blocks are named in the step in which they are taken.

    Attributes:
        holders: the requests that hold blocks.
    """

    names_blocks = True

    def __init__(
        self, num_blocks: int, block_size: int, cpu_blocks: int = 0, *, reuses_unhashed_first: bool = True
    ) -> None:
        self._fresh = block_array()  # taken, and not yet in a table
        self._set_aside = block_array()
        super().__init__(num_blocks, block_size, cpu_blocks, reuses_unhashed_first=reuses_unhashed_first)
        # Decoding holders, by the step at which they take a block.
        self._buckets: list[dict[Holder, None]] = [{} for _ in range(block_size)]
        self._in_order = True
        self.holders: dict[Holder, None] = {}

    # Changes

    def admit(self, holder: Holder, tokens: int) -> None:
        super().admit(holder, tokens)
        self.holders[holder] = None

    def extend(self, holder: Holder, tokens: int) -> None:
        super().extend(holder, tokens)
        self._fill_table(holder)

    def grow(self, steps: int = 1) -> int:
        copies = super().grow(steps)
        self._fill_tables(steps)
        return copies

    def grow_leaving(self, spare: int) -> int:
        copies = super().grow_leaving(spare)
        if copies >= 0:
            self._fill_tables(1)
        return copies

    def take(self, holder: Holder) -> None:
        super().take(holder)
        self._fill_table(holder)

    def set_aside(self, blocks: int) -> None:
        super().set_aside(blocks)
        self._set_aside += self._fresh
        self._fresh = block_array()

    def release(self, holder: Holder) -> None:
        super().release(holder)
        del self.holders[holder]

    # Tables

    def block_table(self, holder: Holder, sample: int = 0, group: int = 0) -> list[int]:
        """Return a holder's blocks, in token order."""
        return list(holder.kv.table)

    def blocks_of(self, holder: Holder, sample: int = 0) -> list[int]:
        """As ``block_table``."""
        return list(holder.kv.table)

    def extents(self, holder: Holder, sample: int = 0) -> list[Extent]:
        """Return where a holder's blocks are, in token order; neighbouring blocks are joined."""
        return join_extents(holder.kv.table)

    def free_blocks_in_order(self) -> list[int]:
        """Return the free blocks in the order in which they are going to be taken."""
        runs = (self._blank, *self._queue)
        return [*self._set_aside, *chain.from_iterable(reversed(run.blocks) for run in runs)]

    def free_extents(self) -> list[Extent]:
        """Return the maximal runs of free blocks, by address."""
        return join_extents(sorted(self.free_blocks_in_order()))

    def free_chunks(self) -> list[Extent]:
        """As ``free_extents``: a queue keeps no runs."""
        return self.free_extents()

    def cached_extents(self) -> list[Extent]:
        """Return the maximal runs of free blocks whose content can still be found, by address."""
        cached = (run.blocks for run in self._queue if run.content is not None)
        return join_extents(sorted(chain.from_iterable(cached)))

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is free or held, and no bookkeeping disagrees."""
        free = self.free_blocks_in_order()
        named = {block for holder in self.holders for block in holder.kv.table}
        names = sum(len(holder.kv.table) for holder in self.holders)
        assert sorted([*named, *free]) == list(range(self.num_blocks)), "blocks are owned twice or lost"
        assert self.free_blocks == len(free), "free blocks are miscounted"
        assert self.shared_blocks == names - len(named), "shared blocks are miscounted"
        assert self._aside == len(self._set_aside), "blocks set aside are miscounted"
        assert not self._fresh, "blocks are taken and in no table"
        queued, index = set(self._queue), self._index
        counted = all(run.count == len(run.blocks) for run in (self._blank, *queued))
        assert counted, "a run's blocks are miscounted"
        cached = [run.count for run in queued if run.content is not None]
        assert self._cached == sum(cached), "cached blocks are miscounted"
        assert index.duplicates.keys() <= index.found.keys(), "a duplicate is left of what cannot be found"
        findable: set[Run] = set()
        for key, first in index.found.items():
            for run in (first, *index.duplicates.get(key, ())):
                findable.add(run)
                assert run.content is not None
                assert run.content.key(run.start) == run.key == key, "a run is found under a key not its own"
                assert run.count == first.count == len(run.blocks) > 0, "a run and its duplicate differ"
                assert bool(run.holders) != (run in queued), "a run is held and free, or neither"
        assert findable >= {run for run in queued if run.content is not None}
        for holder in self.holders:
            prefix: Prefix = holder.kv
            assert findable.issuperset(prefix.runs), "a run is held that cannot be found"
            assert all(prefix in run.holders for run in prefix.runs)
            blocks = block_array(chain.from_iterable(run.blocks for run in prefix.runs))
            assert blocks == prefix.table[: prefix.hashed], "runs are not the table's"
            assert len(prefix.table) == -(-self.length(holder) // self.block_size), "a table's length is off"

    # As `QueuedPrefixKV`

    def _all_blocks(self) -> Run:
        run = super()._all_blocks()
        run.blocks = block_array(reversed(range(self.num_blocks)))
        return run

    def _took(self, run: Run, blocks: int) -> None:
        there = run.blocks
        if blocks == 1:
            self._fresh.append(there.pop())
        elif blocks == len(there):
            there.reverse()
            self._fresh += there
            del there[:]
        else:
            self._fresh += there[: -blocks - 1 : -1]
            del there[-blocks:]

    def _take_aside(self, blocks: int) -> None:
        super()._take_aside(blocks)
        self._fresh.extend(self._set_aside[:blocks])
        del self._set_aside[:blocks]

    def _new_index(self, queue: FreeQueue) -> RunIndex:
        return _NumberedIndex(queue)

    def _hash(self, holder: Holder, tokens: int) -> None:
        if self._fresh or not hasattr(holder.kv, "table"):
            self._fill_table(holder)
        super()._hash(holder, tokens)

    def _stop_taking(self, holder: Holder) -> None:
        super()._stop_taking(holder)
        del self._buckets[opening_step(holder.base, self.block_size)][holder]

    def start_decoding(self, holder: Holder) -> None:
        super().start_decoding(holder)
        bucket = self._buckets[opening_step(holder.base, self.block_size)]
        if bucket and next(reversed(bucket)).order > holder.order:
            self._in_order = False
        bucket[holder] = None

    # Inside

    def _fill_table(self, holder: Holder) -> None:
        """Let a holder's table name what was found for it and what was just taken."""
        prefix: Prefix = holder.kv
        if not hasattr(prefix, "table"):
            prefix.table = table = block_array()
            for run in prefix.runs:
                table += run.blocks
        if self._fresh:
            prefix.table += self._fresh
            del self._fresh[:]

    def _fill_tables(self, steps: int) -> None:
        """Let the tables of decoding holders name what they took in so many steps."""
        if not self._fresh:
            return
        if not self._in_order:
            self._buckets = [
                dict.fromkeys(sorted(bucket, key=lambda holder: holder.order)) for bucket in self._buckets
            ]
            self._in_order = True
        size, buckets, first = self.block_size, self._buckets, self.steps - steps + 1
        if steps == 1:
            takers: Iterable[Holder] = buckets[first % size]
        else:
            takers = chain.from_iterable([buckets[step % size] for step in range(first, first + steps)])
        for holder, block in zip(takers, self._fresh, strict=True):
            holder.kv.table.append(block)
        del self._fresh[:]
