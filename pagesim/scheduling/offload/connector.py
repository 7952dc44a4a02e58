"""The connector: what the scheduler decides about a tier on the host, beside the device's blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pagesim.kvcache import SlidingWindow
from pagesim.kvcache.hybrid.blocks import NULL
from pagesim.kvcache.tiers import ChunkKey, ChunkStore
from pagesim.scheduling.offload.chunking import OffloadGroup
from pagesim.scheduling.offload.fences import Fences
from pagesim.scheduling.offload.jobs import Job, Transfers
from pagesim.scheduling.offload.look_up import LookUp
from pagesim.scheduling.offload.tracked import Tracked
from pagesim.scheduling.request import EngineRequest


class Connector:
    """Stores chunks of prompts as they are computed, and loads those that the device has no longer.

    Source: vLLM 0.33.0, distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py.

    Args:
        memory: the device's, whose blocks have numbers.
        store: of the tier.
        blocks_per_chunk: of every group.
        prompt_only: whether what is generated is never stored.

    Attributes:
        jobs: that are not over, or of which the scheduler does not know that they are.
        store: see there.
    """

    def __init__(
        self, memory: Any, store: ChunkStore, *, blocks_per_chunk: int = 1, prompt_only: bool = True
    ) -> None:
        self.memory = memory
        self.store = store
        self.jobs: dict[Job, None] = {}
        self._prompt_only = prompt_only
        self._waits_for_others = memory.caches_prefixes  # rather than load a chunk twice
        self._groups = [
            OffloadGroup(number, group, blocks_per_chunk) for number, group in enumerate(memory.groups)
        ]
        self._has_states = any(group.has_states for group in self._groups)
        if self._has_states:
            memory.take_states()
        self._others = [group for group in self._groups if not group.keeps_all]
        whole = {group.tokens for group in self._groups if group.keeps_all}
        # Where windows end that are kept: at multiples of a whole group's chunk.
        self._ends_at = whole.pop() if len(whole) == 1 else max(group.tokens for group in self._groups)
        self._look_up = LookUp(self._groups, store)
        self._tracked: dict[EngineRequest, Tracked] = {}
        self._offering: dict[EngineRequest, Tracked] = {}  # those with chunks that were not offered
        self._loading: set[ChunkKey] = set()
        self._fences = Fences()
        self._over: list[EngineRequest] = []  # since the last plan
        self._taken: set[int] = set()  # blocks that were taken, or taken over, in the plan at hand
        self._plan = Transfers()
        self._retries = False

    @property
    def waits(self) -> bool:
        """Whether the next plan may differ though no request comes, goes or gets a block."""
        return bool(self.jobs) or self._retries or not self._prompt_only

    # While an iteration is planned

    def match(self, request: EngineRequest, local: int) -> int | None:
        """Look a waiting request up, of which the device has ``local`` tokens; see `LookUp.tokens`."""
        tracked = self._tracked.get(request)
        if tracked is None:
            tracked = self._tracked[request] = Tracked(request, len(self._groups))
        tracked.begin(len(self._groups))
        if tracked.jobs:
            return None
        tracked.local = local
        loading = self._loading if self._waits_for_others else ()
        return self._look_up.tokens(tracked, local, loading)

    def blocks_loaded(self, tokens: int) -> int:
        """Return the blocks that are copied where so many tokens are loaded."""
        blocks = 0
        for group in self._groups:
            chunks = tokens // group.tokens
            blocks += (chunks if group.keeps_all else min(chunks, group.window)) * group.blocks
        return blocks

    def admitted(self, request: EngineRequest, external: int = 0, *, stores: bool = True) -> None:
        """Say that a request was given its blocks.

        Args:
            request: see there.
            external: tokens that are loaded, behind those that were found on the device.
            stores: whether what it computes is offered to the tier.
        """
        tables = [self.memory.block_table(request, group=group.number) for group in self._groups]
        for table in tables:
            self._taken.update(table)
        tracked = self._tracked[request]
        if stores:
            self._offering[request] = tracked
        if not external:
            return
        keys: list[ChunkKey] = []
        blocks, end = 0, tracked.local + external
        for group, table in zip(self._groups, tables, strict=True):
            size = group.group.block_size
            last = -(-end // size)
            first = next((at for at in range(-(-tracked.local // size), last) if table[at] != NULL), last)
            if first < last:
                keys += tracked.keys(group, first // group.blocks, -(-end // group.tokens))
            blocks += last - first
            tracked.following[group.number] = -(-end // group.tokens)
        self.store.pin(tracked.use, keys)
        self._loading.update(keys)
        job = Job(tracked, keys, blocks, is_store=False)
        self._begin(job)
        self._plan.loads.append(job)

    def close(
        self,
        served: Iterable[tuple[EngineRequest, int, int]],
        preempted: Sequence[EngineRequest],
    ) -> Transfers:
        """End a plan: decide which chunks are stored.

        Args:
            served: requests that get tokens, in the batch's order, each with the tokens that it has from
                before and, known, those that it will have.
            preempted: those that lost their place.

        Returns:
            What is transferred.
        """
        plan, self._plan = self._plan, Transfers()
        ends: dict[EngineRequest, list[int]] = {}
        after: dict[EngineRequest, int] = {}
        for request, before, known in served:
            tracked = self._offering.get(request)
            after[request] = known
            if tracked is not None:
                ends[request] = [len(table) for table in tracked.tables]
                for group, table in zip(self._groups, tracked.tables, strict=True):
                    new = self.memory.block_table(request, group=group.number)[len(table) :]
                    table += new
                    self._taken.update(new)
            elif self._fences or self._others or self._over:
                for group in self._groups:
                    first = -(-before // group.group.block_size)
                    self._taken.update(self.memory.block_table(request, group=group.number)[first:])
        self._taken.discard(NULL)
        if self._others:
            self._forget_taken(ends)
        for request in preempted:
            plan.flushed.update(dict.fromkeys([job for job in self._tracked[request].jobs if job.is_store]))
        if self._fences:
            plan.flushed.update(dict.fromkeys(self._fences.of(self._taken)))
        self._retries = False
        if self._has_states:
            self._offer_states(plan)
        for request in [*[each for each in after if each in self._offering], *self._over]:
            tracked = self._offering.get(request)
            if tracked is not None:
                self._offer(tracked, after.get(request, max(request.prompt, request.length - 1)), plan)
        self.close_empty()
        self._taken = set()
        return plan

    def close_empty(self) -> None:
        """End a plan, or several, in which no request comes, is preempted, or has anything to offer."""
        for request in self._over:
            tracked = self._tracked.pop(request)
            self._offering.pop(request, None)
            self.store.finish(tracked.use)
        self._over = []

    def finished(self, request: EngineRequest) -> None:
        """Say that a request is over, or was aborted; it still has its blocks."""
        tracked = self._tracked.get(request)
        if tracked is None:
            return
        tracked.is_over = True
        for job in tracked.jobs:
            self._fences.put(job, job.read_when_over)
        self._over.append(request)
        self._retries = self._retries or request in self._offering

    def over(self, jobs: Iterable[Job]) -> list[EngineRequest]:
        """Say that jobs are over; return the requests that were loaded."""
        loaded = []
        for job in jobs:
            del self.jobs[job]
            tracked = job.tracked
            del tracked.jobs[job]
            if job.is_store:
                self.store.written(job.keys)
                self._fences.lift(job)
            else:
                self.store.unpin(job.keys)
                self._loading.difference_update(job.keys)
                loaded.append(tracked.request)
        return loaded

    # Inside

    def _begin(self, job: Job) -> None:
        self.jobs[job] = None
        job.tracked.jobs[job] = None
        self._fences.put(job, job.read_at_once)

    def _forget_taken(self, ends: dict[EngineRequest, list[int]]) -> None:
        """Forget blocks behind windows that were given back and have been taken again."""
        for request, tracked in self._offering.items():
            for group in self._others:
                table = tracked.tables[group.number]
                end = ends[request][group.number] if request in ends else len(table)
                for place in range(tracked.following[group.number] * group.blocks, end):
                    if table[place] in self._taken:
                        table[place] = NULL

    def _offer(self, tracked: Tracked, known: int, plan: Transfers) -> None:
        """Offer the tier the chunks of a request that are filled and were not offered yet.

        Args:
            tracked: the request.
            known: its tokens that are known and whose KV is there once the iteration has run.
            plan: to which the job is added.
        """
        request = tracked.request
        most = min(known, request.prompt) if self._prompt_only else known
        until: list[int] = []
        offered: list[ChunkKey] = []
        for group, table in zip(self._groups, tracked.tables, strict=True):
            number = group.number
            end = min(most // group.tokens, len(table) // group.blocks)
            start = tracked.following[number]
            until.append(max(start, end))
            if start < end and not group.has_states:
                keys = tracked.keys(group, start, end)
                if not group.keeps_all:
                    keys = [
                        key
                        for chunk, key in enumerate(keys, start)
                        if self._is_kept(tracked, group, chunk, end)
                    ]
                offered += keys
        wanted = self.store.offer(tracked.use, offered) if offered else []
        if wanted is None:
            self._retries = True
            return
        tracked.following = until
        if self._prompt_only and all(
            at >= request.prompt // group.tokens for at, group in zip(until, self._groups, strict=True)
        ):
            del self._offering[request]
        if not wanted:
            return
        at_once: list[int] = []
        when_over: list[int] = []
        for group, table in zip(self._groups, tracked.tables, strict=True):
            size, blocks = group.group.block_size, group.blocks
            ends = [end // size for end, number, _ in wanted if number == group.number]
            held = when_over if group.keeps_all else at_once
            held += [block for end in ends for block in table[end - blocks : end] if block != NULL]
        job = Job(
            tracked,
            wanted,
            len(at_once) + len(when_over),
            is_store=True,
            read_at_once=at_once,
            read_when_over=when_over,
        )
        self._begin(job)
        plan.stores.append(job)
        if tracked.is_over:
            self._fences.put(job, when_over)
            if not self._taken.isdisjoint(when_over):
                plan.flushed[job] = None

    def _offer_states(self, plan: Transfers) -> None:
        """Offer the tier the states that can be found on the device since the last plan."""
        for request, number, block, end in sorted(
            self.memory.take_states(), key=lambda state: state[0].order
        ):
            tracked = self._tracked.get(request)
            group = self._groups[number]
            known = request.prompt if self._prompt_only else request.length
            if tracked is None or end > known or end % group.tokens:
                continue
            wanted = self.store.offer(tracked.use, [tracked.key(group, end // group.tokens - 1)])
            if wanted:
                job = Job(tracked, wanted, 1, is_store=True, read_at_once=[block])
                self._begin(job)
                plan.stores.append(job)

    def _is_kept(self, tracked: Tracked, group: OffloadGroup, chunk: int, end: int) -> bool:
        """Say whether a chunk of a group that keeps a part is worth storing, and its blocks are there."""
        rule = group.group.rule
        assert isinstance(rule, SlidingWindow)
        size, request = group.group.block_size, tracked.request
        contiguous = -(-(rule.window - 1) // size)
        first = chunk * group.blocks
        table = tracked.tables[group.number]
        wanted: set[int] = set()
        for tokens in (request.prompt - 1, request.junction):
            if tokens > 0:
                last = tokens // self._ends_at * self._ends_at // size
                wanted.update(range(max(first, last - contiguous), min(last, end * group.blocks)))
        blocks = range(first, first + group.blocks)
        if table[blocks[-1]] == NULL or not any(block in wanted for block in blocks):
            return False
        return all(table[block] != NULL for block in blocks if block in wanted)
