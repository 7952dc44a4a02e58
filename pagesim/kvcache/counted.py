"""Counted memory: how many blocks each request holds follows from its length, so none needs a number."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from pagesim.kvcache.base import Holder, KVCache, OutOfBlocks
from pagesim.kvcache.groups import Full, KVGroup, SlidingWindow, opening_step, period

Positions = tuple[int, ...]
"""Places in a ring at which a decoding sequence takes or releases a block."""


class _Window(NamedTuple):
    """A group with a sliding window, in tokens."""

    block_size: int
    tokens: int

    def released(self, processed: int) -> int:
        """Return the leading blocks that are not held once ``processed`` tokens have run."""
        return max(0, processed - self.tokens + 1) // self.block_size


class CountedKV(KVCache):
    """See `KVCache`. Blocks are counted and never named.

    What decoding holders take is a ring: ``takes[c]`` is how many blocks they take at a step that is ``c``
    modulo the period. A holder enters the ring once and leaves it once, however long it decodes. Sliding
    windows release into a second ring, which a holder enters when its window is full.

    Beams share blocks in ways that lengths do not tell; they need tables.
    """

    __slots__ = (
        "_frees",
        "_per_period",
        "_period",
        "_size",
        "_tables",
        "_tails",
        "_takes",
        "_trimmed",
        "_windows",
        "_windows_due",
    )

    def __init__(
        self, num_blocks: int, groups: Sequence[KVGroup], cpu_blocks: int = 0, *, shares: bool = True
    ) -> None:
        super().__init__(num_blocks, groups, cpu_blocks, shares=shares)
        self._period = period(self.groups)
        self._takes = [0] * self._period
        self._frees = [0] * self._period
        self._per_period = 0  # blocks that the decoding holders take in a period
        self._tables: dict[tuple[int, int], list[Positions]] = {}
        # The block size, where there is one group of full attention: the ordinary case of every sum below.
        only = self.groups[0].rule if len(self.groups) == 1 else None
        self._size = self.block_size if isinstance(only, Full) else 0
        self._tails: dict[Holder, None] = {}  # whose next step copies a shared last block
        self._windows = tuple(
            _Window(g.block_size, g.rule.window) for g in self.groups if isinstance(g.rule, SlidingWindow)
        )
        # (step, order, window, holder): from that step on the holder releases a block every so often.
        self._windows_due: list[tuple[int, int, int, Holder]] = []
        self._trimmed: dict[Holder, int] = {}

    # Questions

    def held_blocks(self, holder: Holder) -> int:
        return self._held(holder, self.length(holder))

    def blocks_for(self, tokens: int) -> int:
        size = self._size
        return -(-tokens // size) if size else super().blocks_for(tokens)

    def blocks_to_admit(self, holder: Holder, tokens: int) -> int:
        size = self._size
        if not size:
            return super().blocks_to_admit(holder, tokens)
        blocks = -(-tokens // size)
        return blocks if self.shares else blocks * holder.samples

    def blocks_needed(self, steps: int = 1) -> int:
        takes, whole = self._takes, self._period
        first = (self.steps + 1) % whole
        if steps == 1:
            blocks = takes[first]
        else:
            rounds, rest = divmod(steps, whole)
            end = first + rest
            blocks = sum(takes[first:end]) + rounds * self._per_period
            if end > whole:
                blocks += sum(takes[: end - whole])
        return blocks + self._copies() if self._tails and steps else blocks

    def blocks_needed_by(self, holder: Holder) -> int:
        if not self.grows:
            return 0
        before = self.length(holder)
        taken = self.blocks_for(before + holder.growth) - self.blocks_for(before)
        return taken if holder.samples == 1 else taken * holder.samples + self.copies_due(holder)

    def blocks_to_extend(self, holder: Holder, tokens: int) -> int:
        self._check_extends()
        return self.blocks_for(holder.tokens + tokens) - self.blocks_for(holder.tokens)

    @property
    def copies_on_write(self) -> bool:
        return bool(self._tails)

    def can_admit(self, holder: Holder, tokens: int, spare: int = 0) -> bool:
        size = self._size
        if size and holder.samples == 1:
            return -(-tokens // size) + spare <= self.free_blocks
        return self.blocks_to_admit(holder, tokens) + spare <= self.free_blocks

    def steps_that_fit(self, steps: int, spare: int) -> int:
        if self._tails:
            return 0
        if self._windows_due:
            # Beyond the step at which a window fills the ring does not say yet what is released.
            steps = min(steps, self._windows_due[0][0] - self.steps)
        room, whole = self.free_blocks - spare, self._period
        # A period at most takes so much: nearly always answer enough.
        if (steps // whole + 1) * self._per_period <= room or not self.grows:
            return steps
        if room < 0:
            return 0
        first = (self.steps + 1) % whole
        if not self._windows:
            rounds, room = divmod(room, self._per_period)
            fitting = rounds * whole
            for blocks in self._takes[first:] + self._takes[:first]:
                room -= blocks
                if room < 0:
                    break
                fitting += 1
            return fitting if fitting < steps else steps
        if self.blocks_needed(steps) <= room:
            return steps
        for step in range(min(steps, whole)):
            at = (first + step) % whole
            room -= self._takes[at]
            if room < 0:
                return step
            room += self._frees[at]
            if step == 0:
                room -= sum(self._trimmed.values())  # released already
        return min(steps, whole)

    def copies_due(self, holder: Holder) -> int:
        return holder.samples - 1 if holder.samples > 1 and holder.tail_shared else 0

    def held_by_group(self, holder: Holder) -> list[tuple[int, int]]:
        length = self.length(holder)
        if not self.grows:
            return super().held_by_group(holder)
        released = iter(self._released(holder, length) if self._windows else ())
        found = []
        for group in self.groups:
            gone = next(released) if isinstance(group.rule, SlidingWindow) else 0
            size = group.block_size
            found.append((length - gone * size, -(-length // size) - gone))
        return found

    def held_and_reserved(self, holder: Holder) -> tuple[int, int] | None:
        if self.grows:
            return None
        blocks, reserved = holder.kv
        return blocks, reserved

    # Changes

    def admit(self, holder: Holder, tokens: int) -> None:
        size, plain = self._size, holder.samples == 1
        if not plain:
            self._check_samples()
        blocks = -(-tokens // size) if size and plain else self.blocks_to_admit(holder, tokens)
        if blocks > self.free_blocks:
            raise OutOfBlocks(f"{blocks} blocks are needed, {self.free_blocks} are free")
        self.free_blocks -= blocks
        holder.tokens = tokens
        if not size:
            if self.grows:
                holder.kv = [0] * len(self._windows)
            else:
                holder.kv = blocks // holder.samples, self.groups[0].rule.reserved(tokens, holder.output)
        if not plain:
            self._share(holder)

    def extend(self, holder: Holder, tokens: int) -> None:
        blocks = self.blocks_to_extend(holder, tokens)
        if blocks > self.free_blocks + self._trimmable(holder):
            raise OutOfBlocks(f"{blocks} blocks are needed, {self.free_blocks} are free")
        self.trim(holder)
        self.free_blocks -= blocks
        holder.tokens += tokens

    def append(self, holder: Holder) -> int:
        if not self.grows:
            return self._fill_reserved(holder)
        blocks = self.blocks_to_extend(holder, 1) * holder.samples
        copies = self.copies_due(holder)
        if blocks + copies > self.free_blocks:
            raise OutOfBlocks(f"{blocks + copies} blocks are needed, {self.free_blocks} are free")
        if copies:
            holder.tail_shared = False
            self.shared_blocks -= copies
        self.free_blocks -= blocks + copies
        holder.tokens += 1
        return copies

    def start_decoding(self, holder: Holder) -> None:
        growth = holder.growth
        holder.base = base = holder.tokens - growth * self.steps
        holder.decodes = True
        size, samples = self._size, holder.samples
        if size and growth == 1:
            self._takes[opening_step(base, size)] += samples
            self._per_period += samples
        else:
            self._enter_ring(holder, samples)
            for number in range(len(self._windows)):
                self._await_window(holder, number)
        if samples > 1 and holder.tail_shared:
            self._tails[holder] = None

    def stop_decoding(self, holder: Holder) -> None:
        size = self._size
        if size and holder.samples == 1 and holder.growth == 1:
            base = holder.base
            holder.tokens = base + self.steps
            self._takes[opening_step(base, size)] -= 1
            self._per_period -= 1
            holder.decodes = False
            return
        holder.tokens = self.length(holder)
        self._leave_ring(holder, holder.tokens)

    def trim(self, holder: Holder) -> None:
        if not self._windows or holder in self._trimmed:
            return
        length = self.length(holder)
        released = self._released(holder, length)
        target = [window.released(length) for window in self._windows]
        blocks = sum(target) - sum(released)
        self.free_blocks += blocks
        if holder.decodes:
            self._trimmed[holder] = blocks
        else:
            holder.kv = target

    def grow(self, steps: int = 1) -> int:
        if self._windows or (self._tails and steps):
            return self._grow_and_release(steps)
        blocks = self._takes[(self.steps + 1) % self._period] if steps == 1 else self.blocks_needed(steps)
        if blocks > self.free_blocks:
            raise OutOfBlocks(f"{steps} more steps take {blocks} blocks, {self.free_blocks} are free")
        self.free_blocks -= blocks
        self.steps += steps
        return 0

    def grow_leaving(self, spare: int) -> int:
        if not self._size or self._tails:
            return super().grow_leaving(spare)
        steps = self.steps + 1
        left = self.free_blocks - self._takes[steps % self._period]
        if left < spare:
            return -1
        self.free_blocks, self.steps = left, steps
        return 0

    def release(self, holder: Holder) -> None:
        size = self._size
        if size and holder.samples == 1 and holder.growth == 1:
            if holder.decodes:
                self.stop_decoding(holder)
            self.free_blocks += -(-holder.tokens // size)
            return
        length = self.length(holder)
        blocks = self._held(holder, length)
        if holder.samples > 1:
            self.shared_blocks -= self._saved(holder, length)
        if holder.decodes:
            self._leave_ring(holder, length)
        self.free_blocks += blocks

    def end_samples(self, holder: Holder, samples: Sequence[int]) -> None:
        over, length = len(samples), self.length(holder)
        held, saved = self._held(holder, length), self._saved(holder, length)
        if holder.decodes:
            self._enter_ring(holder, -over)
        holder.samples -= over
        if holder.samples == 1 and holder.tail_shared:
            holder.tail_shared = False
            self._tails.pop(holder, None)
        self.free_blocks += held - self._held(holder, length)
        self.shared_blocks += self._saved(holder, length) - saved

    def swap_out(self, holder: Holder) -> int:
        blocks = self.held_blocks(holder)
        if blocks > self.free_cpu_blocks:
            raise OutOfBlocks(f"swapping out takes {blocks} blocks, {self.free_cpu_blocks} are free")
        length = self.length(holder)
        self.release(holder)
        holder.tokens = length
        self.free_cpu_blocks -= blocks
        return blocks

    def swap_in(self, holder: Holder) -> int:
        blocks = self._held(holder, holder.tokens)
        if blocks > self.free_blocks:
            raise OutOfBlocks(f"{blocks} blocks are needed, {self.free_blocks} are free")
        self.free_cpu_blocks += blocks
        self.free_blocks -= blocks
        self.shared_blocks += self._saved(holder, holder.tokens)
        return blocks

    def drop_swapped(self, holder: Holder) -> None:
        self.free_cpu_blocks += self._held(holder, holder.tokens)

    # Inside

    def _held(self, holder: Holder, length: int) -> int:
        """Return the distinct blocks of a holder of this length."""
        if not self.grows:
            return holder.samples * int(holder.kv[0])
        blocks = self.blocks_for(length)
        if holder.samples > 1:
            if not self.shares:
                return holder.samples * blocks
            return (
                blocks if holder.tail_shared else (holder.shared + holder.samples * (blocks - holder.shared))
            )
        if self._windows:
            blocks -= sum(self._released(holder, length))
        return blocks

    def _saved(self, holder: Holder, length: int) -> int:
        """Return the names of blocks that sharing saves a holder of several samples."""
        if holder.samples == 1 or not self.shares:
            return 0
        return holder.samples * self.blocks_for(length) - self._held(holder, length)

    def _share(self, holder: Holder) -> None:
        holder.shared = holder.tokens // self.block_size if self.shares else 0
        holder.tail_shared = self.shares and holder.tokens % self.block_size > 0
        self.shared_blocks += self._saved(holder, holder.tokens)

    def _copies(self) -> int:
        return sum([holder.samples - 1 for holder in self._tails])

    def _table(self, size: int, growth: int) -> list[Positions]:
        """Return, by (base + offset) modulo a block size, when a sequence passes a multiple of it."""
        whole = self._period
        table = []
        for residue in range(size):
            once = [
                step % whole
                for step in range(1, whole + 1)
                for _ in range((residue + growth * step) // size - (residue + growth * (step - 1)) // size)
            ]
            table.append(tuple(once))
        self._tables[size, growth] = table
        return table

    def _enter_ring(self, holder: Holder, samples: int) -> None:
        """Count what so many samples of a decoding holder take (fewer than 0: no longer)."""
        growth = holder.growth
        for group in self.groups:
            if group.rule.grows:
                size = group.block_size
                table = self._tables.get((size, growth)) or self._table(size, growth)
                for at in table[(holder.base - 1) % size]:
                    self._takes[at] += samples
                self._per_period += samples * growth * self._period // size

    def _leave_ring(self, holder: Holder, length: int) -> None:
        self._enter_ring(holder, -holder.samples)
        self._tails.pop(holder, None)
        if self._windows:
            released = self._released(holder, length)
            due = [each for each in self._windows_due if each[3] is not holder]
            if len(due) < len(self._windows_due):
                waiting = {each[2] for each in self._windows_due if each[3] is holder}
                self._windows_due = due
                due.sort()
            else:
                waiting = set()
            for number in range(len(self._windows)):
                if number not in waiting:
                    self._release_ring(holder, number, -1)
            holder.kv = released
            self._trimmed.pop(holder, None)
        holder.decodes = False

    # Sliding windows

    def _release_ring(self, holder: Holder, number: int, count: int) -> None:
        """Count what a full window of a decoding holder releases."""
        window, growth = self._windows[number], holder.growth
        size = window.block_size
        table = self._tables.get((size, growth)) or self._table(size, growth)
        # Before step s it holds base + growth·(s − 1) tokens, and skips those below the window.
        offset = holder.base - growth - window.tokens + 1
        for at in table[offset % size]:
            self._frees[at] += count

    def _await_window(self, holder: Holder, number: int) -> None:
        """Note at which step a holder's window is full, or that it is already."""
        beyond = self._windows[number].tokens - 1 - holder.base
        step = max(self.steps + 1, -(-beyond // holder.growth) + 1)
        heappush(self._windows_due, (step, holder.order, number, holder))

    def _released(self, holder: Holder, length: int) -> list[int]:
        """Return the blocks that each window of a holder of this length has released."""
        if not holder.decodes:
            return list(holder.kv)
        if holder in self._trimmed:
            return [window.released(length) for window in self._windows]
        waiting = {number for _, _, number, each in self._windows_due if each is holder}
        processed = length - holder.growth
        return [
            holder.kv[number] if number in waiting else window.released(processed)
            for number, window in enumerate(self._windows)
        ]

    def _trimmable(self, holder: Holder) -> int:
        """Return the blocks that the next chunk of a resting holder releases."""
        if not self._windows:
            return 0
        released: list[int] = holder.kv
        return sum([window.released(holder.tokens) for window in self._windows]) - sum(released)

    def _grow_and_release(self, steps: int) -> int:
        """Grow where samples copy on write at first, or windows release; return the blocks copied."""
        blocks, copies, released = self.blocks_needed(steps), 0, 0
        if blocks > self.free_blocks and not (self._windows and self.steps_that_fit(steps, 0) == steps):
            raise OutOfBlocks(f"{steps} more steps take {blocks} blocks, {self.free_blocks} are free")
        for holder in self._tails:
            copies += holder.samples - 1
            holder.tail_shared = False
        self._tails.clear()
        self.shared_blocks -= copies
        for _ in range(steps):
            self.steps += 1
            released += self._frees[self.steps % self._period]
            while self._windows_due and self._windows_due[0][0] <= self.steps:
                _, _, number, holder = heappop(self._windows_due)
                processed = holder.base + holder.growth * (self.steps - 1)
                released += self._windows[number].released(processed) - holder.kv[number]
                self._release_ring(holder, number, 1)
        if steps:
            released -= sum(self._trimmed.values())
            self._trimmed.clear()
        self.free_blocks += released - blocks
        return copies
