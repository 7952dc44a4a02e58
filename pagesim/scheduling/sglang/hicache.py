"""Copies between device and host under SGLang's hierarchical cache, and when each ends.

Source: SGLang 0.5.23, ``srt/managers/cache_controller.py``, ``UnifiedRadixCache.check_hicache_events``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from pagesim.kvcache.radix import HostNode, HostRadixManager
from pagesim.scheduling.arrivals import NEVER
from pagesim.setup.compiled import mypyc_attr

CopyTime = Callable[[int], int]
"""Returns the ticks that a copy of a given number of pages takes."""


def at_once(pages: int) -> int:
    """Return the zero ticks that a copy over an infinitely fast link takes."""
    return 0


@mypyc_attr(allow_interpreted_subclasses=True)
class HiCacheController:
    """Carries out copies while iterations run, in order, with a separate link for each direction.

    A copy starts when the current iteration ends. Copies that start together count as one.

    Args:
        memory: decides what is copied.
        load_time: returns the duration of a copy to the device.
        write_time: returns the duration of a copy to the host.

    Attributes:
        now: instant of the current decision, in ticks; synchronous copies delay it.
        busy_until: when the launched iterations end, in ticks.
        waited: ticks by which loads prolong the last iteration, which waits for them layer by layer.
    """

    def __init__(
        self, memory: HostRadixManager, load_time: CopyTime = at_once, write_time: CopyTime = at_once
    ) -> None:
        self._memory = memory
        self._load_time, self._write_time = load_time, write_time
        self._load_link = self._write_link = 0  # when each link is free
        self._loading: deque[tuple[int, list[HostNode]]] = deque()
        self._writing: deque[tuple[int, list[HostNode]]] = deque()
        self.now = self.busy_until = self.waited = 0
        memory.tree.copy_at_once = self._wait_for_write

    @property
    def copies(self) -> bool:
        """Whether any copy is unfinished, as far as the loop knows."""
        return bool(self._loading or self._writing or self._memory.tree.unsent or self._memory.unsent_loads)

    @property
    def next_end(self) -> int:
        """When the next copy ends; ``NEVER`` without one."""
        return min([queue[0][0] for queue in (self._writing, self._loading) if queue], default=NEVER)

    @property
    def last_end(self) -> int:
        """When the last copy that was started ends."""
        return max(self._load_link, self._write_link)

    def check_events(self, now: int) -> None:
        """Begin a turn by learning which copies have finished."""
        self.now = max(self.now, now)
        self.start_writes(now)
        memory = self._memory
        while self._writing and self._writing[0][0] <= self.now:
            for node in self._writing.popleft()[1]:
                memory.end_write(node)
        while self._loading and self._loading[0][0] <= self.now:
            for node in self._loading.popleft()[1]:
                memory.end_load(node)

    def start_writes(self, now: int) -> None:
        """Start the copies to the host that were decided on since the last call."""
        self.now = max(self.now, now)
        tree = self._memory.tree
        if tree.unsent:
            self._write(sum([tokens for tokens, _ in tree.unsent]))
            self._writing.append((self._write_link, [node for _, node in tree.unsent]))
            tree.unsent = []

    def launched(self, end: int) -> int:
        """Note when a launched iteration would end by itself; return when it ends including its loads."""
        # Loads in progress belong to its own prompts: earlier iterations waited for theirs.
        self.busy_until = max(end, self._load_link)
        self.waited = self.busy_until - end
        return self.busy_until

    def start_loads(self) -> None:
        """Start the loads that were decided on, now that their prompts are about to run."""
        loads = self._memory.unsent_loads
        if not loads:
            return
        pages = sum([tokens for tokens, _ in loads]) // self._memory.block_size
        start = max(self.now, self.busy_until, self._load_link)
        self._load_link = start + self._load_time(pages)
        self._loading.append((self._load_link, [node for _, node in loads]))
        self._memory.unsent_loads = []

    def _write(self, tokens: int) -> None:
        start = max(self.now, self.busy_until, self._write_link)
        self._write_link = start + self._write_time(tokens // self._memory.block_size)

    def _wait_for_write(self, tokens: int) -> None:
        """Wait until evicted tokens have been copied to the host."""
        self._write(tokens)
        self.now = max(self.now, self._write_link)
