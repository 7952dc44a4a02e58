"""Blocks: the pool that all KV groups take from, and the index by which content is found in it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from pagesim.setup.compiled import mypyc_attr

NULL = -1
"""Stands in a table where a group has no block: vLLM's null block."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Blocks:
    """Numbered blocks, each free or named by tables, some of them findable.

    Free blocks stand in a queue. One that cannot be found is put at its front, one that can be at its end; so
    the queue is a stack of the former, taken first, and behind it the latter in the order in which they came.

    Attributes:
        blank: free blocks that cannot be found, the next to be taken last.
        cached: free blocks that can, in the order in which they are taken.
        names: of each block, how many tables name it.
        keys: of each block, under which key it is found; None if it is not.
        found: of each key the blocks that it finds, the one registered first in front.
        shared: names beyond the first of all blocks.
        version: how often it changed what can be found.
    """

    __slots__ = ("blank", "cached", "found", "keys", "names", "shared", "version")

    def __init__(self, count: int) -> None:
        self.blank = list(reversed(range(count)))
        self.cached: OrderedDict[int, None] = OrderedDict()
        self.names = [0] * count
        self.keys: list[int | None] = [None] * count
        self.found: dict[int, list[int]] = {}
        self.shared = 0
        self.version = 0

    @property
    def free(self) -> int:
        """How many are free."""
        return len(self.blank) + len(self.cached)

    def take(self, count: int) -> list[int]:
        """Take so many free blocks, which there are; what could be found of them is evicted."""
        blank, names = self.blank, self.names
        blocks = blank[: -count - 1 : -1]
        del blank[len(blank) - len(blocks) :]
        for _ in range(count - len(blocks)):
            block = self.cached.popitem(last=False)[0]
            self.forget(block)
            blocks.append(block)
        for block in blocks:
            names[block] = 1
        return blocks

    def give_back(self, blocks: Iterable[int]) -> int:
        """Drop a name of each block, in this order; return how many no table names any more."""
        names, keys, cached = self.names, self.keys, self.cached
        unfound: list[int] = []
        findable = 0
        for block in blocks:
            left = names[block] = names[block] - 1
            if left:
                self.shared -= 1
            elif keys[block] is None:
                unfound.append(block)
            else:
                cached[block] = None
                findable += 1
        unfound.reverse()
        self.blank += unfound
        return findable + len(unfound)

    def adopt(self, blocks: Sequence[int]) -> int:
        """Name blocks once more that were found, null entries left out; return how many were free."""
        names, free = self.names, self.free
        for block in blocks:
            if block != NULL:
                if names[block]:
                    self.shared += 1
                else:
                    del self.cached[block]
                names[block] += 1
        return free - self.free

    def register(self, block: int, key: int) -> None:
        """Make a block findable under a key."""
        if self.keys[block] is None:
            self.keys[block] = key
            self.version += 1
            self.found.setdefault(key, []).append(block)

    def forget(self, block: int) -> None:
        """Make a block that is not free, or is about to be taken, findable no more."""
        key = self.keys[block]
        if key is not None:
            self.keys[block] = None
            self.version += 1
            blocks = self.found[key]
            if len(blocks) == 1:
                del self.found[key]
            else:
                blocks.remove(block)

    def in_order(self) -> list[int]:
        """Return the free blocks in the order in which they are taken."""
        return [*reversed(self.blank), *self.cached]

    def check_integrity(self, tables: Iterable[Iterable[int]]) -> None:
        """Raise AssertionError unless the bookkeeping is that of these tables."""
        names = [0] * len(self.names)
        for table in tables:
            for block in table:
                if block != NULL:
                    names[block] += 1
        free = self.in_order()
        assert names == self.names, "names of blocks are miscounted"
        assert sorted(free) == [block for block, count in enumerate(names) if not count], "blocks are lost"
        assert self.shared == sum(count - 1 for count in names if count), "shared blocks are miscounted"
        assert all(self.keys[block] is None for block in self.blank), "a blank block can be found"
        assert all(self.keys[block] is not None for block in self.cached), "a cached block cannot be found"
        for key, blocks in self.found.items():
            assert blocks, "a key finds nothing"
            assert all(self.keys[block] == key for block in blocks), (
                "a block is found under a key not its own"
            )
        findable = sum(len(blocks) for blocks in self.found.values())
        assert findable == sum(key is not None for key in self.keys), "a block with a key is not found"
