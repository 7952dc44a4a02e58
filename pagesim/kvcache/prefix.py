"""Prefix caching: full blocks are found by their content until they are taken again."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple

from pagesim.kvcache.base import Holder, KVCache, KVCacheError, OutOfBlocks
from pagesim.kvcache.extents import Extent, join_extents
from pagesim.kvcache.groups import KVGroup, opening_step
from pagesim.kvcache.runs import Content, FreeQueue, Run, block_array


class _Match(NamedTuple):
    """What was looked up last: the scheduler usually takes it next."""

    holder: Holder | None
    version: int
    most: int
    blocks: int
    runs: list[tuple[Run, int]]  # each with how many of its blocks


_NOTHING = _Match(None, 0, 0, 0, [])


class Prefix:
    """What a prefix cache keeps with a holder.

    Attributes:
        content: of its prompt, and of what it generates.
        runs: those of its leading blocks that can be found.
        hashed: how many blocks these are.
        table: all its blocks, in token order, where blocks have numbers.
    """

    __slots__ = ("content", "hashed", "runs", "table")

    table: array[int]

    def __init__(self, content: Content | None, runs: list[Run], hashed: int) -> None:
        self.content = content
        self.runs = runs
        self.hashed = hashed


class CountedPrefixKV(KVCache):
    """See `KVCache`: counted memory of one KV group of full attention and single samples, with a cache.

    The free blocks are a queue. Blocks are taken at its front, and then their content is evicted; a request
    gives its blocks back last block first. A prompt that begins as another one did takes over that one's full
    blocks, in use (then they are shared) or free (then they leave the queue from wherever they are).

    A block can be found from the moment on at which room is made for its last token. Blocks that a decoding
    holder fills are hashed when it is released or ``cache_full_blocks`` is called: before that no other
    request can ask for them.

    What is decided block by block is kept by the run: blocks that one request computed and that all others
    hold all or none of. A run is cut in two where a request takes over a part of it. Because of the order in
    which blocks are given back, content is evicted from its end on: what comes before a block that can be
    found can be found, too.

    Args:
        num_blocks: on the device.
        block_size: token slots a block.
        cpu_blocks: swap space, never used.
        reuses_unhashed_first: whether blocks that cannot be found go to the front of the queue (vLLM 0.33);
            if not, all blocks queue up behind one another (0.11 and 0.19).
    """

    caches_prefixes = True

    def __init__(
        self, num_blocks: int, block_size: int, cpu_blocks: int = 0, *, reuses_unhashed_first: bool = True
    ) -> None:
        super().__init__(num_blocks, [KVGroup(block_size)], cpu_blocks, shares=False)
        self.reuses_unhashed_first = reuses_unhashed_first
        self._queue = FreeQueue()
        self._queue.push(self._all_blocks())
        self._aside = 0  # blocks taken out of the queue for what is going to be taken next
        # The run that the key of its first block finds: the first that had this content. Duplicates, which
        # have just as many blocks, wait behind it.
        self._found: dict[int, Run] = {}
        self._duplicates: dict[int, list[Run]] = {}
        self._version = 0  # of what can be found
        self._match = _NOTHING
        self._cached = 0
        self._taken = 0
        self._evictions: list[tuple[int, int]] = []
        self._takes = [0] * block_size  # how many decoding holders take a block at which step
        self._decoding = 0

    # Questions

    @property
    def cached_blocks(self) -> int:
        return self._cached

    @property
    def blocks_taken(self) -> int:
        return self._taken

    def take_evictions(self) -> Sequence[tuple[int, int]]:
        evictions, self._evictions = self._evictions, []
        return evictions

    def held_blocks(self, holder: Holder) -> int:
        return -(-self.length(holder) // self.block_size)

    def blocks_needed(self, steps: int = 1) -> int:
        takes, size = self._takes, self.block_size
        first = (self.steps + 1) % size
        if steps == 1:
            return takes[first]
        rounds, rest = divmod(steps, size)
        end = first + rest
        return rounds * self._decoding + sum(takes[first:end]) + sum(takes[: max(0, end - size)])

    def blocks_needed_by(self, holder: Holder) -> int:
        return int((holder.base + self.steps) % self.block_size == 0)

    def blocks_to_extend(self, holder: Holder, tokens: int) -> int:
        size = self.block_size
        return -(-(holder.tokens + tokens) // size) - -(-holder.tokens // size)

    def steps_that_fit(self, steps: int, spare: int) -> int:
        room, size = self.free_blocks - spare, self.block_size
        if (steps // size + 1) * self._decoding <= room or self.blocks_needed(steps) <= room:
            return steps
        if room < 0:
            return 0
        rounds, room = divmod(room, self._decoding)
        first = (self.steps + 1) % size
        in_turn = self._takes[first:] + self._takes[:first]
        return rounds * size + bisect_right(list(accumulate(in_turn)), room)

    def match_prefix(self, holder: Holder, tokens: int) -> int:
        match, most = self._match, (tokens - 1) // self.block_size
        if match.holder is not holder or match.version != self._version or match.most != most:
            match = self._look_up(holder, most)
        return match.blocks * self.block_size

    def could_admit(self, holder: Holder, tokens: int, spare: int = 0) -> bool:
        return self.blocks_for(tokens) + spare <= self.num_blocks  # empty memory has cached nothing

    def blocks_to_admit(self, holder: Holder, tokens: int) -> int:
        match = self._match_of(holder, tokens)
        blocks = -(-tokens // self.block_size) - match.blocks
        for run, count in match.runs:
            if not run.holders:
                blocks += count
        return blocks

    # Changes

    def admit(self, holder: Holder, tokens: int) -> None:
        if holder.samples > 1:
            raise KVCacheError("a prefix cache serves every sample as a request of its own")
        match = self._match_of(holder, tokens)
        wanted = self.blocks_to_admit(holder, tokens)
        if wanted > self.free_blocks:
            raise OutOfBlocks(f"{wanted} blocks are needed, {self.free_blocks} are free")
        runs: list[Run] = []
        for run, blocks in match.runs:
            if blocks < run.count:
                self._split(run, blocks)
            if run.holders:
                self.shared_blocks += blocks
            else:
                self._queue.remove(run)
                self._cached -= blocks
                self.free_blocks -= blocks
            run.holders.append(holder)
            runs.append(run)
        holder.kv = Prefix(_content_of(holder), runs, match.blocks)
        holder.tokens = tokens
        self._take(-(-tokens // self.block_size) - match.blocks)
        self._hash(holder, tokens)

    def extend(self, holder: Holder, tokens: int) -> None:
        blocks = self.blocks_to_extend(holder, tokens)
        if blocks > self.free_blocks:
            raise OutOfBlocks(f"{blocks} blocks are needed, {self.free_blocks} are free")
        self._take(blocks)
        holder.tokens += tokens
        self._hash(holder, holder.tokens)

    def append(self, holder: Holder) -> int:
        self.extend(holder, 1)
        return 0

    def start_decoding(self, holder: Holder) -> None:
        holder.base = holder.tokens - self.steps
        holder.decodes = True
        self._count(holder, 1)

    def stop_decoding(self, holder: Holder) -> None:
        holder.tokens = self.length(holder)
        holder.decodes = False
        self._count(holder, -1)

    def grow(self, steps: int = 1) -> int:
        blocks = self.blocks_needed(steps)
        if blocks > self.free_blocks:
            raise OutOfBlocks(f"{steps} more steps take {blocks} blocks, {self.free_blocks} are free")
        if blocks:
            self._take(blocks)
        self.steps += steps
        return 0

    def cache_full_blocks(self, holder: Holder) -> None:
        self._hash(holder, self.length(holder))

    def set_aside(self, blocks: int) -> None:
        if blocks > self._aside:
            self._pop(blocks - self._aside)
            self._aside = blocks

    def release(self, holder: Holder) -> None:
        length = self.length(holder)
        self._hash(holder, length)
        prefix: Prefix = holder.kv
        if holder.decodes:
            holder.decodes = False
            self._count(holder, -1)
        unhashed = -(-length // self.block_size) - prefix.hashed
        if unhashed:
            self.free_blocks += unhashed
            run = self._unhashed(holder, unhashed)
            if self.reuses_unhashed_first:
                self._queue.push_first(run)
            else:
                self._queue.push(run)
        for run in reversed(prefix.runs):
            run.holders.remove(holder)
            if run.holders:
                self.shared_blocks -= run.count
            else:
                self._queue.push(run)
                self._cached += run.count
                self.free_blocks += run.count

    def end_samples(self, holder: Holder, samples: Sequence[int]) -> None:
        raise KVCacheError("a prefix cache serves every sample as a request of its own")

    # What a form of this memory with numbers adds to

    def _all_blocks(self) -> Run:
        """Return the run of all blocks, which are free."""
        return Run(self.num_blocks)

    def _take_last(self, run: Run, blocks: int) -> None:
        """Take so many blocks off the end of a run, the last of them first."""
        run.count -= blocks

    def _take_aside(self, blocks: int) -> None:
        """Take so many of the blocks that were set aside, the first of them first."""
        self._aside -= blocks

    def _cut(self, run: Run, blocks: int) -> Run:
        """Cut a run in two after so many blocks; return the second."""
        return run.split(blocks)

    def _hashed(self, holder: Holder, run: Run, start: int, blocks: int) -> None:
        """Give a run the blocks of a holder that can be found now, from its block ``start`` on."""
        run.count += blocks

    def _unhashed(self, holder: Holder, blocks: int) -> Run:
        """Return a run of the last blocks of a holder, which cannot be found."""
        return Run(blocks)

    # Inside

    def _count(self, holder: Holder, change: int) -> None:
        """Count the blocks that a decoding holder takes."""
        self._takes[opening_step(holder.base, self.block_size)] += change
        self._decoding += change

    def _look_up(self, holder: Holder, most: int) -> _Match:
        """Find the runs of a request's leading blocks, as far as they are there, up to so many."""
        content, found = _content_of(holder), self._found
        runs: list[tuple[Run, int]] = []
        block = 0
        while content is not None and block < most:
            run = found.get(content.key(block))
            if run is None:
                break
            blocks = min(_alike(run, content), most - block)
            runs.append((run, blocks))
            block += blocks
        self._match = match = _Match(holder, self._version, most, block, runs)
        return match

    def _match_of(self, holder: Holder, tokens: int) -> _Match:
        """Return what `match_prefix` found last for a holder, as far as it is still there."""
        match = self._match
        if match.holder is not holder:
            return _NOTHING
        if match.version != self._version:
            match = self._look_up(holder, min(match.blocks, tokens // self.block_size))
        return match

    def _hash(self, holder: Holder, tokens: int) -> None:
        """Make the blocks of a holder findable that are full at this length."""
        prefix: Prefix = holder.kv
        content, start, full = prefix.content, prefix.hashed, tokens // self.block_size
        if start == full or content is None:
            return
        prefix.hashed = full
        self._version += 1
        runs = prefix.runs
        while start < full:
            key = content.key(start)
            first = self._found.get(key)
            blocks = full - start
            if first is None:
                last = runs[-1] if runs else None
                if last is not None and self._goes_on(last, content, start):
                    self._hashed(holder, last, start, blocks)
                    return
            else:
                blocks = min(_alike(first, content), blocks)
                if blocks < first.count:
                    self._split(first, blocks)
            run = Run(0, content, start, key)
            self._hashed(holder, run, start, blocks)
            run.holders.append(holder)
            runs.append(run)
            if first is None:
                self._found[key] = run
            else:
                self._duplicates.setdefault(key, []).append(run)
            start += blocks

    def _goes_on(self, run: Run, content: Content, start: int) -> bool:
        """Say whether a run can simply be longer: computed by the same request, and held by no other."""
        return (
            run.content is content
            and run.start + run.count == start
            and len(run.holders) == 1
            and run.key not in self._duplicates
        )

    def _split(self, run: Run, blocks: int) -> None:
        """Cut a run in two after so many blocks, and all that have the same content."""
        self._version += 1
        duplicates = self._duplicates.get(run.key)
        rest = self._part(self._found[run.key], blocks)
        self._found[rest.key] = rest
        if duplicates is not None:
            self._duplicates[rest.key] = [self._part(each, blocks) for each in duplicates]

    def _part(self, run: Run, blocks: int) -> Run:
        rest = self._cut(run, blocks)
        if not run.holders:
            self._queue.push_ahead(rest, run)
        for holder in run.holders:
            runs = holder.kv.runs
            runs.insert(runs.index(run) + 1, rest)
        return rest

    def _take(self, blocks: int) -> None:
        """Take so many free blocks, which there are."""
        self.free_blocks -= blocks
        if self._aside:
            aside = min(blocks, self._aside)
            self._take_aside(aside)
            blocks -= aside
        self._pop(blocks)

    def _pop(self, blocks: int) -> None:
        """Take so many blocks out of the queue; what they held is evicted."""
        while blocks > 0:
            run = self._queue.first
            there = run.count
            count = blocks if blocks < there else there
            if run.content is not None:
                if count < there and run.key in self._duplicates:
                    self._split(run, there - count)
                    continue  # with the part that goes, which is now first
                self._cached -= count
                self._version += 1
                self._evictions.append((self._taken + 1, count))
                if count == there:
                    self._evict(run)
            if count == there:
                self._queue.remove(run)
            self._take_last(run, count)
            self._taken += count
            blocks -= count

    def _evict(self, run: Run) -> None:
        """Take a run out of the index; a duplicate with the same key takes its place."""
        key = run.key
        duplicates = self._duplicates.get(key)
        if duplicates is None:
            del self._found[key]
            return
        if self._found[key] is run:
            self._found[key] = duplicates.pop(0)
        else:
            duplicates.remove(run)
        if not duplicates:
            del self._duplicates[key]


class PrefixCachedKV(CountedPrefixKV):
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
        before = self.steps
        super().grow(steps)
        if self._fresh:
            if not self._in_order:
                self._buckets = [
                    dict.fromkeys(sorted(bucket, key=lambda holder: holder.order)) for bucket in self._buckets
                ]
                self._in_order = True
            taken, size, buckets = iter(self._fresh), self.block_size, self._buckets
            for step in range(before + 1, before + 1 + steps):
                for holder in buckets[step % size]:
                    holder.kv.table.append(next(taken))
            self._fresh = block_array()
        return 0

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
        return [*self._set_aside, *chain.from_iterable(reversed(run.blocks) for run in self._queue)]

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
        queued = set(self._queue)
        assert all(run.count == len(run.blocks) for run in queued), "a run's blocks are miscounted"
        cached = [run.count for run in queued if run.content is not None]
        assert self._cached == sum(cached), "cached blocks are miscounted"
        assert self._duplicates.keys() <= self._found.keys(), "a duplicate is left of what cannot be found"
        findable: set[Run] = set()
        for key, first in self._found.items():
            for run in (first, *self._duplicates.get(key, ())):
                findable.add(run)
                assert run.content is not None
                assert run.content.key(run.start) == run.key == key, "a run is found under a key not its own"
                assert run.count == first.count == len(run.blocks) > 0, "a run and its duplicate differ"
                assert bool(run.holders) != (run in queued), "a run is held and free, or neither"
        assert findable >= {run for run in queued if run.content is not None}
        for holder in self.holders:
            prefix: Prefix = holder.kv
            assert findable.issuperset(prefix.runs), "a run is held that cannot be found"
            assert all(holder in run.holders for run in prefix.runs)
            blocks = block_array(chain.from_iterable(run.blocks for run in prefix.runs))
            assert blocks == prefix.table[: prefix.hashed], "runs are not the table's"
            assert len(prefix.table) == -(-self.length(holder) // self.block_size), "a table's length is off"

    # As `CountedPrefixKV`

    def _all_blocks(self) -> Run:
        run = super()._all_blocks()
        run.blocks = block_array(reversed(range(self.num_blocks)))
        return run

    def _take_last(self, run: Run, blocks: int) -> None:
        super()._take_last(run, blocks)
        self._fresh.extend(run.blocks[: -blocks - 1 : -1])
        del run.blocks[-blocks:]

    def _take_aside(self, blocks: int) -> None:
        super()._take_aside(blocks)
        self._fresh.extend(self._set_aside[:blocks])
        del self._set_aside[:blocks]

    def _cut(self, run: Run, blocks: int) -> Run:
        rest = super()._cut(run, blocks)
        rest.blocks = run.blocks[blocks:]
        del run.blocks[blocks:]
        return rest

    def _hash(self, holder: Holder, tokens: int) -> None:
        self._fill_table(holder)
        super()._hash(holder, tokens)

    def _hashed(self, holder: Holder, run: Run, start: int, blocks: int) -> None:
        named = holder.kv.table[start : start + blocks]
        if run.count:
            run.blocks.extend(named)
        else:
            run.blocks = named
        super()._hashed(holder, run, start, blocks)

    def _unhashed(self, holder: Holder, blocks: int) -> Run:
        run = super()._unhashed(holder, blocks)
        run.blocks = holder.kv.table[-blocks:]
        return run

    def _count(self, holder: Holder, change: int) -> None:
        super()._count(holder, change)
        bucket = self._buckets[opening_step(holder.base, self.block_size)]
        if change < 0:
            del bucket[holder]
            return
        if bucket and next(reversed(bucket)).order > holder.order:
            self._in_order = False
        bucket[holder] = None

    # Inside

    def _fill_table(self, holder: Holder) -> None:
        """Let a holder's table name what was found for it and what was just taken."""
        prefix: Prefix = holder.kv
        if not hasattr(prefix, "table"):
            prefix.table = block_array(chain.from_iterable(run.blocks for run in prefix.runs))
        if self._fresh:
            prefix.table += self._fresh
            self._fresh = block_array()


def _content_of(holder: Holder) -> Any:
    return getattr(holder, "content", None)


def _alike(run: Run, content: Content) -> int:
    """Return the blocks of a run that another content goes on with, which has its first one."""
    assert run.content is not None
    last = run.start + run.count - 1
    if content.key(last) == run.content.key(last):
        return run.count
    return content.common(run.content) - run.start
