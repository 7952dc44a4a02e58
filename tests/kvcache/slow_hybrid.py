"""A hybrid block manager with a prefix cache, as vLLM's pages tell it: block by block and step by step.

Written from vLLM 0.33.0's rules alone (``block_pool.py``, ``single_type_kv_cache_manager.py``,
``kv_cache_coordinator.py``): full attention, sliding windows and chunked attention, all in plain lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, lcm

from pagesim.allocators import OutOfBlocks
from pagesim.kvcache import BlockManager, ChunkedLocal, Full, KVGroup, SequenceGroup, SlidingWindow
from tests.kvcache.text import Reader


class Block:
    """A block of memory, by number; ``keys`` are its hashes with its group, and the tokens of each."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.keys: dict[tuple[int, int], int] = {}
        self.tables = 0


Table = list[Block | None]
"""By position the block of one group, None for vLLM's null block."""


class SlowHybridPrefixManager(BlockManager):
    """The slow twin of `HybridManager` with a prefix cache, and of `PrefixManager`."""

    def __init__(
        self,
        num_blocks: int,
        groups: Sequence[KVGroup],
        *,
        longest: int,
        in_flight: int,
        reuses_unhashed_first: bool = True,
    ) -> None:
        super().__init__(num_blocks, groups, shares=False)
        self.releases = True
        self.reuses_unhashed_first = reuses_unhashed_first
        self.reserved = 0  # leading blocks of the queue that are taken before what is given back
        self.longest = longest
        self.most_in_flight = in_flight
        self.queue = [Block(number) for number in range(num_blocks)]  # the first is taken first
        self.cache: dict[tuple[int, int], list[Block]] = {}
        self.tables: dict[Reader, list[Table]] = {}
        self.hashed: dict[Reader, list[int]] = {}  # of each group, leading positions that were decided
        self.alignment = lcm(*[group.block_size for group in groups])
        self.unit = gcd(*[group.block_size for group in groups])  # tokens of a hash
        self.hits: dict[Reader, tuple[int, list[Table]]] = {}
        self.fresh = -1  # the step that is the first of some request which may give something back in it
        self.changes: list[tuple[int, ...]] = []
        self.early = any(isinstance(group.rule, ChunkedLocal) for group in groups)
        self.at_once = len({group.block_size for group in groups}) > 1

    # Blocks

    def count(self) -> None:
        self.free_blocks = len(self.queue)
        self.cached_blocks = sum(bool(block.keys) for block in self.queue)
        held = [block for tables in self.tables.values() for table in tables for block in table if block]
        self.shared_blocks = len(held) - len(set(held))

    @property
    def findable_blocks(self) -> int:
        return len(self.cache)

    def take_block(self) -> Block:
        block = self.queue.pop(0)
        self.reserved = max(0, self.reserved - 1)
        self.evict(block)
        block.tables = 1
        return block

    def evict(self, block: Block) -> None:
        for key in block.keys:
            self.cache[key].remove(block)
            if not self.cache[key]:
                del self.cache[key]
        block.keys = {}

    def hash_block(self, block: Block, key: tuple[int, int], tokens: int) -> None:
        """Give a block a hash of so many tokens; it loses those of fewer."""
        if key in block.keys:
            return
        if max(block.keys.values(), default=tokens) < tokens:
            self.evict(block)
        block.keys[key] = tokens
        self.cache.setdefault(key, []).append(block)

    def reserve_free(self) -> None:
        for block in self.queue:
            self.evict(block)
        self.reserved = len(self.queue)
        self.count()

    def give_back(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            block.tables -= 1
        free = [block for block in blocks if not block.tables]
        first = [block for block in free if not block.keys and self.reuses_unhashed_first]
        self.queue[self.reserved : self.reserved] = first
        self.queue += [block for block in free if block not in first]

    # Rules

    def skipped(self, group: KVGroup, processed: int) -> int:
        """Blocks at the beginning that no token after the first so many attends to."""
        tokens = 0
        if isinstance(group.rule, SlidingWindow):
            tokens = max(0, processed - group.rule.window + 1)
        elif isinstance(group.rule, ChunkedLocal):
            tokens = processed // group.rule.chunk * group.rule.chunk
        return tokens // group.block_size

    def most(self, group: KVGroup, tokens: int) -> int:
        """Blocks that a sequence of so many tokens holds at once at most."""
        most, size = -(-tokens // group.block_size), group.block_size
        if isinstance(group.rule, SlidingWindow):
            most = min(most, -(-min(group.rule.window - 1 + self.most_in_flight, self.longest) // size) + 1)
        elif isinstance(group.rule, ChunkedLocal):
            most = min(most, -(-min(group.rule.chunk + self.most_in_flight, self.longest) // size))
        return most

    def find(self, group: KVGroup, number: int, request: Reader, tokens: int) -> Table:
        """The hit of one group of at most so many tokens: its blocks, null where none is needed."""
        size = group.block_size
        places = tokens // size
        there: Table = []
        for place in range(places):
            found = self.cache.get((request.content.key_at((place + 1) * size), number))
            there.append(found[0] if found else None)
        if isinstance(group.rule, ChunkedLocal):
            first = self.skipped(group, tokens)
            end = first
            while end < places and there[end]:
                end += 1
            return [*[None] * first, *there[first:end]]
        leading = 0
        while leading < places and there[leading]:
            leading += 1
        while leading * size % self.alignment:
            leading -= 1
        if isinstance(group.rule, SlidingWindow):
            needed = -(-(group.rule.window - 1) // size)
            for end in range(places, 0, -1):
                if end * size % self.alignment == 0 and end >= needed and all(there[end - needed : end]):
                    first = end - max(needed, 1)  # a window of one token needs the block that ends there
                    if all(there[first:end]):
                        return [*[None] * first, *there[first:end]]
        return there[:leading]

    def look_up(self, request: Reader, tokens: int) -> tuple[int, list[Table], int]:
        """The longest hit of all groups: its tokens, its blocks, and the longest that one group has."""
        alike: dict[object, list[int]] = {}
        for number, group in enumerate(self.groups):
            alike.setdefault((group.rule, group.block_size), []).append(number)
        kinds = sorted(alike.values(), key=lambda numbers: self.groups[numbers[0]].rule != Full())
        length, longest = tokens, 0
        hits: dict[int, Table] = {}
        first_time = True
        while True:
            found = length
            for numbers in kinds:
                group = self.groups[numbers[0]]
                if not first_time and group.rule == Full():
                    found = min(found, len(hits[numbers[0]]) * group.block_size)
                    continue
                found = self.find_alike(numbers, request, found, hits)
                longest = max(longest, found)
            first_time = False
            if found >= length:
                break
            length = found
            if len(kinds) == 1 or (len(kinds) == 2 and self.groups[kinds[0][0]].rule == Full()):
                break
        cut = [hits[number][: -(-length // group.block_size)] for number, group in enumerate(self.groups)]
        return length, cut, longest if longest > length else 0

    def find_alike(self, numbers: list[int], request: Reader, tokens: int, hits: dict[int, Table]) -> int:
        """The hit of several groups of one rule: a position counts only where all of them have a block."""
        group = self.groups[numbers[0]]
        size = group.block_size
        hidden: dict[tuple[int, int], list[Block]] = {}
        for place in range(tokens // size):
            keys = [(request.content.key_at((place + 1) * size), number) for number in numbers]
            if not all(key in self.cache for key in keys):
                hidden |= {key: self.cache.pop(key) for key in keys if key in self.cache}
        for number in numbers:
            hits[number] = self.find(group, number, request, tokens)
        self.cache |= hidden
        return len(hits[numbers[0]]) * size

    def hash_blocks(self, request: Reader, tokens: int) -> None:
        if request.content is None:
            return
        if len(self.groups) > 1:
            tokens = tokens // self.alignment * self.alignment
        for number, (group, table) in enumerate(zip(self.groups, self.tables[request], strict=True)):
            size = group.block_size
            first, last = self.hashed[request][number], tokens // size
            self.hashed[request][number] = max(first, last)
            for place in range(first, last):
                block = table[place]
                if block is None or (place + 1) * size in block.keys.values():
                    continue
                if isinstance(group.rule, SlidingWindow):
                    needed = -(-(group.rule.window - 1) // size)
                    boundaries = [request.prompt - 1, *([request.junction] if request.junction else [])]
                    ends = [boundary // self.alignment * self.alignment // size for boundary in boundaries]
                    if not any(end - needed <= place < end for end in ends):
                        continue
                key = request.content.key_at((place + 1) * size), number
                self.hash_block(block, key, (place + 1) * size)
            # In a block of several hash units the one in which the prompt ends has a hash, too.
            end = (request.prompt - 1) // self.unit * self.unit
            if group.rule == Full() and end % size and 0 < end <= tokens and end // size < len(table):
                block = table[end // size]
                assert block is not None
                self.hash_block(block, (request.content.key_at(end), number), end)

    # Questions

    def length(self, request: Reader) -> int:
        return request.tokens

    def held_blocks(self, request: Reader) -> int:
        return sum(block is not None for table in self.tables[request] for block in table)

    def held_by_group(self, request: Reader) -> list[tuple[int, int]]:
        found = []
        for group, table in zip(self.groups, self.tables[request], strict=True):
            gone = table.count(None)
            found.append((request.tokens - gone * group.block_size, len(table) - gone))
        return found

    def held_by_groups(self) -> list[int]:
        groups = range(len(self.groups))
        return [len({b for tables in self.tables.values() for b in tables[g] if b}) for g in groups]

    def exclusive_blocks(self, requests: Sequence[SequenceGroup]) -> list[int]:
        others = [tables for request, tables in self.tables.items() if request not in requests]
        return [
            len({b for r in requests for b in self.tables[r][g] if b} - {b for t in others for b in t[g]})  # type: ignore[index]
            for g in range(len(self.groups))
        ]

    def block_table(self, request: Reader, sample: int = 0, group: int = 0) -> list[int]:
        return [-1 if block is None else block.number for block in self.tables[request][group]]

    def free_blocks_in_order(self) -> list[int]:
        return [block.number for block in self.queue]

    def missing(self, request: Reader, length: int) -> int:
        tables = zip(self.groups, self.tables[request], strict=True)
        return sum(max(0, -(-length // group.block_size) - len(table)) for group, table in tables)

    def blocks_needed(self, steps: int = 1) -> int:
        return sum(self.missing(request, request.tokens + steps) for request in self.decoding())

    def blocks_to_extend(self, request: Reader, tokens: int, computed: int | None = None) -> int:
        return self.missing(request, request.tokens + tokens)

    def steps_that_fit(self, steps: int, spare: int) -> int:
        if self.steps_in_flight and self.fresh == self.steps + 1:
            return 0
        fit = 0
        while fit < steps and self.blocks_needed(fit + 1) <= self.free_blocks - spare:
            fit += 1
        return fit

    def match_prefix(self, request: Reader, tokens: int) -> int:
        self.hits.pop(request, None)
        if request.content is None:
            return 0
        found, hit, request.junction = self.look_up(request, tokens - 1)
        self.hits[request] = found, hit
        return found

    def first(self, request: Reader, needed: Sequence[int]) -> int:
        """Free blocks that admission takes, if so many are needed in each group."""
        found, hits = self.hits.get(request, (0, [[] for _ in self.groups]))
        blocks = 0
        for group, hit, wanted in zip(self.groups, hits, needed, strict=True):
            gone = self.skipped(group, found) if found else 0
            blocks += max(0, wanted - max(gone, len(hit)))
            blocks += sum(block is not None and not block.tables for block in hit[gone:])
        return blocks

    def blocks_to_admit(self, request: Reader, tokens: int) -> int:
        return self.first(request, [-(-tokens // group.block_size) for group in self.groups])

    def can_admit(self, request: Reader, tokens: int, spare: int = 0, length: int = 0) -> bool:
        whole = self.first(request, [self.most(group, length) for group in self.groups])
        return max(self.blocks_to_admit(request, tokens), whole if length else 0) + spare <= self.free_blocks

    def decoding(self) -> list[Reader]:
        return sorted((h for h in self.tables if h.decodes), key=lambda request: request.order)

    # Changes

    def need(self, blocks: int) -> None:
        if blocks > self.free_blocks:
            raise OutOfBlocks(f"{blocks} blocks are needed, {self.free_blocks} are free")

    def admit(self, request: Reader, tokens: int) -> None:
        self.need(self.blocks_to_admit(request, tokens))
        found, hits = self.hits.pop(request, (0, [[] for _ in self.groups]))
        tables = []
        for group, hit in zip(self.groups, hits, strict=True):
            gone = self.skipped(group, found) if found else 0
            table: Table = [*[None] * gone, *hit[gone:]]
            for block in table:
                if block is not None:
                    if not block.tables:
                        self.queue.remove(block)
                    block.tables += 1
            tables.append(table)
        self.tables[request] = tables
        self.hashed[request] = [len(table) for table in tables]
        self.reach(request, tokens)
        self.hash_blocks(request, tokens - request.uncommitted_tokens)
        self.count()

    def reach(self, request: Reader, length: int) -> None:
        for group, table in zip(self.groups, self.tables[request], strict=True):
            while len(table) * group.block_size < length:
                table.append(self.take_block())
        request.tokens = length

    def free_skipped_blocks(self, request: Reader) -> None:
        self.release_skipped(request, request.tokens - request.inflight_tokens)
        self.count()

    def release_skipped(self, request: Reader, processed: int) -> None:
        if self.early:
            self.hash_blocks(request, processed)
        for group, table in zip(self.groups, self.tables[request], strict=True):
            gone = []
            for place in range(min(self.skipped(group, processed), len(table)) - 1, -1, -1):
                block = table[place]
                if block is not None:
                    gone.append(block)
                    table[place] = None
            self.give_back(gone)

    def extend(self, request: Reader, tokens: int) -> None:
        self.free_skipped_blocks(request)
        self.need(self.blocks_to_extend(request, tokens))
        self.reach(request, request.tokens + tokens)
        self.hash_blocks(request, request.tokens - request.uncommitted_tokens)
        self.count()

    def append(self, request: Reader) -> int:
        self.extend(request, 1)
        return 0

    def start_decoding(self, request: Reader) -> None:
        request.decodes = True
        if any(self.skipped(group, request.tokens) for group in self.groups):
            self.fresh = self.steps + 1

    def stop_decoding(self, request: Reader) -> None:
        request.decodes = False

    def serve(self, request: Reader) -> None:
        self.release_skipped(request, request.tokens - request.inflight_tokens)
        request.inflight_tokens = self.steps_in_flight
        self.reach(request, request.tokens + 1)
        if self.at_once:
            self.hash_blocks(request, request.tokens - request.uncommitted_tokens)
        self.count()

    def allocate_step(self, steps: int = 1) -> int:
        for _ in range(steps):
            self.steps += 1
            for request in self.decoding():
                self.serve(request)
            self.changes.append((self.steps, self.cached_blocks, *self.held_by_groups()))
        return 0

    def take_changes(self) -> list[tuple[int, ...]]:
        changes, self.changes = self.changes, []
        return changes

    def cache_full_blocks(self, request: Reader) -> None:
        self.hash_blocks(request, request.tokens - request.uncommitted_tokens)

    def release(self, request: Reader) -> None:
        self.hash_blocks(request, request.tokens - request.uncommitted_tokens)
        for table in self.tables.pop(request):
            self.give_back([block for block in reversed(table) if block is not None])
        del self.hashed[request]
        request.decodes = False
        self.count()

    def end_samples(self, request: Reader, samples: Sequence[int]) -> None:
        raise NotImplementedError
