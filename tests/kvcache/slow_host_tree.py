"""A radix tree with a tier on the host that is obviously right, and slow."""

from __future__ import annotations

from tests.kvcache.slow_tree import SlowTree, Tokens


class SlowHostTree(SlowTree):
    """As `pagesim.kvcache.radix.HostTree`.

    Attributes:
        device, host: the nodes that are there.
        room: tokens that are free on the host.
        both: nodes that are on both sides, in the order in which they became so.
        loading: nodes that come to the device, each with the last one of its load.
    """

    def __init__(self, page: int, policy: str, room: int, write_policy: str) -> None:
        super().__init__(page, policy)
        self.device: set[Tokens] = set()
        self.host: set[Tokens] = set()
        self.room = room
        self.both: list[Tokens] = []
        self.loading: dict[Tokens, Tokens] = {}
        self.writes_back = write_policy == "write_back"
        self.threshold = 1 + (write_policy == "write_through_selective")

    @property
    def evictable(self) -> int:
        """Tokens on the device that nothing holds."""
        return sum(self.length(node) for node in self.device if not self.nodes[node].locks)

    def on_device(self, prefix: Tokens) -> Tokens:
        """Return the part of a prefix that is on the device."""
        return max((node for node in self.path(prefix) if node in self.device), key=len, default=())

    def split(self, prefix: Tokens) -> None:
        if not prefix or prefix in self.nodes:
            return
        lower = self.behind(prefix)[0]
        super().split(prefix)
        for side in (self.device, self.host):
            if lower in side:
                side.add(prefix)
        if lower in self.loading:
            self.loading[prefix] = self.loading[lower]
        self.pair(prefix)

    def pair(self, node: Tokens) -> None:
        """Put a node behind those on both sides, if it is and is not loaded."""
        settled = node in self.device and node in self.host and node not in self.loading
        if self.writes_back and settled and node not in self.both:
            self.both.append(node)

    def add(self, tokens: Tokens, seen: int, protected: int) -> int:
        """Insert tokens; return how many the device had behind those that are protected."""
        self.insert(tokens, len(tokens) if self.writes_back else seen)
        twice = 0
        for node in self.path(tokens):
            is_new = node not in self.device | self.host
            if node in self.device:
                twice += max(0, len(node) - max(len(node) - self.length(node), protected))
            self.device.add(node)
            if not is_new:
                self.pair(node)
        return twice

    def back_ups(self, tokens: Tokens, seen: int) -> list[Tokens]:
        """Copy what was inserted often enough, whole prefixes first; return the nodes, which are held."""
        copied = []
        for node in self.path(tokens):
            hits = self.nodes[node].hits
            if self.writes_back or len(node) <= seen or node in self.host or hits < self.threshold:
                continue
            missing = [each for each in self.path(node) if each not in self.host]
            for each in missing:
                if not self.take_host(each):
                    break
                self.lock(each)
                copied.append(each)
        return copied

    def take_host(self, node: Tokens) -> bool:
        short = self.length(node) - self.room
        if short > 0:
            self.evict_host(short)
        if self.room < self.length(node):
            return False
        self.room -= self.length(node)
        self.host.add(node)
        return True

    def leaves(self) -> list[Tokens]:
        """Return the nodes that the device can evict."""
        found = (node for node in self.device if not self.nodes[node].locks)
        return [node for node in found if not any(each in self.device for each in self.behind(node))]

    def evict(self, tokens: int) -> list[Tokens]:
        gone: list[Tokens] = []
        freed = 0
        while freed < tokens and (leaves := self.leaves()):
            gone.append(leaf := min(leaves, key=self.priority))
            freed += self.length(leaf)
            if leaf in self.host or (self.writes_back and self.take_host(leaf)):
                self.pair(leaf)
                self.device.remove(leaf)
                continue
            for node in reversed([leaf, *self.behind(leaf)]):
                self.forget(node)
        return gone

    def evict_host(self, tokens: int) -> None:
        enough = self.room + tokens
        for spares in (True, False) if self.writes_back else ():
            for node in list(self.both):
                if self.room >= enough:
                    return
                if node not in self.device or node not in self.host:
                    self.both.remove(node)
                elif node not in self.loading and not (spares and node in self.leaves()):
                    self.both.remove(node)
                    self.host.remove(node)
                    self.room += self.length(node)
        while self.room < enough:
            alone = self.host - self.device - self.loading.keys()
            leaves = [node for node in alone if not self.behind(node)]
            if not leaves:
                return
            self.forget(min(leaves, key=self.priority))

    def forget(self, node: Tokens) -> None:
        """Take a node out of the tree."""
        if node in self.host:
            self.room += self.length(node)
        del self.nodes[node]
        self.device.discard(node)
        self.host.discard(node)
        if node in self.both:
            self.both.remove(node)

    def load(self, last: Tokens) -> None:
        for node in self.path(last):
            if node not in self.device:
                self.device.add(node)
                self.loading[node] = last
        self.lock(last)

    def end_load(self, last: Tokens) -> None:
        self.lock(last, -1)
        ended = [node for node in self.loading if self.loading[node] == last]
        for node in sorted(ended, key=len, reverse=True):
            del self.loading[node]
            self.pair(node)
