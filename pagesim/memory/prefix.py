"""Paged memory that remembers: full blocks are found by their content until they are taken again."""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from itertools import islice

from pagesim.memory.base import Copy, Extent, OutOfBlocks, join_extents
from pagesim.memory.paged import PagedAllocator

Keys = Callable[[int], int]
"""Names the content of a sequence's blocks: two sequences have the same key for their blocks of a number
exactly if all their tokens up to the end of that block are the same."""


class PrefixCachingAllocator(PagedAllocator):
    """On demand as its parent; beside it, what was computed can be found again.

    The free blocks are a queue. Blocks are taken at its front, and lose what they held; a request gives its
    blocks back last block first. A prompt that begins as another one did takes over that one's full blocks,
    in use (then they are shared) or free (then they leave the queue from wherever they are).

    Only what ``allocate_cached`` allocates is findable. A block is from the moment on at which room is made
    for its last token; of a growing sequence, whose own tokens nobody else can ask for, not before it is
    freed or ``publish`` is called.

    Args:
        num_blocks: blocks on the device.
        block_size: token slots a block.
        cpu_blocks: blocks of the swap space.
        reuses_unfilled_first: whether blocks that nobody can ask for go to the front of the queue (vLLM
            0.33); if not, all blocks queue up behind one another (0.11).
    """

    def __init__(
        self, num_blocks: int, block_size: int, cpu_blocks: int = 0, *, reuses_unfilled_first: bool = True
    ) -> None:
        super().__init__(num_blocks, block_size, cpu_blocks)
        self.reuses_unfilled_first = reuses_unfilled_first
        self._free = []  # the queue takes its place
        self._queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        # Taken from the queue for growing sequences and not yet named in their tables, or set aside.
        self._promised: deque[int] = deque()
        self._key_of: dict[int, int] = {}
        # The block that a key finds: the first that had it. Later ones with the same content wait behind it.
        self._found: dict[int, int] = {}
        self._duplicates: dict[int, list[int]] = {}
        self._keys: dict[int, Keys] = {}
        self._findable: dict[int, int] = {}  # by sequence: its leading blocks that were given their keys
        self._idle = 0
        self._taken = 0
        self._evictions = array("q")

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
        aside = len(self._promised) - self._unnamed
        taken = max(0, self._free_blocks - free - aside)
        lost = sum([block in self._key_of for block in islice(self._queue, taken)])
        return free, free_cpu, shared, self._idle - lost, self._taken + taken

    def cached_extents(self) -> list[Extent]:
        self._settle()
        return join_extents(sorted(block for block in self._queue if block in self._key_of))

    def take_evictions(self) -> array[int]:
        self._settle()
        evictions, self._evictions = self._evictions, array("q")
        return evictions

    def hits(self, keys: Keys, tokens: int) -> int:
        """Return the leading blocks of a prompt that are there already; never all of its tokens."""
        self._settle()
        found = self._found
        most = (tokens - 1) // self.block_size
        for block in range(most):
            if keys(block) not in found:
                return block
        return most

    def blocks_wanted(self, keys: Keys, hits: int, tokens: int) -> int:
        """Return the free blocks that a prompt takes: new ones, and those of its hits that are free."""
        queue, found = self._queue, self._found
        idle = sum([found[keys(block)] in queue for block in range(hits)])
        return -(-tokens // self.block_size) - hits + idle

    # Changes

    def allocate_cached(self, sequence: int, keys: Keys, hits: int, tokens: int) -> None:
        """Give a new sequence room for ``tokens``, the first ``hits`` blocks found and not computed.

        Args:
            sequence: its id.
            keys: of its content, also of what it will generate.
            hits: at most what ``hits`` said.
            tokens: as far as its prompt is computed now, the hits included.

        Raises:
            OutOfBlocks: ``blocks_wanted`` exceeds the free blocks.
            AllocatorError: the sequence is already here, or ``tokens`` is below 1.
        """
        self._check_new(sequence, tokens)
        self._settle()
        wanted = self.blocks_wanted(keys, hits, tokens)
        if wanted > self.free_blocks:
            raise OutOfBlocks(f"{wanted} blocks are needed, {self.free_blocks} are free")
        table = [self._found[keys(block)] for block in range(hits)]
        for block in table:
            if block in self._queue:
                del self._queue[block]
                self._idle -= 1
                self._free_blocks -= 1
            else:
                self._references[block] = self._references.get(block, 1) + 1
                self._shared_blocks += 1
        self._tables[sequence] = table + self._take(-(-tokens // self.block_size) - hits)
        self._lengths[sequence] = tokens
        self._keys[sequence] = keys
        self._findable[sequence] = hits
        self.publish(sequence)

    def publish(self, sequence: int) -> None:
        """Make those blocks of a sequence findable that it has filled by now."""
        keys = self._keys.get(sequence)
        if keys is None:
            return
        table = self._table(sequence)
        full = self.length(sequence) // self.block_size
        for number in range(self._findable[sequence], full):
            block, key = table[number], keys(number)
            self._key_of[block] = key
            if self._found.setdefault(key, block) != block:
                self._duplicates.setdefault(key, []).append(block)
        self._findable[sequence] = full

    def set_aside(self, blocks: int) -> None:
        """Take so many blocks from the queue for what is going to be taken next, before others come back."""
        self._settle()
        while len(self._promised) < self._unnamed + blocks:
            self._promised.append(self._pop())

    def extend(self, sequence: int, tokens: int) -> None:
        super().extend(sequence, tokens)
        self.publish(sequence)

    def adopt(self, sequence: int, parent: int) -> list[Copy]:
        copies = super().adopt(sequence, parent)
        self._forget(sequence)
        return copies

    def free(self, sequence: int) -> None:
        self._table(sequence)
        self.publish(sequence)
        super().free(sequence)
        self._forget(sequence)

    def check_integrity(self) -> None:
        self._name_all()
        assert not self._promised, "blocks were promised to nobody"
        super().check_integrity()
        assert self._idle == sum(block in self._key_of for block in self._queue), (
            "cached blocks are miscounted"
        )
        by_key: dict[int, set[int]] = {}
        for block, key in self._key_of.items():
            by_key.setdefault(key, set()).add(block)
        assert by_key == {
            key: {block, *self._duplicates.get(key, [])} for key, block in self._found.items()
        }, "a block is found under a key that is not its own"
        assert self._keys.keys() == self._findable.keys() <= self._tables.keys()

    # Inside

    def _forget(self, sequence: int) -> None:
        self._keys.pop(sequence, None)
        self._findable.pop(sequence, None)

    def _free_list(self) -> Iterable[int]:
        return self._queue

    def _settle(self) -> None:
        """Take the blocks from the queue that growing sequences took since: from now on others come after."""
        for _ in range(self._unnamed - len(self._promised)):
            self._promised.append(self._pop())

    def _pop(self) -> int:
        block, _ = self._queue.popitem(last=False)
        self._taken += 1
        key = self._key_of.pop(block, None)
        if key is not None:
            self._idle -= 1
            self._evictions.append(self._taken)
            others = self._duplicates.get(key)
            if self._found[key] != block:
                assert others is not None
                others.remove(block)
            elif others:
                self._found[key] = others.pop(0)
            else:
                del self._found[key]
            if others is not None and not others:
                del self._duplicates[key]
        return block

    def _take(self, blocks: int) -> list[int]:
        self._settle()
        if blocks > self.free_blocks:
            raise OutOfBlocks(f"{blocks} blocks are needed, {self.free_blocks} are free")
        self._free_blocks -= blocks
        aside = min(blocks, len(self._promised) - self._unnamed)
        taken = [self._promised.popleft() for _ in range(aside)]
        return taken + [self._pop() for _ in range(blocks - aside)]

    def _take_promised(self, blocks: int) -> list[int]:
        self._settle()
        self._unnamed -= blocks
        return [self._promised.popleft() for _ in range(blocks)]

    def _give_back(self, blocks: list[int]) -> None:
        self._settle()
        self._free_blocks += len(blocks)
        queue, key_of = self._queue, self._key_of
        unfilled = []
        for block in reversed(blocks):
            if block in key_of:
                self._idle += 1
            elif self.reuses_unfilled_first:
                unfilled.append(block)
                continue
            queue[block] = None
        for block in reversed(unfilled):
            queue[block] = None
            queue.move_to_end(block, last=False)
