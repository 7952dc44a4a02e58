"""Memory as a textbook tells it, block by block and token by token: slow, and seen to be right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pagesim.kvcache import BlockManager, ChunkedLocal, Holder, KVGroup, OutOfBlocks, SlidingWindow


class Block:
    """A block is itself and no other one."""


Table = list[Block | None]
"""Of one sample in one group: the block of each ``block_size`` tokens, None where it was released."""


class Held:
    """What one holder has: ``tables[sample][group]``, and its tokens."""

    def __init__(self, tables: list[list[Table]], tokens: int) -> None:
        self.tables = tables
        self.tokens = tokens

    def all(self) -> Iterator[Table]:
        for sample in self.tables:
            yield from sample

    def blocks(self) -> list[Block]:
        """Return the block that each place of each table names."""
        return [block for table in self.all() for block in table if block is not None]

    def copy(self) -> Held:
        return Held([[list(table) for table in sample] for sample in self.tables], self.tokens)


class SlowManager(BlockManager):
    """The slow twin of block managers. A block is held because a table names it, and for no other reason."""

    def __init__(
        self, num_blocks: int, groups: Sequence[KVGroup], cpu_blocks: int = 0, *, shares: bool = True
    ) -> None:
        super().__init__(num_blocks, groups, cpu_blocks, shares=shares)
        self.here: dict[Holder, Held] = {}
        self.swapped: dict[Holder, Held] = {}
        # Whether the next step is the first of a holder that gives something back at once.
        self.begins = False

    def count(self) -> None:
        """Count again from the tables."""
        names = [block for held in self.here.values() for block in held.blocks()]
        away = {block for held in self.swapped.values() for block in held.blocks()}
        self.free_blocks = self.num_blocks - len(set(names))
        self.free_cpu_blocks = self.cpu_blocks - len(away)
        self.shared_blocks = len(names) - len(set(names))

    # Questions

    def held_blocks(self, holder: Holder) -> int:
        held = self.here.get(holder) or self.swapped[holder]
        return len(set(held.blocks()))

    def held_by_group(self, holder: Holder) -> list[tuple[int, int]]:
        held = self.here[holder]
        found = []
        for group, table in zip(self.groups, held.tables[0], strict=True):
            gone = sum(block is None for block in table)
            found.append((held.tokens - gone * group.block_size, len(table) - gone))
        return found

    def length(self, holder: Holder) -> int:
        return (self.here.get(holder) or self.swapped[holder]).tokens

    def blocks_needed(self, steps: int = 1) -> int:
        return sum(self.needed_by(holder, steps) for holder in self.decoding())

    def blocks_needed_by(self, holder: Holder) -> int:
        return self.needed_by(holder, 1)

    def needed_by(self, holder: Holder, steps: int) -> int:
        return self.blocks_for_tokens(holder, steps * holder.growth)

    def blocks_to_extend(self, holder: Holder, tokens: int) -> int:
        return self.blocks_for_tokens(holder, tokens)

    def blocks_for_tokens(self, holder: Holder, tokens: int) -> int:
        """Write so many tokens to copies of the tables; return the blocks taken."""
        taken = 0
        if not self.grows:
            return 0
        held = self.here[holder].copy()
        for _ in range(tokens):
            new, copies = self.write(held)
            taken += new + copies
        return taken

    def copies_due(self, holder: Holder) -> int:
        return self.write(self.here[holder].copy())[1]

    @property
    def copies_on_write(self) -> bool:
        return any(self.copies_due(holder) for holder in self.decoding())

    def steps_that_fit(self, steps: int, spare: int) -> int:
        """Take one step after another, up to one that copies on write, and then take all back."""
        if self.copies_on_write or (self.lag and self.begins):
            return 0
        before = self.state()
        fit = 0
        while fit < steps and self.blocks_needed(1) <= self.free_blocks - spare:
            self.step()
            fit += 1
        self.go_back(before)
        return fit

    def state(self) -> dict[Holder, tuple[Held, int]]:
        return {holder: (held.copy(), holder.in_flight) for holder, held in self.here.items()}

    def go_back(self, state: dict[Holder, tuple[Held, int]]) -> None:
        self.here = {holder: held for holder, (held, _) in state.items()}
        for holder, (_, in_flight) in state.items():
            holder.in_flight = in_flight
        self.count()

    # Changes

    def admit(self, holder: Holder, tokens: int) -> None:
        tables: list[list[Table]] = []
        for sample in range(holder.samples):
            if sample and self.shares:
                tables.append([list(table) for table in tables[0]])
                continue
            tables.append([])
            for group in self.groups:
                table: Table = []
                while len(table) * group.block_size < group.rule.reserved(tokens, holder.output):
                    table.append(Block())
                tables[-1].append(table)
        held = Held(tables, tokens)
        self.need(len(set(held.blocks())))
        self.here[holder] = held
        self.count()

    def extend(self, holder: Holder, tokens: int) -> None:
        self.free_skipped_blocks(holder)
        held = self.here[holder].copy()
        for _ in range(tokens):
            self.write(held)
        self.need(len(set(held.blocks())) - self.held_blocks(holder))
        self.here[holder] = held
        self.count()

    def append(self, holder: Holder) -> int:
        if self.releases:
            self.free_skipped_blocks(holder)
        self.need(self.blocks_for_tokens(holder, 1))
        _, copies = self.write(self.here[holder])
        self.count()
        return copies

    def start_decoding(self, holder: Holder) -> None:
        holder.decodes = True
        held = self.here[holder].copy()
        self.release_skipped(held, held.tokens)
        self.begins = self.begins or any(None in table for table in held.all())

    def stop_decoding(self, holder: Holder) -> None:
        holder.decodes = False

    def free_skipped_blocks(self, holder: Holder) -> None:
        held = self.here[holder]
        self.release_skipped(held, held.tokens - holder.in_flight)
        self.count()

    def grow(self, steps: int = 1) -> int:
        if self.blocks_needed(steps) > self.free_blocks and self.steps_that_fit(steps, 0) < steps:
            raise OutOfBlocks("a step does not fit")
        copies = sum([self.step() for _ in range(steps)])
        self.steps += steps
        self.begins = self.begins and not steps
        return copies

    def step(self) -> int:
        """Every decoding holder gets its tokens, then releases what none of them attended to."""
        copies = 0
        processed = {holder: self.length(holder) - holder.in_flight for holder in self.decoding()}
        for holder in processed:
            for _ in range(holder.growth):
                copies += self.write(self.here[holder])[1]
        for holder, tokens in processed.items():
            self.release_skipped(self.here[holder], tokens)
            holder.in_flight = self.lag * holder.growth
        self.count()
        return copies

    def release(self, holder: Holder) -> None:
        del self.here[holder]
        holder.decodes = False
        self.count()

    def end_samples(self, holder: Holder, samples: Sequence[int]) -> None:
        held = self.here[holder]
        held.tables = [tables for place, tables in enumerate(held.tables) if place not in samples]
        holder.samples = len(held.tables)
        self.count()

    def swap_out(self, holder: Holder) -> int:
        blocks = self.held_blocks(holder)
        if blocks > self.free_cpu_blocks:
            raise OutOfBlocks("the swap space is full")
        holder.decodes = False
        self.swapped[holder] = self.here.pop(holder)
        self.count()
        return blocks

    def swap_in(self, holder: Holder) -> int:
        blocks = self.held_blocks(holder)
        self.need(blocks)
        self.here[holder] = self.swapped.pop(holder)
        self.count()
        return blocks

    def drop_swapped(self, holder: Holder) -> None:
        del self.swapped[holder]
        self.count()

    def fork(self, holder: Holder, dropped: int, survivor: int) -> int:
        held = self.here[holder]
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

    def release_skipped(self, held: Held, processed: int) -> None:
        """Release the blocks whose tokens no token after the first ``processed`` attends to."""
        for sample in held.tables:
            for group, table in zip(self.groups, sample, strict=True):
                first = 0  # of the tokens that the next one attends to
                if isinstance(group.rule, SlidingWindow):
                    first = processed - group.rule.window + 1
                elif isinstance(group.rule, ChunkedLocal):
                    first = processed - processed % group.rule.chunk
                for place in range(len(table)):
                    if (place + 1) * group.block_size <= first:
                        table[place] = None

    def decoding(self) -> list[Holder]:
        """Return the decoding holders, in their order."""
        return sorted((holder for holder in self.here if holder.decodes), key=lambda holder: holder.order)

    def need(self, blocks: int) -> None:
        if blocks > self.free_blocks:
            raise OutOfBlocks(f"{blocks} blocks are needed, {self.free_blocks} are free")


class SlowHybridManager(SlowManager):
    """The same for memory of several KV groups."""

    def __init__(self, num_blocks: int, groups: Sequence[KVGroup], *, longest: int, in_flight: int) -> None:
        super().__init__(num_blocks, groups, shares=False)
        self.releases = True
        self.is_plain = False
