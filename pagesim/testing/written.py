"""The tokens that blocks would hold, slot by slot, to detect overwritten, lost or left-over ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pagesim.kvcache.base import BlockManager
from pagesim.testing.requests import LivingRequest, Tokens, numbers

Tables = list[list[list[int]]]
"""Block tables of a request, ``[samples][groups]``; empty if blocks are not numbered."""


class Written:
    """What was written into blocks, if they are numbered, and what requests must read from them.

    Attributes:
        text: tokens of each sample of each request.
        slots: tokens in each block.
    """

    def __init__(self, memory: BlockManager) -> None:
        self.memory = memory
        self.tokens = Tokens()
        self.text: dict[LivingRequest, list[list[int]]] = {}
        self.slots: dict[int, list[int]] = {}

    def admit(self, request: LivingRequest, found: int) -> None:
        """Write an admitted request's first tokens, except for the ``found`` ones of a prefix hit."""
        prompt = [self.tokens.next(request, place) for place in range(self.memory.length(request))]
        self.text[request] = [list(prompt) for _ in range(request.samples)]
        self.fill(request, found)

    def forget(self, request: LivingRequest) -> None:
        """Stop checking a request."""
        del self.text[request]

    def end_samples(self, request: LivingRequest, over: Sequence[int]) -> None:
        """Stop checking some samples of a request."""
        self.text[request] = [text for place, text in enumerate(self.text[request]) if place not in over]

    def fork(self, request: LivingRequest, before: Tables, dropped: int, survivor: int) -> None:
        """Give a sample the tokens of another one, whose blocks were copied unless they are shared.

        Args:
            request: request with a forked sample.
            before: its block tables before the fork.
            dropped: index of the sample that was replaced.
            survivor: index of the sample that was forked.
        """
        if before and not self.memory.shares:
            for theirs, mine in zip(before[survivor], before[dropped], strict=True):
                for source, target in zip(theirs, mine, strict=True):
                    self.slots[target] = list(self.slots[source])
        self.text[request][dropped] = list(self.text[request][survivor])

    def fill(self, request: LivingRequest, start: int) -> None:
        """Write a request's tokens from position ``start`` on into its blocks, if they are numbered."""
        if not self.memory.names_blocks:
            return
        for sample, (tables, text) in enumerate(zip(self.tables(request), self.text[request], strict=True)):
            for number, table in enumerate(tables):
                size, gone = self.memory.groups[number].block_size, self.gone(request, sample, number)
                for place in range(max(start, gone * size), len(text)):
                    block = place // size - gone
                    assert block < len(table), "a block table has a block for each block_size tokens"
                    self.slots.setdefault(table[block], [])[place % size :] = [text[place]]

    def write(self, request: LivingRequest, before: Tables, length: int, tokens: int) -> int | None:
        """Apply the block copies of decode steps, then write their tokens; return the copies, if known."""
        for text in self.text[request]:
            text += [self.tokens.next(request, place) for place in range(length, length + tokens)]
        assert self.memory.length(request) == length + tokens, "a request has the tokens that it was given"
        if not self.memory.names_blocks:
            return None
        copies: list[tuple[int, int]] = []
        for sample, tables in enumerate(self.tables(request)):
            for number, table in enumerate(tables):
                old = before[sample][number]
                size, gone = self.memory.groups[number].block_size, self.gone(request, sample, number)
                # Blocks freed from the front in the meantime are not copies.
                there = old[max(0, gone - (-(-length // size) - len(old))) :]
                copies += [pair for pair in zip(there, table, strict=False) if pair[0] != pair[1]]
        contents = [list(self.slots[source]) for source, _ in copies]
        for (_, target), content in zip(copies, contents, strict=True):
            self.slots[target] = content
        self.fill(request, length)
        return len(copies)

    def tables(self, request: LivingRequest) -> Tables:
        """Return all block tables of a request; empty if blocks are not numbered."""
        if not self.memory.names_blocks:
            return []
        groups = range(len(self.memory.groups))
        return [[self.table(request, sample, group) for group in groups] for sample in range(request.samples)]

    def table(self, request: LivingRequest, sample: int, number: int) -> list[int]:
        """Return the blocks that a sample still has in a KV cache group."""
        table = self.memory.block_table(request, sample, number)
        gone = sum([block < 0 for block in table])
        assert all(block < 0 for block in table[:gone]), "blocks are given back from the front"
        return table[gone:]

    def gone(self, request: LivingRequest, sample: int, number: int) -> int:
        """Return how many leading blocks of a sample were already freed in a KV cache group."""
        size = self.memory.groups[number].block_size
        return -(-self.memory.length(request) // size) - len(self.table(request, sample, number))

    def verify(self, requests: Sequence[LivingRequest]) -> None:
        """Raise AssertionError unless requests on the device read their own tokens and blocks add up."""
        memory, tables = self.memory, self.memory
        owners: dict[int, LivingRequest] = {}
        names = 0
        for request in requests:
            mine: set[int] = set()
            for sample, text in enumerate(self.text[request]):
                held = list(numbers(tables.extents(request, sample)))
                names += len(held)
                mine.update(held)
                for number in range(len(memory.groups)):
                    self._verify_table(request, sample, number, text, held)
            assert memory.held_blocks(request) == len(mine), "held_blocks counts the distinct blocks"
            for block in mine:
                own = owners.setdefault(block, request) is request
                assert own or memory.caches_prefixes, f"block {block} is in the tables of two requests"
        runs = tables.free_extents()
        assert all(sum(run) < after[0] for run, after in pairwise(runs)), (
            "free extents are in order and joined"
        )
        free = list(numbers(runs))
        assert memory.free_blocks == len(free), "free_blocks counts the blocks of the free extents"
        assert sorted([*free, *owners]) == list(range(memory.num_blocks)), (
            "every block is free or held by the request whose table names it, and none is both"
        )
        assert memory.shared_blocks == names - len(owners), (
            "shared_blocks counts the names of blocks beyond the first"
        )

    def _verify_table(
        self, request: LivingRequest, sample: int, number: int, text: list[int], held: list[int]
    ) -> None:
        group = self.memory.groups[number]
        table, size = self.table(request, sample, number), group.block_size
        gone = self.gone(request, sample, number)
        assert 0 <= gone * size <= group.rule.skipped(len(text)), (
            "a block table has a block for each block_size tokens that a later token attends to"
        )
        assert len(set(table)) == len(table), "a block table names a block once"
        assert set(table) <= set(held), "the extents have the table's blocks"
        found = [token for block in table for token in self.slots[block]]
        assert found[: len(text) - gone * size] == text[gone * size :], (
            "a sample does not read its own tokens through its table"
        )
