"""Prefix caching: full blocks are found by their content until they are taken again."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, ClassVar

from pagesim.kvcache.base import KVCache, KVCacheError
from pagesim.kvcache.groups import KVGroup
from pagesim.kvcache.holder import Holder
from pagesim.kvcache.run_index import Hit, Prefix, RunIndex, are_there, free_blocks
from pagesim.kvcache.runs import FreeQueue, Run
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class _Match:
    """What was looked up last: the scheduler usually takes it next.

    Attributes:
        holder: for whom.
        most: how many blocks were asked for.
        blocks: how many were found.
        hits: the runs that these are of.
        missing: the key of the block that ended the search; None where no more were asked for.
    """

    __slots__ = ("blocks", "hits", "holder", "missing", "most")

    def __init__(self, holder: Holder | None, most: int) -> None:
        self.holder = holder
        self.most = most
        self.blocks = 0
        self.hits: list[Hit] = []
        self.missing: int | None = None

    def holds(self, found: dict[int, Run]) -> bool:
        """Say whether a search would end the same way now."""
        return self.missing not in found and (not self.hits or are_there(self.hits))

    @property
    def free(self) -> int:
        """How many of the blocks that were found no sequence holds."""
        return free_blocks(self.hits) if self.hits else 0


_NOTHING = _Match(None, 0)


@mypyc_attr(allow_interpreted_subclasses=True)
class CountedPrefixKV(KVCache):
    """See `KVCache`: counted memory of one KV group of full attention and single samples, with a cache.

    The free blocks are a queue. Blocks are taken at its front, and then their content is evicted; a request
    gives its blocks back last block first. A prompt that begins as another one did takes over that one's full
    blocks, in use (then they are shared) or free (then they leave the queue from wherever they are).

    A block can be found from the moment on at which room is made for its last token. Blocks that a decoding
    holder fills are hashed when it is released or ``cache_full_blocks`` is called: before that no other
    request can ask for them. For the same reason the blocks that no other content has (`Content.shared`) are
    only counted until their holder is released.

    What is decided block by block is kept by the run: blocks that one request computed and that all others
    hold all or none of. A run is cut in two where a request takes over a part of it. Because of the order in
    which blocks are given back, content is evicted from its end on: what comes before a block that can be
    found can be found, too.

    Free blocks that cannot be found are taken before those of the queue (vLLM 0.33). So content is evicted
    only where nothing else is free, how many blocks are cached follows from how many are free, and which
    ones these are is worked out when something is looked up (``_settle``).

    Args:
        num_blocks: on the device.
        block_size: token slots a block.
        cpu_blocks: swap space, never used.
    """

    caches_prefixes = True

    waits_to_index: ClassVar[bool] = True
    """Whether blocks that no other content has are put into the index only when they are free."""

    def __init__(self, num_blocks: int, block_size: int, cpu_blocks: int = 0) -> None:
        super().__init__(num_blocks, [KVGroup(block_size)], cpu_blocks, shares=False)
        self._queue = FreeQueue()
        self._queued = (
            0  # blocks in it that can be found, those included that were taken since it was settled
        )
        self._aside = 0  # free blocks that were taken out of the queue for what is going to be taken next
        self._due = 0  # blocks that can be found and are not in the index yet
        self._index = self._new_index(self._queue)
        self._match = _NOTHING
        self._takes = [0] * block_size  # how many decoding holders take a block at which step
        self._decoding = 0

    # Questions

    @property
    def cached_blocks(self) -> int:
        """Free blocks whose content can still be found."""
        return self.cache_row()[1]

    def cache_row(self) -> list[int]:
        free, cached = self.free_blocks - self._aside, self._cached
        return [self.shared_blocks, cached if cached < free else free, self.blocks_taken]

    @property
    def findable_blocks(self) -> int:
        """Blocks of different content that can be found, held ones included; counted here, run by run."""
        self._settle()
        return self._index.findable + self._due

    def found_runs(self) -> Iterable[Run]:
        self._settle()
        return self._index.found.values()

    def held_blocks(self, holder: Holder) -> int:
        return -(-self.length(holder) // self.block_size)

    def exclusive_blocks(self, holders: Sequence[Holder]) -> int:
        blocks, size = 0, self.block_size
        shared: dict[int, Run] = {}
        for holder in holders:
            prefix: Prefix = holder.kv
            blocks += -(-self.length(holder) // size) - prefix.hashed
            for run in prefix.runs:
                if len(run.holders) == 1:
                    blocks += run.count
                else:
                    shared[id(run)] = run
        if shared:
            own = {id(holder.kv) for holder in holders}
            for run in shared.values():
                if all(id(prefix) in own for prefix in run.holders):
                    blocks += run.count
        return blocks

    def blocks_needed(self, steps: int = 1) -> int:
        takes, size = self._takes, self.block_size
        first = (self.steps + 1) % size
        if steps == 1:
            return takes[first]
        rounds, rest = divmod(steps, size)
        end = first + rest
        blocks = sum(takes[first:end]) + rounds * self._decoding
        return blocks + sum(takes[: end - size]) if end > size else blocks

    def blocks_needed_by(self, holder: Holder) -> int:
        return int(self.length(holder) % self.block_size == 0)

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
        content = holder.content
        if content is None or content.unseen:
            return 0
        self._settle()
        match, most = self._match, (tokens - 1) // self.block_size
        if match.holder is not holder or match.most != most or not match.holds(self._index.found):
            match = self._look_up(holder, most)
        return match.blocks * self.block_size

    def could_admit(self, holder: Holder, tokens: int, spare: int = 0) -> bool:
        return self.blocks_for(tokens) + spare <= self.num_blocks  # empty memory has cached nothing

    def blocks_to_admit(self, holder: Holder, tokens: int) -> int:
        match = self._match_of(holder, tokens)
        return -(-tokens // self.block_size) - match.blocks + match.free

    def can_admit(self, holder: Holder, tokens: int, spare: int = 0) -> bool:
        # Of the blocks that a holder takes some may be found; where there is room for all no look tells more.
        blocks = -(-tokens // self.block_size) + spare
        return blocks <= self.free_blocks or self.blocks_to_admit(holder, tokens) + spare <= self.free_blocks

    # Changes

    def admit(self, holder: Holder, tokens: int) -> None:
        if holder.samples > 1:
            raise KVCacheError("a prefix cache serves every sample as a request of its own")
        content, size = holder.content, self.block_size
        if self.waits_to_index and content is not None and content.unseen:
            blocks = -(-tokens // size)
            if blocks > self.free_blocks:
                self._check_room(blocks)
            holder.kv = prefix = Prefix(content, [], 0)
            prefix.shared = 0
            prefix.due = due = (tokens - holder.unknown) // size
            self._due += due
            holder.tokens = tokens
            self._take(blocks)
            return
        match = self._match_of(holder, tokens)
        others = -(-tokens // size) - match.blocks
        if match.hits or others > self.free_blocks:
            self._check_room(others + match.free)
        runs: list[Run] = []
        holder.kv = prefix = Prefix(content, runs, match.blocks, match.missing)
        if self.waits_to_index and content is not None:
            prefix.shared = content.shared
        for run, blocks, count in match.hits:
            if blocks < count:
                self._index.split(run, blocks)
            if run.holders:
                self.shared_blocks += blocks
            else:
                self._queue.remove(run)
                self._queued -= blocks
                self._cached -= blocks
                self.free_blocks -= blocks
            run.holders.append(prefix)
            runs.append(run)
        holder.tokens = tokens
        self._take(others)
        self._hash(holder, tokens - holder.unknown)
        prefix.missing = None

    def extend(self, holder: Holder, tokens: int) -> None:
        blocks = self.blocks_to_extend(holder, tokens)
        if blocks > self.free_blocks:
            self._check_room(blocks)
        if blocks:
            self._take(blocks)
        holder.tokens += tokens
        self._hash(holder, holder.tokens - holder.unknown)

    def append(self, holder: Holder) -> int:
        self.extend(holder, 1)
        return 0

    def start_decoding(self, holder: Holder) -> None:
        holder.base = base = holder.tokens - self.steps
        holder.decodes = True
        self._takes[(1 - base) % self.block_size] += 1  # see `opening_step`
        self._decoding += 1

    def stop_decoding(self, holder: Holder) -> None:
        holder.tokens = self.length(holder)
        holder.decodes = False
        self._stop_taking(holder)

    def grow(self, steps: int = 1) -> int:
        blocks = self.blocks_needed(steps)
        if blocks:
            if blocks > self.free_blocks:
                self._check_steps(steps)
            self._take(blocks)
        self.steps += steps
        return 0

    def grow_leaving(self, spare: int) -> int:
        step = self.steps + 1
        blocks = self._takes[step % self.block_size]
        if self.free_blocks - blocks < spare:
            return -1
        if blocks:
            self._take(blocks)
        self.steps = step
        return 0

    def cache_full_blocks(self, holder: Holder) -> None:
        self._hash(holder, self.length(holder) - holder.unknown)

    def take(self, holder: Holder) -> None:
        blocks = self.blocks_needed_by(holder)
        if blocks:
            self._take(blocks)

    def set_aside(self, blocks: int) -> None:
        if blocks > self._aside:
            self._aside = blocks

    def release(self, holder: Holder) -> None:
        decodes, prefix, size = holder.decodes, holder.kv, self.block_size
        length = holder.base + self.steps if decodes else holder.tokens
        if decodes:
            holder.decodes = False
            self._stop_taking(holder)
        free, freed = self.free_blocks - self._aside, 0
        if self._cached > free:
            self._cached = free
        blocks, full, shared = -(-length // size), (length - holder.unknown) // size, prefix.shared
        if prefix.due:
            self._due -= prefix.due
            if shared + prefix.due > full:
                full = shared + prefix.due
        if prefix.hashed < shared and prefix.hashed < full:
            self._settle()
            self._index.register(prefix, full if full < shared else shared)
        if full > shared:
            freed = full - shared
            self._queue.push(self._index.add(prefix.content, shared, freed))
        self._give_back_unhashed(prefix, blocks - prefix.hashed - freed)
        for run in prefix.runs[::-1]:
            run.holders.remove(prefix)
            if run.holders:
                self.shared_blocks -= run.count
            else:
                self._queue.push(run)
                freed += run.count
        self._queued += freed
        self._cached += freed
        self.free_blocks += freed
        if self._queued > 2 * self.num_blocks:
            self._settle()

    def end_samples(self, holder: Holder, samples: Sequence[int]) -> None:
        raise KVCacheError("a prefix cache serves every sample as a request of its own")

    # What a form of this memory adds to that looks at which blocks are taken

    def _take(self, blocks: int) -> None:
        """Take so many free blocks, which there are.

        Those that were set aside, those that hold nothing, then the queue's: their content is evicted.
        """
        self.free_blocks -= blocks
        if self._aside:
            self._aside -= min(blocks, self._aside)

    def _give_back_unhashed(self, prefix: Prefix, blocks: int) -> None:
        """Give back so many blocks of a holder, its last ones, that cannot be found."""
        self.free_blocks += blocks

    def _left_queue(self, run: Run, blocks: int) -> None:
        """Learn that so many blocks were taken off the end of the first run in the queue."""
        return

    def _new_index(self, queue: FreeQueue) -> RunIndex:
        """Return an empty index."""
        return RunIndex(queue)

    # Inside

    def _stop_taking(self, holder: Holder) -> None:
        """Count the blocks of a holder no longer that decoded."""
        self._takes[(1 - holder.base) % self.block_size] -= 1
        self._decoding -= 1

    def _look_up(self, holder: Holder, most: int) -> _Match:
        """Find the runs of a request's leading blocks, as far as they are there, up to so many."""
        self._match = match = _Match(holder, most)
        match.blocks, match.missing = self._index.look_up(holder.content, most, match.hits)
        return match

    def _match_of(self, holder: Holder, tokens: int) -> _Match:
        """Return what `match_prefix` found last for a holder, as far as it is still there."""
        match = self._match
        if match.holder is not holder:
            return _NOTHING
        self._settle()
        if not match.holds(self._index.found):
            match = self._look_up(holder, min(match.blocks, tokens // self.block_size))
        return match

    def _hash(self, holder: Holder, tokens: int) -> None:
        """Make the blocks of a holder findable that are full at this length."""
        full, prefix = tokens // self.block_size, holder.kv
        hashed, shared = prefix.hashed, prefix.shared
        if hashed < shared and hashed < full:
            self._settle()
            self._index.register(prefix, full if full < shared else shared)
        due = full - shared
        if due > prefix.due:
            self._due += due - prefix.due
            prefix.due = due

    def _settle(self) -> None:
        """Take out of the queue what was taken since this was last called."""
        cached, free = self._cached, self.free_blocks - self._aside
        if cached > free:
            self._cached = cached = free
        surplus = self._queued - cached
        if surplus:
            self._queued = cached
            self._take_queued(surplus)

    def _take_queued(self, blocks: int) -> None:
        """Take so many blocks at the front of the queue."""
        queue, index = self._queue, self._index
        while blocks:
            run: Any = queue.behind
            there = run.count
            count = there if there < blocks else blocks
            if run.content is not None:
                if count == there:
                    index.forget(run)
                elif run.key in index.duplicates:
                    index.split(run, there - count)
                    continue  # with the part that goes, which is now first
            if count == there:
                queue.remove(run)
            run.count = there - count
            self._left_queue(run, count)
            blocks -= count
