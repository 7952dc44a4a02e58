"""Prefix caching with block tables: all blocks are numbered."""

from __future__ import annotations

from array import array
from itertools import chain

from pagesim.allocators.extents import Extent, join_extents
from pagesim.kvcache.prefix import PrefixManager
from pagesim.kvcache.ring import Buckets, opening_step
from pagesim.kvcache.run_index import Prefix
from pagesim.kvcache.runs import Run
from pagesim.kvcache.sequence_group import SequenceGroup
from pagesim.setup.compiled import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class NumberedPrefixManager(PrefixManager):
    """A `PrefixManager` that tracks which numbered blocks each run and each request holds.

    Attributes:
        requests: requests that hold blocks.
    """

    names_blocks = True

    def __init__(
        self, num_blocks: int, block_size: int, cpu_blocks: int = 0, *, reuses_unhashed_first: bool = True
    ) -> None:
        super().__init__(num_blocks, block_size, cpu_blocks, reuses_unhashed_first=reuses_unhashed_first)
        self._queue.end.behind.blocks.extend(range(num_blocks - 1, -1, -1))
        self._fresh: array[int] = array("i")  # numbers of allocated blocks that are not in a table yet
        self._buckets = Buckets(block_size)
        self.requests: dict[SequenceGroup, None] = {}

    # Changes

    def admit(self, request: SequenceGroup, tokens: int) -> None:
        super().admit(request, tokens)
        self.requests[request] = None

    def start_decoding(self, request: SequenceGroup) -> None:
        super().start_decoding(request)
        self._buckets.enter(request, [opening_step(request.length_offset, self.block_size)])

    def stop_decoding(self, request: SequenceGroup) -> None:
        self._buckets.leave(request)
        super().stop_decoding(request)

    def _allocate_steps(self, steps: int, blocks: int) -> int:
        first = self.steps + 1
        super()._allocate_steps(steps, blocks)
        if self._fresh:
            takers = [request for step in range(first, first + steps) for request in self._buckets.at(step)]
            for request, block in zip(takers, self._fresh, strict=True):
                request.block_state.table.append(block)
            del self._fresh[:]
        return 0

    def release(self, request: SequenceGroup) -> None:
        super().release(request)
        del self.requests[request]

    # Tables

    def block_table(self, request: SequenceGroup, sample: int = 0, group: int = 0) -> list[int]:
        prefix: Prefix = request.block_state
        return list(prefix.table)

    def free_blocks_in_order(self) -> list[int]:
        return list(chain.from_iterable([reversed(run.blocks) for run in self._queue]))

    def cached_extents(self) -> list[Extent]:
        """Return the maximal runs of free blocks whose content is still cached, by address."""
        cached = [run.blocks for run in self._queue if run.content is not None]
        return join_extents(sorted(chain.from_iterable(cached)))

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is either free or held and all bookkeeping agrees."""
        super().check_integrity()
        free = self.free_blocks_in_order()
        named = {block for request in self.requests for block in request.block_state.table}
        names = sum([len(request.block_state.table) for request in self.requests])
        assert sorted([*named, *free]) == list(range(self.num_blocks)), "blocks are owned twice or lost"
        assert self.free_blocks == len(free), "free blocks are miscounted"
        assert self.shared_blocks == names - len(named), "shared blocks are miscounted"
        assert not self._fresh, "blocks are taken and in no table"
        for run in self._queue:
            assert run.count == len(run.blocks), "a run's blocks are miscounted"
        findable = set(self._index.runs())
        for request in self.requests:
            prefix: Prefix = request.block_state
            assert findable.issuperset(prefix.runs), "a run is held that cannot be found"
            assert all(prefix in run.holders for run in prefix.runs), "a run does not know its request"
            blocks = list(chain.from_iterable([run.blocks for run in prefix.runs]))
            assert blocks == list(prefix.table[: prefix.hashed]), "runs are not the table's"
            assert len(prefix.table) == self.held_blocks(request), "a table's length is off"

    # Hooks of `PrefixManager`

    def _take(self, blocks: int, prefix: Prefix | None = None) -> None:
        super()._take(blocks)
        if prefix is not None:
            table = prefix.table
            if not table:
                for run in prefix.runs:
                    table += run.blocks
            table += self._fresh
            del self._fresh[:]

    def _taken(self, run: Run, blocks: int) -> None:
        there = run.blocks
        self._fresh += there[: -blocks - 1 : -1]
        del there[-blocks:]

    def _given_back(self, run: Run, prefix: Prefix, blocks: int) -> None:
        run.blocks += prefix.table[-blocks:]
