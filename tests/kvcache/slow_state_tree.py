"""A radix tree with recurrent states that is obviously right, and slow."""

from __future__ import annotations

from collections import Counter

from tests.kvcache.slow_tree import SlowTree, Tokens


class SlowStateTree(SlowTree):
    """As `pagesim.kvcache.radix.StateTree`.

    Attributes:
        states: prefixes that have a state, the one that is evicted first at the front.
        holders: how many sequences hold a prefix of exactly these tokens.
    """

    def __init__(self, page: int, policy: str = "lru") -> None:
        super().__init__(page, policy)
        self.states: list[Tokens] = []
        self.holders: Counter[Tokens] = Counter()

    def renew(self, prefix: Tokens) -> None:
        """Make a prefix the last one whose state is evicted."""
        if prefix in self.states:
            self.states.remove(prefix)
        self.states.append(prefix)

    def match(self, tokens: Tokens) -> Tokens:
        reached = self.found(tokens)
        self.split(reached)
        found = max((node for node in self.path(reached) if node in self.states), key=len, default=())
        if found:
            self.renew(found)
        if len(tokens) >= self.page:
            used = self.tick()
            for node in reversed(self.path(found)):
                self.nodes[node].used = used
                used -= 1e-5
        return found

    def add(self, tokens: Tokens, seen: int) -> tuple[int, bool]:
        """Insert tokens with a state; return how many were there, and whether it is taken."""
        there = self.insert(tokens, seen)
        if there == len(tokens):
            self.nodes[tokens].used = self.tick()
        is_taken = tokens not in self.states
        self.renew(tokens)
        return there, is_taken

    def hold(self, prefix: Tokens, by: int = 1) -> None:
        self.lock(prefix, by)
        self.holders[prefix] += by

    def evict(self, tokens: int) -> list[Tokens]:
        gone = super().evict(tokens)
        self.states = [node for node in self.states if node in self.nodes]
        return gone

    def evict_states(self, count: int) -> int:
        gone = 0
        for victim in [node for node in self.states if not self.holders[node]][:count]:
            self.states.remove(victim)
            if not self.nodes[victim].locks and not self.behind(victim):
                gone += self.length(victim)
                del self.nodes[victim]
        return gone

    def count(self, *, held: bool) -> int:
        """Return the states with whose prefix sequences hold, or those of which none does."""
        return sum(bool(self.holders[node]) == held for node in self.states)
