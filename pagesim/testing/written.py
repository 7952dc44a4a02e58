"""The tokens that blocks would hold, slot by slot: one that was overwritten, lost or left behind shows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pagesim.kvcache.base import BlockManager
from pagesim.testing.holders import LivingHolder, Tokens, named, numbers

Tables = list[list[list[int]]]
"""Of a holder, ``[samples][groups]``; none where blocks have no numbers."""


class Written:
    """What was written into the blocks of memory, if these have numbers, and what holders are to read.

    Attributes:
        text: of each holder the tokens of each of its samples.
        slots: of each block the tokens in it.
    """

    def __init__(self, memory: BlockManager) -> None:
        self.memory = memory
        self.tokens = Tokens()
        self.text: dict[LivingHolder, list[list[int]]] = {}
        self.slots: dict[int, list[int]] = {}

    def admit(self, holder: LivingHolder, found: int) -> None:
        """Write the first tokens of a holder that was admitted, of which some were found."""
        prompt = [self.tokens.next(holder, place) for place in range(self.memory.length(holder))]
        self.text[holder] = [list(prompt) for _ in range(holder.samples)]
        self.fill(holder, found)

    def forget(self, holder: LivingHolder) -> None:
        """Expect nothing of a holder any more."""
        del self.text[holder]

    def end_samples(self, holder: LivingHolder, over: Sequence[int]) -> None:
        """Expect nothing of some samples of a holder any more."""
        self.text[holder] = [text for place, text in enumerate(self.text[holder]) if place not in over]

    def fork(self, holder: LivingHolder, before: Tables, dropped: int, survivor: int) -> None:
        """Let a sample of a holder read what another one does, whose blocks were copied if none is shared.

        Args:
            holder: see `BlockManager.fork`.
            before: its tables before the fork.
            dropped: see `BlockManager.fork`.
            survivor: likewise.
        """
        if before and not self.memory.shares:
            for theirs, mine in zip(before[survivor], before[dropped], strict=True):
                for source, target in zip(theirs, mine, strict=True):
                    self.slots[target] = list(self.slots[source])
        self.text[holder][dropped] = list(self.text[holder][survivor])

    def fill(self, holder: LivingHolder, start: int) -> None:
        """Write the tokens of a holder from a place on into its blocks, if these have numbers."""
        if not self.memory.names_blocks:
            return
        for sample, (tables, text) in enumerate(zip(self.tables(holder), self.text[holder], strict=True)):
            for number, table in enumerate(tables):
                size, gone = self.memory.groups[number].block_size, self.gone(holder, sample, number)
                for place in range(max(start, gone * size), len(text)):
                    block = place // size - gone
                    assert block < len(table), "a block table has a block for each block_size tokens"
                    self.slots.setdefault(table[block], [])[place % size :] = [text[place]]

    def write(self, holder: LivingHolder, before: Tables, length: int, tokens: int) -> int | None:
        """Follow the copies of a growth, then write its tokens; return the blocks copied, if that shows."""
        for text in self.text[holder]:
            text += [self.tokens.next(holder, place) for place in range(length, length + tokens)]
        assert self.memory.length(holder) == length + tokens, "a holder has the tokens that it was given"
        if not self.memory.names_blocks:
            return None
        copies: list[tuple[int, int]] = []
        for sample, tables in enumerate(self.tables(holder)):
            for number, table in enumerate(tables):
                old = before[sample][number]
                size, gone = self.memory.groups[number].block_size, self.gone(holder, sample, number)
                # The blocks that are gone now, and were not, are no copies.
                there = old[max(0, gone - (-(-length // size) - len(old))) :]
                copies += [pair for pair in zip(there, table, strict=False) if pair[0] != pair[1]]
        contents = [list(self.slots[source]) for source, _ in copies]
        for (_, target), content in zip(copies, contents, strict=True):
            self.slots[target] = content
        self.fill(holder, length)
        return len(copies)

    def tables(self, holder: LivingHolder) -> Tables:
        """Return all block tables of a holder; none where blocks have no numbers."""
        if not self.memory.names_blocks:
            return []
        groups = range(len(self.memory.groups))
        return [[self.table(holder, sample, group) for group in groups] for sample in range(holder.samples)]

    def table(self, holder: LivingHolder, sample: int, number: int) -> list[int]:
        """Return the blocks of a sample in a group that it still has."""
        table = named(self.memory).block_table(holder, sample, number)
        gone = sum([block < 0 for block in table])
        assert all(block < 0 for block in table[:gone]), "blocks are given back from the front"
        return table[gone:]

    def gone(self, holder: LivingHolder, sample: int, number: int) -> int:
        """Return the leading blocks that a group does not have any more."""
        size = self.memory.groups[number].block_size
        return -(-self.memory.length(holder) // size) - len(self.table(holder, sample, number))

    def verify(self, holders: Sequence[LivingHolder]) -> None:
        """Raise AssertionError unless all holders on the device read their tokens, and blocks add up."""
        memory, tables = self.memory, named(self.memory)
        owners: dict[int, LivingHolder] = {}
        names = 0
        for holder in holders:
            mine: set[int] = set()
            for sample, text in enumerate(self.text[holder]):
                held = list(numbers(tables.extents(holder, sample)))
                names += len(held)
                mine.update(held)
                for number in range(len(memory.groups)):
                    self._verify_table(holder, sample, number, text, held)
            assert memory.held_blocks(holder) == len(mine), "held_blocks counts the distinct blocks"
            for block in mine:
                own = owners.setdefault(block, holder) is holder
                assert own or memory.caches_prefixes, f"block {block} is in the tables of two holders"
        runs = tables.free_extents()
        assert all(sum(run) < after[0] for run, after in pairwise(runs)), (
            "free extents are in order and joined"
        )
        free = list(numbers(runs))
        assert memory.free_blocks == len(free), "free_blocks counts the blocks of the free extents"
        assert sorted([*free, *owners]) == list(range(memory.num_blocks)), (
            "every block is free or held by the holder whose table names it, and none is both"
        )
        assert memory.shared_blocks == names - len(owners), (
            "shared_blocks counts the names of blocks beyond the first"
        )

    def _verify_table(
        self, holder: LivingHolder, sample: int, number: int, text: list[int], held: list[int]
    ) -> None:
        group = self.memory.groups[number]
        table, size = self.table(holder, sample, number), group.block_size
        gone = self.gone(holder, sample, number)
        assert 0 <= gone * size <= group.rule.skipped(len(text)), (
            "a block table has a block for each block_size tokens that a later token attends to"
        )
        assert len(set(table)) == len(table), "a block table names a block once"
        assert set(table) <= set(held), "the extents have the table's blocks"
        found = [token for block in table for token in self.slots[block]]
        assert found[: len(text) - gone * size] == text[gone * size :], (
            "a sample does not read its own tokens through its table"
        )
