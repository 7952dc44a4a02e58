"""Prefix caching: full blocks are found by their content until they are taken again."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

from pagesim.kvcache.base import Fit, Holder, KVCache, KVCacheError, OutOfBlocks
from pagesim.kvcache.extents import Extent, join_extents
from pagesim.kvcache.groups import KVGroup
from pagesim.kvcache.runs import Content, FreeQueue, Run, block_array


class _Match(NamedTuple):
    """What was looked up last: the scheduler usually takes it next."""

    holder: Holder | None
    version: int
    blocks: int
    runs: list[tuple[Run, int]]  # each with how many of its blocks


_NOTHING = _Match(None, 0, 0, [])


class CachedTable:
    """What `PrefixCachedKV` keeps with a holder.

    Attributes:
        content: of its prompt, and of what it generates.
        table: its blocks, in token order.
        runs: those of its leading blocks that can be found.
        hashed: how many blocks these are.
    """

    __slots__ = ("content", "hashed", "runs", "table")

    def __init__(self, content: Content | None, table: array[int], runs: list[Run], hashed: int) -> None:
        self.content = content
        self.table = table
        self.runs = runs
        self.hashed = hashed


class PrefixCachedKV(KVCache):
    """See `KVCache`: memory with tables of one KV group of full attention and single samples, and a cache.

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

    names_blocks = True
    caches_prefixes = True

    def __init__(
        self, num_blocks: int, block_size: int, cpu_blocks: int = 0, *, reuses_unhashed_first: bool = True
    ) -> None:
        super().__init__(num_blocks, [KVGroup(block_size)], cpu_blocks, shares=False)
        self.reuses_unhashed_first = reuses_unhashed_first
        self._queue = FreeQueue()
        self._queue.push(Run(block_array(reversed(range(num_blocks)))))
        self._aside = block_array()  # taken out of the queue for what is going to be taken next
        # The run that the key of its first block finds: the first that had this content. Duplicates, which
        # have just as many blocks, wait behind it.
        self._found: dict[int, Run] = {}
        self._duplicates: dict[int, list[Run]] = {}
        self._version = 0  # of what can be found
        self._match = _NOTHING
        self._cached = 0
        self._taken = 0
        self._evictions: list[tuple[int, int]] = []
        self._buckets: list[dict[Holder, None]] = [{} for _ in range(block_size)]
        self._in_order = True
        self._decoding = 0
        self._holders_of: dict[Run, list[Holder]] = {}
        self.holders: dict[Holder, None] = {}

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
        return len(holder.kv.table)

    def blocks_needed(self, steps: int = 1) -> int:
        size, first = self.block_size, (self.steps + 1) % self.block_size
        if steps == 1:
            return len(self._buckets[first])
        rounds, rest = divmod(steps, size)
        blocks = rounds * self._decoding
        for step in range(first, first + rest):
            blocks += len(self._buckets[step % size])
        return blocks

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
        for step in range(size):
            room -= len(self._buckets[(self.steps + 1 + step) % size])
            if room < 0:
                return rounds * size + step
        return rounds * size + size

    def match_prefix(self, holder: Holder, tokens: int) -> int:
        return self._look_up(holder, (tokens - 1) // self.block_size).blocks * self.block_size

    def fit(self, holder: Holder, tokens: int, spare: int = 0) -> Fit:
        if self.can_admit(holder, tokens, spare):
            return Fit.NOW
        # Empty memory has cached nothing.
        return Fit.LATER if self.blocks_for(tokens) + spare <= self.num_blocks else Fit.NEVER

    def blocks_to_admit(self, holder: Holder, tokens: int) -> int:
        match = self._match_of(holder, tokens)
        blocks = -(-tokens // self.block_size) - match.blocks
        for run, count in match.runs:
            if not run.users:
                blocks += count
        return blocks

    # Changes

    def admit(self, holder: Holder, tokens: int) -> None:
        if holder.samples > 1:
            raise KVCacheError("a prefix cache serves every sample as a request of its own")
        content = _content_of(holder)
        match = self._match_of(holder, tokens)
        wanted = self.blocks_to_admit(holder, tokens)
        if wanted > self.free_blocks:
            raise OutOfBlocks(f"{wanted} blocks are needed, {self.free_blocks} are free")
        runs: list[Run] = []
        table = block_array()
        for run, blocks in match.runs:
            if blocks < len(run.blocks):
                self._split(run, blocks)
            if run.users:
                self.shared_blocks += blocks
            else:
                self._queue.remove(run)
                self._cached -= blocks
                self.free_blocks -= blocks
            run.users += 1
            self._holders_of[run].append(holder)
            runs.append(run)
            table.extend(run.blocks)
        # Before blocks are taken: one that goes may cut the runs that were just found.
        holder.kv = CachedTable(content, table, runs, match.blocks)
        table.extend(self._take(-(-tokens // self.block_size) - match.blocks))
        holder.tokens = tokens
        self.holders[holder] = None
        self._hash(holder, tokens)

    def extend(self, holder: Holder, tokens: int) -> None:
        blocks = self.blocks_to_extend(holder, tokens)
        if blocks > self.free_blocks:
            raise OutOfBlocks(f"{blocks} blocks are needed, {self.free_blocks} are free")
        holder.kv.table.extend(self._take(blocks))
        holder.tokens += tokens
        self._hash(holder, holder.tokens)

    def append(self, holder: Holder) -> int:
        self.extend(holder, 1)
        return 0

    def start_decoding(self, holder: Holder) -> None:
        holder.base = holder.tokens - self.steps
        holder.decodes = True
        bucket = self._buckets[(1 - holder.base) % self.block_size]
        if bucket and next(reversed(bucket)).order > holder.order:
            self._in_order = False
        bucket[holder] = None
        self._decoding += 1

    def stop_decoding(self, holder: Holder) -> None:
        holder.tokens = self.length(holder)
        self._leave_bucket(holder)

    def grow(self, steps: int = 1) -> int:
        blocks = self.blocks_needed(steps)
        if blocks > self.free_blocks:
            raise OutOfBlocks(f"{steps} more steps take {blocks} blocks, {self.free_blocks} are free")
        if blocks:
            if not self._in_order:
                self._buckets = [
                    dict.fromkeys(sorted(bucket, key=lambda holder: holder.order)) for bucket in self._buckets
                ]
                self._in_order = True
            taken, size, buckets = iter(self._take(blocks)), self.block_size, self._buckets
            for step in range(self.steps + 1, self.steps + 1 + steps):
                for holder in buckets[step % size]:
                    holder.kv.table.append(next(taken))
        self.steps += steps
        return 0

    def cache_full_blocks(self, holder: Holder) -> None:
        self._hash(holder, self.length(holder))

    def set_aside(self, blocks: int) -> None:
        if blocks > len(self._aside):
            self._aside += self._pop(blocks - len(self._aside))

    def release(self, holder: Holder) -> None:
        cached: CachedTable = holder.kv
        self._hash(holder, self.length(holder))
        if holder.decodes:
            self._leave_bucket(holder)
        unhashed = cached.table[cached.hashed :]
        if unhashed:
            self.free_blocks += len(unhashed)
            run = Run(unhashed)
            if self.reuses_unhashed_first:
                self._queue.push_first(run)
            else:
                self._queue.push(run)
        for run in reversed(cached.runs):
            run.users -= 1
            self._holders_of[run].remove(holder)
            blocks = len(run.blocks)
            if run.users:
                self.shared_blocks -= blocks
            else:
                self._queue.push(run)
                self._cached += blocks
                self.free_blocks += blocks
        del self.holders[holder]

    def end_samples(self, holder: Holder, samples: Sequence[int]) -> None:
        raise KVCacheError("a prefix cache serves every sample as a request of its own")

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

    def free_extents(self) -> list[Extent]:
        """Return the maximal runs of free blocks, by address."""
        return join_extents(sorted(chain(self._aside, self._queue.blocks())))

    def free_chunks(self) -> list[Extent]:
        """As ``free_extents``: a queue keeps no runs."""
        return self.free_extents()

    def cached_extents(self) -> list[Extent]:
        """Return the maximal runs of free blocks whose content can still be found, by address."""
        cached = (run.blocks for run in self._queue if run.content is not None)
        return join_extents(sorted(chain.from_iterable(cached)))

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is free or held, and no bookkeeping disagrees."""
        free = [*self._aside, *self._queue.blocks()]
        named = {block for holder in self.holders for block in holder.kv.table}
        names = sum(len(holder.kv.table) for holder in self.holders)
        assert sorted([*named, *free]) == list(range(self.num_blocks)), "blocks are owned twice or lost"
        assert self.free_blocks == len(free), "free blocks are miscounted"
        assert self.shared_blocks == names - len(named), "shared blocks are miscounted"
        queued = set(self._queue)
        cached = [len(run.blocks) for run in queued if run.content is not None]
        assert self._cached == sum(cached), "cached blocks are miscounted"
        assert self._duplicates.keys() <= self._found.keys(), "a duplicate is left of what cannot be found"
        findable: set[Run] = set()
        for key, first in self._found.items():
            for run in (first, *self._duplicates.get(key, ())):
                findable.add(run)
                assert run.content is not None
                assert run.content.key(run.start) == run.key == key, "a run is found under a key not its own"
                assert len(run.blocks) == len(first.blocks) > 0, "a run and its duplicate differ"
                assert bool(run.users) != (run in queued), "a run is held and free, or neither"
                assert len(self._holders_of[run]) == run.users, "a run's users are miscounted"
        assert findable == self._holders_of.keys(), "a run is kept that cannot be found"
        assert findable >= {run for run in queued if run.content is not None}
        for holder in self.holders:
            held: CachedTable = holder.kv
            assert findable.issuperset(held.runs), "a run is held that cannot be found"
            blocks = block_array(chain.from_iterable(run.blocks for run in held.runs))
            assert blocks == held.table[: held.hashed], "runs are not the table's"
            assert len(held.table) == -(-self.length(holder) // self.block_size), "a table's length is off"

    # Inside

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
        self._match = match = _Match(holder, self._version, block, runs)
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
        cached: CachedTable = holder.kv
        content, start, full = cached.content, cached.hashed, tokens // self.block_size
        if start == full or content is None:
            return
        cached.hashed = full
        self._version += 1
        table, runs = cached.table, cached.runs
        while start < full:
            key = content.key(start)
            first = self._found.get(key)
            blocks = full - start
            if first is None:
                last = runs[-1] if runs else None
                if last is not None and self._goes_on(last, content, start):
                    last.blocks.extend(table[start:full])
                    return
            else:
                blocks = min(_alike(first, content), blocks)
                if blocks < len(first.blocks):
                    self._split(first, blocks)
            run = Run(table[start : start + blocks], content, start, key, 1)
            self._holders_of[run] = [holder]
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
            and run.start + len(run.blocks) == start
            and run.users == 1
            and run.key not in self._duplicates
        )

    def _split(self, run: Run, blocks: int) -> None:
        """Cut a run in two after so many blocks, and all that have the same content."""
        self._version += 1
        duplicates = self._duplicates.get(run.key)
        rest = self._cut(self._found[run.key], blocks)
        self._found[rest.key] = rest
        if duplicates is not None:
            self._duplicates[rest.key] = [self._cut(each, blocks) for each in duplicates]

    def _cut(self, run: Run, blocks: int) -> Run:
        rest = run.split(blocks)
        holders = self._holders_of[run]
        self._holders_of[rest] = list(holders)
        if not holders:
            self._queue.push_ahead(rest, run)
        for holder in holders:
            runs = holder.kv.runs
            runs.insert(runs.index(run) + 1, rest)
        return rest

    def _pop(self, blocks: int) -> array[int]:
        """Take so many blocks out of the queue; what they held is evicted."""
        taken = block_array()
        while blocks > 0:
            run = self._queue.first
            there = len(run.blocks)
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
                run.blocks.reverse()
                taken.extend(run.blocks)
            else:
                taken.extend(run.blocks[: -count - 1 : -1])
                del run.blocks[-count:]
            self._taken += count
            blocks -= count
        return taken

    def _evict(self, run: Run) -> None:
        """Take a run out of the index; a duplicate with the same key takes its place."""
        key = run.key
        del self._holders_of[run]
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

    def _take(self, blocks: int) -> array[int]:
        """Take so many free blocks, which there are."""
        self.free_blocks -= blocks
        aside = min(blocks, len(self._aside))
        if not aside:
            return self._pop(blocks)
        taken = self._aside[:aside]
        del self._aside[:aside]
        return taken + self._pop(blocks - aside)

    def _leave_bucket(self, holder: Holder) -> None:
        del self._buckets[(1 - holder.base) % self.block_size][holder]
        self._decoding -= 1
        holder.decodes = False


def _content_of(holder: Holder) -> Any:
    return getattr(holder, "content", None)


def _alike(run: Run, content: Content) -> int:
    """Return the blocks of a run that another content goes on with, which has its first one."""
    assert run.content is not None
    return min(len(run.blocks), content.common(run.content) - run.start)
