"""Kinds of groups: which blocks of a sequence a group takes, keeps, makes findable and finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pagesim.kvcache.groups import ChunkedLocal, KVGroup, SlidingWindow, State
from pagesim.kvcache.holder import Holder
from pagesim.kvcache.hybrid.blocks import NULL, Blocks
from pagesim.kvcache.runs import Content
from pagesim.setup.compiled import mypyc_attr

Hits = list[list[int] | None]
"""By position the blocks of a hit, one of each group of a family; None where the groups need none."""

DENSE = -1
"""A retention interval: everything that can be found again is kept findable."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What all groups of a memory go by, in tokens.

    Attributes:
        longest: sequence.
        in_flight: that can be scheduled and not be computed yet: a step's most, times the batches in flight.
        alignment: a hit is a multiple of it: the least common multiple of the groups' block sizes.
        retention: how far apart windows and states stay findable behind those that a prompt's end needs:
            0 for none, or `DENSE`.
    """

    longest: int
    in_flight: int
    alignment: int
    retention: int = 0


@dataclass(slots=True)
class Table:
    """A sequence's blocks in one group, by position; `NULL` where it has none.

    Attributes:
        blocks: see above.
        passed: leading blocks of which it is decided whether they can be found.
    """

    blocks: list[int] = field(default_factory=list)
    passed: int = 0

    @property
    def held(self) -> int:
        """Return how many blocks there are."""
        return len(self.blocks) - self.blocks.count(NULL)


@mypyc_attr(allow_interpreted_subclasses=True)
class FullGroup:
    """A group whose layers attend to all tokens before: it keeps every block, and each can be found."""

    __slots__ = ("blocks", "group", "held", "number", "of", "setting", "size")

    def __init__(self, number: int, of: int, group: KVGroup, blocks: Blocks, setting: Setting) -> None:
        self.number = number
        self.of = of
        self.group = group
        self.size = group.block_size
        self.blocks = blocks
        self.setting = setting
        self.held = 0  # distinct blocks in its tables

    def most(self, tokens: int) -> int:
        """Return the blocks that a sequence of so many tokens ever holds at once."""
        return self.group.most(tokens, self.setting.longest, self.setting.in_flight)

    def new_table(self) -> Table:
        """Return an empty table."""
        return Table()

    # Room

    def needed_first(self, holder: Holder, found: int, hits: Sequence[int], tokens: int) -> int:
        """Return the free blocks that a new holder takes for so many tokens, those found included.

        Args:
            holder: see `match_prefix`.
            found: tokens of the hit.
            hits: its blocks in this group.
            tokens: to be computed or found, all together.
        """
        return self._needed_first(-(-tokens // self.size), found, hits)

    def needed_whole(self, holder: Holder, found: int, hits: Sequence[int], tokens: int) -> int:
        """Return those that it ever takes until so many tokens are computed: the gate of admission."""
        return self._needed_first(self.most(tokens), found, hits)

    def _needed_first(self, required: int, found: int, hits: Sequence[int]) -> int:
        names = self.blocks.names
        gone = self.group.released(found)
        wanted = max(required - max(gone, len(hits)), 0)
        return wanted + sum([block != NULL and not names[block] for block in hits[gone:]])

    def needed(self, holder: Holder, table: Table, tokens: int) -> int:
        """Return the blocks that a holder takes that already has some, to have room for so many tokens."""
        return max(-(-tokens // self.size) - len(table.blocks), 0)

    def needed_to_complete(self, holder: Holder, table: Table, computed: int, tokens: int) -> int:
        """Return those that it takes at most from so many computed tokens until it has so many."""
        return max(self.most(tokens) - len(table.blocks), 0)

    # Changes

    def adopt(self, table: Table, found: int, hits: Sequence[int]) -> None:
        """Take over the blocks of a hit of so many tokens, as far as they are still attended to."""
        gone = self.group.released(found)
        kept = hits[gone:]
        self.held += self.blocks.adopt(kept)
        table.blocks = [NULL] * gone
        table.blocks += kept
        table.passed = len(table.blocks)

    def grow(self, holder: Holder, table: Table, tokens: int) -> None:
        """Take blocks for a sequence of so many tokens."""
        missing = -(-tokens // self.size) - len(table.blocks)
        if missing > 0:
            table.blocks += self.blocks.take(missing)
            self.held += missing

    def release(self, table: Table, processed: int) -> None:
        """Give back what no token after the first ``processed`` attends to."""
        blocks = table.blocks
        end = min(self.group.released(processed), len(blocks))
        place = end
        while place and blocks[place - 1] != NULL:
            place -= 1
        if place == end:
            return
        self.held -= self.blocks.give_back(blocks[place:end][::-1])
        blocks[place:end] = [NULL] * (end - place)

    def drop(self, table: Table) -> None:
        """Give everything back, last block first."""
        self.held -= self.blocks.give_back([block for block in reversed(table.blocks) if block != NULL])

    # Content

    def name(self, content: Content, block: int) -> int:
        """Return the key of a block of this group."""
        return content.key_at((block + 1) * self.size) * self.of + self.number

    def register(self, holder: Holder, content: Content, table: Table, tokens: int) -> None:
        """Decide which blocks of the first so many tokens can be found."""
        start, end = table.passed, tokens // self.size
        if start >= end:
            return
        table.passed = end
        register, blocks = self.blocks.register, table.blocks
        for place in self.findable(holder, start, end):
            block = blocks[place]
            if block != NULL:
                register(block, self.name(content, place))

    def findable(self, holder: Holder, start: int, end: int) -> Sequence[int]:
        """Return which blocks from one place to another (not included) are to be found."""
        return range(start, end)

    def find(self, content: Content, tokens: int, family: Sequence[FullGroup]) -> Hits:
        """Return what is there of the first so many tokens in all groups of a family of groups like this.

        Of each group as many blocks, by position, with null entries where a hit needs none.
        """
        hits: Hits = []
        for place in range(tokens // self.size):
            blocks = self.there(content, place, family)
            if blocks is None:
                break
            hits.append(blocks)
        return hits[: self.aligned(len(hits))]

    def there(self, content: Content, place: int, family: Sequence[FullGroup]) -> list[int] | None:
        """Return the blocks that are found of each group of a family; None unless all have one."""
        found, key = self.blocks.found, content.key_at((place + 1) * self.size) * self.of
        blocks: list[int] = []
        for group in family:
            first = found.get(key + group.number)
            if first is None:
                return None
            blocks.append(first[0])
        return blocks

    def aligned(self, blocks: int) -> int:
        """Return how many of so many leading blocks make a hit."""
        return blocks * self.size // self.setting.alignment * self.setting.alignment // self.size


@mypyc_attr(allow_interpreted_subclasses=True)
class WindowGroup(FullGroup):
    """A group whose layers attend to a window: it gives back what is behind it.

    A hit needs the blocks of one window before it, and only those are taken over. So of the blocks of a
    prompt those can be found that a window at its end needs, or at another place where hits are expected.

    Attributes:
        contiguous: blocks that a hit needs.
    """

    __slots__ = ("contiguous",)

    def __init__(self, number: int, of: int, group: KVGroup, blocks: Blocks, setting: Setting) -> None:
        super().__init__(number, of, group, blocks, setting)
        assert isinstance(group.rule, SlidingWindow)
        self.contiguous = -(-(group.rule.window - 1) // self.size)

    def findable(self, holder: Holder, start: int, end: int) -> Sequence[int]:
        size, alignment, retention = self.size, self.setting.alignment, self.setting.retention
        places: set[int] = set()
        if retention:
            segment = (alignment if retention == DENSE else retention) // size
            if self.contiguous >= segment:
                return range(start, end)
            places.update(
                place for place in range(start, end) if place % segment >= segment - self.contiguous
            )
        if retention != DENSE:
            for first, last in self.wanted(holder):
                places.update(range(max(start, first), min(end, last)))
        return sorted(places)

    def wanted(self, holder: Holder) -> list[tuple[int, int]]:
        """Return which blocks a hit needs where others can go on, each time from one place to another."""
        alignment, found = self.setting.alignment, []
        for tokens in replayed(holder):
            last = tokens // alignment * alignment // self.size
            found.append((max(0, last - self.contiguous), last))
        return found

    def find(self, content: Content, tokens: int, family: Sequence[FullGroup]) -> Hits:
        most = tokens // self.size
        hits: Hits = [None] * most
        run = 0
        for place in range(most - 1, -1, -1):
            blocks = self.there(content, place, family)
            if blocks is None:
                run = 0
            elif run or self.aligned(place + 1) == place + 1:
                hits[place] = blocks
                run += 1
                if run >= self.contiguous:
                    return hits[: place + run]
        return hits[: self.aligned(run)]


@mypyc_attr(allow_interpreted_subclasses=True)
class ChunkGroup(FullGroup):
    """A group whose layers attend to the tokens of one chunk: it gives back those of the chunks before."""

    __slots__ = ()

    def find(self, content: Content, tokens: int, family: Sequence[FullGroup]) -> Hits:
        gone = self.group.released(tokens)
        hits: Hits = [None] * gone
        for place in range(gone, tokens // self.size):
            blocks = self.there(content, place, family)
            if blocks is None:
                break
            hits.append(blocks)
        return hits


def replayed(holder: Holder) -> tuple[int, ...]:
    """Return where others can go on that begin as a holder: before its last token, and where they part."""
    return (holder.prompt - 1, holder.junction) if holder.junction else (holder.prompt - 1,)


def make_group(number: int, of: int, group: KVGroup, blocks: Blocks, setting: Setting) -> FullGroup:
    """Return the kind of a group, by its rule."""
    from pagesim.kvcache.hybrid.state import StateGroup

    kind: type[FullGroup] = FullGroup
    if isinstance(group.rule, SlidingWindow):
        kind = WindowGroup
    elif isinstance(group.rule, ChunkedLocal):
        kind = ChunkGroup
    elif isinstance(group.rule, State) and group.rule.aligned:
        kind = StateGroup
    return kind(number, of, group, blocks, setting)
