"""Memory as a textbook tells it, block by block and token by token: slow, and seen to be right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pagesim.allocators import OutOfBlocks
from pagesim.kvcache import BlockManager, KVGroup, SequenceGroup


class Block:
    """A block is itself and no other one."""


Table = list[Block]
"""Of one sample in one group: the block of each ``block_size`` tokens."""


class Held:
    """What one request has: ``tables[sample][group]``, and its tokens."""

    def __init__(self, tables: list[list[Table]], tokens: int) -> None:
        self.tables = tables
        self.tokens = tokens

    def all(self) -> Iterator[Table]:
        for sample in self.tables:
            yield from sample

    def blocks(self) -> list[Block]:
        """Return the block that each place of each table names."""
        return [block for table in self.all() for block in table]

    def copy(self) -> Held:
        return Held([[list(table) for table in sample] for sample in self.tables], self.tokens)


class SlowManager(BlockManager):
    """The slow twin of block managers. A block is held because a table names it, and for no other reason."""

    def __init__(
        self, num_blocks: int, groups: Sequence[KVGroup], cpu_blocks: int = 0, *, shares: bool = True
    ) -> None:
        super().__init__(num_blocks, groups, cpu_blocks, shares=shares)
        self.here: dict[SequenceGroup, Held] = {}
        self.swapped: dict[SequenceGroup, Held] = {}

    def count(self) -> None:
        """Count again from the tables."""
        names = [block for held in self.here.values() for block in held.blocks()]
        away = {block for held in self.swapped.values() for block in held.blocks()}
        self.free_blocks = self.num_blocks - len(set(names))
        self.free_cpu_blocks = self.cpu_blocks - len(away)
        self.shared_blocks = len(names) - len(set(names))

    # Questions

    def held_blocks(self, request: SequenceGroup) -> int:
        held = self.here.get(request) or self.swapped[request]
        return len(set(held.blocks()))

    def held_by_group(self, request: SequenceGroup) -> list[tuple[int, int]]:
        held = self.here[request]
        return [(held.tokens, len(table)) for table in held.tables[0]]

    def length(self, request: SequenceGroup) -> int:
        return (self.here.get(request) or self.swapped[request]).tokens

    def blocks_needed(self, steps: int = 1) -> int:
        return sum(self.needed_by(request, steps) for request in self.decoding())

    def needed_by(self, request: SequenceGroup, steps: int) -> int:
        return self.blocks_to_extend(request, steps)

    def blocks_to_extend(self, request: SequenceGroup, tokens: int, computed: int | None = None) -> int:
        """Write so many tokens to copies of the tables; return the blocks taken."""
        taken = 0
        if not self.grows:
            return 0
        held = self.here[request].copy()
        for _ in range(tokens):
            new, copies = self.write(held)
            taken += new + copies
        return taken

    def copies_due(self, request: SequenceGroup) -> int:
        return self.write(self.here[request].copy())[1]

    def steps_that_fit(self, steps: int, spare: int) -> int:
        """Take one step after another, up to one that copies on write, and then take all back."""
        if any(self.copies_due(request) for request in self.decoding()):
            return 0
        before = {request: held.copy() for request, held in self.here.items()}
        fit = 0
        while fit < steps and self.blocks_needed(1) <= self.free_blocks - spare:
            self.step()
            fit += 1
        self.here = before
        self.count()
        return fit

    # Changes

    def admit(self, request: SequenceGroup, tokens: int) -> None:
        tables: list[list[Table]] = []
        for sample in range(request.samples):
            if sample and self.shares:
                tables.append([list(table) for table in tables[0]])
                continue
            tables.append([])
            for group in self.groups:
                table: Table = []
                while len(table) * group.block_size < group.rule.reserved(tokens, request.output):
                    table.append(Block())
                tables[-1].append(table)
        held = Held(tables, tokens)
        self.need(len(set(held.blocks())))
        self.here[request] = held
        self.count()

    def extend(self, request: SequenceGroup, tokens: int) -> None:
        held = self.here[request].copy()
        for _ in range(tokens):
            self.write(held)
        self.need(len(set(held.blocks())) - self.held_blocks(request))
        self.here[request] = held
        self.count()

    def append(self, request: SequenceGroup) -> int:
        self.need(self.blocks_to_extend(request, 1))
        _, copies = self.write(self.here[request])
        self.count()
        return copies

    def start_decoding(self, request: SequenceGroup) -> None:
        request.decodes = True

    def stop_decoding(self, request: SequenceGroup) -> None:
        request.decodes = False

    def allocate_step(self, steps: int = 1) -> int:
        if self.blocks_needed(steps) > self.free_blocks and self.steps_that_fit(steps, 0) < steps:
            raise OutOfBlocks("a step does not fit")
        copies = sum([self.step() for _ in range(steps)])
        self.steps += steps
        return copies

    def step(self) -> int:
        """Every decoding request gets its tokens."""
        copies = sum([self.write(self.here[request])[1] for request in self.decoding()])
        self.count()
        return copies

    def release(self, request: SequenceGroup) -> None:
        del self.here[request]
        request.decodes = False
        self.count()

    def end_samples(self, request: SequenceGroup, samples: Sequence[int]) -> None:
        held = self.here[request]
        held.tables = [tables for place, tables in enumerate(held.tables) if place not in samples]
        request.samples = len(held.tables)
        self.count()

    def swap_out(self, request: SequenceGroup) -> int:
        blocks = self.held_blocks(request)
        if blocks > self.free_cpu_blocks:
            raise OutOfBlocks("the swap space is full")
        request.decodes = False
        self.swapped[request] = self.here.pop(request)
        self.count()
        return blocks

    def swap_in(self, request: SequenceGroup) -> int:
        blocks = self.held_blocks(request)
        self.need(blocks)
        self.here[request] = self.swapped.pop(request)
        self.count()
        return blocks

    def drop_swapped(self, request: SequenceGroup) -> None:
        del self.swapped[request]
        self.count()

    def fork(self, request: SequenceGroup, dropped: int, survivor: int) -> int:
        held = self.here[request]
        if not self.shares:
            return sum(len(table) for table in held.tables[dropped])
        held.tables[dropped] = [list(table) for table in held.tables[survivor]]
        self.count()
        return 0

    # The rules

    def write(self, held: Held) -> tuple[int, int]:
        """Give each sample one more token; return the blocks taken for it, and those copied beside."""
        taken = copies = 0
        for sample in held.tables:
            for number, (group, table) in enumerate(zip(self.groups, sample, strict=True)):
                place = held.tokens // group.block_size
                if place == len(table):
                    table.append(Block())
                    taken += 1
                elif any(
                    other[number][place] is table[place] for other in held.tables if other is not sample
                ):
                    table[place] = Block()
                    copies += 1
        held.tokens += 1
        return taken, copies

    def decoding(self) -> list[SequenceGroup]:
        """Return the decoding requests, in their order."""
        return sorted(
            (request for request in self.here if request.decodes), key=lambda request: request.order
        )

    def need(self, blocks: int) -> None:
        if blocks > self.free_blocks:
            raise OutOfBlocks(f"{blocks} blocks are needed, {self.free_blocks} are free")
