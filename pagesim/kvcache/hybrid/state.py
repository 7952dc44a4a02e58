"""State groups: recurrent states that can be found again where a block of tokens ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagesim.kvcache.groups import KVGroup, State
from pagesim.kvcache.holder import Holder
from pagesim.kvcache.hybrid.blocks import NULL, Blocks
from pagesim.kvcache.hybrid.kinds import DENSE, FullGroup, Hits, Setting, Table, replayed
from pagesim.kvcache.runs import Content
from pagesim.setup.compiled import mypyc_attr

NEVER = 1 << 62
"""More blocks than any memory has: there is no room in the step at hand."""


@dataclass(slots=True)
class StateTable(Table):
    """A sequence's states: `NULL` but for the last, the one before, and a checkpoint between them.

    Attributes:
        ran: whether it took blocks since it was admitted.
        source: the place of the state that the one at hand was computed from; -1 for none.
        retired: leading blocks that were given back for good.
        checkpoint: of the last chunk, the tokens after which its kernels leave a state behind; 0 for none.
        kept_at: the place of that state.
    """

    ran: bool = False
    source: int = -1
    retired: int = 0
    checkpoint: int = 0
    kept_at: int = 0


@mypyc_attr(allow_interpreted_subclasses=True)
class StateGroup(FullGroup):
    """A group of recurrent layers in vLLM's mode ``align``.

    A state is computed into the block of the step's last token. So of a step over several blocks only the
    last one is taken, and one more where the kernels leave a state behind as a prompt's last full block ends.
    """

    __slots__ = ("_checkpoint", "left", "new_keys")

    def __init__(self, number: int, of: int, group: KVGroup, blocks: Blocks, setting: Setting) -> None:
        super().__init__(number, of, group, blocks, setting)
        assert isinstance(group.rule, State)
        self._checkpoint = group.rule.checkpoint
        self.new_keys: set[int] = set()  # of states registered in the step at hand: not computed yet
        # States that can be found since `take_left`: of whom, the block, the tokens before it; if asked for.
        self.left: list[tuple[Holder, int, int]] | None = None

    def new_table(self) -> Table:
        return StateTable()

    # Room

    def needed_first(self, holder: Holder, found: int, hits: Sequence[int], tokens: int) -> int:
        if hits and self.blocks.keys[hits[-1]] in self.new_keys:
            return NEVER
        missing = -(-tokens // self.size) - len(hits)
        _, keeps = self._checkpoint_of(holder, [], found, tokens)
        wanted = min(missing, 1 + keeps) if missing > 0 else 0
        return wanted + sum([block != NULL and not self.blocks.names[block] for block in hits])

    def needed_whole(self, holder: Holder, found: int, hits: Sequence[int], tokens: int) -> int:
        return self.needed_first(holder, found, hits, tokens)

    def needed(self, holder: Holder, table: Table, tokens: int) -> int:
        return self.needed_to_complete(holder, table, holder.tokens, tokens)

    def needed_to_complete(self, holder: Holder, table: Table, computed: int, tokens: int) -> int:
        missing = -(-tokens // self.size) - len(table.blocks)
        if missing <= 0:
            return 0
        _, keeps = self._checkpoint_of(holder, table.blocks, computed, tokens)
        return min(missing, 1 + keeps)

    def _checkpoint_of(self, holder: Holder, blocks: Sequence[int], start: int, end: int) -> tuple[int, bool]:
        """Return after which token a chunk leaves a state behind, and whether it does."""
        if self._checkpoint is None:
            return 0, False
        size = self.size
        place = -(-end // size) - 2
        position = (end - 1) // size * size
        reaches = self.setting.retention != 0 or end >= prompt_end(holder)
        keeps = (
            reaches
            and place >= 0
            and can_keep(start, end, position, size, self._checkpoint)
            and (place >= len(blocks) or blocks[place] == NULL)
        )
        return position, keeps

    # Changes

    def grow(self, holder: Holder, table: Table, tokens: int) -> None:
        assert isinstance(table, StateTable)
        blocks, required = table.blocks, -(-tokens // self.size)
        position, keeps = self._checkpoint_of(holder, blocks, holder.tokens, tokens)
        table.checkpoint, table.kept_at = (position, required - 2) if keeps else (0, 0)
        if required > len(blocks) or keeps:
            if blocks:
                table.source = len(blocks) - 1
            gap = required - 1 - keeps - len(blocks)
            if gap > 0:
                blocks += [NULL] * gap
            missing = required - len(blocks)
            if missing > 0:
                blocks += self.blocks.take(missing)
                self.held += missing
        table.ran = True

    def release(self, table: Table, processed: int) -> None:
        assert isinstance(table, StateTable)
        blocks = table.blocks
        end = min(self.group.released(processed), len(blocks))
        gone = [place for place in range(end - 1, table.retired - 1, -1) if blocks[place] != NULL]
        if gone:
            self._give_back(blocks, gone)
        if end > table.retired:
            table.retired = end
        source = table.source
        if 0 <= source < -(-processed // self.size) - 1 and blocks[source] != NULL:
            self._give_back(blocks, [source])

    def _give_back(self, blocks: list[int], places: Sequence[int]) -> None:
        self.held -= self.blocks.give_back([blocks[place] for place in places])
        for place in places:
            blocks[place] = NULL

    # Content

    def register(self, holder: Holder, content: Content, table: Table, tokens: int) -> None:
        assert isinstance(table, StateTable)
        start = table.passed
        super().register(holder, content, table, tokens)
        left = table.blocks[table.kept_at] if table.checkpoint else NULL
        if left != NULL and not self._stays(holder, table.checkpoint):
            self.blocks.forget(left)
        keys = self.blocks.keys
        for place in range(start, table.passed):
            block = table.blocks[place]
            key = keys[block] if block != NULL else None
            if key is not None:
                self.new_keys.add(key)
                if self.left is not None:
                    self.left.append((holder, block, (place + 1) * self.size))

    def findable(self, holder: Holder, start: int, end: int) -> Sequence[int]:
        retention, alignment = self.setting.retention, self.setting.alignment
        if retention == DENSE:
            return range(start, end)
        places = {tokens // alignment * alignment // self.size - 1 for tokens in replayed(holder)}
        if retention:
            segment = retention // self.size
            places.update(range((start + segment) // segment * segment - 1, end, segment))
        return sorted([place for place in places if start <= place < end])

    def _stays(self, holder: Holder, position: int) -> bool:
        """Whether the state that a chunk leaves behind can be found later."""
        retention = self.setting.retention
        if position == (holder.prompt - 1) // self.size * self.size or position == holder.junction:
            return True
        return retention == DENSE or (retention > 0 and position % retention == 0)

    def find(self, content: Content, tokens: int, family: Sequence[FullGroup]) -> Hits:
        for place in range(tokens // self.size - 1, -1, -1):
            if self.aligned(place + 1) == place + 1:
                blocks = self.there(content, place, family)
                if blocks is not None:
                    hits: Hits = [None] * place
                    hits.append(blocks)
                    return hits
        return []


def prompt_end(holder: Holder) -> int:
    """Return the tokens of a prompt or, after a preemption, those before the last one generated."""
    return max(holder.prompt, holder.length - 1)


def can_keep(start: int, end: int, position: int, size: int, checkpoint: int) -> bool:
    """Say whether the chunk from one token to another can leave a state behind at a position between them.

    Args:
        start: tokens before the chunk.
        end: tokens up to its end.
        position: in tokens.
        size: tokens a block.
        checkpoint: see `State`.
    """
    return (
        start % size == 0
        and start + size <= position < end
        and (position - start) % checkpoint == 0
        and -(-end // size) - 2 > (start - 1) // size
    )
