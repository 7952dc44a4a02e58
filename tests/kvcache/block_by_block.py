"""The rule of vLLM's prefix cache, one block at a time: slow, and short enough to be seen to be right."""

from collections import OrderedDict

from tests.kvcache.text import Text


class BlockByBlock:
    """What `PrefixCachingAllocator` decides about requests that find, take and give back blocks.

    ``tables`` has the blocks of each sequence; ``evictions`` says of each block that held what could be found
    which one it was of all that were ever taken.
    """

    def __init__(self, num_blocks: int, size: int, *, reuses_unfilled_first: bool) -> None:
        self.size = size
        self.reuses_unfilled_first = reuses_unfilled_first
        self.queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self.key_of: dict[int, int] = {}
        self.with_key: dict[int, list[int]] = {}  # the first that had it first
        self.users: dict[int, int] = dict.fromkeys(range(num_blocks), 0)
        self.tables: dict[int, list[int]] = {}
        self.texts: dict[int, Text] = {}
        self.tokens: dict[int, int] = {}
        self.published: dict[int, int] = {}
        self.taken = 0
        self.evictions: list[int] = []

    @property
    def cached(self) -> int:
        return sum(block in self.key_of for block in self.queue)

    def hits(self, text: Text, tokens: int) -> int:
        most = (tokens - 1) // self.size
        return next((b for b in range(most) if text.key(b) not in self.with_key), most)

    def wanted(self, text: Text, hits: int, tokens: int) -> int:
        found = [self.with_key[text.key(block)][0] for block in range(hits)]
        return -(-tokens // self.size) - hits + sum(block in self.queue for block in found)

    def allocate(self, sequence: int, text: Text, hits: int, tokens: int) -> None:
        self.tables[sequence] = [self.with_key[text.key(block)][0] for block in range(hits)]
        for block in self.tables[sequence]:
            self.queue.pop(block, None)
            self.users[block] += 1
        self.texts[sequence] = text
        self.published[sequence] = hits
        self.tokens[sequence] = hits * self.size
        self.extend(sequence, tokens - hits * self.size)
        self.publish(sequence)

    def extend(self, sequence: int, tokens: int) -> None:
        self.tokens[sequence] += tokens
        while len(self.tables[sequence]) * self.size < self.tokens[sequence]:
            self.tables[sequence].append(self.take())

    def publish(self, sequence: int) -> None:
        table, full = self.tables[sequence], self.tokens[sequence] // self.size
        for number in range(self.published[sequence], full):
            key = self.texts[sequence].key(number)
            self.key_of[table[number]] = key
            self.with_key.setdefault(key, []).append(table[number])
        self.published[sequence] = full

    def free(self, sequence: int) -> None:
        self.publish(sequence)
        unfilled = []
        for block in reversed(self.tables.pop(sequence)):
            self.users[block] -= 1
            if self.users[block]:
                continue
            self.queue[block] = None
            if self.reuses_unfilled_first and block not in self.key_of:
                unfilled.append(block)
        for block in reversed(unfilled):
            self.queue.move_to_end(block, last=False)

    def take(self) -> int:
        block, _ = self.queue.popitem(last=False)
        self.users[block] = 1
        self.taken += 1
        key = self.key_of.pop(block, None)
        if key is not None:
            self.evictions.append(self.taken)
            self.with_key[key].remove(block)
            if not self.with_key[key]:
                del self.with_key[key]
        return block
