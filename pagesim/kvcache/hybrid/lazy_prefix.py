"""Hybrid memory with a prefix cache that keeps no content until one is looked up."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from pagesim.kvcache.base import KVCache
from pagesim.kvcache.groups import KVGroup
from pagesim.kvcache.holder import Holder
from pagesim.kvcache.hybrid.counted import CountedHybridKV
from pagesim.kvcache.hybrid.counted_prefix import CountedHybridPrefixKV
from pagesim.kvcache.hybrid.handover import hand_over
from pagesim.kvcache.hybrid.kinds import Setting
from pagesim.kvcache.hybrid.turnover import Turnover
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class LazyHybridPrefixKV(KVCache):
    """See `KVCache`: what `CountedHybridPrefixKV` decides, with less work until it must look a content up.

    Until then requests are counted as without a cache, and it is noted what they turn over. From the first
    look-up on, and from the first time on that blocks are so scarce that holders are served one by one, it is
    `CountedHybridPrefixKV`.

    Args:
        num_blocks: on the device.
        groups: see `KVCache`; those that `counts_prefixes` takes.
        longest: tokens of the longest sequence.
        in_flight: tokens that can be scheduled and not be computed yet.

    Attributes:
        tells_later: whether requests are still counted as without a cache.
    """

    caches_prefixes = True

    def __init__(self, num_blocks: int, groups: Sequence[KVGroup], *, longest: int, in_flight: int) -> None:
        super().__init__(num_blocks, groups, shares=False)
        self.releases = self.is_hybrid = self.tells_later = True
        self.is_plain = False
        self._full = CountedHybridPrefixKV(num_blocks, self.groups, longest=longest, in_flight=in_flight)
        self._memory: KVCache = CountedHybridKV(num_blocks, self.groups, longest=longest, in_flight=in_flight)
        self._turnover = Turnover(num_blocks, self.groups, Setting(longest, in_flight, self.block_size))
        self.window_spans = self._full.window_spans

    # Questions

    @property
    def cached_blocks(self) -> int:
        """As `KVCache.cached_blocks`."""
        if self.tells_later:
            self._turnover.settle(self.steps)
            return self._turnover.cached
        return self._memory.cached_blocks

    @property
    def findable_blocks(self) -> int:
        """As `CountedHybridPrefixKV.findable_blocks`."""
        return self._handed_over().findable_blocks

    def held_blocks(self, holder: Holder) -> int:
        return self._memory.held_blocks(holder)

    def held_by_group(self, holder: Holder) -> list[tuple[int, int]]:
        return self._memory.held_by_group(holder)

    def held_by_groups(self) -> Sequence[int] | None:
        return self._handed_over().held_by_groups()

    def sharers(self) -> Iterable[Holder]:
        """As `CountedHybridPrefixKV.sharers`."""
        return self._handed_over().sharers()

    def shared_up_to(
        self, holder: Holder, span: int, place: int
    ) -> list[tuple[int, Hashable, int, int, int]]:
        """As `HybridKV.shared_up_to`."""
        return self._handed_over().shared_up_to(holder, span, place)

    def blocks_for(self, tokens: int) -> int:
        return self._memory.blocks_for(tokens)

    def blocks_needed(self, steps: int = 1) -> int:
        return self._memory.blocks_needed(steps)

    def blocks_needed_by(self, holder: Holder) -> int:
        return self._memory.blocks_needed_by(holder)

    def blocks_to_extend(self, holder: Holder, tokens: int) -> int:
        return self._memory.blocks_to_extend(holder, tokens)

    def blocks_to_complete(self, holder: Holder, length: int, computed: int) -> int:
        return self._memory.blocks_to_complete(holder, length, computed)

    def blocks_needed_with(self, chunks: Sequence[tuple[Holder, int]]) -> int:
        return self._memory.blocks_needed_with(chunks)

    def steps_that_fit(self, steps: int, spare: int) -> int:
        return self._memory.steps_that_fit(steps, spare)

    def steps_blocked(self, steps: int, needed: int) -> int:
        return self._memory.steps_blocked(steps, needed)

    def least_to_admit_whole(self, holder: Holder, length: int) -> int:
        return self._memory.least_to_admit_whole(holder, length)

    def match_prefix(self, holder: Holder, tokens: int) -> int:
        content = holder.content
        if self.tells_later and (content is None or content.unseen):
            return 0
        return self._handed_over().match_prefix(holder, tokens)

    def blocks_to_admit(self, holder: Holder, tokens: int) -> int:
        return self._memory.blocks_to_admit(holder, tokens)

    def can_admit_whole(self, holder: Holder, tokens: int, length: int, spare: int = 0) -> bool:
        return self._memory.can_admit_whole(holder, tokens, length, spare)

    def could_admit(self, holder: Holder, tokens: int, spare: int = 0) -> bool:
        return self._memory.could_admit(holder, tokens, spare)

    # Changes

    def admit(self, holder: Holder, tokens: int) -> None:
        memory, turnover = self._memory, self._turnover
        memory.lag = turnover.lag = self.lag
        memory.admit(holder, tokens)
        if self.tells_later:
            turnover.begin(holder, self.steps)
        self.free_blocks = memory.free_blocks
        self.shared_blocks = memory.shared_blocks

    def extend(self, holder: Holder, tokens: int) -> None:
        self.trim(holder)  # which is kept where there are too few blocks
        before, size = holder.tokens, self.block_size
        self._memory.extend(holder, tokens)
        if self.tells_later:
            blocks = -(-holder.tokens // size) - -(-before // size)
            self._turnover.take(holder, self.steps, blocks)
        self._count()

    def append(self, holder: Holder) -> int:
        self.extend(holder, 1)
        return 0

    def start_decoding(self, holder: Holder) -> None:
        self._memory.start_decoding(holder)
        if self.tells_later and not self._turnover.start(holder, self.steps):
            self._handed_over()

    def stop_decoding(self, holder: Holder) -> None:
        if self.tells_later:
            self._turnover.stop(holder, self.steps)
        self._memory.stop_decoding(holder)

    def trim(self, holder: Holder) -> None:
        if self.tells_later:
            if holder.decodes:
                self._handed_over()
            else:
                self._turnover.trim(holder, self.steps)
        self._memory.trim(holder)
        self._count()

    def cache_full_blocks(self, holder: Holder) -> None:
        if self.tells_later:
            self._turnover.register(holder, self.length(holder))
        else:
            self._memory.cache_full_blocks(holder)

    def take(self, holder: Holder) -> None:
        self._handed_over().take(holder)
        self._count()

    def close_step(self) -> None:
        memory = self._handed_over()
        memory.close_step()
        self.steps = memory.steps
        self._count()

    def grow(self, steps: int = 1) -> int:
        memory = self._memory
        memory.grow(steps)
        self.steps = memory.steps
        self.free_blocks = memory.free_blocks
        self.shared_blocks = memory.shared_blocks
        return 0

    def grow_leaving(self, spare: int) -> int:
        memory = self._memory
        if memory.grow_leaving(spare) < 0:
            return -1
        self.steps = memory.steps
        self._count()
        return 0

    def release(self, holder: Holder) -> None:
        if self.tells_later and self._turnover.release(holder, self.steps, self.length(holder)):
            holder.content.unseen = False
        memory = self._memory
        memory.release(holder)
        self.free_blocks = memory.free_blocks
        self.shared_blocks = memory.shared_blocks

    def end_samples(self, holder: Holder, samples: Sequence[int]) -> None:
        self._memory.end_samples(holder, samples)

    # What is told later

    def note_row(self) -> bool:
        if not self.tells_later:
            return False
        turnover = self._turnover
        turnover.marks.fromlist([self.steps, len(turnover.log)])
        return True

    def take_rows(self) -> npt.NDArray[np.int64]:
        if self.tells_later:
            self._turnover.settle(self.steps)
        return self._turnover.take_rows()

    def take_changes(self) -> npt.NDArray[np.int64]:
        if self.tells_later:
            self._turnover.settle(self.steps)
            return self._turnover.take_changes()
        before, changes = self._turnover.take_changes(), self._full.take_changes()
        if not len(before):
            return changes
        told = np.full((len(before), changes.shape[1]), -1)  # lengths tell the rest
        told[:, :2] = before
        return np.concatenate([told, changes])

    # Inside

    def _handed_over(self) -> CountedHybridPrefixKV:
        """Return the memory in which contents are found, from now on this one."""
        if self.tells_later:
            hand_over(self._turnover, self._memory, self._full)
            self.tells_later = False
            self._memory = self._full
            self._count()
        return self._full

    def _count(self) -> None:
        memory = self._memory
        self.free_blocks = memory.free_blocks
        self.shared_blocks = memory.shared_blocks
