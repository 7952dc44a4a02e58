"""Block tables of paged memory: every block has a number, every sample a table of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from pagesim.kvcache.extents import Copy
from pagesim.kvcache.holder import Holder
from pagesim.kvcache.ring import Buckets, passing_steps
from pagesim.setup.compiled import mypyc_attr

Table = list[int]
"""The blocks of one sample, in token order."""


@mypyc_attr(allow_interpreted_subclasses=True)
class PagedTables:
    """The block tables of paged memory, its free blocks, and those of its swap space.

    Blocks get their numbers in the step in which they are taken. The free list is a stack, block 0 at its
    bottom, as in the paper's vLLM. Samples of one request share blocks, requests do not: a block is free when
    no table of its request names it, and is copied before a sample writes to one that another one names.

    Nothing is checked here, since `PagedKV` counts.

    Args:
        num_blocks: on the device.
        cpu_blocks: of swap space.
        block_size: tokens a block.

    Attributes:
        on_device: of each holder there, the table of each sample.
        swapped: the same of each holder in the swap space.
        free: free blocks on the device; the last one is taken next.
        aside: how many of these are set aside for what is taken next: no block is freed on top of them.
        free_cpu: free blocks of the swap space; the last one is taken next.
        notes_moves: whether the following are kept; whatever asks for it must take them.
        copies: blocks copied on write since they were last taken, as (from, to).
        swaps_in, swaps_out: blocks moved between device and swap space since then, as (from, to).
    """

    def __init__(self, num_blocks: int, cpu_blocks: int, block_size: int) -> None:
        self.on_device: dict[Holder, list[Table]] = {}
        self.swapped: dict[Holder, list[Table]] = {}
        self.free = list(range(num_blocks))
        self.aside = 0
        self.free_cpu = list(range(cpu_blocks))
        self.notes_moves = False
        self.copies: list[Copy] = []
        self.swaps_in: list[Copy] = []
        self.swaps_out: list[Copy] = []
        self._num_blocks = num_blocks
        self._cpu_blocks = cpu_blocks
        self._block_size = block_size
        self._decoding = Buckets(block_size)

    # Questions

    def of(self, holder: Holder) -> list[Table]:
        """Return the table of each sample of a holder, on the device or in the swap space."""
        return self.on_device.get(holder) or self.swapped[holder]

    def distinct(self, holder: Holder) -> int:
        """Return how many blocks a holder has, each counted once."""
        return len(_distinct(self.of(holder)))

    def last_blocks(self, holder: Holder) -> int:
        """Return in how many different blocks the tables of a holder end."""
        return len({table[-1] for table in self.of(holder)})

    # Changes

    def admit(self, holder: Holder, blocks: int, *, shares: bool) -> None:
        """Take so many blocks for each sample, which all samples share or not."""
        first = self._take(blocks)
        others = [list(first) if shares else self._take(blocks) for _ in range(holder.samples - 1)]
        self.on_device[holder] = [first, *others]

    def extend(self, holder: Holder, blocks: int) -> None:
        """Take so many blocks for each sample."""
        if blocks:
            for table in self.on_device[holder]:
                table += self._take(blocks)

    def start_decoding(self, holder: Holder) -> None:
        """Let a holder take the blocks of its next tokens in ``grow``."""
        size = self._block_size
        self._decoding.enter(holder, passing_steps((holder.base - 1) % size, size, holder.growth, size))

    def stop_decoding(self, holder: Holder) -> None:
        """Let a holder take no blocks in ``grow``."""
        self._decoding.leave(holder)

    def grow(self, after: int, steps: int) -> None:
        """Take the blocks that decoding holders open in ``steps`` steps that follow step ``after``."""
        for step in range(after + 1, after + steps + 1):
            for holder in self._decoding.at(step):
                blocks = -(-(holder.base + holder.growth * step) // self._block_size)
                for table in self.on_device[holder]:
                    table += self._take(blocks - len(table))

    def release(self, holder: Holder) -> None:
        """Give back all blocks of a holder on the device."""
        self._give_back(_distinct(self.on_device.pop(holder)))

    def end_samples(self, holder: Holder, samples: Sequence[int]) -> None:
        """Give back what only these samples have."""
        tables = self.on_device[holder]
        kept = [table for place, table in enumerate(tables) if place not in samples]
        self._free_without([tables[place] for place in samples], kept)
        self.on_device[holder] = kept

    def copy_tail(self, holder: Holder) -> None:
        """Give every sample a last block of its own; of those that share one the last keeps it."""
        tables = self.on_device[holder]
        names = Counter([table[-1] for table in tables])
        for table in tables:
            block = table[-1]
            if names[block] > 1:
                names[block] -= 1
                table[-1] = self._take(1)[0]
                if self.notes_moves:
                    self.copies.append((block, table[-1]))

    def fork(self, holder: Holder, dropped: int, survivor: int) -> int:
        """Let one sample share the blocks of another one; return how many blocks become free."""
        tables = self.on_device[holder]
        before, tables[dropped] = tables[dropped], list(tables[survivor])
        return self._free_without([before], tables)

    def swap_out(self, holder: Holder) -> None:
        """Move a holder to the swap space."""
        tables = self.on_device[holder]
        away = {block: self.free_cpu.pop() for block in _first_named(tables)}
        self.swapped[holder] = _renumbered(tables, away)
        self.release(holder)
        if self.notes_moves:
            self.swaps_out += away.items()

    def swap_in(self, holder: Holder) -> None:
        """Bring a holder back to the device."""
        tables = self.swapped[holder]
        blocks = _first_named(tables)
        back = dict(zip(blocks, self._take(len(blocks)), strict=True))
        self.on_device[holder] = _renumbered(tables, back)
        self.drop_swapped(holder)
        if self.notes_moves:
            self.swaps_in += back.items()

    def drop_swapped(self, holder: Holder) -> None:
        """Give back all blocks of a holder in the swap space."""
        self.free_cpu += _distinct(self.swapped.pop(holder))

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is free or one holder's."""
        for where, free, blocks in (
            (self.on_device, self.free, self._num_blocks),
            (self.swapped, self.free_cpu, self._cpu_blocks),
        ):
            owned = [*free]
            for tables in where.values():
                owned += _distinct(tables)
                assert all(len(set(table)) == len(table) for table in tables), "a table names a block twice"
            assert sorted(owned) == list(range(blocks)), "blocks are owned twice or lost"
        assert all(holder in self.on_device for holder in self._decoding.holders()), "a holder is gone"

    # Inside

    def _take(self, blocks: int) -> Table:
        """Take so many free blocks."""
        if not blocks:
            return []
        taken = self.free[: -blocks - 1 : -1]
        del self.free[-blocks:]
        if self.aside:
            self.aside = max(0, self.aside - blocks)
        return taken

    def _give_back(self, blocks: Sequence[int]) -> None:
        """Put blocks on top of the free list, but for those that are set aside."""
        top = len(self.free) - self.aside
        self.free[top:top] = blocks

    def _free_without(self, dropped: Sequence[Table], kept: Sequence[Table]) -> int:
        """Give back the blocks of dropped tables that kept ones do not name; return how many these are."""
        named = {block for table in kept for block in table}
        freed = [block for block in _distinct(dropped) if block not in named]
        self._give_back(freed)
        return len(freed)


def _distinct(tables: Sequence[Table]) -> Table:
    """Return the blocks of tables in the order in which they get free, if tables are dropped in turn."""
    if len(tables) == 1:
        return tables[0]
    named = dict.fromkeys([block for table in reversed(tables) for block in reversed(table)])
    return list(reversed(named))


def _first_named(tables: Iterable[Table]) -> list[int]:
    """Return the blocks of tables in the order in which these name them first."""
    return list(dict.fromkeys([block for table in tables for block in table]))


def _renumbered(tables: Iterable[Table], numbers: dict[int, int]) -> list[Table]:
    """Return tables in which each block has another number."""
    return [[numbers[block] for block in table] for table in tables]
