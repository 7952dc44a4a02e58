"""Families of KV cache groups: which blocks of a sequence they allocate, keep, hash and match.

Adjacent groups with the same rule and block size always act alike, so one family serves them together; only
their blocks differ. Source: vLLM 0.33.0, ``v1/core/single_type_kv_cache_manager.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pagesim.kvcache.groups import KVGroup
from pagesim.kvcache.hybrid.blocks import NULL, Blocks
from pagesim.kvcache.runs import BlockContent
from pagesim.kvcache.sequence_group import SequenceGroup
from pagesim.setup.compiled import mypyc_attr

Hits = list[list[int] | None]
"""The blocks of a hit by position, one per group; None at positions where the groups need none."""

DENSE: Final = -1
"""The retention interval with which all content that can be matched stays cached."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings that all groups of a block manager share, in tokens.

    Attributes:
        longest: length of the longest sequence.
        in_flight: tokens that can be scheduled but not yet computed: the most tokens of a step, times the
            batches in flight.
        alignment: a hit's length is a multiple of this least common multiple of the groups' block sizes.
        retention: interval at which windows and states stay cached, besides those that the end of a prompt
            needs: 0 for none, or `DENSE`.
        hash_block: tokens per hash.
        hash_lookahead: tokens after a block that its hash also covers.
        read_ahead: tokens after the next one that a drafter reads; a block's KV is only complete after them.
        drops_block: whether some groups recompute the last block of a hit.
    """

    longest: int
    in_flight: int
    alignment: int
    retention: int = 0
    hash_block: int = 0
    hash_lookahead: int = 0
    read_ahead: int = 0
    drops_block: bool = False

    def last_cacheable(self, tokens: int, size: int) -> int:
        """Return the last block end among ``tokens`` tokens at which a cached state can be matched."""
        return last_cacheable(tokens, size, self.hash_lookahead, drops_block=self.drops_block)


@mypyc_attr(allow_interpreted_subclasses=True)
class FamilyTable:
    """The block tables of a sequence in the groups of one family.

    Attributes:
        blocks: blocks by position, one per group at each position; `NULL` where there is none.
        places: number of positions.
        tokens: tokens for which these have room.
        gone: leading positions whose blocks were freed.
        passed: leading positions for which it is decided whether their blocks are hashed.
        releases_at: number of computed tokens at which the next block can be released.
    """

    __slots__ = ("blocks", "gone", "passed", "places", "releases_at", "tokens")

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.places = 0
        self.tokens = 0
        self.gone = 0
        self.passed = 0
        self.releases_at = 0

    @property
    def held(self) -> int:
        """Number of blocks in each group."""
        return self.places - self.gone


@mypyc_attr(allow_interpreted_subclasses=True)
class FullFamily:
    """Groups with full attention: every block is kept and hashed.

    Attributes:
        first: index of the first group.
        width: number of groups in the family.
        of: number of groups of the block manager.
        group: one of the family's groups.
        size: tokens per block.
        rows: blocks in the tables of each group; shared ones count once per table.
        shared: for each group, references to its blocks beyond the first.
        extra: blocks of a sequence in addition to those of its tokens: states for draft tokens.
        drops_block: whether the last block of a hit is recomputed.
    """

    __slots__ = (
        "blocks",
        "drops_block",
        "extra",
        "first",
        "group",
        "of",
        "rows",
        "setting",
        "shared",
        "size",
        "width",
    )

    def __init__(self, numbers: range, of: int, group: KVGroup, blocks: Blocks, setting: Setting) -> None:
        self.first = numbers.start
        self.width = len(numbers)
        self.of = of
        self.group = group
        self.size = group.block_size
        self.blocks = blocks
        self.setting = setting
        self.rows = 0
        self.shared = [0] * self.width
        self.extra = group.draft_states
        self.drops_block = group.drops_block

    def most(self, tokens: int) -> int:
        """Return the most blocks that a sequence of ``tokens`` tokens holds at once in a group."""
        return self.group.most(tokens, self.setting.longest, self.setting.in_flight)

    def new_table(self) -> FamilyTable:
        """Return an empty table."""
        table = FamilyTable()
        self._set_release(table)
        return table

    # Room

    def needed_first(
        self, request: SequenceGroup, found: int, hits: Sequence[int], tokens: int, *, whole: bool = False
    ) -> int:
        """Return the free blocks that a new request takes for its first tokens, including matched ones.

        Args:
            request: request that `match_prefix` looked up.
            found: tokens of the hit.
            hits: blocks of the hit, as in `FamilyTable.blocks`.
            tokens: all tokens, matched or to be computed.
            whole: whether to count the most blocks held on the way to all tokens, not only the next step's.
        """
        required = self.most(tokens) if whole else -(-tokens // self.size) + self.extra
        if not found:
            return required * self.width
        gone, width = self.group.released(found), self.width
        wanted = required - max(gone, len(hits) // width)
        return (wanted * width if wanted > 0 else 0) + self._free_among(hits[gone * width :])

    def _free_among(self, hits: Sequence[int]) -> int:
        """Return how many blocks of a hit are free."""
        references = self.blocks.references
        return sum([block != NULL and not references[block] for block in hits])

    def needed(self, request: SequenceGroup, table: FamilyTable, tokens: int, computed: int | None) -> int:
        """Return the further blocks that an admitted request needs for ``tokens`` tokens.

        If ``computed``, the tokens before the current step, is given, blocks freed on the way are credited.
        """
        required = -(-tokens // self.size) + self.extra if computed is None else self.most(tokens)
        return max(required - table.places, 0) * self.width

    # Changes

    def add_hit(self, table: FamilyTable, found: int, hits: Sequence[int]) -> None:
        """Reference the blocks of a hit of ``found`` tokens that later tokens attend to."""
        width, shared = self.width, self.shared
        gone = self.group.released(found)
        while gone * width < len(hits) and hits[gone * width] == NULL:
            gone += 1
        table.blocks = [NULL] * (gone * width) + list(hits[gone * width :])
        for at, block in enumerate(table.blocks):
            if block != NULL and self.blocks.touch(block):
                shared[at % width] += 1
        table.places = table.passed = len(table.blocks) // width
        table.tokens = table.places * self.size
        table.gone = gone
        self.rows += table.held
        self._set_release(table)

    def allocate_step(self, request: SequenceGroup, table: FamilyTable, tokens: int) -> None:
        """Allocate the blocks that a sequence of ``tokens`` tokens lacks."""
        missing = -(-tokens // self.size) + self.extra - table.places
        if missing > 0:
            self._append(table, missing)

    def allocate_external(self, table: FamilyTable, tokens: int) -> None:
        """Allocate the blocks into which ``tokens`` tokens are loaded, before any for draft tokens."""
        missing = -(-tokens // self.size) - table.places
        if missing > 0:
            self._append(table, missing)

    def _append(self, table: FamilyTable, missing: int) -> None:
        """Allocate the blocks of ``missing`` further positions, at least one."""
        width = self.width
        blocks = self.blocks.take(missing * width)
        if missing > 1 and width > 1:
            # The blocks of the first group were all allocated first.
            blocks = [blocks[at] for row in range(missing) for at in range(row, missing * width, missing)]
        table.blocks += blocks
        table.places += missing
        table.tokens = (table.places - self.extra) * self.size
        self.rows += missing

    def release(self, table: FamilyTable, processed: int) -> None:
        """Free the blocks that no token after the first ``processed`` attends to."""
        start, end = table.gone, self.group.released(processed)
        if end > table.places:
            end = table.places
        if end > start:
            width, blocks = self.width, table.blocks
            first, last = start * width, end * width
            given = blocks[first:last]
            blocks[first:last] = [NULL] * (last - first)
            table.gone = end
            self.rows -= end - start
            self._give_back(given)
        self._set_release(table)

    def drop(self, table: FamilyTable) -> None:
        """Free all blocks, group by group, the last block first."""
        self.rows -= table.held
        self._give_back(table.blocks[table.gone * self.width :])

    def leave(self, table: FamilyTable) -> None:
        """Remove a table from the counts; the caller then frees its blocks."""
        self.rows -= table.held
        references, width = self.blocks.references, self.width
        for at, block in enumerate(table.blocks):
            if block != NULL and references[block] > 1:
                self.shared[at % width] -= 1

    def _give_back(self, rows: Sequence[int]) -> None:
        """Free the blocks of some positions, group by group, the last block first."""
        width = self.width
        for at in range(width):
            self.shared[at] -= self.blocks.give_back(rows[len(rows) - width + at :: -width])

    def _set_release(self, table: FamilyTable) -> None:
        """Update when `release` will next have blocks to free."""
        table.releases_at = self.group.rule.processed_at((table.gone + 1) * self.size)

    # Content

    def register(
        self, request: SequenceGroup, content: BlockContent, table: FamilyTable, tokens: int
    ) -> None:
        """Hash the blocks among the first ``tokens`` tokens that are to be cached."""
        known, ahead = tokens, self.setting.hash_lookahead
        if ahead:
            known = min(tokens, self._hashed_of(request.length - ahead))
        start, end = table.passed, known // self.size
        if start < end:
            self._register(request, content, table, end)
        if self.size != self.setting.hash_block and type(self) is FullFamily and not self.group.is_one_block:
            self._register_prompt_end(request, content, table, tokens)

    def _register_prompt_end(
        self, request: SequenceGroup, content: BlockContent, table: FamilyTable, tokens: int
    ) -> None:
        """Also register a prompt's last hash, if it ends inside a block and is computed, for that block."""
        prompt = request.prompt if self.drops_block else request.prompt - 1
        if self.setting.hash_lookahead:
            prompt = min(prompt, request.length - self.setting.hash_lookahead)
        end = self._hashed_of(prompt)
        place, width = end // self.size, self.width
        if 0 < end <= tokens and end % self.size and place < table.places:
            blocks = table.blocks[place * width : (place + 1) * width]
            self.blocks.register_within(content.key_at(end) * self.of + self.first, blocks, end)

    def _hashed_of(self, tokens: int) -> int:
        """Return how many of ``tokens`` known tokens hashes cover."""
        return tokens // self.setting.hash_block * self.setting.hash_block

    def _register(self, request: SequenceGroup, content: BlockContent, table: FamilyTable, end: int) -> None:
        """Hash the blocks to be cached among the unprocessed positions before ``end``."""
        start = table.passed
        table.passed = end
        blocks, width, size, of, first = table.blocks, self.width, self.size, self.of, self.first
        rows: list[tuple[int, list[int]]] = []
        for place in self.findable(request, start, end):
            at = place * width
            if blocks[at] != NULL:
                rows.append((content.key_at((place + 1) * size) * of + first, blocks[at : at + width]))
        self.blocks.register(rows)

    def findable(self, request: SequenceGroup, start: int, end: int) -> Sequence[int]:
        """Return the positions in ``[start, end)`` whose blocks are to be cached, in order."""
        return range(start, end)

    def find(
        self, content: BlockContent, tokens: int, alike: Sequence[FullFamily], *, drops_block: bool = False
    ) -> Hits:
        """Return the hit among the first ``tokens`` tokens in all groups of families of the same kind.

        Args:
            content: content of the request.
            tokens: number of leading tokens to look up.
            alike: families of the same kind as this one.
            drops_block: whether the last matched block is dropped.
        """
        hits: Hits = []
        for place in range(tokens // self.size):
            blocks = self.cached(content, place, alike)
            if blocks is None:
                break
            hits.append(blocks)
        if drops_block and hits:
            hits.pop()
        return hits[: self.aligned(len(hits))]

    def cached(self, content: BlockContent, place: int, alike: Sequence[FullFamily]) -> list[int] | None:
        """Return the cached block of each group at a position; None unless all groups have one."""
        found, key = self.blocks.found, content.key_at((place + 1) * self.size) * self.of
        blocks: list[int] = []
        for family in alike:
            for number in range(family.first, family.first + family.width):
                block = found.get(key + number)
                if block is None:
                    return None
                blocks.append(block)
        return blocks

    def aligned(self, blocks: int) -> int:
        """Return how many of ``blocks`` leading blocks an aligned hit can have."""
        return blocks * self.size // self.setting.alignment * self.setting.alignment // self.size


def replay_boundaries(request: SequenceGroup, family: FullFamily) -> list[int]:
    """Return the token positions at which hits are expected: before a prompt's last token, at a junction.

    If hits drop their last block, these include positions one block earlier.
    """
    setting, prompt, junction = family.setting, request.prompt, request.junction
    boundaries = [prompt - 1]
    if setting.drops_block:
        step = setting.alignment
        boundaries = [max(0, tokens // step * step - step) for tokens in (prompt - 1, prompt)]
    if junction:
        boundaries += [junction, junction - family.size] if family.drops_block else [junction]
    return boundaries


def last_cacheable(tokens: int, size: int, hash_lookahead: int, *, drops_block: bool) -> int:
    """Return the last block end among ``tokens`` tokens at which a cached state can be matched.

    Args:
        tokens: tokens, for example of a prompt; the last one is always computed.
        size: tokens per block.
        hash_lookahead: tokens after a block that its hash also covers.
        drops_block: whether the last block of a hit is recomputed.
    """
    if drops_block:
        return max(0, tokens // size * size - size)
    return max(0, tokens - max(1, hash_lookahead)) // size * size
