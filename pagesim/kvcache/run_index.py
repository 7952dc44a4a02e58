"""Index of runs: what can be found of a KV group that keeps all of a sequence, run by run."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import ClassVar

from pagesim.kvcache.runs import ALL_BLOCKS, Content, FreeQueue, Run
from pagesim.setup.compiled import mypyc_attr

Hit = tuple[Run, int, int]
"""A run that was found, how many of its blocks, and how many it had."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Prefix:
    """The blocks of a sequence in a group, as far as they can be found.

    Attributes:
        content: of its prompt, and of what it generates.
        runs: those of its leading blocks that can be found.
        hashed: how many blocks these are.
        missing: the key of the block behind these, if it was just looked up and is not there.
        shared: how many leading blocks are put into the index as soon as they can be found; those behind them
            are when the sequence is over, since no request can ask for them before.
        due: how many of the latter can be found by now.
        table: all its blocks, in token order, where blocks have numbers.
    """

    __slots__ = ("content", "due", "hashed", "missing", "runs", "shared", "table")

    table: array[int]

    def __init__(
        self, content: Content | None, runs: list[Run], hashed: int, missing: int | None = None
    ) -> None:
        self.content = content
        self.runs = runs
        self.hashed = hashed
        self.missing = missing
        self.shared = ALL_BLOCKS
        self.due = 0


@mypyc_attr(allow_interpreted_subclasses=True)
class RunIndex:
    """Finds runs by the name of their first block: blocks that one sequence computed and others took over.

    A run is cut in two where a sequence takes over a part of it. Sequences give their blocks back last block
    first, so content is evicted from a run's end on: what comes before a block that can be found can be, too.

    Args:
        queue: of the free runs.

    Attributes:
        found: the run that the key of its first block finds: the first that had this content. Duplicates,
            which have just as many blocks, wait behind it.
        duplicates: see above.
    """

    __slots__ = ("duplicates", "found", "queue")

    names_blocks: ClassVar[bool] = False
    """Whether blocks have numbers."""

    def __init__(self, queue: FreeQueue) -> None:
        self.queue = queue
        self.found: dict[int, Run] = {}
        self.duplicates: dict[int, list[Run]] = {}

    @property
    def findable(self) -> int:
        """Blocks of different content that can be found; counted here, run by run."""
        return sum([run.count for run in self.found.values()])

    def look_up(self, content: Content, most: int, hits: list[Hit]) -> tuple[int, int | None]:
        """Find the runs of a sequence's leading blocks, as far as they are there, up to so many.

        Args:
            content: of the sequence.
            most: blocks.
            hits: where each run that is found is appended.

        Returns:
            The blocks, and the key of the one that ended the search; None where no more were asked for.
        """
        found, block = self.found, 0
        while block < most:
            key = content.key(block)
            run = found.get(key)
            if run is None:
                return block, key
            blocks = min(_alike(run, content), most - block)
            hits.append((run, blocks, run.count))
            block += blocks
        return block, None

    def register(self, prefix: Prefix, full: int) -> None:
        """Make the blocks of a sequence findable whose first so many are full."""
        content, start = prefix.content, prefix.hashed
        if start >= full or content is None:
            return
        prefix.hashed = full
        runs, found = prefix.runs, self.found
        missing = prefix.missing
        while start < full:
            blocks = full - start
            if missing is not None:
                key, missing, first = missing, None, None
            else:
                key = content.key(start)
                first = None if content.unseen else found.get(key)
            content.unseen = False
            if first is None:
                last = runs[-1] if runs else None
                if (
                    last is not None
                    and last.content is content
                    and len(last.holders) == 1
                    and last.key not in self.duplicates
                ):  # the request computed it, too, and nothing else has or is the same: it is longer now
                    if self.names_blocks:
                        self.name(prefix, last, start, blocks)
                    last.count += blocks
                    return
            else:
                blocks = min(_alike(first, content), blocks)
                if blocks < first.count:
                    self.split(first, blocks)
            run = Run(0, content, start, key)
            if self.names_blocks:
                self.name(prefix, run, start, blocks)
            run.count = blocks
            run.index = self
            run.holders.append(prefix)
            runs.append(run)
            if first is None:
                found[key] = run
            else:
                self.duplicates.setdefault(key, []).append(run)
            start += blocks

    def add(self, content: Content, start: int, blocks: int) -> Run:
        """Make so many blocks of a content findable, from one on, that no other has, and that none holds."""
        content.unseen = False
        content.shared = ALL_BLOCKS
        key = content.key(start)
        self.found[key] = run = Run(blocks, content, start, key)
        run.index = self
        return run

    def split(self, run: Run, blocks: int) -> None:
        """Cut a run in two after so many blocks, and all that have the same content."""
        duplicates = self.duplicates.get(run.key)
        rest = self._part(self.found[run.key], blocks)
        self.found[rest.key] = rest
        if duplicates is not None:
            self.duplicates[rest.key] = [self._part(each, blocks) for each in duplicates]

    def forget(self, run: Run) -> None:
        """Take a run out of the index; a duplicate with the same key takes its place."""
        key = run.key
        duplicates = self.duplicates.get(key)
        if duplicates is None:
            del self.found[key]
            return
        if self.found[key] is run:
            self.found[key] = duplicates.pop(0)
        else:
            duplicates.remove(run)
        if not duplicates:
            del self.duplicates[key]

    def evict(self, run: Run, most: int) -> int:
        """Evict at most so many blocks of the first free run, its last ones; return how many."""
        if most < run.count:
            if run.key in self.duplicates:
                self.split(run, run.count - most)
                return 0  # what goes is the first free run now
            run.count -= most
            return most
        blocks, run.count = run.count, 0
        self.forget(run)
        self.queue.remove(run)
        return blocks

    # What a form of this index with numbers adds to

    def cut(self, run: Run, blocks: int) -> Run:
        """Cut a run in two after so many blocks; return the second."""
        return run.split(blocks)

    def name(self, prefix: Prefix, run: Run, start: int, blocks: int) -> None:
        """Add the numbers of so many blocks of a sequence, from its block ``start`` on, to a run."""
        return

    # Inside

    def _part(self, run: Run, blocks: int) -> Run:
        rest = self.cut(run, blocks)
        if not run.holders:
            self.queue.push_ahead(rest, run)
        for prefix in run.holders:
            runs = prefix.runs
            runs.insert(runs.index(run) + 1, rest)
        return rest


def are_there(hits: Iterable[Hit]) -> bool:
    """Say whether runs are as they were found; one that was evicted has no blocks left."""
    for run, _, count in hits:  # noqa: SIM110 (in half the time)
        if run.count != count:
            return False
    return True


def free_blocks(hits: Iterable[Hit]) -> int:
    """Return how many of the blocks that were found no sequence holds."""
    free = 0
    for run, blocks, _ in hits:
        if not run.holders:
            free += blocks
    return free


def _alike(run: Run, content: Content) -> int:
    """Return the blocks of a run that another content goes on with, which has its first one."""
    assert run.content is not None
    return content.common(run.content, run.start + run.count) - run.start
