"""Mirror: an allocator beside the tokens that its cache would hold, to see whether it loses or mixes any."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count, pairwise

from pagesim.kvcache.base import Allocator, Copy

STRANGER = -1
"""The id of a sequence that is not there."""


class Mirror:
    """An allocator beside the tokens that its cache would hold, slot by slot.

    Every change goes through the mirror. ``verify`` reads each sequence back through its block table, so a
    token that was overwritten, lost or left behind by a copy shows.

    Args:
        memory: an empty allocator.
    """

    def __init__(self, memory: Allocator) -> None:
        self.memory = memory
        self.slots: dict[int, list[int]] = {}
        self.resting: dict[int, list[int]] = {}
        self.growing: dict[int, list[int]] = {}
        # Only sequences of one family, descended from one by forks, may share blocks.
        self.family: dict[int, int] = {}
        self._tokens = count()

    def next_token(self, sequence: int, place: int) -> int:
        """Return the token that a sequence gets at a place, its prompt's from 0; each is another."""
        return next(self._tokens)

    def tokens(self) -> Iterator[tuple[int, list[int]]]:
        """Yield each sequence with its tokens."""
        yield from self.resting.items()
        yield from self.growing.items()

    def allocate(self, sequence: int, tokens: int, output_tokens: int = 0) -> None:
        self.memory.allocate(sequence, tokens, output_tokens)
        self.family[sequence] = sequence
        text = self.resting[sequence] = []
        for _ in range(tokens):
            self._write(sequence, text)

    def append(self, sequence: int) -> Copy | None:
        copy = self.memory.append(sequence)
        self.copy([] if copy is None else [copy])
        self._write(sequence, self.resting[sequence])
        return copy

    def grow(self, steps: int) -> list[Copy]:
        copies = self.memory.grow(steps)
        self.copy(copies)
        for sequence, text in self.growing.items():
            for _ in range(steps):
                self._write(sequence, text)
        return copies

    def fork(self, parent: int, child: int) -> None:
        self.memory.fork(parent, child)
        self.family[child] = self.family[parent]
        self.resting[child] = list(self.resting[parent] if parent in self.resting else self.growing[parent])
        tables = self.memory.block_table(parent), self.memory.block_table(child)
        self.copy(pair for pair in zip(*tables, strict=True) if pair[0] != pair[1])

    def adopt(self, sequence: int, parent: int) -> None:
        self.copy(self.memory.adopt(sequence, parent))
        tokens = dict(self.tokens())[parent]
        (self.resting if sequence in self.resting else self.growing)[sequence] = list(tokens)
        self.family[sequence] = self.family[parent]

    def adoptable(self) -> list[tuple[int, int]]:
        """Return the pairs of sequences of which the first may adopt the tokens of the second."""
        lives = [(s, len(text), self.memory.held_blocks(s)) for s, text in self.tokens()]
        return [(a, b) for a, *size in lives for b, *other in lives if a != b and size == other]

    def free(self, sequence: int) -> None:
        self.memory.free(sequence)
        (self.resting if sequence in self.resting else self.growing).pop(sequence)
        del self.family[sequence]

    def start_growing(self, sequence: int) -> None:
        self.memory.start_growing(sequence)
        self.growing[sequence] = self.resting.pop(sequence)

    def stop_growing(self, sequence: int) -> None:
        self.memory.stop_growing(sequence)
        self.resting[sequence] = self.growing.pop(sequence)

    def copy(self, copies: Iterable[Copy]) -> None:
        for source, target in copies:
            if source in self.slots:  # a reserved block may hold no token yet
                self.slots[target] = list(self.slots[source])

    def room(self, sequence: int) -> int:
        """Return how many tokens the sequence may gain without outgrowing a reservation."""
        memory = self.memory
        if memory.grows_on_demand:
            return memory.num_blocks * memory.block_size
        return max(0, memory.reserved_tokens(sequence) - memory.length(sequence))

    def growing_room(self) -> int:
        """Return how many steps the growing sequences may make without one outgrowing its reservation."""
        return min(map(self.room, self.growing), default=0)

    def verify(self) -> None:
        """Raise AssertionError unless the allocator's answers agree with one another and with the tokens."""
        memory = self.memory
        memory.check_integrity()
        assert set(memory.sequences()) == self.resting.keys() | self.growing.keys(), (
            "sequences() are those that are in memory"
        )
        owners: dict[int, int] = {}
        for sequence, text in self.tokens():
            held = self._verify_sequence(sequence, text)
            family = self.family[sequence]
            for block in held:
                assert owners.setdefault(block, family) == family, (
                    f"block {block} is in two sequences' extents, though no fork shares it"
                )
        self._verify_free(owners.keys())
        named = sum(memory.held_blocks(sequence) for sequence, _ in self.tokens())
        assert memory.shared_blocks == named - len(owners), (
            "shared_blocks counts the names of blocks beyond the first"
        )

    def _verify_sequence(self, sequence: int, text: list[int]) -> list[int]:
        """Check one sequence and return the blocks that it holds."""
        memory = self.memory
        assert memory.length(sequence) == len(text), "the length counts every token given"
        table = memory.block_table(sequence)
        assert len(table) == -(-len(text) // memory.block_size), (
            "a block table has a block for each block_size tokens"
        )
        assert len(set(table)) == len(table), "a block table names a block once"
        assert all(0 <= block < memory.num_blocks for block in table), "a table's blocks are in the pool"
        held = [block for first, blocks in memory.extents(sequence) for block in range(first, first + blocks)]
        assert held[: len(table)] == table, "the extents begin with the table's blocks, in token order"
        assert memory.held_blocks(sequence) == len(held), "held_blocks counts the blocks of the extents"
        found = [token for block in table for token in self.slots[block]][: len(text)]
        assert found == text, f"sequence {sequence} does not read its own tokens through its table"
        return held

    def _verify_free(self, held: Iterable[int]) -> None:
        memory = self.memory
        runs = memory.free_extents()
        assert all(sum(run) < after[0] for run, after in pairwise(runs)), (
            "free extents are in order and joined"
        )
        free = [block for first, blocks in runs for block in range(first, first + blocks)]
        assert memory.free_blocks == len(free), "free_blocks counts the blocks of the free extents"
        assert sorted([*free, *held]) == list(range(memory.num_blocks)), (
            "every block is free or held, and none is both"
        )

    def _write(self, sequence: int, text: list[int]) -> None:
        block, offset = divmod(len(text), self.memory.block_size)
        token = self.next_token(sequence, len(text))
        table = self.memory.block_table(sequence)
        assert block < len(table), "a block table has a block for each block_size tokens"
        self.slots.setdefault(table[block], [STRANGER] * self.memory.block_size)[offset] = token
        text.append(token)


def snapshot(memory: Allocator) -> object:
    """Return everything that an allocator says of itself, to be compared."""
    return (
        memory.free_blocks,
        memory.free_cpu_blocks,
        memory.free_extents(),
        memory.steps_grown,
        [memory.demand(steps) for steps in range(2 * memory.block_size + 1)],
        {
            s: (memory.length(s), memory.block_table(s), memory.extents(s), memory.reserved_tokens(s))
            for s in memory.sequences()
        },
    )
