"""The index of runs: which blocks can be found by their content, run by run."""

from __future__ import annotations

from array import array

from pagesim.kvcache.runs import Content, FreeQueue, Run
from pagesim.setup.compiled import mypyc_attr

Hit = tuple[Run, int]
"""A run that was found, and how many of its leading blocks were asked for."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Prefix:
    """The blocks that a request holds.

    Attributes:
        content: of its prompt, and of what it generates.
        runs: of its leading blocks, those that can be found.
        hashed: how many blocks these are.
        table: the numbers of all its blocks, in token order; empty where blocks have none.
    """

    __slots__ = ("content", "hashed", "runs", "table")

    def __init__(self, content: Content | None) -> None:
        self.content = content
        self.runs: list[Run] = []
        self.hashed = 0
        self.table: array[int] = array("i")


@mypyc_attr(allow_interpreted_subclasses=True)
class RunIndex:
    """Finds runs by the hash of their first block: blocks that one request computed and others took over.

    A run is cut in two where a request takes over a part of it. Requests give their blocks back last block
    first, so a run is evicted from its end on: what comes before a block that can be found can be found, too.

    Args:
        queue: of the free runs.

    Attributes:
        found: the run that the hash of its first block finds: the first that had this content.
        duplicates: of each hash the runs that had the same content later, in order, where there are any; each
            has as many blocks as the first.
    """

    __slots__ = ("duplicates", "found", "queue")

    def __init__(self, queue: FreeQueue) -> None:
        self.queue = queue
        self.found: dict[int, Run] = {}
        self.duplicates: dict[int, list[Run]] = {}

    @property
    def findable(self) -> int:
        """Blocks of different content that can be found, held ones included; counted here, run by run."""
        return sum([run.count for run in self.found.values()])

    def runs(self) -> list[Run]:
        """Return all runs that can be found, duplicates included."""
        return [*self.found.values(), *[run for each in self.duplicates.values() for run in each]]

    def look_up(self, content: Content, most: int) -> tuple[list[Hit], int]:
        """Return the cached runs that a sequence begins with, up to ``most`` blocks, and how many blocks."""
        hits: list[Hit] = []
        block = 0
        while block < most:
            run = self.found.get(content.key(block))
            if run is None:
                break
            blocks = min(_common(run, content), most - block)
            hits.append((run, blocks))
            block += blocks
        return hits, block

    def register(self, prefix: Prefix, full: int) -> None:
        """Make the first ``full`` blocks of a request findable."""
        content, start = prefix.content, prefix.hashed
        if start >= full or content is None:
            return
        prefix.hashed = full
        runs = prefix.runs
        while start < full:
            blocks = full - start
            key = content.key(start)
            first = self.found.get(key)
            if first is None:
                last = runs[-1] if runs else None
                if last is not None and last.content is content and self._is_single(last):
                    last.count += blocks
                    if prefix.table:
                        last.blocks.extend(prefix.table[start:full])
                    return
            else:
                blocks = min(_common(first, content), blocks)
                if blocks < first.count:
                    self.split(first, blocks)
            run = Run(blocks, content, start, key)
            if prefix.table:
                run.blocks = prefix.table[start : start + blocks]
            run.holders.append(prefix)
            runs.append(run)
            if first is None:
                self.found[key] = run
            else:
                self.duplicates.setdefault(key, []).append(run)
            start += blocks

    def split(self, run: Run, blocks: int) -> None:
        """Cut a run in two after ``blocks`` blocks, and all that have the same content."""
        duplicates = self.duplicates.get(run.key)
        rest = self._part(self.found[run.key], blocks)
        self.found[rest.key] = rest
        if duplicates is not None:
            self.duplicates[rest.key] = [self._part(each, blocks) for each in duplicates]

    def evict(self, run: Run, blocks: int) -> Run:
        """Forget the last ``blocks`` blocks of the first free run; return the run that has them.

        That is a new run where these are a part, with duplicates, which stay.
        """
        if blocks < run.count:
            self.split(run, run.count - blocks)
            run = self.queue.end.behind
        key = run.key
        duplicates = self.duplicates.get(key)
        if duplicates is None:
            del self.found[key]
            return run
        if self.found[key] is run:
            self.found[key] = duplicates.pop(0)
        else:
            duplicates.remove(run)
        if not duplicates:
            del self.duplicates[key]
        return run

    def check_integrity(self, queued: set[Run]) -> None:
        """Raise AssertionError unless the bookkeeping is that of the runs; given those that are free."""
        assert self.duplicates.keys() <= self.found.keys(), "a duplicate is left of what cannot be found"
        assert all(self.found[key].key == key for key in self.found), "a run is found under a key not its own"
        for run in self.runs():
            assert run.content is not None
            assert run.content.key(run.start) == run.key, "a run's key is not its content's"
            assert run.count == self.found[run.key].count > 0, "a run and its duplicate differ"
            assert bool(run.holders) != (run in queued), "a run is held and free, or neither"
            assert all(run in prefix.runs for prefix in run.holders), "a run is not its request's"

    # Inside

    def _is_single(self, run: Run) -> bool:
        """Say whether one request alone has a run, and no other run has its content."""
        return len(run.holders) == 1 and run.key not in self.duplicates

    def _part(self, run: Run, blocks: int) -> Run:
        """Cut one run in two; return the second part, which is taken before the first."""
        rest = run.split(blocks)
        if not run.holders:
            self.queue.insert(rest, run)
        for prefix in run.holders:
            runs = prefix.runs
            runs.insert(runs.index(run) + 1, rest)
        return rest


def _common(run: Run, content: Content) -> int:
    """Return how many blocks of a run another content has, too, which has the first one."""
    assert run.content is not None
    return content.common(run.content, run.start + run.count) - run.start
