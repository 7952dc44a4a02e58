"""Slow ledgers: every table, and every page of every type, walked in every iteration."""

from __future__ import annotations

from collections import Counter

from pagesim.accounting.ledger import GROUP_ENTRIES
from pagesim.kvcache import (
    ChunkedLocal,
    HybridManager,
    JengaManager,
    KVGroup,
    PooledManager,
    SlidingWindow,
    State,
)
from pagesim.kvcache.radix import RadixManager, StateRadixManager, WindowedRadixManager
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.observer import Observer
from pagesim.scheduling.request import EngineRequest

NULL = -1


class EveryIteration(Observer):
    """Looks at every iteration, also in fast-forward.

    Attributes:
        scheduler: of the run that has begun.
    """

    def begun(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler

    def next_look(self) -> int:
        return 0  # every iteration


class SlowLedger(EveryIteration):
    """Classifies every slot of every block in every iteration, straight from the definitions.

    Attributes:
        seen: of each iteration the bytes of each entry, of each group and in all.
        disputed: slots, over all iterations, that one of the sequences that name them needs and another not.
    """

    def __init__(self) -> None:
        self.seen: list[dict[str, int]] = []
        self.disputed = 0

    def planned(self, batch: Batch, now: int, start: int, ticks: int) -> None:
        memory = self.scheduler.memory
        assert isinstance(memory, HybridManager)
        stored = self.stored(batch)
        total: Counter[str] = Counter()
        for number, group in enumerate(memory.groups):
            blocks: dict[
                int, list[tuple[int, int, int]]
            ] = {}  # block: of each name, ends of its kinds of slots
            for request in self.scheduler.running.values():
                before, length = stored[request]
                needed = first_needed(group, before)
                for place, block in enumerate(memory.block_table(request, group=number)):
                    if block != NULL:
                        start_ = place * group.block_size
                        ends = (needed, length, request.final_length)
                        low, high, final = (min(max(end - start_, 0), group.block_size) for end in ends)
                        blocks.setdefault(block, []).append((low, high, final))
            self.disputed += sum(max(names)[0] - min(names)[0] for names in blocks.values())
            for entry, amount in classified(group, memory.page_bytes, list(blocks.values())).items():
                total[f"{entry}_{number}"] += amount
                total[entry] += amount
        total["cached"] = memory.page_bytes * len(memory._blocks.cached)
        total["free"] = memory.page_bytes * len(memory._blocks.unhashed_free)
        assert sum(total[name] for name in (*GROUP_ENTRIES, "cached", "free")) == (
            memory.page_bytes * memory.num_blocks
        )
        self.seen.append(dict(total))

    def stored(self, batch: Batch) -> dict[EngineRequest, tuple[int, int]]:
        """Return of each running request the tokens whose KV is stored before the step, and after it."""
        memory, chunks = self.scheduler.memory, dict(batch.chunks)
        found = {}
        for request in self.scheduler.running.values():
            length = memory.length(request)
            computed = chunks.get(request, int(request.decodes))
            found[request] = length - computed, length
        return found


class SlowTreeLedger(EveryIteration):
    """Counts in every iteration what a radix tree has, and what requests hold beside it, of all pools."""

    def planned(self, batch: Batch, now: int, start: int, ticks: int) -> None:
        memory = self.scheduler.memory
        if not isinstance(memory, RadixManager):
            return
        memory.check_integrity()
        page, nodes = memory.block_size, list(memory.tree)
        places = {request: request.block_state for request in self.scheduler.running.values()}
        ends = {request: -(-memory.length(request) // page) for request in places}
        own = sum(ends[request] - place.protected // page for request, place in places.items())
        assert memory.available_blocks == memory.num_blocks - own - sum(node.tokens for node in nodes) // page
        if isinstance(memory, WindowedRadixManager):
            firsts = {request: max(place.protected, place.gone) for request, place in places.items()}
            own = sum(ends[request] - first // page for request, first in firsts.items())
            live = sum(node.tokens for node in nodes if node.is_live) // page
            assert memory.available_window_blocks == memory.windows.num_blocks - own - live
        if isinstance(memory, StateRadixManager):
            own = memory.slots_per_request * len(places)
            states = sum(node.has_state for node in nodes)
            assert memory.free_states == memory.pool.slots - own - states


class SlowDraftLedger(SlowLedger):
    """Counts what is stored from what each step computes, and from the tokens that came of it."""

    def __init__(self) -> None:
        super().__init__()
        self._outputs: Counter[int] = Counter()  # by row: of the steps so far, those in flight included
        self._stored: dict[tuple[int, int], int] = {}  # by row and admission

    def stored(self, batch: Batch) -> dict[EngineRequest, tuple[int, int]]:
        before = dict(self._stored)
        for share in batch.shares:
            request, key = share.request, (share.request.row, share.order)
            found = before.setdefault(key, share.computed)
            given = self._outputs[request.row]
            self._outputs[request.row] += share.outputs
            if share.outputs:  # the KV of the last one is stored in the next step
                self._stored[key] = request.prompt + given + share.outputs - 1
            elif given < request.output:
                self._stored[key] = found + share.tokens
        running = self.scheduler.running.values()
        keys = {request: (request.row, request.order) for request in running}
        return {request: (before[key], self._stored[key]) for request, key in keys.items()}


def first_needed(group: KVGroup, computed: int) -> int:
    """Return the first token that the one after so many attends to, or any later one."""
    rule = group.rule
    if isinstance(rule, SlidingWindow):
        return max(0, computed + 1 - rule.window - rule.retained)
    if isinstance(rule, ChunkedLocal):
        return computed - computed % rule.chunk
    return 0


def classified(group: KVGroup, page: int, blocks: list[list[tuple[int, int, int]]]) -> dict[str, int]:
    """Return the bytes of the entries of a group.

    Args:
        group: which.
        page: bytes of a block.
        blocks: of each block, of each sequence that names it, its slots before the first one that is needed,
            those that hold a token, and those that ever will.
    """
    entries: Counter[str] = Counter()
    entries["padding"] = len(blocks) * (page - group.filled)
    if isinstance(group.rule, State):
        entries["state"] = len(blocks) * group.filled
        return entries
    for names in blocks:
        low = min(low for low, _, _ in names)
        high = max(high for _, high, _ in names)
        final = max(final for _, _, final in names)
        entries["out_of_window"] += low
        entries["used"] += high - low
        entries["reserved"] += final - high
        entries["rounding"] += group.block_size - final
    for name in ("out_of_window", "used", "reserved", "rounding"):
        entries[name] *= group.slot_bytes
    return entries


class SlowTypes(EveryIteration):
    """Walks every page of every request in every iteration, and looks after the memory's bounds.

    Attributes:
        seen: of each iteration the bytes of each entry.
    """

    def __init__(self) -> None:
        self.seen: list[dict[str, int]] = []

    def planned(self, batch: Batch, now: int, start: int, ticks: int) -> None:
        memory = self.scheduler.memory
        assert isinstance(memory, PooledManager | JengaManager)
        memory.check_integrity()
        chunks = dict(batch.chunks)
        entries: Counter[str] = Counter()
        pages = 0
        for number, group in enumerate(memory.groups):
            for request in self.scheduler.running.values():
                length = memory.length(request)
                computed = chunks.get(request, int(request.decodes))
                needed = first_needed(group, length - computed)
                span = request.block_state
                for place in range(span.gone[number], span.end[number]):
                    pages += memory.group_bytes[number]
                    if isinstance(group.rule, State):
                        entries["state"] += group.filled
                        continue
                    first = place * group.block_size
                    for slot in range(first, first + group.block_size):
                        if slot < needed:
                            entries["out_of_window"] += group.slot_bytes
                        elif slot < length:
                            entries["used"] += group.slot_bytes
                        elif slot < request.final_length:
                            entries["reserved"] += group.slot_bytes
                        else:
                            entries["rounding"] += group.slot_bytes
        if isinstance(memory, JengaManager):
            taken = memory.two_level.cut * memory.page_bytes
            entries["padding"] = taken - pages
        else:
            taken = pages
        entries["free"] = memory.capacity_bytes - taken
        self.seen.append(dict(entries))
