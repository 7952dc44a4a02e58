"""The block pool that all KV cache groups share, and the index that finds cached content in it.

Source: vLLM 0.33.0, ``v1/core/block_pool.py``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from pagesim.setup.compiled import mypyc_attr

NULL: Final = -1
"""The entry of a block table where a group has no block: vLLM's null block."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Blocks:
    """Numbered blocks, each free or in block tables; a *hashed* block can be found by its content.

    Free blocks form a queue: unhashed blocks are freed to its front and hashed ones to its end. So it is a
    stack of unhashed blocks, allocated first, followed by the cached blocks in the order in which they were
    freed. Requests share only blocks that they match, so an unhashed block is in at most one table.

    Attributes:
        unhashed_free: free blocks without a hash; the last one is allocated first.
        cached: free blocks with a hash, in the order in which they are allocated.
        references: number of tables that contain each hashed block; 1 for unhashed ones.
        extra_references: references beyond the first, over all blocks.
        keys: hash of each block; None for an unhashed one.
        found: by hash, the block that it finds: the first one with this hash.
        duplicates: by hash, the blocks that got the same hash later, in order, if there are any.
        within: for each block whose hash is that of a prefix ending inside it, the tokens of that prefix.
        further: the other hashes of blocks that have several, all of such prefixes.
        version: number of changes to what is cached.
    """

    __slots__ = (
        "cached",
        "duplicates",
        "extra_references",
        "found",
        "further",
        "keys",
        "references",
        "unhashed_free",
        "version",
        "within",
    )

    def __init__(self, count: int) -> None:
        self.unhashed_free = list(reversed(range(count)))
        self.cached: OrderedDict[int, None] = OrderedDict()
        self.references = [1] * count
        self.extra_references = 0
        self.keys: list[int | None] = [None] * count
        self.found: dict[int, int] = {}
        self.duplicates: dict[int, list[int]] = {}
        self.within: dict[int, int] = {}
        self.further: dict[int, list[int]] = {}
        self.version = 0

    @property
    def free(self) -> int:
        """The number of free blocks."""
        return len(self.unhashed_free) + len(self.cached)

    def take(self, count: int) -> list[int]:
        """Allocate ``count`` (at least 1) blocks, which are free, evicting any cached content in them."""
        free = self.unhashed_free
        if count == 1 and free:
            return [free.pop()]
        blocks = free[: -count - 1 : -1]
        del free[-count:]
        if len(blocks) < count:
            blocks += self._evict(count - len(blocks))
        return blocks

    def _evict(self, count: int) -> list[int]:
        """Allocate ``count`` cached blocks, evicting their content."""
        blocks = [self.cached.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self.forget(block)
            self.references[block] = 1
        return blocks

    def give_back(self, blocks: Iterable[int]) -> int:
        """Drop one reference to each block, in this order; return how many are still in another table."""
        keys, references, cached = self.keys, self.references, self.cached
        unhashed: list[int] = []
        kept = 0
        for block in blocks:
            if keys[block] is None:
                unhashed.append(block)
            elif references[block] == 1:
                references[block] = 0
                cached[block] = None
            else:
                references[block] -= 1
                kept += 1
        unhashed.reverse()
        self.unhashed_free += unhashed
        self.extra_references -= kept
        return kept

    def touch(self, block: int) -> bool:
        """Add a reference to a matched block; return whether another table has it."""
        held = self.references[block] > 0
        if held:
            self.extra_references += 1
        else:
            del self.cached[block]
        self.references[block] += 1
        return held

    def register(self, rows: Iterable[tuple[int, Sequence[int]]]) -> None:
        """Hash the unhashed blocks of each row with consecutive hashes that start at the row's.

        A block's hash of a prefix that ends inside it is replaced.
        """
        keys, within = self.keys, self.within
        for key, blocks in rows:
            for block in blocks:
                if block in within:
                    self.forget(block)
                if keys[block] is None:
                    keys[block] = key
                    self._let_find(key, block)
                key += 1
        self.version += 1

    def register_within(self, key: int, blocks: Sequence[int], tokens: int) -> None:
        """Add to each block the hash of a prefix of ``tokens`` tokens that ends inside it.

        The hashes are consecutive, starting at ``key``. A hash of a shorter prefix is replaced.
        """
        for block in blocks:
            has = self.keys[block]
            if has != key and key not in self.further.get(block, ()):
                if self.within.get(block, tokens) < tokens:
                    self.forget(block)
                    has = None
                if has is None:
                    self.keys[block] = key
                    self.within[block] = tokens
                else:
                    self.further.setdefault(block, []).append(key)
                self._let_find(key, block)
                self.version += 1
            key += 1

    def _let_find(self, key: int, block: int) -> None:
        """Add a block to the index under a hash, as a duplicate if the hash finds another block."""
        if self.found.setdefault(key, block) != block:
            self.duplicates.setdefault(key, []).append(block)

    def forget(self, block: int) -> None:
        """Remove any hashes of a block that is in use or about to be allocated."""
        key = self.keys[block]
        if key is None:
            return
        self.keys[block] = None
        self.version += 1
        self.within.pop(block, None)
        for each in (key, *self.further.pop(block, ())):
            self._find_no_longer(each, block)

    def _find_no_longer(self, key: int, block: int) -> None:
        """Remove a block from the index under a hash; the next duplicate, if any, takes its place."""
        others = self.duplicates.get(key)
        if others is None:
            del self.found[key]
            return
        if self.found[key] == block:
            self.found[key] = others.pop(0)
        else:
            others.remove(block)
        if not others:
            del self.duplicates[key]

    def in_order(self) -> list[int]:
        """Return the free blocks in the order in which they are allocated."""
        return [*reversed(self.unhashed_free), *self.cached]

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise AssertionError unless the bookkeeping matches these block tables."""
        references = [0] * len(self.keys)
        for table in tables:
            for block in table:
                if block != NULL:
                    references[block] += 1
        free = sorted(self.in_order())
        assert free == [block for block, count in enumerate(references) if not count], "blocks are lost"
        for block, key in enumerate(self.keys):
            if key is None:
                assert self.references[block] == 1, "an unhashed block has a count of references"
                assert references[block] <= 1, "two tables have an unhashed block"
            else:
                assert self.references[block] == references[block], "references are miscounted"
        extra = sum(count - 1 for count in references if count)
        assert self.extra_references == extra, "extra references are miscounted"
        assert all(self.keys[block] is None for block in self.unhashed_free), "an unhashed block has a hash"
        assert all(self.keys[block] is not None for block in self.cached), "a cached block has no hash"
        by_key: dict[int, set[int]] = {}
        for block, key in enumerate(self.keys):
            for each in () if key is None else (key, *self.further.get(block, ())):
                by_key.setdefault(each, set()).add(block)
        assert all(self.keys[block] is not None for block in (*self.within, *self.further)), "a hash is lost"
        finds = {key: {block, *self.duplicates.get(key, ())} for key, block in self.found.items()}
        assert finds == by_key, "a hash finds blocks that do not have it, or misses one"
