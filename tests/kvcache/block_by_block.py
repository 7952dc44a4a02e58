"""The rule of vLLM's prefix cache, one block at a time: slow, and short enough to be seen to be right."""

from __future__ import annotations

from collections import OrderedDict

from tests.kvcache.text import Reader


class BlockByBlock:
    """What `PrefixManager` does, under the contract's names.

    ``tables`` has the blocks of each request; ``evictions`` has the decode step in which each block that held
    what could be found was taken, and None for those that were not taken in one.
    """

    def __init__(self, num_blocks: int, size: int, *, reuses_unhashed_first: bool) -> None:
        self.size = size
        self.reuses_unhashed_first = reuses_unhashed_first
        self.queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self.key_of: dict[int, int] = {}
        self.with_key: dict[int, list[int]] = {}  # the first that had it first
        self.users: dict[int, int] = dict.fromkeys(range(num_blocks), 0)
        self.tables: dict[Reader, list[int]] = {}
        self.tokens: dict[Reader, int] = {}
        self.hashed: dict[Reader, int] = {}
        self.reserved: list[int] = []
        self.steps = 0
        self.growing = False
        self.evictions: list[int | None] = []

    @property
    def free_blocks(self) -> int:
        return len(self.queue) + len(self.reserved)

    @property
    def cached_blocks(self) -> int:
        return sum(block in self.key_of for block in self.queue)

    @property
    def shared_blocks(self) -> int:
        return sum(users - 1 for users in self.users.values() if users > 1)

    def match_prefix(self, request: Reader, tokens: int) -> int:
        blocks = 0
        while blocks < (tokens - 1) // self.size and request.content.key(blocks) in self.with_key:
            blocks += 1
        return blocks * self.size

    def found(self, request: Reader, tokens: int) -> list[int]:
        hits = self.match_prefix(request, tokens) // self.size
        return [self.with_key[request.content.key(block)][0] for block in range(hits)]

    def blocks_to_admit(self, request: Reader, tokens: int) -> int:
        found = self.found(request, len(request.content.prompt))
        return -(-tokens // self.size) - len(found) + sum(block in self.queue for block in found)

    def admit(self, request: Reader, tokens: int) -> None:
        found = self.found(request, len(request.content.prompt))
        for block in found:
            self.queue.pop(block, None)
            self.users[block] += 1
        self.tables[request] = found
        self.hashed[request] = len(found)
        self.tokens[request] = len(found) * self.size
        self.extend(request, tokens - self.tokens[request])

    def extend(self, request: Reader, tokens: int) -> None:
        self.write(request, tokens)
        self.cache_full_blocks(request)

    def allocate_step(self, decoding: list[Reader]) -> None:
        self.steps += 1
        self.growing = True
        for request in decoding:
            self.write(request, 1)
        self.growing = False

    def write(self, request: Reader, tokens: int) -> None:
        for _ in range(tokens):
            if self.tokens[request] == len(self.tables[request]) * self.size:
                block = self.reserved.pop(0) if self.reserved else self.take()
                self.users[block] = 1
                self.tables[request].append(block)
            self.tokens[request] += 1

    def cache_full_blocks(self, request: Reader) -> None:
        full = self.tokens[request] // self.size
        for number in range(self.hashed[request], full):
            block, key = self.tables[request][number], request.content.key(number)
            self.key_of[block] = key
            self.with_key.setdefault(key, []).append(block)
        self.hashed[request] = full

    def reserve_free(self) -> None:
        while self.queue:
            self.reserved.append(self.take())

    def release(self, request: Reader) -> None:
        self.cache_full_blocks(request)
        unhashed = []
        for block in reversed(self.tables.pop(request)):
            self.users[block] -= 1
            if self.users[block]:
                continue
            self.queue[block] = None
            if self.reuses_unhashed_first and block not in self.key_of:
                unhashed.append(block)
        for block in reversed(unhashed):
            self.queue.move_to_end(block, last=False)

    def take(self) -> int:
        """Take the first free block; what it held is evicted."""
        block, _ = self.queue.popitem(last=False)
        key = self.key_of.pop(block, None)
        if key is not None:
            self.evictions.append(self.steps if self.growing else None)
            self.with_key[key].remove(block)
            if not self.with_key[key]:
                del self.with_key[key]
        return block
