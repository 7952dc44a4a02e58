"""Prefix caching: full blocks are found by their content until they are taken again."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from pagesim.kvcache.base import Holder, KVCache, KVCacheError, OutOfBlocks
from pagesim.kvcache.groups import KVGroup, opening_step
from pagesim.kvcache.runs import Content, FreeQueue, Run


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
        self._hash(holder, self.length(holder) - holder.unknown)

    def set_aside(self, blocks: int) -> None:
        if blocks > self._aside:
            self._pop(blocks - self._aside)
            self._aside = blocks

    def release(self, holder: Holder) -> None:
        length = self.length(holder)
        self._hash(holder, length - holder.unknown)
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
        if start >= full or content is None:
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


def _content_of(holder: Holder) -> Any:
    return getattr(holder, "content", None)


def _alike(run: Run, content: Content) -> int:
    """Return the blocks of a run that another content goes on with, which has its first one."""
    assert run.content is not None
    last = run.start + run.count - 1
    if content.key(last) == run.content.key(last):
        return run.count
    return content.common(run.content) - run.start
