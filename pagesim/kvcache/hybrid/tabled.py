"""Hybrid memory with block tables: every KV group of a model has its own, all take from one pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

from pagesim.kvcache.base import StateChunks
from pagesim.kvcache.extents import Extent, join_extents
from pagesim.kvcache.groups import ChunkedLocal, KVGroup, SlidingWindow, State
from pagesim.kvcache.holder import Holder
from pagesim.kvcache.hybrid.blocks import NULL, Blocks
from pagesim.kvcache.hybrid.families import (
    ChunkFamily,
    FullFamily,
    Setting,
    Table,
    WindowFamily,
)
from pagesim.kvcache.hybrid.in_turn import InTurnManager
from pagesim.kvcache.hybrid.lookup import Found, LookUp
from pagesim.kvcache.hybrid.state import StateFamily
from pagesim.setup.compiled import mypyc_attr

Served = tuple[FullFamily, Table]
"""A family, and the block tables of a sequence in its groups."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Tables:
    """What `HybridManager` keeps with a holder: a table for each family of groups, and its content."""

    __slots__ = ("content", "of")

    def __init__(self, of: list[Served], content: Any) -> None:
        self.of = of
        self.content = content


@mypyc_attr(allow_interpreted_subclasses=True)
class HybridManager(InTurnManager):
    """A block manager of several KV groups and of single samples, with a prefix cache if asked for.

    Requests are served in their turn (see `InTurnManager`). A prompt takes over the longest prefix that all
    groups have.

    Source: vLLM 0.33.0, ``KVCacheManager.allocate_slots`` and what it calls.

    Args:
        num_blocks: on the device.
        groups: see `BlockManager`.
        longest: tokens of the longest sequence.
        in_flight: tokens that can be scheduled and not be computed yet.
        caches: whether prefixes are cached.
        retention: see `Setting`.

    Attributes:
        window_spans: from which group to which, the last not included, those with windows or chunks share
            alike; here each by itself.
        holders: the requests that hold blocks.
    """

    names_blocks = True

    def __init__(
        self,
        num_blocks: int,
        groups: Sequence[KVGroup],
        *,
        longest: int,
        in_flight: int,
        caches: bool = False,
        retention: int = 0,
    ) -> None:
        # Whether blocks must be registered as they are filled, since they may be given back before the end.
        self._registers_early = caches and (
            retention != 0 or any(isinstance(group.rule, ChunkedLocal) for group in groups)
        )
        # Whether they must be as soon as they are filled: where block sizes differ, the last full blocks of a
        # prompt, of which another request may have the same, can be found only with some of the answer.
        self._registers_at_once = caches and len({group.block_size for group in groups}) > 1
        self._registers = self._registers_early or self._registers_at_once
        super().__init__(num_blocks, groups, registers=self._registers)
        self._caches = caches
        self._blocks = Blocks(num_blocks)
        setting = Setting(longest, in_flight, self._turns.alignment, retention)
        self._families = make_families(self.groups, self._blocks, setting)
        self._places = [
            (number, at) for number, family in enumerate(self._families) for at in range(family.width)
        ]
        self._states = [family for family in self._families if isinstance(family, StateFamily)]
        if self._states:
            state = self._states[0].group.rule
            assert isinstance(state, State)
            block_size = min([family.size for family in self._families])
            self.state_chunks = StateChunks(block_size, state.checkpoint)
        self._look_up = LookUp(self._families)
        self._match: tuple[Holder | None, int, int, Found | None] = (None, 0, 0, None)
        self.holders: dict[Holder, None] = {}
        self.window_spans = [
            (number, number + 1)
            for number, group in enumerate(self.groups)
            if isinstance(group.rule, SlidingWindow | ChunkedLocal)
        ]

    # Questions

    @property
    def caches_prefixes(self) -> bool:  # type: ignore[override]
        """As `BlockManager.caches_prefixes`, of this memory."""
        return self._caches

    @property
    def findable_blocks(self) -> int:
        """Contents of a group that can be found, those of blocks in use included."""
        return len(self._blocks.found)

    def found_names(self, group: int = 0) -> Iterator[int]:
        """Return the names of a group's blocks that can be found (`Content.key_at`), held ones included."""
        of = len(self.groups)
        return (key // of for key in self._blocks.found if key % of == group)

    @property
    def cached_blocks(self) -> int:
        return len(self._blocks.cached)

    def held_by_groups(self) -> Sequence[int]:
        return [family.rows - shared for family in self._families for shared in family.shared]

    def exclusive_blocks(self, holders: Sequence[Holder]) -> int:
        return sum(self.exclusive_in_groups(holders))

    def exclusive_in_groups(self, holders: Sequence[Holder]) -> list[int]:
        """Return of each group the distinct blocks that only these holders have."""
        references = self._blocks.references
        exclusive: list[int] = []
        for group in range(len(self.groups)):
            own = Counter([block for holder in holders for block in self.block_table(holder, group=group)])
            del own[NULL]
            exclusive.append(sum([references[block] == count for block, count in own.items()]))
        return exclusive

    def held_blocks(self, holder: Holder) -> int:
        families: list[Served] = holder.kv.of
        return sum([table.held * family.width for family, table in families])

    def held_by_group(self, holder: Holder) -> list[tuple[int, int]]:
        length, found = self.length(holder), []
        for family, table in holder.kv.of:
            held = table.held
            found += [(length - (table.places - held) * family.size, held)] * family.width
        return found

    def blocks_for(self, tokens: int) -> int:
        return sum([family.most(tokens) * family.width for family in self._families])

    def blocks_needed(self, steps: int = 1) -> int:
        return self._turns.blocks_needed(self.steps, steps)

    def blocks_needed_by(self, holder: Holder) -> int:
        length = self.length(holder) + holder.growth
        return sum(
            [
                max(0, -(-length // family.size) - table.places) * family.width
                for family, table in holder.kv.of
            ]
        )

    def blocks_to_extend(self, holder: Holder, tokens: int) -> int:
        length = holder.tokens + tokens
        families: list[Served] = holder.kv.of
        return sum([family.needed(holder, table, length) for family, table in families])

    def blocks_to_complete(self, holder: Holder, length: int, computed: int) -> int:
        families: list[Served] = holder.kv.of
        return sum([family.needed_to_complete(holder, table, computed, length) for family, table in families])

    def match_prefix(self, holder: Holder, tokens: int) -> int:
        content = getattr(holder, "content", None)
        if not self.caches_prefixes or content is None:
            return 0
        last, most, version, found = self._match
        if found is None or last is not holder or most != tokens or version != self._blocks.version:
            found = self._look_up.look_up(content, tokens - 1)
            self._match = holder, tokens, self._blocks.version, found
        holder.junction = found.junction
        return found.tokens

    def blocks_to_admit(self, holder: Holder, tokens: int) -> int:
        found, hits = self._hit_of(holder, tokens)
        families = zip(self._families, hits, strict=True)
        return sum([family.needed_first(holder, found, hit, tokens) for family, hit in families])

    def can_admit_whole(self, holder: Holder, tokens: int, length: int, spare: int = 0) -> bool:
        found, hits = self._hit_of(holder, tokens)
        families = zip(self._families, hits, strict=True)
        needed = sum([family.needed_whole(holder, found, hit, length) for family, hit in families])
        return needed + spare <= self.free_blocks and self.can_admit(holder, tokens, spare)

    def could_admit(self, holder: Holder, tokens: int, spare: int = 0) -> bool:
        blocks = [family.needed_first(holder, 0, (), tokens) for family in self._families]
        return sum(blocks) + spare <= self.num_blocks

    # Changes

    def new_plan(self) -> None:
        for family in self._states:
            family.new_keys.clear()

    def admit(self, holder: Holder, tokens: int) -> None:
        self._check_single(holder)
        self._check_room(self.blocks_to_admit(holder, tokens))
        found, hits = self._hit_of(holder, tokens)
        tables = [(family, family.new_table()) for family in self._families]
        holder.kv = Tables(tables, getattr(holder, "content", None) if self.caches_prefixes else None)
        if found:
            for (family, table), hit in zip(tables, hits, strict=True):
                family.add_hit(table, found, hit)
        holder.tokens = found
        self._take_for(holder, tokens)
        self.holders[holder] = None

    def cache_full_blocks(self, holder: Holder) -> None:
        self._register(holder, self.length(holder) - holder.unknown)

    def release(self, holder: Holder) -> None:
        self._register(holder, self.length(holder) - holder.unknown)
        self._rest(holder)
        for family, table in holder.kv.of:
            family.drop(table)
        for state in self._states:
            if state.left:
                state.left = [each for each in state.left if each[0] is not holder]
        del self.holders[holder]
        self._count()

    def take_states(self) -> list[tuple[Holder, int, int, int]]:
        """Hand over the states that can be found since the last call, the first of which begins to note them.

        Returns:
            Of each whose it is, its group, its block, and the tokens after which it was left; without those
            of holders that were released.
        """
        left: list[tuple[Holder, int, int, int]] = []
        for family in self._states:
            left += sorted(family.left or (), key=lambda state: state[1])
            family.left = []
        return left

    # Tables

    def block_table(self, holder: Holder, sample: int = 0, group: int = 0) -> list[int]:
        """Return a holder's blocks in a group, by position; `NULL` where it has none."""
        number, at = self._places[group]
        family, table = holder.kv.of[number]
        blocks: list[int] = table.blocks[at :: family.width]
        return blocks

    def sharers(self) -> Iterable[Holder]:
        """Return the holders of which a block of a window or a chunk may have several names."""
        return self.holders

    def shared_up_to(
        self, holder: Holder, span: int, place: int
    ) -> list[tuple[int, Hashable, int, int, int]]:
        """Return which of a holder's blocks in a span of windows have other names, too, up to a place.

        Args:
            holder: one of `sharers`.
            span: see `window_spans`.
            place: the last one that is looked at.

        Returns:
            Of each its place in the table, what tells it from others, how many tables name it, and from which
            group to which it is such a block in each of them, the last not included.
        """
        group, end = self.window_spans[span]
        table, references = self.block_table(holder, group=group), self._blocks.references
        found: list[tuple[int, Hashable, int, int, int]] = []
        for at in range(min(place, len(table) - 1), -1, -1):
            block = table[at]
            if block == NULL:
                break
            if references[block] > 1:
                found.append((at, block, references[block], group, end))
        return found

    def blocks_of(self, holder: Holder, sample: int = 0) -> list[int]:
        """Return all blocks of a holder, in the order of its groups."""
        groups = range(len(self.groups))
        tables = [self.block_table(holder, group=group) for group in groups]
        return [block for table in tables for block in table if block != NULL]

    def extents(self, holder: Holder, sample: int = 0) -> list[Extent]:
        """Return where a holder's blocks are; neighbouring blocks are joined."""
        return join_extents(self.blocks_of(holder))

    def free_blocks_in_order(self) -> list[int]:
        """Return the free blocks in the order in which they are going to be taken."""
        return self._blocks.in_order()

    def free_extents(self) -> list[Extent]:
        """Return the maximal runs of free blocks, by address."""
        return join_extents(sorted(self.free_blocks_in_order()))

    def cached_extents(self) -> list[Extent]:
        """Return the maximal runs of free blocks whose content can still be found, by address."""
        return join_extents(sorted(self._blocks.cached))

    def cached_in(self, group: int) -> list[int]:
        """Return the free blocks in which content of a group can still be found, by address."""
        keys, groups = self._blocks.keys, len(self.groups)
        return sorted([block for block in self._blocks.cached if (keys[block] or 0) % groups == group])

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is free or held, and no bookkeeping disagrees."""
        groups = range(len(self.groups))
        tables = [[self.block_table(holder, group=group) for holder in self.holders] for group in groups]
        self._blocks.check_integrity([table for of_group in tables for table in of_group])
        held = [len({block for table in of_group for block in table} - {NULL}) for of_group in tables]
        assert self.held_by_groups() == held, "a group's blocks are miscounted"
        assert self.free_blocks == self._blocks.free, "free blocks are miscounted"

    # Inside

    def _hit_of(self, holder: Holder, tokens: int) -> tuple[int, Sequence[Sequence[int]]]:
        """Return what is there of a holder that is admitted with so many tokens, or is going to be.

        Returns:
            The tokens, those that are loaded included, and of each family the blocks that were found.
        """
        found = self._match[3] if self._match[0] is holder else None
        if found is None or not found.tokens:
            return tokens if holder.unknown else 0, [()] * len(self._families)
        return tokens if holder.unknown else found.tokens, found.blocks

    def _take_for(self, holder: Holder, length: int) -> None:
        """Take blocks for a resting holder of that length, which there are, and register those it fills."""
        for family, table in holder.kv.of:
            family.grow(holder, table, length)
        holder.tokens = length
        self._register(holder, length - holder.unknown)
        self._count()

    def _steps_with(self, room: int, steps: int) -> int:
        return self._turns.steps_that_fit(self.steps, steps, room)

    def _serve(self, holder: Holder, before: int) -> None:
        if self._registers:
            super()._serve(holder, before)
            return
        growth = holder.growth
        processed, length = before - holder.in_flight, before + growth
        holder.in_flight = self.lag * growth
        served: list[Served] = holder.kv.of
        for family, table in served:
            if processed >= table.releases_at:
                family.release(table, processed)
        for family, table in served:
            if length > table.tokens:
                family.grow(holder, table, length)

    def _reach(self, holder: Holder, length: int) -> None:
        for family, table in holder.kv.of:
            if length > table.tokens:
                family.grow(holder, table, length)
        if self._registers_at_once:
            self._register(holder, length - holder.unknown)

    def _release_skipped(self, holder: Holder, processed: int) -> None:
        if self._registers_early:
            self._register(holder, processed)
        for family, table in holder.kv.of:
            if processed >= table.releases_at:
                family.release(table, processed)

    def _register(self, holder: Holder, tokens: int) -> None:
        """Decide which blocks can be found, as far as a holder's tokens are known."""
        content = holder.kv.content
        if content is None:
            return
        if len(self.groups) > 1:
            tokens = tokens // self._turns.alignment * self._turns.alignment
        for family, table in holder.kv.of:
            family.register(holder, content, table, tokens)

    def _count(self) -> None:
        blocks = self._blocks
        self.free_blocks = blocks.free
        self.shared_blocks = blocks.extra_references


def make_families(groups: Sequence[KVGroup], blocks: Blocks, setting: Setting) -> list[FullFamily]:
    """Return the families of some groups: neighbours of one rule and block size."""
    families = []
    start = 0
    for end in range(1, len(groups) + 1):
        first = groups[start]
        if end < len(groups) and (groups[end].rule, groups[end].block_size) == (first.rule, first.block_size):
            continue
        kind: type[FullFamily] = FullFamily
        if isinstance(first.rule, SlidingWindow):
            kind = WindowFamily
        elif isinstance(first.rule, ChunkedLocal):
            kind = ChunkFamily
        elif isinstance(first.rule, State) and first.rule.aligned:
            kind = StateFamily
        families.append(kind(range(start, end), len(groups), first, blocks, setting))
        start = end
    return families
