"""A radix tree that is obviously right, and slow: every node is the whole prefix with which it ends."""

from __future__ import annotations

from dataclasses import dataclass

Tokens = tuple[int, ...]


@dataclass
class Entry:
    """What is known of a node: see `pagesim.kvcache.radix.Node`."""

    used: float
    born: float
    hits: int = 0
    locks: int = 0


class SlowTree:
    """As `pagesim.kvcache.radix.RadixTree`; a prefix is named by its tokens.

    Args:
        page: tokens of a page.
        policy: which leaf is evicted first.
    """

    def __init__(self, page: int, policy: str = "lru") -> None:
        self.page = page
        self.policy = policy
        self.nodes: dict[Tokens, Entry] = {}
        self.touches = 0.0

    def tick(self) -> float:
        self.touches += 1
        return self.touches

    def path(self, prefix: Tokens) -> list[Tokens]:
        """Return the nodes of a prefix, the shortest first."""
        return sorted((node for node in self.nodes if prefix[: len(node)] == node), key=len)

    def behind(self, prefix: Tokens) -> list[Tokens]:
        """Return the nodes that begin with a prefix and are longer, the shortest first."""
        longer = (node for node in self.nodes if len(node) > len(prefix) and node[: len(prefix)] == prefix)
        return sorted(longer, key=len)

    def found(self, tokens: Tokens) -> Tokens:
        """Return how much of some tokens, in whole pages, any node begins with."""
        pages = [tokens[:end] for end in range(self.page, len(tokens) + 1, self.page)]
        return max(
            (page for page in pages if self.path(page)[-1:] == [page] or self.behind(page)),
            key=len,
            default=(),
        )

    def split(self, prefix: Tokens) -> None:
        """Make a prefix the end of a node, where it is inside of one."""
        if prefix and prefix not in self.nodes:
            lower = self.nodes[self.behind(prefix)[0]]
            self.nodes[prefix] = Entry(self.tick(), lower.born, lower.hits, lower.locks)
            lower.used = self.tick()

    def match(self, tokens: Tokens) -> Tokens:
        found = self.found(tokens)
        self.split(found)
        if len(tokens) >= self.page:
            used = self.tick()
            for node in reversed(self.path(found)):
                self.nodes[node].used = used
                used -= 1e-5
        return found

    def insert(self, tokens: Tokens, seen: int = 0) -> int:
        self.tick()  # of the root
        found = self.found(tokens)
        for node in self.path(found):
            self.nodes[node].used = self.tick()
            self.nodes[node].hits += len(node) > seen
        if found and found not in self.nodes:
            self.nodes[self.behind(found)[0]].used = self.tick()
            self.split(found)
            self.nodes[found].hits += len(found) > seen
        if len(found) < len(tokens):
            now = self.tick()
            self.nodes[tokens] = Entry(now, now, int(len(tokens) > seen))
        return len(found)

    def lock(self, prefix: Tokens, by: int = 1) -> None:
        for node in self.path(prefix):
            self.nodes[node].locks += by

    def length(self, node: Tokens) -> int:
        """Return the tokens of a node that its parent has not."""
        above = self.path(node)[:-1]
        return len(node) - (len(above[-1]) if above else 0)

    def evict(self, tokens: int) -> list[Tokens]:
        gone: list[Tokens] = []
        freed = 0
        while freed < tokens:
            leaves = [node for node, entry in self.nodes.items() if not entry.locks and not self.behind(node)]
            if not leaves:
                break
            gone.append(min(leaves, key=self.priority))
            freed += self.length(gone[-1])
            del self.nodes[gone[-1]]
        return gone

    def priority(self, node: Tokens) -> tuple[float, ...]:
        entry = self.nodes[node]
        return {
            "lru": (entry.used,),
            "lfu": (entry.hits, entry.used),
            "fifo": (entry.born,),
            "mru": (-entry.used,),
            "filo": (-entry.born,),
        }[self.policy]

    def tokens(self, *, locked: bool) -> int:
        """Return the tokens of nodes that are locked, or of those that are not."""
        return sum(self.length(node) for node, entry in self.nodes.items() if bool(entry.locks) == locked)

    def state(self) -> dict[Tokens, tuple[float, ...]]:
        """Return what is known of each node."""
        return {node: (each.used, each.born, each.hits, each.locks) for node, each in self.nodes.items()}
