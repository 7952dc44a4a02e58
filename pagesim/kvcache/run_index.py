"""The index of runs: finds cached blocks by their content, run by run."""

from __future__ import annotations

from array import array

from pagesim.kvcache.runs import BlockContent, FreeQueue, Run
from pagesim.setup.compiled import mypyc_attr

Hit = tuple[Run, int]
"""A matched run, and how many of its leading blocks matched."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Prefix:
    """The blocks that a request holds.

    Attributes:
        content: content of its prompt and its generated tokens.
        runs: runs of its leading blocks, which are cached.
        hashed: number of blocks in these runs.
        table: numbers of all its blocks, in token order; empty if blocks are not numbered.
    """

    __slots__ = ("content", "hashed", "runs", "table")

    def __init__(self, content: BlockContent | None) -> None:
        self.content = content
        self.runs: list[Run] = []
        self.hashed = 0
        self.table: array[int] = array("i")


@mypyc_attr(allow_interpreted_subclasses=True)
class RunIndex:
    """Finds runs by the hash of their first block; one request computed a run, others may have reused it.

    A run is split when a request reuses only a part of it. Requests free their last block first, so a run is
    evicted from its end: all blocks before a cached one are cached, too.

    Args:
        queue: queue of the free runs.

    Attributes:
        found: by the hash of its first block, the run that was first to have this content.
        duplicates: by hash, later runs with the same content and number of blocks, in order, if there are
            any.
    """

    __slots__ = ("duplicates", "found", "queue")

    def __init__(self, queue: FreeQueue) -> None:
        self.queue = queue
        self.found: dict[int, Run] = {}
        self.duplicates: dict[int, list[Run]] = {}

    @property
    def findable(self) -> int:
        """Cached blocks of distinct content, held ones included; counted run by run on each access."""
        return sum([run.count for run in self.found.values()])

    def runs(self) -> list[Run]:
        """Return all cached runs, duplicates included."""
        return [*self.found.values(), *[run for each in self.duplicates.values() for run in each]]

    def look_up(self, content: BlockContent, most: int) -> tuple[list[Hit], int]:
        """Return the runs of the longest cached prefix, up to ``most`` blocks, and its number of blocks."""
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
        """Cache the first ``full`` blocks of a request."""
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
        """Split a run and all its duplicates after ``blocks`` blocks."""
        duplicates = self.duplicates.get(run.key)
        rest = self._part(self.found[run.key], blocks)
        self.found[rest.key] = rest
        if duplicates is not None:
            self.duplicates[rest.key] = [self._part(each, blocks) for each in duplicates]

    def evict(self, run: Run, blocks: int) -> Run:
        """Evict the last ``blocks`` blocks of the first free run; return the run that contains them.

        That is a new run if they are only a part of the old one. Duplicates stay cached.
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
        """Raise AssertionError unless the bookkeeping matches the runs; ``queued`` are the free ones."""
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
        """Return whether a run has exactly one holder and no duplicates."""
        return len(run.holders) == 1 and run.key not in self.duplicates

    def _part(self, run: Run, blocks: int) -> Run:
        """Split one run; return the second part, which is allocated before the first."""
        rest = run.split(blocks)
        if not run.holders:
            self.queue.insert(rest, run)
        for prefix in run.holders:
            runs = prefix.runs
            runs.insert(runs.index(run) + 1, rest)
        return rest


def _common(run: Run, content: BlockContent) -> int:
    """Return how many leading blocks of a run match a content that matches the first one."""
    assert run.content is not None
    return content.common(run.content, run.start + run.count) - run.start
