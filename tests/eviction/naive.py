"""Eviction policies written so plainly that they are seen to be right: lists, searched each time."""

from __future__ import annotations

from collections.abc import Callable

Free = Callable[[int], bool]


class NaiveLru:
    """The blocks in a list, the one used last at its end."""

    def __init__(self, capacity: int, free: Free) -> None:
        self.capacity, self.free = capacity, free
        self.line: list[int] = []

    def hit(self, block: int) -> None:
        self.line.remove(block)
        self.line.append(block)

    def miss(self, block: int) -> None:
        pass

    def insert(self, block: int) -> None:
        self.line.append(block)

    def evict(self) -> int | None:
        for block in self.line:
            if self.free(block):
                self.line.remove(block)
                return block
        return None


class NaiveFifo(NaiveLru):
    """A hit moves nothing."""

    def hit(self, block: int) -> None:
        pass


class NaiveMru(NaiveLru):
    """The last that may go."""

    def evict(self) -> int | None:
        self.line.reverse()
        victim = super().evict()
        self.line.reverse()
        return victim


class NaiveFilo(NaiveMru):
    """A hit moves nothing."""

    def hit(self, block: int) -> None:
        pass


class NaiveLfu(NaiveLru):
    """Of the blocks with the fewest uses the one used longest ago."""

    def __init__(self, capacity: int, free: Free) -> None:
        super().__init__(capacity, free)
        self.uses: dict[int, int] = {}

    def hit(self, block: int) -> None:
        super().hit(block)
        self.uses[block] += 1

    def insert(self, block: int) -> None:
        super().insert(block)
        self.uses[block] = 1

    def evict(self) -> int | None:
        free = [block for block in self.line if self.free(block)]
        if not free:
            return None
        victim = min(free, key=lambda block: (self.uses[block], self.line.index(block)))
        self.line.remove(victim)
        return victim


class NaiveSieve(NaiveFifo):
    """A hand that is a block: it walks to the newer ones, and from the newest to the oldest."""

    def __init__(self, capacity: int, free: Free) -> None:
        super().__init__(capacity, free)
        self.used: set[int] = set()
        self.hand: int | None = None

    def hit(self, block: int) -> None:
        self.used.add(block)

    def evict(self) -> int | None:
        place = 0 if self.hand is None else self.line.index(self.hand)
        for _ in range(2 * len(self.line)):
            block = self.line[place]
            newer = (place + 1) % len(self.line)
            if self.free(block):
                if block not in self.used:
                    self.hand = self.line[newer] if newer else None
                    self.line.remove(block)
                    return block
                self.used.discard(block)
            place = newer
        return None


class NaiveS3Fifo:
    """Small and main as lists, ghosts as a list of names."""

    def __init__(self, capacity: int, free: Free) -> None:
        self.free = free
        self.small_room, self.ghost_room = int(0.1 * capacity), int(0.9 * capacity)
        self.main_room = capacity - self.small_room
        self.small: list[int] = []
        self.main: list[int] = []
        self.ghosts: list[int] = []
        self.uses: dict[int, int] = {}
        self.was_ghost = self.evicted = False

    def hit(self, block: int) -> None:
        self.uses[block] += 1

    def miss(self, block: int) -> None:
        self.was_ghost = block in self.ghosts
        if self.was_ghost:
            self.ghosts.remove(block)

    def insert(self, block: int) -> None:
        self.uses[block] = 0
        if self.was_ghost or (not self.evicted and len(self.small) >= self.small_room):
            self.main.append(block)
        else:
            self.small.append(block)
        self.was_ghost = False

    def evict(self) -> int | None:
        self.evicted = True
        for _ in range(2):
            steps = [self.from_main, self.from_small]
            if not (len(self.main) > self.main_room or not self.small):
                steps.reverse()
            for step in steps:
                victim = step()
                if victim is not None:
                    return victim
        return None

    def from_small(self) -> int | None:
        for block in list(self.small):
            if self.free(block):
                self.small.remove(block)
                if self.uses[block] < 2:
                    self.ghosts = [name for name in self.ghosts if name != block] + [block]
                    self.ghosts = self.ghosts[-self.ghost_room :]
                    return block
                self.uses[block] = 0
                self.main.append(block)
        return None

    def from_main(self) -> int | None:
        while True:
            block = next((each for each in self.main if self.free(each)), None)
            if block is None:
                return None
            self.main.remove(block)
            if not self.uses[block]:
                return block
            self.uses[block] = min(self.uses[block], 3) - 1
            self.main.append(block)


class NaiveArc:
    """The four lists of the paper."""

    def __init__(self, capacity: int, free: Free) -> None:
        self.c, self.free, self.p, self.case = capacity, free, 0.0, 0
        self.t1: list[int] = []
        self.t2: list[int] = []
        self.b1: list[int] = []
        self.b2: list[int] = []

    def hit(self, block: int) -> None:
        (self.t1 if block in self.t1 else self.t2).remove(block)
        self.t2.append(block)

    def miss(self, block: int) -> None:
        self.case = 0
        if block in self.b1:
            self.p = min(self.p + max(len(self.b2) / len(self.b1), 1), self.c)
            self.b1.remove(block)
            self.case = 2
        elif block in self.b2:
            self.p = max(self.p - max(len(self.b1) / len(self.b2), 1), 0)
            self.b2.remove(block)
            self.case = 3

    def insert(self, block: int) -> None:
        (self.t2 if self.case else self.t1).append(block)
        self.case = 0

    def evict(self) -> int | None:
        if not self.case:
            if len(self.t1) + len(self.b1) + 1 > self.c:
                if self.b1:
                    del self.b1[0]
                else:
                    for block in self.t1:
                        if self.free(block):
                            self.t1.remove(block)
                            return block
            elif len(self.t1) + len(self.t2) + len(self.b1) + len(self.b2) >= 2 * self.c and self.b2:
                del self.b2[0]
        from_t1 = self.t1 and (len(self.t1) > self.p or (self.case == 3 and len(self.t1) == self.p))
        lists = [(self.t1, self.b1), (self.t2, self.b2)]
        for line, ghosts in lists if from_t1 or not self.t2 else lists[::-1]:
            for block in line:
                if self.free(block):
                    line.remove(block)
                    ghosts.append(block)
                    return block
        return None
