"""State families: recurrent states that are cached at the ends of blocks of tokens.

Source: vLLM 0.33.0, ``MambaManager`` in mode ``align``.
"""

from __future__ import annotations

from collections.abc import Sequence

from pagesim.kvcache.groups import NEVER, KVGroup, State
from pagesim.kvcache.hybrid.blocks import NULL, Blocks
from pagesim.kvcache.hybrid.families import DENSE, FamilyTable, FullFamily, Hits, Setting, replay_boundaries
from pagesim.kvcache.runs import BlockContent
from pagesim.kvcache.sequence_group import SequenceGroup
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class StateTable(FamilyTable):
    """A sequence's states: `NULL` except for the last, the one before, and a checkpoint between them.

    After the last one come the states after each draft token. One of their blocks becomes that of the last
    state when the sequence grows by a block.

    Attributes:
        computed: tokens up to which the last step computed, including draft tokens.
        drafts: number of trailing positions for draft tokens: none while there are only blocks of a hit.
        source: position of the state from which the current one was computed; -1 for none.
        checkpoint: tokens after which the last chunk's kernels saved a state; 0 for none.
        kept_at: position of that state.
    """

    __slots__ = ("checkpoint", "computed", "drafts", "kept_at", "source", "width")

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.computed = 0
        self.drafts = 0
        self.source = -1
        self.checkpoint = 0
        self.kept_at = 0

    @property
    def held(self) -> int:
        """Number of states in each group."""
        return self.places - self.blocks.count(NULL) // self.width


@mypyc_attr(allow_interpreted_subclasses=True)
class StateFamily(FullFamily):
    """Groups of recurrent layers.

    A step writes its state into the block of its last token. So a step over several blocks allocates only the
    last one, plus one more if the kernels also save a state at the end of a prompt's last full block.

    Attributes:
        new_keys: hashes of states registered in the current step, which are not computed yet.
        left: states registered since the last `HybridManager.take_states`, as (request, group, block, tokens
            before the state); None until `HybridManager.take_states` is first called.
    """

    __slots__ = ("_checkpoint", "left", "new_keys")

    def __init__(self, numbers: range, of: int, group: KVGroup, blocks: Blocks, setting: Setting) -> None:
        super().__init__(numbers, of, group, blocks, setting)
        assert isinstance(group.rule, State)
        self._checkpoint = group.rule.checkpoint
        self.new_keys: set[int] = set()
        self.left: list[tuple[SequenceGroup, int, int, int]] | None = None

    def new_table(self) -> FamilyTable:
        return StateTable(self.width)

    # Room

    def needed_first(
        self, request: SequenceGroup, found: int, hits: Sequence[int], tokens: int, *, whole: bool = False
    ) -> int:
        width, keys = self.width, self.blocks.keys
        if hits and any(keys[block] in self.new_keys for block in hits[-width:]):
            return NEVER
        if not whole:
            tokens -= request.lookahead_tokens
        missing = -(-tokens // self.size) + self.extra - len(hits) // width
        keeps = self._keeps(request, None, found, tokens)
        wanted = min(missing, 1 + keeps + self.extra) if missing > 0 else 0
        return wanted * width + self._free_among(hits)

    def needed(self, request: SequenceGroup, table: FamilyTable, tokens: int, computed: int | None) -> int:
        assert isinstance(table, StateTable)
        start, tokens = table.computed if computed is None else computed, tokens - request.lookahead_tokens
        missing = -(-tokens // self.size) + self.extra - table.places
        if (
            missing <= 0
        ):  # if rejected draft tokens had reached into another block, vLLM counts a negative number
            return missing * self.width
        return min(missing, 1 + self._keeps(request, table, start, tokens)) * self.width

    def _keeps(self, request: SequenceGroup, table: StateTable | None, start: int, end: int) -> bool:
        """Return whether a chunk saves a state at the end of its last full block, in a separate block."""
        if self._checkpoint is None:
            return False
        size, setting = self.size, self.setting
        place = -(-end // size) - 2
        spans = setting.retention != 0 or end >= prompt_end(request)
        return (
            spans
            and place >= 0
            and can_keep(start, end, setting.last_cacheable(end, setting.alignment), size, self._checkpoint)
            and (
                table is None
                or place >= table.places - table.drafts
                or table.blocks[place * self.width] == NULL
            )
        )

    # Changes

    def add_hit(self, table: FamilyTable, found: int, hits: Sequence[int]) -> None:
        assert isinstance(table, StateTable)
        super().add_hit(table, found, hits)
        table.gone = table.releases_at = 0
        table.computed = found

    def allocate_step(self, request: SequenceGroup, table: FamilyTable, tokens: int) -> None:
        assert isinstance(table, StateTable)
        tokens -= request.lookahead_tokens
        size, width, extra = self.size, self.width, self.extra
        last = -(-tokens // size) - 1  # position of the current state
        keeps = self._keeps(request, table, table.computed, tokens)
        table.checkpoint, table.kept_at = (
            (self.setting.last_cacheable(tokens, self.setting.alignment), last - 1) if keeps else (0, 0)
        )
        table.computed = tokens
        places, drafts = table.places, table.drafts
        if last + 1 + extra <= places and not keeps:
            return
        if places:
            table.source = places - 1 - drafts
        blocks = table.blocks
        gap = last - keeps - places
        if gap > 0:
            blocks += [NULL] * (gap * width)
        for place in range(places - drafts, min(places, last - keeps)):  # draft states move to the end
            at = place * width
            blocks += blocks[at : at + width]
            blocks[at : at + width] = [NULL] * width
        table.drafts = extra
        table.places = len(blocks) // width
        missing = last + 1 + extra - table.places
        if missing > 0:
            self._append(table, missing)

    def release(self, table: FamilyTable, processed: int) -> None:
        assert isinstance(table, StateTable)
        blocks, width = table.blocks, self.width
        end = min(self.group.released(processed), table.places)
        gone = [place for place in range(end - 1, table.gone - 1, -1) if blocks[place * width] != NULL]
        table.gone = max(end, table.gone)
        source = table.source
        from_source = (
            0 <= source < -(-processed // self.size) - 1
            and source not in gone
            and blocks[source * width] != NULL
        )
        for at in range(width):
            self._give(table, [place * width + at for place in gone], at)
            if from_source:
                self._give(table, [source * width + at], at)
        self.rows -= len(gone) + from_source

    def _give(self, table: FamilyTable, places: Sequence[int], at: int) -> None:
        """Free one group's blocks at some positions."""
        if places:
            blocks = table.blocks
            self.shared[at] -= self.blocks.give_back([blocks[place] for place in places])
            for place in places:
                blocks[place] = NULL

    def drop(self, table: FamilyTable) -> None:
        width, blocks = self.width, table.blocks
        self.rows -= table.held
        for at in range(width):
            states = [block for block in blocks[at::width] if block != NULL]
            states.reverse()
            self.shared[at] -= self.blocks.give_back(states)

    # Content

    def register(
        self, request: SequenceGroup, content: BlockContent, table: FamilyTable, tokens: int
    ) -> None:
        assert isinstance(table, StateTable)
        start, width = table.passed, self.width
        super().register(request, content, table, tokens)
        if table.checkpoint:
            self._register_checkpoint(request, content, table)
        keys = self.blocks.keys
        for place in range(start, table.passed):
            for at, block in enumerate(table.blocks[place * width : (place + 1) * width]):
                key = keys[block] if block != NULL else None
                if key is not None:
                    self.new_keys.add(key)
                    if self.left is not None:
                        ends = table.checkpoint if place == table.kept_at and table.checkpoint else 0
                        tokens = ends or (place + 1) * self.size
                        self.left.append((request, self.first + at, block, tokens))

    def _register_checkpoint(self, request: SequenceGroup, content: BlockContent, table: StateTable) -> None:
        """Register a state that a chunk saved under the hash of its own tokens, or forget it.

        If hits drop a block, the state belongs to one block before the end of the block that stores it.
        """
        position, width, size = table.checkpoint, self.width, self.size
        blocks = table.blocks[table.kept_at * width : (table.kept_at + 1) * width]
        if not self._stays(request, position):
            for block in blocks:
                if block != NULL:
                    self.blocks.forget(block)
            return
        key = content.key_at(position) * self.of + self.first
        if position != (table.kept_at + 1) * size and blocks[0] not in (NULL, self.blocks.found.get(key)):
            for block in blocks:
                self.blocks.forget(block)
            self.blocks.register([(key, blocks)])
            self.new_keys.update(range(key, key + width))

    def findable(self, request: SequenceGroup, start: int, end: int) -> Sequence[int]:
        retention, alignment = self.setting.retention, self.setting.alignment
        if retention == DENSE:
            return range(start, end)
        boundaries = replay_boundaries(request, self)
        places = {tokens // alignment * alignment // self.size - 1 for tokens in boundaries}
        if retention:
            segment = retention // self.size
            places.update(range((start + segment) // segment * segment - 1, end, segment))
        return sorted([place for place in places if start <= place < end])

    def _stays(self, request: SequenceGroup, position: int) -> bool:
        """Return whether the state that a chunk saves after ``position`` tokens stays cached."""
        retention = self.setting.retention
        last = self.setting.last_cacheable(request.prompt, self.setting.alignment)
        if position in (last, request.junction):
            return True
        return retention == DENSE or (retention > 0 and position % retention == 0)

    def find(
        self, content: BlockContent, tokens: int, alike: Sequence[FullFamily], *, drops_block: bool = False
    ) -> Hits:
        for place in range(tokens // self.size - 1, -1, -1):
            if self.aligned(place + 1) == place + 1:
                blocks = self.cached(content, place, alike)
                if blocks is not None:
                    hits: Hits = [None] * place
                    hits.append(blocks)
                    return hits
        return []


def prompt_end(request: SequenceGroup) -> int:
    """Return the tokens of a prompt or, after a preemption, those before the last generated token."""
    return max(request.prompt, request.length - 1)


def can_keep(start: int, end: int, position: int, size: int, checkpoint: int) -> bool:
    """Return whether the chunk from ``start`` to ``end`` can save a state at a position between them.

    Args:
        start: tokens before the chunk.
        end: tokens up to the end of the chunk.
        position: position of the state, in tokens.
        size: tokens per block.
        checkpoint: interval in tokens at which the kernels can save states (`State.checkpoint`).
    """
    return (
        start % size == 0
        and start + size <= position < end
        and (position - start) % checkpoint == 0
        and -(-end // size) - 2 > (start - 1) // size
    )
