"""Block tables of paged memory: every block has a number, and every sample a table of its blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pagesim.allocators.extents import Copy
from pagesim.kvcache.ring import Buckets, opening_step
from pagesim.kvcache.sequence_group import SequenceGroup
from pagesim.setup.compiled import mypyc_attr

Table = list[int]
"""The blocks of one sample, in token order."""


@mypyc_attr(allow_interpreted_subclasses=True)
class BlockAllocator:
    """An allocator of the blocks of the device or of the swap space, with reference counts.

    The free list is a stack with block 0 at the bottom, as in the vLLM of the paper. It does not check
    whether enough blocks are free: `PagedManager` counts them.

    Args:
        num_blocks: blocks of the device or of the swap space.

    Attributes:
        free: free blocks; the last one is allocated next.
        reserved: how many of these are allocated before any that is freed later.
        references: tables that contain each block, ``[num_blocks]``.
    """

    def __init__(self, num_blocks: int) -> None:
        self.free = list(range(num_blocks))
        self.reserved = 0
        self.references = [0] * num_blocks

    def allocate(self, blocks: int) -> Table:
        """Return a new table of ``blocks`` blocks that were free."""
        if not blocks:
            return []
        table = self.free[: -blocks - 1 : -1]
        del self.free[-blocks:]
        self.reserved = max(0, self.reserved - blocks)
        for block in table:
            self.references[block] = 1
        return table

    def share(self, table: Table) -> Table:
        """Return another table of the same blocks."""
        for block in table:
            self.references[block] += 1
        return list(table)

    def drop(self, table: Table) -> None:
        """Drop a table, freeing the blocks that no other table contains."""
        unnamed = []
        for block in table:
            self.references[block] -= 1
            if not self.references[block]:
                unnamed.append(block)
        top = len(self.free) - self.reserved
        self.free[top:top] = unnamed

    def reserve_free(self) -> None:
        """Make all currently free blocks be allocated before any that is freed later."""
        self.reserved = len(self.free)

    def check_integrity(self, tables: Iterable[Table]) -> None:
        """Raise AssertionError unless each block is free or has the right reference count."""
        names = [0] * len(self.references)
        for table in tables:
            assert len(set(table)) == len(table), "a table names a block twice"
            for block in table:
                names[block] += 1
        assert names == self.references, "reference counts are off"
        unnamed = [block for block, count in enumerate(names) if not count]
        assert sorted(self.free) == unnamed, "blocks are owned twice or lost"


@mypyc_attr(allow_interpreted_subclasses=True)
class PagedTables:
    """The block tables of paged memory.

    Blocks get their numbers in the step in which they are allocated. Samples of one request share blocks;
    requests do not. A block that is in several tables is copied before a sample writes to it.

    Args:
        num_blocks: blocks on the device.
        cpu_blocks: blocks of the swap space.
        block_size: tokens per block.

    Attributes:
        device, host: allocators of the device and of the swap space.
        on_device: tables of each request on the device, one per sample.
        swapped: tables of each request in the swap space, one per sample.
        notes_moves: whether the following lists are filled; the code that enables this must empty them.
        copies: blocks copied on write since the list was last emptied, as (from, to).
        swaps_in, swaps_out: blocks moved between device and swap space since then, as (from, to).
    """

    def __init__(self, num_blocks: int, cpu_blocks: int, block_size: int) -> None:
        self.device = BlockAllocator(num_blocks)
        self.host = BlockAllocator(cpu_blocks)
        self.on_device: dict[SequenceGroup, list[Table]] = {}
        self.swapped: dict[SequenceGroup, list[Table]] = {}
        self.notes_moves = False
        self.copies: list[Copy] = []
        self.swaps_in: list[Copy] = []
        self.swaps_out: list[Copy] = []
        self._block_size = block_size
        self._decoding = Buckets(block_size)

    # Questions

    def of(self, request: SequenceGroup) -> list[Table]:
        """Return the table of each sample of a request, on the device or in the swap space."""
        return self.on_device.get(request) or self.swapped[request]

    def distinct(self, request: SequenceGroup) -> int:
        """Return how many distinct blocks a request holds."""
        return len({block for table in self.of(request) for block in table})

    def last_blocks(self, request: SequenceGroup) -> int:
        """Return how many distinct last blocks the tables of a request have."""
        return len({table[-1] for table in self.of(request)})

    # Changes

    def admit(self, request: SequenceGroup, blocks: int, *, shares: bool) -> None:
        """Allocate ``blocks`` blocks that all samples share, or this many for each sample."""
        first, device = self.device.allocate(blocks), self.device
        others = range(request.samples - 1)
        rest = [device.share(first) if shares else device.allocate(blocks) for _ in others]
        self.on_device[request] = [first, *rest]

    def extend(self, request: SequenceGroup, blocks: int) -> None:
        """Allocate ``blocks`` blocks for each sample."""
        for table in self.on_device[request]:
            table += self.device.allocate(blocks)

    def start_decoding(self, request: SequenceGroup) -> None:
        """Include a request in ``allocate_step`` from now on."""
        self._decoding.enter(request, (opening_step(request.length_offset, self._block_size),))

    def stop_decoding(self, request: SequenceGroup) -> None:
        """Exclude a request from ``allocate_step``."""
        self._decoding.leave(request)

    def allocate_step(self, after: int, steps: int) -> None:
        """Allocate the blocks that decoding requests open in the ``steps`` steps after step ``after``."""
        for step in range(after + 1, after + steps + 1):
            for request in self._decoding.at(step):
                for table in self.on_device[request]:
                    table += self.device.allocate(1)

    def copy_tail(self, request: SequenceGroup) -> None:
        """Give every sample its own last block; the last of several samples that share one keeps it."""
        device = self.device
        for table in self.on_device[request]:
            block = table[-1]
            if device.references[block] > 1:
                device.references[block] -= 1
                (table[-1],) = device.allocate(1)
                if self.notes_moves:
                    self.copies.append((block, table[-1]))

    def fork(self, request: SequenceGroup, dropped: int, survivor: int) -> int:
        """Replace one sample's table by a shared copy of another's; return how many blocks become free."""
        tables, free = self.on_device[request], len(self.device.free)
        shared = self.device.share(tables[survivor])
        self.device.drop(tables[dropped])
        tables[dropped] = shared
        return len(self.device.free) - free

    def end_samples(self, request: SequenceGroup, samples: Sequence[int]) -> None:
        """Drop the tables of these samples."""
        tables = self.on_device[request]
        for place in samples:
            self.device.drop(tables[place])
        self.on_device[request] = [table for place, table in enumerate(tables) if place not in samples]

    def release(self, request: SequenceGroup) -> None:
        """Drop the tables of a request on the device."""
        for table in self.on_device.pop(request):
            self.device.drop(table)

    def swap_out(self, request: SequenceGroup) -> None:
        """Move a request to the swap space."""
        self.swapped[request], moves = _moved(self.on_device[request], self.host)
        self.release(request)
        if self.notes_moves:
            self.swaps_out += moves

    def swap_in(self, request: SequenceGroup) -> None:
        """Move a request back to the device."""
        self.on_device[request], moves = _moved(self.swapped[request], self.device)
        self.drop_swapped(request)
        if self.notes_moves:
            self.swaps_in += moves

    def drop_swapped(self, request: SequenceGroup) -> None:
        """Drop the tables of a request in the swap space."""
        for table in self.swapped.pop(request):
            self.host.drop(table)

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is free or has the right reference count."""
        self.device.check_integrity([table for tables in self.on_device.values() for table in tables])
        self.host.check_integrity([table for tables in self.swapped.values() for table in tables])
        assert all(request in self.on_device for request in self._decoding.requests()), "a request is gone"


def _moved(tables: Sequence[Table], to: BlockAllocator) -> tuple[list[Table], list[Copy]]:
    """Return copies of tables in another allocator, shared alike, and the moves as (from, to)."""
    there: dict[int, int] = {}
    for table in tables:
        for block in table:
            if block in there:
                to.references[there[block]] += 1
            else:
                (there[block],) = to.allocate(1)
    return [[there[block] for block in table] for table in tables], list(there.items())
