"""Paged memory that remembers: full blocks are found by their content until they are taken again."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from pagesim.kvcache.base import AllocatorError, Copy, Extent, OutOfBlocks, join_extents
from pagesim.kvcache.paged import PagedAllocator
from pagesim.kvcache.pieces import Content, FreeQueue, Piece, block_array


class _Way(NamedTuple):
    """What was found last: somebody who looks usually takes it next."""

    content: Content | None
    version: int
    most: int
    blocks: int
    pieces: list[tuple[Piece, int]]  # each with how many of its blocks


class PrefixCachingAllocator(PagedAllocator):
    """On demand as its parent; beside it, what was computed can be found again.

    The free blocks are a queue. Blocks are taken at its front, and lose what they held; a request gives its
    blocks back last block first. A prompt that begins as another one did takes over that one's full blocks,
    in use (then they are shared) or free (then they leave the queue from wherever they are).

    Only what ``allocate_cached`` allocates is findable. A block is from the moment on at which room is made
    for its last token; of a growing sequence, whose own tokens nobody else can ask for, not before it is
    freed or ``publish`` is called.

    Decided is block by block, counted is by the piece: blocks that one request computed and that all others
    hold all or none of. A piece is cut in two where somebody takes over a part of it. Because of the order in
    which blocks are given back, content is lost from its end on: what comes before a block that can be found
    can be found, too.

    Args:
        num_blocks: blocks on the device.
        block_size: token slots a block.
        cpu_blocks: blocks of the swap space; only for what cannot be found.
        reuses_unfilled_first: whether blocks that nobody can ask for go to the front of the queue (vLLM
            0.33); if not, all blocks queue up behind one another (0.11).
    """

    def __init__(
        self, num_blocks: int, block_size: int, cpu_blocks: int = 0, *, reuses_unfilled_first: bool = True
    ) -> None:
        # A fork is a copy: only what was found is shared.
        super().__init__(num_blocks, block_size, cpu_blocks, shares=False)
        self.reuses_unfilled_first = reuses_unfilled_first
        self._free = []  # the queue takes its place
        self._queue = FreeQueue()
        self._queue.push(Piece(block_array(reversed(range(num_blocks)))))
        # Taken from the queue for growing sequences and not yet named in their tables, or set aside.
        self._promised = block_array()
        # The piece that the key of its first block finds: the first that had this content. Later ones, which
        # have just as many blocks, wait behind it.
        self._found: dict[int, Piece] = {}
        self._twins: dict[int, list[Piece]] = {}
        self._contents: dict[int, Content] = {}
        self._held: dict[int, list[Piece]] = {}  # by sequence: its leading blocks that can be found
        self._findable: dict[int, int] = {}  # how many these are
        self._version = 0  # of what can be found
        self._way = _Way(None, 0, 0, 0, [])
        self._idle = 0
        self._taken = 0
        self._evictions: list[tuple[int, int]] = []

    # Questions

    @property
    def cached_blocks(self) -> int:
        self._settle()
        return self._idle

    @property
    def blocks_taken(self) -> int:
        self._settle()
        return self._taken

    def accounts(self, steps: int = 0) -> tuple[int, int, int, int, int]:
        self._settle()
        free, free_cpu, shared, _, _ = super().accounts(steps)
        if not steps:
            return free, free_cpu, shared, self._idle, self._taken
        taken = max(0, self._free_blocks - free - (len(self._promised) - self._unnamed))
        lost, left = 0, taken
        for piece in self._queue if left else ():
            blocks = min(left, len(piece.blocks))
            lost += blocks if piece.content is not None else 0
            left -= blocks
            if not left:
                break
        return free, free_cpu, shared, self._idle - lost, self._taken + taken

    def cached_extents(self) -> list[Extent]:
        self._settle()
        cached = (piece.blocks for piece in self._queue if piece.content is not None)
        return join_extents(sorted(chain.from_iterable(cached)))

    def take_evictions(self) -> Sequence[tuple[int, int]]:
        self._settle()
        evictions, self._evictions = self._evictions, []
        return evictions

    def hits(self, content: Content, tokens: int) -> int:
        """Return the leading blocks of a prompt that are there already; never all of its tokens."""
        self._settle()
        return self._follow(content, (tokens - 1) // self.block_size).blocks

    def blocks_wanted(self, content: Content, hits: int, tokens: int) -> int:
        """Return the free blocks that a prompt takes: new ones, and those of its hits that are free."""
        wanted = -(-tokens // self.block_size) - hits
        for piece, blocks in self._follow(content, hits).pieces:
            if not piece.users:
                wanted += blocks
        return wanted

    # Changes

    def allocate_cached(self, sequence: int, content: Content, hits: int, tokens: int) -> None:
        """Give a new sequence room for ``tokens``, the first ``hits`` blocks found and not computed.

        Args:
            sequence: its id.
            content: of its prompt, and of what it will generate.
            hits: at most what ``hits`` said.
            tokens: as far as its prompt is computed now, the hits included.

        Raises:
            OutOfBlocks: ``blocks_wanted`` exceeds the free blocks.
            AllocatorError: the sequence is already here, or ``tokens`` is below 1.
        """
        self._check_new(sequence, tokens)
        self._settle()
        wanted = self.blocks_wanted(content, hits, tokens)
        if wanted > self._free_blocks:
            raise OutOfBlocks(f"{wanted} blocks are needed, {self._free_blocks} are free")
        held = self._held[sequence] = []
        table = block_array()
        for piece, blocks in self._follow(content, hits).pieces:
            if blocks < len(piece.blocks):
                self._split(piece, blocks)
            if piece.users:
                self._shared_blocks += blocks
            else:
                self._queue.remove(piece)
                self._idle -= blocks
                self._free_blocks -= blocks
            piece.users.add(sequence)
            held.append(piece)
            table.extend(piece.blocks)
        table.extend(self._take(-(-tokens // self.block_size) - hits))
        self._tables[sequence] = table
        self._lengths[sequence] = tokens
        self._contents[sequence] = content
        self._findable[sequence] = hits
        self.publish(sequence)

    def publish(self, sequence: int) -> None:
        """Make those blocks of a sequence findable that it has filled by now."""
        content = self._contents.get(sequence)
        if content is None:
            return
        table = self._table(sequence)
        start, full = self._findable[sequence], self.length(sequence) // self.block_size
        if start == full:
            return
        self._findable[sequence] = full
        self._version += 1
        held = self._held[sequence]
        while start < full:
            key = content.key(start)
            twin = self._found.get(key)
            blocks = full - start
            if twin is None:
                last = held[-1] if held else None
                if last is not None and self._ends_here(last, content, start):
                    last.blocks.extend(table[start:full])
                    return
            else:
                blocks = min(_alike(twin, content), blocks)
                if blocks < len(twin.blocks):
                    self._split(twin, blocks)
            piece = Piece(table[start : start + blocks], content, start, key)
            piece.users.add(sequence)
            held.append(piece)
            if twin is None:
                self._found[key] = piece
            else:
                self._twins.setdefault(key, []).append(piece)
            start += blocks

    def set_aside(self, blocks: int) -> None:
        """Take so many blocks from the queue for what is going to be taken next, before others come back."""
        self._settle()
        self._promised += self._pop(self._unnamed + blocks - len(self._promised))

    def extend(self, sequence: int, tokens: int) -> None:
        super().extend(sequence, tokens)
        self.publish(sequence)

    def adopt(self, sequence: int, parent: int) -> list[Copy]:
        self._check_own(sequence)
        return super().adopt(sequence, parent)

    def swap_out(self, sequences: Sequence[int]) -> list[Copy]:
        for sequence in sequences:
            self._check_own(sequence)
        return super().swap_out(sequences)

    def swap_in(self, sequences: Sequence[int]) -> list[Copy]:
        moves = super().swap_in(sequences)
        for sequence in sequences:
            self._tables[sequence] = block_array(self._tables[sequence])
        return moves

    def free(self, sequence: int) -> None:
        table = self._table(sequence)
        self.publish(sequence)
        if self._lengths.pop(sequence, None) is None:
            self._leave_growing(sequence)
        self._settle()
        del self._tables[sequence]
        self._contents.pop(sequence, None)
        unfilled = Piece(table[self._findable.pop(sequence, 0) :])
        if unfilled.blocks:
            self._free_blocks += len(unfilled.blocks)
            if self.reuses_unfilled_first:
                self._queue.push_first(unfilled)
            else:
                self._queue.push(unfilled)
        for piece in reversed(self._held.pop(sequence, ())):
            piece.users.remove(sequence)
            blocks = len(piece.blocks)
            if piece.users:
                self._shared_blocks -= blocks
            else:
                self._queue.push(piece)
                self._idle += blocks
                self._free_blocks += blocks

    def check_integrity(self) -> None:
        self._name_all()
        assert not self._promised, "blocks were promised to nobody"
        super().check_integrity()
        queued = set(self._queue)
        cached = [len(piece.blocks) for piece in queued if piece.content is not None]
        assert self._idle == sum(cached), "cached blocks are miscounted"
        assert self._twins.keys() <= self._found.keys(), "a double is left of what cannot be found"
        findable: set[Piece] = set()
        for key, first in self._found.items():
            for piece in (first, *self._twins.get(key, ())):
                findable.add(piece)
                assert piece.content is not None
                assert piece.content.key(piece.start) == piece.key == key, (
                    "a piece is found under a key not its own"
                )
                assert len(piece.blocks) == len(first.blocks) > 0, "a piece and its double differ"
                assert bool(piece.users) != (piece in queued), "a piece is held and free, or neither"
        assert findable >= {piece for piece in queued if piece.content is not None}
        assert self._contents.keys() == self._held.keys() == self._findable.keys() <= self._tables.keys()
        for sequence, held in self._held.items():
            assert findable.issuperset(held), "a piece is held that cannot be found"
            assert all(sequence in piece.users for piece in held)
            named = block_array(chain.from_iterable(piece.blocks for piece in held))
            assert named == self._tables[sequence][: self._findable[sequence]], "pieces are not the table's"

    # Inside

    def _follow(self, content: Content, most: int) -> _Way:
        """Find the pieces of a content's leading blocks, as far as they are there, up to so many."""
        way = self._way
        if way.content is content and way.version == self._version and most in (way.most, way.blocks):
            return way
        found, pieces = self._found, []
        block = 0
        while block < most:
            piece = found.get(content.key(block))
            if piece is None:
                break
            blocks = min(_alike(piece, content), most - block)
            pieces.append((piece, blocks))
            block += blocks
        self._way = _Way(content, self._version, most, block, pieces)
        return self._way

    def _check_own(self, sequence: int) -> None:
        if sequence in self._contents:
            raise AllocatorError(f"sequence {sequence} must stay as it is: others may find what it holds")

    def _sharing(self) -> dict[int, int]:
        shared = {piece for held in self._held.values() for piece in held if len(piece.users) > 1}
        return {block: len(piece.users) for piece in shared for block in piece.blocks}

    def _free_list(self) -> Iterable[int]:
        return self._queue.blocks()

    def _ends_here(self, piece: Piece, content: Content, start: int) -> bool:
        """Say whether a piece can simply go on: computed by the same request, and by nobody else."""
        return (
            piece.content is content
            and piece.start + len(piece.blocks) == start
            and len(piece.users) == 1
            and piece.key not in self._twins
        )

    def _split(self, piece: Piece, blocks: int) -> None:
        """Cut a piece in two after so many blocks, and all that have the same content."""
        self._version += 1
        twins = self._twins.get(piece.key)
        rest = self._cut(self._found[piece.key], blocks)
        self._found[rest.key] = rest
        if twins is not None:
            self._twins[rest.key] = [self._cut(each, blocks) for each in twins]

    def _cut(self, piece: Piece, blocks: int) -> Piece:
        rest = piece.split(blocks)
        if not rest.users:
            self._queue.push_ahead(rest, piece)
        for sequence in rest.users:
            held = self._held[sequence]
            held.insert(held.index(piece) + 1, rest)
        return rest

    def _settle(self) -> None:
        """Take the blocks from the queue that growing sequences took since: from now on others come after."""
        missing = self._unnamed - len(self._promised)
        if missing > 0:
            self._promised += self._pop(missing)

    def _pop(self, blocks: int) -> array[int]:
        """Take so many blocks from the queue; what they held is lost."""
        taken = block_array()
        while blocks > 0:
            piece = self._queue.first
            there = len(piece.blocks)
            count = blocks if blocks < there else there
            if piece.content is not None:
                if count < there and piece.key in self._twins:
                    self._split(piece, there - count)
                    continue  # with the part that goes, which is now first
                self._idle -= count
                self._version += 1
                self._evictions.append((self._taken + 1, count))
                if count == there:
                    self._lose(piece)
            if count == there:
                self._queue.remove(piece)
            taken.extend(piece.blocks[: -count - 1 : -1])
            del piece.blocks[-count:]
            self._taken += count
            blocks -= count
        return taken

    def _lose(self, piece: Piece) -> None:
        """Let a piece not be found any more; its double is, if there is one."""
        key = piece.key
        twins = self._twins.get(key)
        if twins is None:
            del self._found[key]
            return
        if self._found[key] is piece:
            self._found[key] = twins.pop(0)
        else:
            twins.remove(piece)
        if not twins:
            del self._twins[key]

    def _take(self, blocks: int) -> array[int]:
        self._settle()
        if blocks > self._free_blocks:
            raise OutOfBlocks(f"{blocks} blocks are needed, {self._free_blocks} are free")
        self._free_blocks -= blocks
        aside = min(blocks, len(self._promised) - self._unnamed)
        if not aside:
            return self._pop(blocks)
        return self._from_promised(aside) + self._pop(blocks - aside)

    def _take_promised(self, blocks: int) -> array[int]:
        self._settle()
        self._unnamed -= blocks
        return self._from_promised(blocks)

    def _from_promised(self, blocks: int) -> array[int]:
        taken = self._promised[:blocks]
        del self._promised[:blocks]
        return taken


def _alike(piece: Piece, content: Content) -> int:
    """Return the blocks of a piece that another content goes on with, which has its first one."""
    assert piece.content is not None
    return min(len(piece.blocks), content.common(piece.content) - piece.start)
