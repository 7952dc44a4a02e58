"""Prefix caching: full blocks can be found by their content until they are reused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pagesim.kvcache.groups import KVGroup
from pagesim.kvcache.run_index import Hit, Prefix, RunIndex
from pagesim.kvcache.runs import FreeQueue, Run
from pagesim.kvcache.sequence_group import SequenceGroup
from pagesim.kvcache.single import SingleSampleManager
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class PrefixManager(SingleSampleManager):
    """A block manager for one full-attention KV group and single samples, with a prefix cache.

    The free blocks form a queue. Blocks are allocated from its front, which evicts their content. A request
    frees its blocks in reverse order. A prompt that shares a prefix with an earlier one reuses its full
    blocks. Blocks in use are then shared; free ones are removed from wherever they are in the queue.

    A block is cached as soon as its last token is allocated. Blocks that a decoding request fills are hashed
    when it is released or ``cache_full_blocks`` is called: before that, no other request can match them.

    Decisions are made per block, but the bookkeeping is per run. A run is a sequence of blocks that one
    request computed and of which every other request holds all or none.

    Source: vLLM 0.33.0, ``v1/core/block_pool.py`` and ``v1/core/kv_cache_manager.py``.

    Args:
        num_blocks: blocks on the device.
        block_size: token slots per block.
        cpu_blocks: blocks of the swap space, which is never used.
        reuses_unhashed_first: whether blocks that are not cached are freed to the front of the queue (vLLM
            0.33); if not, all blocks are freed to its end (0.11 and 0.19).
    """

    caches_prefixes = True

    def __init__(
        self, num_blocks: int, block_size: int, cpu_blocks: int = 0, *, reuses_unhashed_first: bool = True
    ) -> None:
        super().__init__(num_blocks, [KVGroup(block_size)], cpu_blocks, releases=False)
        self.reuses_unhashed_first = reuses_unhashed_first
        self._queue = FreeQueue()
        self._queue.append(Run(num_blocks))
        self._index = RunIndex(self._queue)
        self._matched: tuple[SequenceGroup | None, int] = (
            None,
            0,
        )  # the request that was looked up last, and its matched blocks
        self._reserved: Run | None = None  # the last run that is allocated before any block freed later
        self._changes: list[tuple[int, ...]] = []

    # Questions

    @property
    def findable_blocks(self) -> int:
        """Cached blocks of distinct content, held ones included; counted run by run on each access."""
        return self._index.findable

    def found_runs(self) -> Iterable[Run]:
        """Return the runs of cached blocks, held ones included."""
        return self._index.found.values()

    def exclusive_blocks(self, requests: Sequence[SequenceGroup]) -> list[int]:
        own = {id(request.block_state) for request in requests}
        blocks = 0
        runs: dict[int, Run] = {}
        for request in requests:
            prefix: Prefix = request.block_state
            blocks += self.held_blocks(request) - prefix.hashed
            runs.update([(id(run), run) for run in prefix.runs])
        for run in runs.values():
            if all(id(prefix) in own for prefix in run.holders):
                blocks += run.count
        return [blocks]

    def held_blocks(self, request: SequenceGroup) -> int:
        return -(-self.length(request) // self.block_size)

    def blocks_to_extend(self, request: SequenceGroup, tokens: int, computed: int | None = None) -> int:
        length, size = self.length(request), self.block_size
        return -(-(length + tokens) // size) - -(-length // size)

    def match_prefix(self, request: SequenceGroup, tokens: int) -> int:
        if request.content is None:
            return 0
        _, blocks = self._index.look_up(request.content, (tokens - 1) // self.block_size)
        self._matched = request, blocks
        return blocks * self.block_size

    def could_admit(self, request: SequenceGroup, tokens: int, spare: int = 0) -> bool:
        return self.blocks_for(tokens) + spare <= self.num_blocks  # empty memory has cached nothing

    def blocks_to_admit(self, request: SequenceGroup, tokens: int) -> int:
        blocks = -(-tokens // self.block_size)
        return blocks - sum([count for run, count in self._hits_of(request, tokens) if run.holders])

    def can_admit(self, request: SequenceGroup, tokens: int, spare: int = 0, length: int = 0) -> bool:
        if length > tokens:
            tokens = length
        blocks, (last, found) = -(-tokens // self.block_size) + spare, self._matched
        if blocks <= self.free_blocks or last is not request or blocks - found > self.free_blocks:
            return blocks <= self.free_blocks  # regardless of whether the matched blocks are in use
        return self.blocks_to_admit(request, tokens) + spare <= self.free_blocks

    # Changes

    def admit(self, request: SequenceGroup, tokens: int) -> None:
        self._check_single(request)
        size = self.block_size
        blocks = -(-tokens // size)
        hits = self._hits_of(request, tokens)
        if blocks > self.free_blocks:
            self._check_room(blocks - sum([count for run, count in hits if run.holders]))
        request.block_state = prefix = Prefix(request.content)
        for run, count in hits:
            if count < run.count:
                self._index.split(run, count)
            self._touch(run)
            run.holders.append(prefix)
            prefix.runs.append(run)
            prefix.hashed += count
        request.tokens = tokens
        self._take(blocks - prefix.hashed, prefix)
        self._index.register(prefix, (tokens - request.uncommitted_tokens) // size)

    def reserve_free(self) -> None:
        for run in self._queue:
            if run.content is not None:
                self._index.evict(run, run.count)
                run.content = None
            self._reserved = run
        self.cached_blocks = 0

    def try_allocate_step(self, spare: int) -> int:
        blocks = self._takes.total(self.steps, 1)
        return -1 if self.free_blocks - blocks < spare else self._allocate_steps(1, blocks)

    def allocate_step(self, steps: int = 1) -> int:
        blocks = self._takes.total(self.steps, steps)
        if blocks > self.free_blocks:
            self._check_room(blocks)
        return self._allocate_steps(steps, blocks)

    def _allocate_steps(self, steps: int, blocks: int) -> int:
        """Allocate ``blocks`` blocks, which are free, for ``steps`` steps; return 0, as nothing is copied."""
        if self.reuses_unhashed_first:
            if blocks:
                self._take(blocks)
            self.steps += steps
            return 0
        for _ in range(steps):
            self.steps += 1
            cached = self.cached_blocks
            self._take(self._takes.at(self.steps))
            if self.cached_blocks < cached:
                self._changes.append((self.steps, self.cached_blocks))
        return 0

    def take_changes(self) -> Sequence[tuple[int, ...]]:
        changes, self._changes = self._changes, []
        return changes

    def cache_full_blocks(self, request: SequenceGroup) -> None:
        self._index.register(
            request.block_state, (self.length(request) - request.uncommitted_tokens) // self.block_size
        )

    def release(self, request: SequenceGroup) -> None:
        if request.decodes:
            self.stop_decoding(request)
        prefix, size, tokens = request.block_state, self.block_size, request.tokens
        self._index.register(prefix, (tokens - request.uncommitted_tokens) // size)
        unhashed = -(-tokens // size) - prefix.hashed
        if unhashed:
            self._give_back_unhashed(prefix, unhashed)
        for run in prefix.runs[::-1]:
            run.holders.remove(prefix)
            if run.holders:
                self.shared_blocks -= run.count
            else:
                self._queue.append(run)
                self.cached_blocks += run.count
                self.free_blocks += run.count

    def check_integrity(self) -> None:
        """Raise AssertionError unless the counts match the runs."""
        queued = list(self._queue)
        assert self.free_blocks == sum([run.count for run in queued]), "free blocks are miscounted"
        cached = [run for run in queued if run.content is not None]
        assert self.cached_blocks == sum([run.count for run in cached]), "cached blocks are miscounted"
        self._index.check_integrity(set(queued))
        findable = self._index.runs()
        assert set(cached) <= set(findable), "a run is cached that cannot be found"
        shared = sum([run.count * (len(run.holders) - 1) for run in findable if run.holders])
        assert self.shared_blocks == shared, "shared blocks are miscounted"

    # Hooks for block numbers

    def _taken(self, run: Run, blocks: int) -> None:
        """Handle the allocation of ``blocks`` blocks from the end of a run, the last one first."""
        return

    def _given_back(self, run: Run, prefix: Prefix, blocks: int) -> None:
        """Handle the move of a request's last ``blocks`` blocks to the end of a run."""
        return

    # Inside

    def _take_for(self, request: SequenceGroup, length: int) -> None:
        size = self.block_size
        self._take(-(-length // size) - -(-request.tokens // size), request.block_state)
        request.tokens = length
        self.cache_full_blocks(request)

    def _hits_of(self, request: SequenceGroup, tokens: int) -> list[Hit]:
        """Return what is still cached of the runs that ``match_prefix`` found last for a request."""
        last, blocks = self._matched
        if last is not request or not blocks:
            return []
        return self._index.look_up(request.content, min(blocks, tokens // self.block_size))[0]

    def _touch(self, run: Run) -> None:
        """Remove a matched run from the queue, or count it as shared if it is in use."""
        if run.holders:
            self.shared_blocks += run.count
        else:
            self._queue.remove(run)
            self.cached_blocks -= run.count
            self.free_blocks -= run.count

    def _take(self, blocks: int, prefix: Prefix | None = None) -> None:
        """Allocate ``blocks`` blocks, which are free, for one request or for all decoding ones.

        Their cached content is evicted.
        """
        queue, duplicates = self._queue, self._index.duplicates
        self.free_blocks -= blocks
        while blocks:
            run = queue.end.behind
            count = run.count if run.count < blocks else blocks
            if run.content is not None:
                self.cached_blocks -= count
                if count == run.count or run.key in duplicates:
                    run = self._index.evict(run, count)
            if self.names_blocks:
                self._taken(run, count)
            run.count -= count
            if not run.count:
                queue.remove(run)
                if run is self._reserved:
                    self._reserved = None
            blocks -= count

    def _give_back_unhashed(self, prefix: Prefix, blocks: int) -> None:
        """Free the last ``blocks`` blocks of a request, which are not cached."""
        self.free_blocks += blocks
        run = (self._reserved or self._queue.end).behind
        if not self.reuses_unhashed_first:
            run = Run(0)
            self._queue.append(run)
        elif run.content is not None or not run.count:
            run, cached = Run(0), run
            self._queue.insert(run, cached)
        if self.names_blocks:
            self._given_back(run, prefix, blocks)
        run.count += blocks
