"""Counted hybrid memory with a prefix cache: full attention and windows, by the run and not by the block."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from pagesim.kvcache.groups import Full, KVGroup, SlidingWindow
from pagesim.kvcache.holder import Holder
from pagesim.kvcache.hybrid.blocks import Blocks
from pagesim.kvcache.hybrid.changes import Changes
from pagesim.kvcache.hybrid.decoders import Decoders, Kept
from pagesim.kvcache.hybrid.free import FreeBlocks
from pagesim.kvcache.hybrid.kinds import Setting, WindowGroup, make_group
from pagesim.kvcache.hybrid.match import Match, Store
from pagesim.kvcache.hybrid.stores import FullStore, WindowStore
from pagesim.kvcache.single import SingleSampleKV
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class CountedHybridPrefixKV(SingleSampleKV):
    """See `KVCache`: what `HybridKV` with a cache of prefixes decides, where it can be counted.

    What can be found of full attention is kept in runs, and of windows in pieces. All other blocks are
    counted. So is what decoding holders take; and what they give back, from the step on at which their
    windows have passed what can be found of their prompts.

    Args:
        num_blocks: on the device.
        groups: see `KVCache`; those that `counts_prefixes` takes.
        longest: tokens of the longest sequence.
        in_flight: tokens that can be scheduled and not be computed yet.

    Attributes:
        window_spans: see `HybridKV`; here neighbouring groups of one window.
        stores: what is kept of groups that are alike.
        pool: the free blocks.
    """

    caches_prefixes = True

    def __init__(self, num_blocks: int, groups: Sequence[KVGroup], *, longest: int, in_flight: int) -> None:
        super().__init__(num_blocks, groups)
        if not counts_prefixes(self.groups):
            raise ValueError("blocks of these groups are kept in tables; use HybridKV")
        self.pool = FreeBlocks(num_blocks)
        self._held = [0] * len(groups)
        size = self.block_size
        setting = Setting(longest, in_flight, size)
        self.stores: list[Store] = []
        for _, alike in groupby(enumerate(self.groups), key=lambda numbered: numbered[1].rule):
            numbered = list(alike)
            kinds = [make_group(number, len(groups), group, Blocks(0), setting) for number, group in numbered]
            if isinstance(kinds[0], WindowGroup):
                self.stores.append(WindowStore(kinds[0], len(kinds), self.pool, self._held))
            else:
                self.stores += [FullStore(kind, self.pool, self._held) for kind in kinds]
        self._windows = [
            (number, store) for number, store in enumerate(self.stores) if isinstance(store, WindowStore)
        ]
        self._by_group = [(store, group) for store in self.stores for group in range(store.groups)]
        self.window_spans = [
            (first, first + store.groups)
            for first, (store, number) in enumerate(self._by_group)
            if isinstance(store, WindowStore) and not number
        ]
        self._nothing = self._match = Match(None, 0, len(self.stores))
        self._changes = Changes(size, len(self.groups), [store for _, store in self._windows])
        self._decoders = Decoders(self, self._windows, self.pool, self._held)

    # Questions

    @property
    def findable_blocks(self) -> int:
        """Contents of a group that can be found, those of blocks in use included; counted here."""
        return sum([store.index.findable for store in self.stores])

    def held_by_groups(self) -> tuple[int, ...]:
        """Return the distinct blocks that all holders together have in each group."""
        return tuple(self._held)

    def held_blocks(self, holder: Holder) -> int:
        return sum([blocks for _, blocks in self.held_by_group(holder)])

    def held_by_group(self, holder: Holder) -> list[tuple[int, int]]:
        length, size = self.length(holder), self.block_size
        blocks = -(-length // size)
        held, window = [], 0
        for store, table in zip(self.stores, holder.kv.tables, strict=True):
            gone = 0
            if isinstance(store, WindowStore):
                gone = table.gone if not holder.decodes else self._decoders.gone(holder, window)
                window += 1
            held += [(length - gone * size, blocks - gone)] * store.groups
        return held

    def sharers(self) -> Iterable[Holder]:
        """Return the holders of which a block of a window has several names."""
        tables = [
            table for _, store in self._windows for piece in store.index.shared for table in piece.tables
        ]
        return dict.fromkeys([table.owner for table in tables])

    def shared_up_to(
        self, holder: Holder, span: int, place: int
    ) -> list[tuple[int, Hashable, int, int, int]]:
        """As `HybridKV.shared_up_to`."""
        first, _ = self.window_spans[span]
        found: list[tuple[int, Hashable, int, int, int]] = []
        for piece in holder.kv.tables[self._windows[span][0]].pieces:
            if piece.start > place:
                break  # they are in order
            names = len(piece.tables)
            if names > 1:
                groups = first + piece.first, first + piece.last
                for at in range(piece.start, min(piece.start + piece.count, place + 1)):
                    found.append((at, (piece, at), names, *groups))
        return found

    def blocks_for(self, tokens: int) -> int:
        return sum([store.kind.most(tokens) * store.groups for store in self.stores])

    def blocks_needed(self, steps: int = 1) -> int:
        return self._decoders.blocks_needed(steps)

    def blocks_needed_by(self, holder: Holder) -> int:
        return 0 if self.length(holder) % self.block_size else len(self.groups)

    def blocks_to_extend(self, holder: Holder, tokens: int) -> int:
        size = self.block_size
        return (-(-(holder.tokens + tokens) // size) - -(-holder.tokens // size)) * len(self.groups)

    def blocks_needed_with(self, chunks: Sequence[tuple[Holder, int]]) -> int:
        left = least = self.free_blocks - self.blocks_needed(1)
        for holder, tokens in chunks:
            for place, store in self._windows:
                left += store.freed(holder.kv.tables[place], store.released(holder.tokens - holder.in_flight))
            left -= self.blocks_to_extend(holder, tokens)
            least = min(least, left)
        return self.free_blocks - least

    def steps_that_fit(self, steps: int, spare: int) -> int:
        return self._decoders.steps_that_fit(steps, self.free_blocks - spare)

    def steps_blocked(self, steps: int, needed: int) -> int:
        return self._decoders.steps_missing(steps, needed - self.free_blocks)

    def least_to_admit_whole(self, holder: Holder, length: int) -> int:
        match, content, blocks = self._match, holder.content, 0
        if content is None or content.unseen:
            match = self._nothing
        elif match.holder is not holder:
            return 0
        # If less is found later, at least as much of full attention is to be taken, and of windows, but for
        # what of these is found and free.
        for store, hits in zip(self.stores, match.hits, strict=True):
            blocks += max(0, store.kind.most(length) - match.blocks) * store.groups
            if isinstance(store, FullStore):
                blocks += store.free(hits)
        return blocks

    def match_prefix(self, holder: Holder, tokens: int) -> int:
        content = holder.content
        if content is None or content.unseen:
            holder.junction = 0
            return 0
        match, most = self._match, (tokens - 1) // self.block_size
        if match.holder is not holder or match.most != most or not match.holds(self.pool.version):
            match = self._look_up(holder, most)
        holder.junction = match.junction * self.block_size
        return match.blocks * self.block_size

    def blocks_to_admit(self, holder: Holder, tokens: int) -> int:
        match = self._match_of(holder)
        others = -(-tokens // self.block_size) - match.blocks
        return max(0, others) * len(self.groups) + match.free(self.stores)

    def can_admit_whole(self, holder: Holder, tokens: int, length: int, spare: int = 0) -> bool:
        groups = len(self.groups)
        if -(-length // self.block_size) * groups + spare <= self.free_blocks:
            return True  # there is room for all, even if nothing is found and nothing given back
        match = self._match_of(holder)
        others = -(-tokens // self.block_size) - match.blocks
        first, whole = max(0, others) * groups, 0
        for store in self.stores:
            whole += max(0, store.kind.most(length) - match.blocks) * store.groups
        left = self.free_blocks - spare - max(first, whole)
        return left >= 0 and match.free(self.stores) <= left

    def could_admit(self, holder: Holder, tokens: int, spare: int = 0) -> bool:
        return -(-tokens // self.block_size) * len(self.groups) + spare <= self.num_blocks

    # Changes

    def admit(self, holder: Holder, tokens: int) -> None:
        self._check_single(holder)
        self._check_room(self.blocks_to_admit(holder, tokens))
        match, content = self._match_of(holder), holder.content
        tables: list[Any] = [store.new_table(holder, content) for store in self.stores]
        holder.kv = Kept(tables, content, len(self._windows))
        found = match.blocks
        if found:
            self._unsettle_owners(match, content)
            for store, table, hits in zip(self.stores, tables, match.hits, strict=True):
                store.adopt(table, hits, found)
        holder.tokens = found * self.block_size
        self._take_for(holder, tokens)

    def trim(self, holder: Holder) -> None:
        if self._gives_back(holder):
            self._release_skipped(holder, self.length(holder))
            self._count()

    def cache_full_blocks(self, holder: Holder) -> None:
        self._register(holder, self.length(holder) - holder.unknown)

    def take(self, holder: Holder) -> None:
        before = self.length(holder)
        self.trim(holder)
        holder.in_flight = self.lag
        if before % self.block_size == 0:
            self.pool.take(len(self.groups))
            for group in range(len(self.groups)):
                self._held[group] += 1
            self._count()

    def close_step(self) -> None:
        self.steps += 1
        self.pool.let_pass(self.steps)
        self._decoders.pass_one()

    def grow(self, steps: int = 1) -> int:
        if (steps // self.block_size + 1) * self._decoders.taking > self.free_blocks:
            self._check_steps(steps)  # a block size of steps at most takes so much: nearly always there is
        evicted = self._decoders.grow(steps, self._changes)
        self.pool.let_pass(self.steps)
        if evicted:
            self.pool.evict(evicted)
        self._count()
        return 0

    def release(self, holder: Holder) -> None:
        length = self.length(holder)
        self._register(holder, length - holder.unknown)
        self._rest(holder)
        end = -(-length // self.block_size)
        for store, table in zip(self.stores, holder.kv.tables, strict=True):
            store.drop(table, end)
        self._count()

    def take_changes(self) -> npt.NDArray[np.int64]:
        return self._changes.take()

    # Where another memory hands over

    def count_held(self, groups: Iterable[int], blocks: int) -> None:
        """Count so many blocks more in each of some groups."""
        for group in groups:
            self._held[group] += blocks

    def begin_with(self, cached: int, free: int) -> None:
        """Have so many free blocks, of which so many can be found, which are in the pool."""
        self.pool.cached, self.pool.blank = cached, free - cached
        self._count()

    def go_on_decoding(self, holder: Holder) -> None:
        """Let a holder decode that did so before."""
        self._enter(holder)

    # Look-up

    def _look_up(self, holder: Holder, most: int) -> Match:
        self._match = match = Match(holder, most, len(self.stores))
        match.look_up(self.stores, holder.content, self.pool.version)
        return match

    def _match_of(self, holder: Holder) -> Match:
        """Return what `match_prefix` found last for a holder, as far as it is still there."""
        match = self._match
        if match.holder is not holder:
            return self._nothing
        if not match.holds(self.pool.version):
            match = self._look_up(holder, match.blocks)
        return match

    def _unsettle_owners(self, match: Match, content: Any) -> None:
        """Let no piece pass, now or later, that a sequence has alone now and then shares."""
        found = [part[0] for number, _ in self._windows for part in match.hits[number]]
        owners = [table.owner for piece in found for table in piece.tables if table.owner.kv.settled]
        for owner in dict.fromkeys(owners):
            self._decoders.unsettle(owner)
        if owners:
            for number, store in self._windows:
                match.hits[number] = store.index.hit(content, match.blocks)

    # Decoding holders

    def _enter(self, holder: Holder) -> None:
        assert holder.growth == 1, "what several tokens a step take is kept in tables"
        self._decoders.enter(holder)

    def _leave(self, holder: Holder) -> None:
        self._decoders.leave(holder)

    # Resting holders

    def _take_for(self, holder: Holder, length: int) -> None:
        size = self.block_size
        blocks = -(-length // size) - -(-holder.tokens // size)
        self.pool.take(blocks * len(self.groups))
        for group in range(len(self.groups)):
            self._held[group] += blocks
        holder.tokens = length
        self._register(holder, length - holder.unknown)
        self._count()

    def _register(self, holder: Holder, tokens: int) -> None:
        """Decide which blocks can be found, as far as a holder's tokens are known."""
        kept: Kept = holder.kv
        content = kept.content
        if content is not None:
            full = tokens // self.block_size
            if full <= kept.registered:
                return
            kept.registered = full
            for store, table in zip(self.stores, kept.tables, strict=True):
                store.register(table, content, full)

    def _count(self) -> None:
        free = self.pool
        self._cached = free.cached
        self.free_blocks = free.blank + free.cached
        self.shared_blocks = free.shared

    def _gives_back(self, holder: Holder) -> bool:
        """Say whether a holder may give back something at the beginning of its next step."""
        kept: Kept = holder.kv
        return not kept.settled or (self.steps + 1) % self.block_size in kept.turns

    def _release_skipped(self, holder: Holder, before: int) -> None:
        """Let a holder of so many tokens give back what its next step does."""
        decoders, kept = self._decoders, holder.kv
        for number, (place, store) in enumerate(self._windows):
            end = store.released(before - holder.in_flight)
            if end > decoders.gone(holder, number):
                if kept.settled:
                    decoders.unsettle(holder)
                self.pool.blank += store.give_back(kept.tables[place], end)


def counts_prefixes(groups: Sequence[KVGroup], retention: int = 0) -> bool:
    """Say whether `CountedHybridPrefixKV` takes groups: full attention and windows, in blocks of one size.

    Args:
        groups: see `KVCache`.
        retention: see `Setting`; where more stays findable than a prompt's end needs, it is kept in tables.
    """
    windows = [group.rule for group in groups if isinstance(group.rule, SlidingWindow)]
    runs = [rule for rule, _ in groupby([group.rule for group in groups if group.rule != Full()])]
    return (
        retention == 0
        and all(isinstance(group.rule, Full | SlidingWindow) for group in groups)
        and len({group.block_size for group in groups}) == 1
        and (len(windows) < len(groups) or len(runs) == len(set(runs)))
    )
