"""Hybrid memory with block tables: every KV group has its own tables, and all share one pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import gcd
from typing import Any

from pagesim.allocators.extents import Extent, join_extents
from pagesim.kvcache.base import StateChunks
from pagesim.kvcache.groups import ChunkedLocal, KVGroup, SlidingWindow, State
from pagesim.kvcache.hybrid.blocks import NULL, Blocks
from pagesim.kvcache.hybrid.families import FamilyTable, FullFamily, Setting
from pagesim.kvcache.hybrid.in_turn import InTurnManager
from pagesim.kvcache.hybrid.lookup import Found, LookUp
from pagesim.kvcache.hybrid.state import StateFamily
from pagesim.kvcache.hybrid.windows import ChunkFamily, WindowFamily
from pagesim.kvcache.sequence_group import SequenceGroup
from pagesim.setup.compiled import mypyc_attr

Served = tuple[FullFamily, FamilyTable]
"""A family, and a sequence's block tables in its groups."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Tables:
    """What `HybridManager` keeps with a request: a table for each family, and its content."""

    __slots__ = ("content", "of")

    def __init__(self, of: list[Served], content: Any) -> None:
        self.of = of
        self.content = content


@mypyc_attr(allow_interpreted_subclasses=True)
class HybridManager(InTurnManager):
    """A block manager for several KV groups and single samples, with an optional prefix cache.

    In a step each request in turn frees the blocks that its groups no longer need, then allocates new ones. A
    prompt reuses the longest prefix that is cached in all groups.

    Source: vLLM 0.33.0, ``KVCacheManager.allocate_slots`` and what it calls.

    Args:
        num_blocks: blocks on the device.
        groups: the KV groups of the model.
        longest: tokens of the longest sequence.
        in_flight: tokens that can be scheduled but not yet computed.
        caches: whether prefixes are cached.
        retention: interval in tokens at which windows and states stay cached, besides those that the end of a
            prompt needs: 0 for none, or `DENSE`.
        hash_block: tokens per hash; by default, the greatest common divisor of the groups' block sizes.
        hash_lookahead: tokens after a block that its hash also covers.
        prefill_lookahead: tokens after a chunk of a prompt that a drafter reads in the chunk's step.

    Attributes:
        window_groups: indices of the groups with windows or chunks.
        requests: requests that hold blocks.
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
        hash_block: int | None = None,
        hash_lookahead: int = 0,
        prefill_lookahead: int = 0,
    ) -> None:
        # Whether blocks must be registered before they are released, which may be before the end.
        self._registers_early = caches and (
            retention != 0 or any(isinstance(group.rule, ChunkedLocal) for group in groups)
        )
        # Whether blocks must be registered as soon as they are filled: if block sizes differ, a prompt's last
        # full blocks, which other requests may share, can only be matched with some generated tokens.
        self._registers_at_once = caches and len({group.block_size for group in groups}) > 1
        super().__init__(num_blocks, groups, registers=self._registers_early or self._registers_at_once)
        self._caches = caches
        self._blocks = Blocks(num_blocks)
        setting = Setting(
            longest,
            in_flight,
            self._turns.alignment,
            retention,
            hash_block or gcd(*(group.block_size for group in self.groups)),
            hash_lookahead,
            max(0, prefill_lookahead - 1),
            any(group.drops_block for group in self.groups),
        )
        self._families = make_families(self.groups, self._blocks, setting)
        self._places = [
            (number, at) for number, family in enumerate(self._families) for at in range(family.width)
        ]
        self._states = [family for family in self._families if isinstance(family, StateFamily)]
        if self._states:
            state = self._states[0].group.rule
            assert isinstance(state, State)
            block_size = min([family.size for family in self._families])
            self.state_chunks = StateChunks(
                block_size, state.checkpoint, setting.alignment, hash_lookahead, setting.drops_block
            )
        self._read_ahead = setting.read_ahead
        self._look_up = LookUp(self._families)
        self._match: tuple[SequenceGroup | None, int, int, Found | None] = (None, 0, 0, None)
        self.requests: dict[SequenceGroup, None] = {}
        self.window_groups = [
            number
            for number, group in enumerate(self.groups)
            if isinstance(group.rule, SlidingWindow | ChunkedLocal)
        ]

    # Questions

    @property
    def caches_prefixes(self) -> bool:  # type: ignore[override]
        """Whether full blocks can be found by their content until they are reused."""
        return self._caches

    @property
    def findable_blocks(self) -> int:
        """Number of cached contents over all groups, including those of blocks in use."""
        return len(self._blocks.found)

    def found_names(self, group: int = 0) -> Iterator[int]:
        """Return the names (`Content.key_at`) of a group's cached blocks, held ones included."""
        of = len(self.groups)
        return (key // of for key in self._blocks.found if key % of == group)

    def held_by_groups(self) -> Sequence[int]:
        return [family.rows - shared for family in self._families for shared in family.shared]

    def exclusive_blocks(self, requests: Sequence[SequenceGroup]) -> list[int]:
        references = self._blocks.references
        exclusive: list[int] = []
        for group in range(len(self.groups)):
            own = Counter([block for request in requests for block in self.block_table(request, group=group)])
            del own[NULL]
            exclusive.append(sum([references[block] == count for block, count in own.items()]))
        return exclusive

    def held_blocks(self, request: SequenceGroup) -> int:
        families: list[Served] = request.block_state.of
        return sum([table.held * family.width for family, table in families])

    def held_by_group(self, request: SequenceGroup) -> list[tuple[int, int]]:
        length, found = self.length(request), []
        for family, table in request.block_state.of:
            held = table.held
            found += [(length - (table.places - held) * family.size, held)] * family.width
        return found

    def blocks_for(self, tokens: int) -> int:
        return sum([family.most(tokens) * family.width for family in self._families])

    def blocks_to_extend(self, request: SequenceGroup, tokens: int, computed: int | None = None) -> int:
        length = self.length(request) + tokens
        families: list[Served] = request.block_state.of
        return sum([family.needed(request, table, length, computed) for family, table in families])

    def match_prefix(self, request: SequenceGroup, tokens: int) -> int:
        content = request.content
        if not self._caches or content is None:
            return 0
        last, most, version, found = self._match
        if found is None or last is not request or most != tokens or version != self._blocks.version:
            found = self._look_up.look_up(content, tokens)
            self._match = request, tokens, self._blocks.version, found
        request.junction = found.junction
        return found.tokens

    def blocks_to_admit(self, request: SequenceGroup, tokens: int) -> int:
        found, hits = self._hit_of(request, tokens)
        families = zip(self._families, hits, strict=True)
        return sum([family.needed_first(request, found, hit, tokens) for family, hit in families])

    def can_admit(self, request: SequenceGroup, tokens: int, spare: int = 0, length: int = 0) -> bool:
        room = self.free_blocks - spare
        if self.blocks_to_admit(request, tokens) > room:
            return False
        if not length:
            return True
        found, hits = self._hit_of(request, tokens)
        families = zip(self._families, hits, strict=True)
        whole = [family.needed_first(request, found, hit, length, whole=True) for family, hit in families]
        return sum(whole) <= room

    def could_admit(self, request: SequenceGroup, tokens: int, spare: int = 0) -> bool:
        blocks = [family.needed_first(request, 0, (), tokens) for family in self._families]
        return sum(blocks) + spare <= self.num_blocks

    # Changes

    def new_plan(self) -> None:
        for family in self._states:
            family.new_keys.clear()

    def admit(self, request: SequenceGroup, tokens: int) -> None:
        self._check_single(request)
        self._check_room(self.blocks_to_admit(request, tokens))
        found, hits = self._hit_of(request, tokens)
        tables = [(family, family.new_table()) for family in self._families]
        request.block_state = Tables(tables, request.content if self._caches else None)
        if found:
            for (family, table), hit in zip(tables, hits, strict=True):
                family.add_hit(table, found, hit)
        if request.external_tokens:
            for family, table in tables:
                family.allocate_external(table, tokens)
        request.tokens = found
        self._take_for(request, tokens)
        self.requests[request] = None

    def cache_full_blocks(self, request: SequenceGroup) -> None:
        self._register(request, self.length(request) - request.uncommitted_tokens)

    def release(self, request: SequenceGroup) -> None:
        self._register(request, self.length(request) - request.uncommitted_tokens)
        if request.decodes:
            self.stop_decoding(request)
        for family, table in request.block_state.of:
            family.drop(table)
        self._forget(request)

    def release_together(self, request: SequenceGroup) -> None:
        self._register(request, self.length(request) - request.uncommitted_tokens)
        blocks = self.blocks_of(request)
        blocks.reverse()
        for family, table in request.block_state.of:
            family.leave(table)
        self._blocks.give_back(blocks)
        self._forget(request)

    def _forget(self, request: SequenceGroup) -> None:
        for state in self._states:
            if state.left:
                state.left = [each for each in state.left if each[0] is not request]
        del self.requests[request]
        self._count()

    def take_states(self) -> list[tuple[SequenceGroup, int, int, int]]:
        """Return and clear the states cached since the last call; the first call starts recording them.

        Returns:
            The request, group, block and number of preceding tokens of each state, without those of released
            requests.
        """
        left: list[tuple[SequenceGroup, int, int, int]] = []
        for family in self._states:
            left += sorted(family.left or (), key=lambda state: state[1])
            family.left = []
        return left

    # Tables

    def block_table(self, request: SequenceGroup, sample: int = 0, group: int = 0) -> list[int]:
        """Return a request's blocks in a group, by position; `NULL` where it has none."""
        number, at = self._places[group]
        family, table = request.block_state.of[number]
        blocks: list[int] = table.blocks[at :: family.width]
        return blocks

    def shared_up_to(self, request: SequenceGroup, group: int, place: int) -> list[tuple[int, int, int]]:
        """Return the blocks that a request holds in a group and that are also in other tables.

        Args:
            request: a request on the device.
            group: one of ``window_groups``.
            place: last position of the table to consider.

        Returns:
            The position, number and number of tables of each block.
        """
        table, references = self.block_table(request, group=group), self._blocks.references
        found: list[tuple[int, int, int]] = []
        for at in range(min(place, len(table) - 1), -1, -1):
            block = table[at]
            if block == NULL:
                break
            if references[block] > 1:
                found.append((at, block, references[block]))
        return found

    def blocks_of(self, request: SequenceGroup, sample: int = 0) -> list[int]:
        """Return all blocks of a request, group by group."""
        groups = range(len(self.groups))
        tables = [self.block_table(request, group=group) for group in groups]
        return [block for table in tables for block in table if block != NULL]

    def free_blocks_in_order(self) -> list[int]:
        return self._blocks.in_order()

    def cached_extents(self) -> list[Extent]:
        """Return the maximal runs of free blocks whose content is still cached, by address."""
        return join_extents(sorted(self._blocks.cached))

    def cached_in(self, group: int) -> list[int]:
        """Return the free blocks in which content of a group is still cached, by address."""
        keys, groups = self._blocks.keys, len(self.groups)
        return sorted([block for block in self._blocks.cached if (keys[block] or 0) % groups == group])

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is either free or held and all bookkeeping agrees."""
        groups = range(len(self.groups))
        tables = [[self.block_table(request, group=group) for request in self.requests] for group in groups]
        self._blocks.check_integrity([table for of_group in tables for table in of_group])
        held = [len({block for table in of_group for block in table} - {NULL}) for of_group in tables]
        assert self.held_by_groups() == held, "a group's blocks are miscounted"
        assert self.free_blocks == self._blocks.free, "free blocks are miscounted"

    # Inside

    def _hit_of(self, request: SequenceGroup, tokens: int) -> tuple[int, Sequence[Sequence[int]]]:
        """Return the hit of a request that is, or may be, admitted with ``tokens`` tokens.

        Returns:
            The tokens of the hit, including those to be loaded, and the matched blocks of each family.
        """
        found = self._match[3] if self._match[0] is request else None
        if found is None or not found.tokens:
            return tokens if request.external_tokens else 0, [()] * len(self._families)
        return tokens if request.external_tokens else found.tokens, found.blocks

    def _take_for(self, request: SequenceGroup, length: int) -> None:
        """Extend a resting request to ``length`` tokens and register filled blocks; enough are free."""
        for family, table in request.block_state.of:
            family.allocate_step(request, table, length)
        request.tokens = length
        self._register(request, length - request.uncommitted_tokens)
        self._count()

    def _reach(self, request: SequenceGroup, length: int) -> None:
        for family, table in request.block_state.of:
            if length > table.tokens:
                family.allocate_step(request, table, length)
        if self._registers_at_once:
            self._register(request, length - request.uncommitted_tokens)

    def _release_skipped(self, request: SequenceGroup, processed: int) -> None:
        if self._registers_early:
            self._register(request, processed)
        for family, table in request.block_state.of:
            if processed >= table.releases_at:
                family.release(table, processed)

    def _register(self, request: SequenceGroup, tokens: int) -> None:
        """Register the blocks to be cached among a request's first ``tokens`` known tokens."""
        content = request.block_state.content
        if content is None:
            return
        step = self._turns.alignment if len(self.groups) > 1 else 1
        known = (
            tokens - self._read_ahead if step > 1 else tokens
        )  # with a single group, these tokens are left out earlier
        tokens = tokens // step * step
        for family, table in request.block_state.of:
            if family.drops_block and tokens:
                family.register(request, content, table, min(known, known // step * step + family.size))
            else:
                family.register(request, content, table, tokens)

    def _count(self) -> None:
        blocks = self._blocks
        self.free_blocks = blocks.free
        self.cached_blocks = len(blocks.cached)
        self.shared_blocks = blocks.extra_references


def _are_alike(one: KVGroup, other: KVGroup) -> bool:
    return (one.rule, one.block_size, one.drops_block) == (other.rule, other.block_size, other.drops_block)


def make_families(groups: Sequence[KVGroup], blocks: Blocks, setting: Setting) -> list[FullFamily]:
    """Return the families of some groups: adjacent groups with the same rule and block size."""
    families = []
    start = 0
    for end in range(1, len(groups) + 1):
        first = groups[start]
        if end < len(groups) and _are_alike(groups[end], first):
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
