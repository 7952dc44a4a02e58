"""A radix tree with windows that is obviously right, and slow; see `SlowTree`."""

from __future__ import annotations

from tests.kvcache.slow_tree import Entry, SlowTree, Tokens


class SlowWindowedTree(SlowTree):
    """As `pagesim.kvcache.radix.WindowedTree`; a prefix is named by its tokens.

    Attributes:
        live: the nodes that have window slots, that first whose slots are evicted last.
        window_locks: by node.
    """

    def __init__(self, page: int, window: int, policy: str = "lru") -> None:
        super().__init__(page, policy)
        self.window = window
        self.live: list[Tokens] = []
        self.window_locks: dict[Tokens, int] = {}

    def split(self, prefix: Tokens) -> None:
        if not prefix or prefix in self.nodes:
            return
        lower = self.behind(prefix)[0]
        super().split(prefix)
        self.window_locks[prefix] = self.window_locks.get(lower, 0)
        if lower in self.live:
            self.live.insert(self.live.index(lower) + 1, prefix)

    def has_window(self, prefix: Tokens) -> bool:
        """Say whether the last tokens of a prefix, a window of them, all have window slots."""
        least = max(0, len(prefix) - self.window)
        return all(node in self.live for node in self.path(prefix) if len(node) > least)

    def match(self, tokens: Tokens) -> Tokens:
        if len(tokens) < self.page:
            return ()
        reached = self.found(tokens)
        self.split(reached)
        found = max((node for node in self.path(reached) if self.has_window(node)), key=len, default=())
        self.renew(found)
        used = self.tick()
        for node in reversed(self.path(found)):
            self.nodes[node].used = used
            used -= 1e-5
        return found

    def add(self, tokens: Tokens, seen: int, own: int) -> int:
        """Insert tokens of a sequence whose own window slots begin with the token ``own``."""
        self.tick()  # of the root
        found = self.found(tokens)
        for end in [*self.path(found), *([] if found in self.nodes else [found])]:
            if not end:
                continue
            self.nodes[end if end in self.nodes else self.behind(end)[0]].used = self.tick()
            self.split(end)
            self.supply(end, own, is_new=False)
            self.nodes[end].hits += len(end) > seen
        if len(found) < len(tokens):
            now = self.tick()
            self.nodes[tokens] = Entry(now, now)
            self.supply(tokens, own, is_new=True)
            self.nodes[tokens].hits = int(len(tokens) > seen)
        self.renew(tokens)
        return len(found)

    def supply(self, node: Tokens, own: int, *, is_new: bool) -> None:
        """Give a tombstone those window slots that a sequence has."""
        if node in self.live or own >= len(node):
            return
        self.split(node[: max(own, len(node) - self.length(node))])
        pages = -(-self.window // self.page) * self.page
        if is_new and self.length(node) > pages:
            self.split(node[:-pages])
            self.live.insert(0, node[:-pages])
        self.live.insert(0, node)

    def renew(self, prefix: Tokens) -> None:
        """Put the nodes with which a prefix ends first, the last one at the head."""
        least = len(prefix) - self.window - self.page
        ending = [node for node in reversed(self.path(prefix)) if len(node) > least and node in self.live]
        self.live = ending + [node for node in self.live if node not in ending]

    def lock_window(self, prefix: Tokens) -> int:
        """Hold the nodes with which a prefix ends; return where the first of them begins."""
        begin = len(prefix)
        for node in reversed(self.path(prefix)):
            if len(prefix) - len(node) < self.window:
                self.window_locks[node] = self.window_locks.get(node, 0) + 1
                begin = len(node) - self.length(node)
        return begin

    def unlock_window(self, prefix: Tokens, begin: int) -> None:
        for node in self.path(prefix):
            if len(node) > begin:
                self.window_locks[node] -= 1

    def evict(self, tokens: int) -> list[Tokens]:
        gone = super().evict(tokens)
        self.live = [node for node in self.live if node not in gone]
        return gone

    def evict_windows(self, tokens: int) -> int:
        """Return the tokens that lose their full slots, too."""
        freed = gone = 0
        for node in reversed(self.live.copy()):
            if freed >= tokens:
                break
            if self.window_locks.get(node, 0):
                continue
            freed += self.length(node)
            if not self.nodes[node].locks and not self.behind(node):
                gone += self.length(node)
                del self.nodes[node]
            self.live.remove(node)
        return gone

    def window_tokens(self, *, locked: bool) -> int:
        """Return the tokens with window slots that are held, or of those that are not."""
        return sum(self.length(node) for node in self.live if bool(self.window_locks.get(node, 0)) == locked)
