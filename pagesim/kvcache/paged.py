"""Paged memory: block tables, reference counts, fork, copy-on-write, and a CPU pool to swap to (vLLM).

Without sharing it is also what demand-mapped virtual memory does (vAttention).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, MutableSequence, Sequence
from itertools import accumulate

from pagesim.kvcache.base import (
    Allocator,
    AllocatorError,
    Copy,
    Extent,
    Fit,
    OutOfBlocks,
    UnknownSequence,
    join_extents,
)
from pagesim.kvcache.reservation import Reservation


class PagedAllocator(Allocator):
    """Blocks anywhere, named by a table a sequence; taken when needed or, with a reservation, up front.

    The free list is a stack, block 0 at its bottom, as in the paper's vLLM. Growing sequences are counted by
    the step at which they next need a block (their residue modulo the block size), so that what a step takes
    is known without looking at any sequence. Which blocks those are is settled when a table is looked at.

    Args:
        num_blocks: blocks on the device.
        block_size: token slots a block.
        cpu_blocks: blocks of the swap space.
        reservation: None to take blocks on demand; else a policy that takes all of them at allocation.
            Reserved blocks are private: a fork is then a copy.
        shares: whether sequences may name the same block. If not, a fork is a copy on demand, too: a block
            then stands for the pages behind a stretch of a sequence's own range of virtual addresses, which
            is contiguous for the kernel wherever the pages lie, and its table is that range's page table.

    Attributes:
        names_at_once: whether blocks get their names in the step in which they are taken, so that tables are
            those of an engine that takes every step by itself. Nothing is decided by a name.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        cpu_blocks: int = 0,
        reservation: Reservation | None = None,
        *,
        shares: bool = True,
    ) -> None:
        super().__init__(num_blocks, block_size, cpu_blocks)
        self.names_at_once = False
        self.reservation = reservation
        self.grows_on_demand = reservation is None
        self.shares = shares and reservation is None
        self._free = list(range(num_blocks))
        self._free_blocks = num_blocks  # those that nobody holds, whether or not they have a name yet
        self._free_cpu = list(range(cpu_blocks))
        self._tables: dict[int, MutableSequence[int]] = {}
        # Only blocks that several tables name have an entry here; and how many names there are beyond the
        # first of each.
        self._references: dict[int, int] = {}
        self._shared_blocks = 0
        # Growing sequences whose last block is shared: their next token copies it.
        self.sharing_tails: set[int] = set()
        # due[c]: how many growing sequences need a block when steps_grown ≡ c (mod block_size); written
        # twice in a row, so that a stretch over the end is one slice.
        self.due = [0] * (2 * block_size)
        # Blocks that growing sequences have taken and that have no name yet: a table is brought up to date
        # when somebody looks at it, and many are freed before anybody does.
        self._unnamed = 0
        # What demand was last asked, while nothing has changed since: whoever asks often grows next.
        self._asked = -1
        self._answer = 0
        self._reserved: dict[int, int] = {}
        self._swapped: dict[int, list[int]] = {}
        self._cpu_references: dict[int, int] = {}
        # The length and the reservation that come back with them.
        self._swapped_tokens: dict[int, tuple[int, int]] = {}

    # Questions

    @property
    def free_blocks(self) -> int:
        return self._free_blocks

    @property
    def free_cpu_blocks(self) -> int:
        return len(self._free_cpu)

    @property
    def shared_blocks(self) -> int:
        return self._shared_blocks

    def accounts(self, steps: int = 0) -> tuple[int, int, int, int, int]:
        free = self._free_blocks - self.demand(steps)
        return free, len(self._free_cpu), self._shared_blocks, 0, 0

    def copies_due(self, sequences: Iterable[int]) -> int:
        tails: dict[int, int] = {}
        for sequence in sequences:
            if sequence in self.sharing_tails:
                block = self._tables[sequence][-1]
                tails[block] = tails.get(block, 0) + 1
        # The last sharer of a block keeps it.
        return sum(min(count, self._references.get(block, 1) - 1) for block, count in tails.items())

    def blocks_for(self, tokens: int, output_tokens: int) -> int:
        if self.reservation is not None:
            tokens = self.reservation.tokens(tokens, output_tokens)
        return -(-tokens // self.block_size)

    def probe(self, tokens: int, output_tokens: int, sequences: int = 1, spare: int = 0) -> Fit:
        if self.reservation is not None:
            tokens = self.reservation.tokens(tokens, output_tokens)
        blocks = -(-tokens // self.block_size)
        wanted = (blocks if self.shares else blocks * sequences) + spare
        if wanted <= self._free_blocks:
            return Fit.NOW
        return Fit.LATER if wanted <= self.num_blocks else Fit.NEVER

    def demand(self, steps: int = 1) -> int:
        if steps == self._asked:
            return self._answer
        if steps == 0:
            return 0
        first = (self.steps_grown + 1) % self.block_size
        if steps == 1 and not self.sharing_tails:
            return self.due[first]
        rounds, rest = divmod(steps, self.block_size)
        blocks = rounds * sum(self.due[: self.block_size]) if rounds else 0
        blocks += sum(self.due[first : first + rest])
        if self.sharing_tails:
            blocks += self.copies_due(self.sharing_tails)
        else:
            self._asked, self._answer = steps, blocks
        return blocks

    def growable(self, steps: int, spare: int) -> int:
        if self.reservation is not None:
            return steps
        copies = self.copies_due(self.sharing_tails) if self.sharing_tails else 0
        if copies:
            steps = min(steps, 1)
        room = self._free_blocks - spare
        # Demand only rises with the steps: usually all of them fit, and only the end is tested.
        if self.demand(steps) <= room:
            return steps
        if room < 0 or copies:
            return 0
        size = self.block_size
        rounds, room = divmod(room, len(self._bases))
        first = (self.steps_grown + 1) % size
        # In a round of so many steps everybody takes a block; the last round stops where room ends.
        return rounds * size + bisect_right(list(accumulate(self.due[first : first + size])), room)

    def held_blocks(self, sequence: int) -> int:
        return len(self._table(sequence))

    def reserved_tokens(self, sequence: int) -> int:
        self._table(sequence)  # raises if the sequence is not here
        return self._reserved.get(sequence, 0)

    def extents(self, sequence: int) -> list[Extent]:
        return join_extents(self._table(sequence))

    def block_table(self, sequence: int) -> list[int]:
        return list(self._table(sequence)[: -(-self.length(sequence) // self.block_size)])

    def references(self, block: int) -> int:
        """Return how many tables name a block that is held."""
        return self._sharing().get(block, 1)

    def free_extents(self) -> list[Extent]:
        self._name_all()
        return join_extents(sorted(self._free_list()))

    def swapped_tables(self) -> dict[int, list[int]]:
        """Return, by sequence in the swap space, the blocks that it holds there, in token order."""
        return {sequence: list(table) for sequence, table in self._swapped.items()}

    def distinct_blocks(self, sequences: Iterable[int]) -> int:
        """Return how many different blocks these sequences hold, on the device or in the swap space."""
        # A swap block may have the number of a device block: it counts as its complement.
        tables = [
            [~block for block in self._swapped[s]] if s in self._swapped else self._table(s)
            for s in sequences
        ]
        return len(tables[0]) if len(tables) == 1 else len(set().union(*tables))

    # Changes

    def allocate(self, sequence: int, tokens: int, output_tokens: int = 0) -> None:
        self._check_new(sequence, tokens)
        self._tables[sequence] = self._take(self.blocks_for(tokens, output_tokens))
        self._lengths[sequence] = tokens
        if self.reservation is not None:
            self._reserved[sequence] = self.reservation.tokens(tokens, output_tokens)

    def append(self, sequence: int) -> Copy | None:
        length = self._lengths.get(sequence)
        if length is None:
            raise self._unknown(sequence)
        copied = None
        table = self._tables[sequence]
        if length == len(table) * self.block_size:
            if self.reservation is not None:
                raise OutOfBlocks(f"sequence {sequence} has filled its reservation of {length} tokens")
            table.extend(self._take(1))
        elif self._references:
            copied = self._own(table, length // self.block_size)
        self._lengths[sequence] = length + 1
        return copied

    def extend(self, sequence: int, tokens: int) -> None:
        length = self._lengths.get(sequence)
        if length is None:
            raise self._unknown(sequence)
        table = self._tables[sequence]
        table.extend(self._take(max(0, -(-(length + tokens) // self.block_size) - len(table))))
        self._lengths[sequence] = length + tokens

    def fork(self, parent: int, child: int) -> None:
        tokens = self.length(parent)
        self._check_new(child, tokens)
        table = self._table(parent)
        self._tables[child] = self._shared_with(parent) if self.shares else self._take(len(table))
        if self.reservation is not None:
            self._reserved[child] = self._reserved[parent]
        self._lengths[child] = tokens

    def adopt(self, sequence: int, parent: int) -> list[Copy]:
        if not self.shares:
            return super().adopt(sequence, parent)
        self._check_adoption(sequence, parent)
        table = self._table(sequence)
        self._tables[sequence] = self._shared_with(parent)
        self._drop(table)
        if sequence in self._bases and self.length(sequence) % self.block_size:
            self.sharing_tails.add(sequence)
            self._asked = -1
        return []

    def free(self, sequence: int) -> None:
        table = self._tables.pop(sequence, None)
        if table is None:
            raise self._unknown(sequence)
        if self._lengths.pop(sequence, None) is None:
            missing = self._missing(sequence, table)
            self._unnamed -= missing
            self._free_blocks += missing
            self._leave_growing(sequence)
        self._reserved.pop(sequence, None)
        self._drop(table)

    def start_growing(self, sequence: int) -> None:
        length = self._pop_resting(sequence)
        base = length - self.steps_grown
        self._bases[sequence] = base
        if self.reservation is None:
            # The token that opens a new block arrives at the step with base + steps ≡ 1 (mod block_size).
            self._count_due(base, 1)
            if self._references and length % self.block_size:
                tail = self._tables[sequence][-1]
                if self.references(tail) > 1:
                    self.sharing_tails.add(sequence)

    def stop_growing(self, sequence: int) -> None:
        if sequence not in self._bases:
            raise self._unknown(sequence)
        self._table(sequence)
        length = self.length(sequence)
        self._leave_growing(sequence)
        self._lengths[sequence] = length

    def grow(self, steps: int = 1) -> list[Copy]:
        blocks = self._answer if steps == self._asked else self.demand(steps)
        if blocks > self._free_blocks:
            raise OutOfBlocks(
                f"{steps} more tokens a sequence take {blocks} blocks, {self._free_blocks} are free"
            )
        copies = self._copy_tails() if self.sharing_tails and steps else []
        self._asked = -1
        blocks -= len(copies)
        self._unnamed += blocks
        self._free_blocks -= blocks
        self.steps_grown += steps
        if self.names_at_once:
            self._name_all()
        return copies

    def swap_out(self, sequences: Sequence[int]) -> list[Copy]:
        """Move sequences to the swap space, sharing among them preserved.

        Returns:
            For each distinct block, (device block, CPU block).

        Raises:
            OutOfBlocks: the swap space has too few free blocks.
            AllocatorError: one of them is not on the device, or is named twice.
        """
        _check_distinct(sequences)
        blocks = list(dict.fromkeys(block for s in sequences for block in self._table(s)))
        if len(blocks) > len(self._free_cpu):
            raise OutOfBlocks(f"swapping out takes {len(blocks)} blocks, {len(self._free_cpu)} are free")
        away = {block: self._free_cpu.pop() for block in blocks}
        for s in sequences:
            self._swapped_tokens[s] = self.length(s), self.reserved_tokens(s)
            self._swapped[s] = [away[block] for block in self._tables[s]]
            self.free(s)
        if len(sequences) > 1:
            self._cpu_references.update(_shared(self._swapped[s] for s in sequences))
        return list(away.items())

    def swap_in(self, sequences: Sequence[int]) -> list[Copy]:
        """Bring sequences back, sharing among them preserved; they rest at the length that they had.

        Returns:
            For each distinct block, (CPU block, device block).

        Raises:
            OutOfBlocks: the device has too few free blocks.
            AllocatorError: one of them is not in the swap space, or is named twice.
        """
        _check_distinct(sequences)
        for s in sequences:
            if s not in self._swapped:
                raise UnknownSequence(f"sequence {s} is not in the swap space")
        blocks = list(dict.fromkeys(block for s in sequences for block in self._swapped[s]))
        back = dict(zip(blocks, self._take(len(blocks)), strict=True))
        for s in sequences:
            self._tables[s] = [back[block] for block in self._swapped[s]]
            self._lengths[s], reserved = self._swapped_tokens[s]
            if self.reservation is not None:
                self._reserved[s] = reserved
            self.drop_swapped(s)
        if len(sequences) > 1:
            shared = _shared(self._tables[s] for s in sequences)
            self._references.update(shared)
            self._shared_blocks += sum(shared.values()) - len(shared)
        return list(back.items())

    def drop_swapped(self, sequence: int) -> None:
        """Give up a sequence in the swap space."""
        if sequence not in self._swapped:
            raise UnknownSequence(f"sequence {sequence} is not in the swap space")
        del self._swapped_tokens[sequence]
        self._free_cpu += _dropped(self._swapped.pop(sequence), self._cpu_references)

    def check_integrity(self) -> None:
        self._name_all()
        for table in self._tables.values():
            assert len(set(table)) == len(table), "a table names a block twice"
        named = {block for table in self._tables.values() for block in table}
        shared = _shared(self._tables.values())
        assert shared == self._sharing(), "reference counts are off"
        assert self._shared_blocks == sum(shared.values()) - len(shared), "shared blocks are miscounted"
        assert _shared(self._swapped.values()) == self._cpu_references, "CPU reference counts are off"
        assert sorted([*named, *self._free_list()]) == list(range(self.num_blocks)), (
            "blocks are owned twice or lost"
        )
        away = {block for table in self._swapped.values() for block in table}
        assert sorted([*away, *self._free_cpu]) == list(range(self.cpu_blocks)), "CPU blocks are lost"
        assert set(self._tables) == set(self.sequences())
        assert self.due[: self.block_size] == self.due[self.block_size :]
        assert not self._tables.keys() & self._swapped.keys(), "a sequence is in memory and in the swap space"
        assert sum(self.due) == (2 * len(self._bases) if self.reservation is None else 0)
        assert self._unnamed == 0, "blocks are lost that growing sequences took"
        assert self._free_blocks == len([*self._free_list()]), "free blocks are miscounted"
        for sequence, table in self._tables.items():
            needed = -(-self.length(sequence) // self.block_size)
            exact = self.reservation is None
            assert len(table) == needed if exact else len(table) >= needed, f"{sequence}'s table is off"

    # Inside

    def _sharing(self) -> dict[int, int]:
        """Return how many tables name each block that several do."""
        return self._references

    def _free_list(self) -> Iterable[int]:
        """Return the blocks that nobody holds."""
        return self._free

    def _table(self, sequence: int) -> MutableSequence[int]:
        """Return a sequence's table, brought up to date."""
        try:
            table = self._tables[sequence]
        except KeyError:
            raise self._unknown(sequence) from None
        if self._unnamed and sequence in self._bases:
            missing = self._missing(sequence, table)
            if missing:
                table.extend(self._take_promised(missing))
        return table

    def _missing(self, sequence: int, table: Sequence[int]) -> int:
        """Return how many blocks a growing sequence has taken beyond those that its table names."""
        tokens = self._bases[sequence] + self.steps_grown
        return max(0, -(-tokens // self.block_size) - len(table))

    def _name_all(self) -> None:
        """Name the blocks that growing sequences have taken, in the order in which they took them."""
        if not self._unnamed:
            return
        turns = [
            (number * self.block_size - base, table)
            for table, base in ((self._tables[sequence], base) for sequence, base in self._bases.items())
            for number in range(len(table), -(-(base + self.steps_grown) // self.block_size))
        ]
        turns.sort(key=lambda turn: turn[0])
        for (_, table), block in zip(turns, self._take_promised(len(turns)), strict=True):
            table.append(block)

    def _check_new(self, sequence: int, tokens: int) -> None:
        super()._check_new(sequence, tokens)
        if sequence in self._swapped:
            raise UnknownSequence(f"sequence {sequence} is in the swap space; swap it in first")

    def _take(self, blocks: int) -> MutableSequence[int]:
        if blocks > self._free_blocks:
            raise OutOfBlocks(f"{blocks} blocks are needed, {self._free_blocks} are free")
        self._free_blocks -= blocks
        free = self._free
        taken = free[len(free) - blocks :]
        del free[len(free) - blocks :]
        taken.reverse()
        return taken

    def _take_promised(self, blocks: int) -> MutableSequence[int]:
        """Take blocks that growing sequences have counted as theirs already."""
        self._unnamed -= blocks
        self._free_blocks += blocks
        return self._take(blocks)

    def _own(self, table: MutableSequence[int], index: int) -> Copy | None:
        """Replace a shared block of a table by a copy, so that it can be written."""
        block = table[index]
        if self._references.get(block, 1) == 1:
            return None
        (own,) = self._take(1)
        self._drop([block])
        table[index] = own
        return block, own

    def _shared_with(self, parent: int) -> list[int]:
        """Return a table of the parent's blocks, which now have a name more."""
        table = self._table(parent)
        references = self._references
        for block in table:
            references[block] = references.get(block, 1) + 1
        self._shared_blocks += len(table)
        if parent in self._bases and self.length(parent) % self.block_size:
            self.sharing_tails.add(parent)
            self._asked = -1
        return list(table)

    def _drop(self, table: Sequence[int]) -> None:
        """Drop one table's names of its blocks."""
        if self._references:
            dropped = _dropped(table, self._references)
            self._shared_blocks -= len(table) - len(dropped)
            table = dropped
        self._give_back(table)

    def _give_back(self, blocks: Sequence[int]) -> None:
        """Take blocks that nobody names any more."""
        self._free += blocks
        self._free_blocks += len(blocks)

    def _leave_growing(self, sequence: int) -> None:
        base = self._bases.pop(sequence)
        if self.reservation is None:
            self._count_due(base, -1)
            self.sharing_tails.discard(sequence)

    def _count_due(self, base: int, change: int) -> None:
        self._asked = -1
        due = (1 - base) % self.block_size
        self.due[due] += change
        self.due[due + self.block_size] += change

    def _copy_tails(self) -> list[Copy]:
        """Copy on write, in the order in which the sequences started to grow."""
        copies = [
            self._own(table, len(table) - 1)
            for table in (self._tables[s] for s in self._bases if s in self.sharing_tails)
        ]
        self.sharing_tails.clear()
        return [copy for copy in copies if copy is not None]


def _check_distinct(sequences: Sequence[int]) -> None:
    if len(set(sequences)) < len(sequences):
        raise AllocatorError(f"a sequence is named twice in {list(sequences)}")


def _dropped(table: Sequence[int], references: dict[int, int]) -> Sequence[int]:
    """Drop one table's names of its blocks; return those that nobody names any more."""
    if not references:
        return table
    nobodys = []
    for block in table:
        count = references.get(block, 1)
        if count == 1:
            nobodys.append(block)
        elif count == 2:
            del references[block]
        else:
            references[block] = count - 1
    return nobodys


def _shared(tables: Iterable[Sequence[int]]) -> dict[int, int]:
    """Return for each block that several tables name how many do."""
    counts: dict[int, int] = {}
    for table in tables:
        for block in table:
            counts[block] = counts.get(block, 0) + 1
    return {block: count for block, count in counts.items() if count > 1}
