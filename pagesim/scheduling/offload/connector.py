"""The connector: the scheduler's decisions about host tiers, in addition to the device's blocks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from typing import Any

from pagesim.kvcache import SlidingWindow
from pagesim.kvcache.hybrid.blocks import NULL
from pagesim.kvcache.tiers import ChainBacking, ChunkRun, Copy, Spans, TierCounts, group_of
from pagesim.scheduling.offload.chunking import OffloadGroup
from pagesim.scheduling.offload.jobs import Job, Transfers
from pagesim.scheduling.offload.look_up import TierLookUp
from pagesim.scheduling.offload.on_device import chunks_on_device
from pagesim.scheduling.offload.pending_reads import PendingReads
from pagesim.scheduling.offload.tracked import Tracked
from pagesim.scheduling.request import EngineRequest
from pagesim.setup.compiled import mypyc_attr

NOTHING = Copy((), True, [])

Served = Callable[[Collection[EngineRequest] | None], Iterable[tuple[EngineRequest, int, int]]]
"""Returns the requests scheduled in a plan in batch order, all of them or only those in a collection. Each
comes with its tokens before the iteration and its known tokens after it."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Connector:
    """Stores chunks of prompts as they are computed, and loads chunks that the device no longer has.

    Source: vLLM 0.33.0, distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py.

    Args:
        memory: the device's block manager, with numbered blocks.
        backing: the chain of tiers in which chunks are stored.
        blocks_per_chunk: blocks per chunk in every group.
        prompt_only: whether generated tokens are never stored.

    Attributes:
        jobs: jobs that have not finished, or of whose end the scheduler does not know yet.
        backing: the chain of tiers in which chunks are stored.
    """

    def __init__(
        self, memory: Any, backing: ChainBacking, *, blocks_per_chunk: int = 1, prompt_only: bool = True
    ) -> None:
        self.memory = memory
        self.backing = backing
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
        # Loads end at multiples of this many tokens, a full-attention group's chunk; None if chunks differ.
        self._ends_at = max(whole or {group.tokens for group in self._groups}) if len(whole) < 2 else None
        self._look_up = TierLookUp(self._groups, backing.chain)
        self._tracked: dict[EngineRequest, Tracked] = {}
        self._offering: dict[EngineRequest, Tracked] = {}  # with chunks not offered yet
        self._loading: Spans[bool] = Spans()
        self._pending_reads = PendingReads(memory)
        self._over: list[EngineRequest] = []  # finished since the last plan
        self._admitted: list[EngineRequest] = []  # admitted in the current plan
        self._plan = Transfers()
        self._retries = False

    @property
    def waits(self) -> bool:
        """Whether the next plan may differ even if no request arrives or leaves and no copy ends."""
        return (
            bool(self._pending_reads.jobs) or self._retries or not self._prompt_only or self.backing.moves_on
        )

    def tiers(self) -> Sequence[TierCounts]:
        """Return each tier's name, capacity and entries in chunks, the tier closest to the device first.

        The chunks on the device are determined once, and only for entries that depend on them.
        """
        on_device = cache(lambda: chunks_on_device(self.memory, self._groups))
        return [TierCounts(name, store, on_device) for name, store in self.backing.tiers]

    # While an iteration is planned

    def match(self, request: EngineRequest, local: int) -> int | None:
        """Look up a waiting request with ``local`` tokens on the device; return the tokens to load."""
        tracked = self._tracked.get(request)
        if tracked is None:
            tracked = self._tracked[request] = Tracked(
                request, len(self._groups), self.backing.chain.new_use()
            )
        else:
            if tracked.has_begun:
                tracked.begin(len(self._groups))
            if tracked.jobs:
                return None
        tracked.local = local
        return self._look_up.tokens(tracked, local, self._loading if self._waits_for_others else None)

    def blocks_loaded(self, tokens: int) -> int:
        """Return how many blocks are copied to load ``tokens`` tokens."""
        blocks = 0
        for group in self._groups:
            chunks = tokens // group.tokens
            blocks += (chunks if group.keeps_all else min(chunks, group.window)) * group.blocks
        return blocks

    def blocks_by_tier(self, request: EngineRequest, local: int, external: int) -> list[int]:
        """Return how many blocks are copied from each tier to load ``external`` tokens of a request.

        Args:
            request: a request that has been looked up.
            local: number of its tokens on the device.
            external: number of tokens after these that are loaded.
        """
        blocks, backing = self.blocks_loaded(external), self.backing
        if len(backing.tiers) == 1:
            return [blocks]
        found = [0] * len(backing.tiers)
        tracked = self._tracked[request]
        for group in self._groups:
            end = -(-(local + external) // group.tokens)
            start = local // group.tokens
            if not group.keeps_all:
                start = max(start, end - group.window)
            for place, chunks in enumerate(backing.places(tracked.runs(group, start, end))):
                found[place] += chunks * group.blocks
        found[0] = max(0, blocks - sum(found[1:]))
        return found

    def blocks_stored(self, tokens: int) -> list[list[int]]:
        """Return ``blocks_by_tier`` for each tier linked to the device, as if that tier held everything."""
        blocks, backing = self.blocks_loaded(tokens), self.backing
        return [[blocks * (place == near) for place in range(len(backing.tiers))] for near in backing.near()]

    def admitted(self, request: EngineRequest, external: int = 0, *, stores: bool = True) -> None:
        """Note that blocks have been allocated to a request, and start its load.

        Args:
            request: a request that was waiting.
            external: tokens to load after those matched on the device.
            stores: whether the chunks that it computes are offered to the tier.
        """
        self._admitted.append(request)
        tracked = self._tracked[request]
        tracked.has_begun = True
        if stores:
            self._offering[request] = tracked
        if not external:
            return
        runs: list[ChunkRun] = []
        blocks, end = 0, tracked.local + external
        for group in self._groups:
            size = group.group.block_size
            first, last = -(-tracked.local // size), -(-end // size)
            if not group.keeps_all:
                table = self.memory.block_table(request, group=group.number)
                first = next((at for at in range(first, last) if table[at] != NULL), last)
            if first < last:
                runs += tracked.runs(group, first // group.blocks, -(-end // group.tokens))
            blocks += last - first
            tracked.following[group.number] = -(-end // group.tokens)
        for run in runs:
            self._loading.put(run, True)
        job = Job(tracked, self.backing.load(tracked.use, runs), blocks=blocks)
        self._begin(job)
        self._plan.loads.append(job)

    def close(self, served: Served, preempted: Sequence[EngineRequest]) -> Transfers:
        """End a plan: decide which chunks are stored.

        Args:
            served: returns the scheduled requests.
            preempted: the preempted requests.

        Returns:
            The transfers that the iteration starts.
        """
        plan, self._plan = self._plan, Transfers()
        after: dict[EngineRequest, int] = {}
        taken: set[int] = set()
        offering = self._offering
        over = self._over
        reads = bool(self._pending_reads.jobs)
        if reads or self._others or (over and not offering.keys().isdisjoint(over)):
            taken = self._blocks_taken(served, after)
        elif offering:
            after = {request: known for request, _, known in served(offering)}
        for request in preempted:
            plan.flushed.update(dict.fromkeys([job for job in self._tracked[request].jobs if job.is_store]))
        if reads:
            plan.flushed.update(dict.fromkeys(self._pending_reads.of(taken)))
        self._retries = False
        if self._has_states:
            self._offer_states(plan)
        due = [each for each in after if each in offering]
        for request in (*due, *over) if over else due:
            tracked = offering.get(request)
            if tracked is not None:
                tracked.is_served = tracked.is_served or request in after
                known = after.get(request, max(request.prompt, request.length - 1))
                self._offer(tracked, known, plan, taken)
        self.close_empty()
        self._admitted = []
        return plan

    def close_empty(self) -> None:
        """End one or more plans in which no request is admitted, is preempted, or has chunks to offer."""
        if not self._over:
            return
        for request in self._over:
            tracked = self._tracked.pop(request)
            self._offering.pop(request, None)
            self.backing.chain.finish(tracked.use)
        self._over = []

    def gives_back(self, request: EngineRequest) -> None:
        """Note that a request is about to free its blocks because it is preempted."""
        self._pending_reads.gives_back(self._tracked[request])

    def finished(self, request: EngineRequest) -> None:
        """Note that a request, which still has its blocks, has finished or was aborted."""
        tracked = self._tracked.get(request)
        if tracked is None:
            return
        tracked.is_over = True
        offers: list[int] = []
        if request in self._offering:
            self._retries = True
            if tracked.is_served:
                offers = [group.number for group in self._groups if group.keeps_all]
        if offers or tracked.jobs:
            self._pending_reads.finished(tracked, offers)
        self._over.append(request)

    def over(self, jobs: Iterable[Job]) -> list[EngineRequest]:
        """Note that jobs have finished; return the requests whose loads have finished."""
        loaded = []
        for job in jobs:
            del self.jobs[job]
            tracked = job.tracked
            del tracked.jobs[job]
            self.backing.over(job.copy)
            if job.is_store:
                self._pending_reads.lift(job)
            else:
                for run in job.copy.runs:
                    self._loading.remove(run)
                loaded.append(tracked.request)
        return loaded

    # Inside

    def _begin(self, job: Job) -> None:
        self.jobs[job] = None
        job.tracked.jobs[job] = None
        self._pending_reads.begun(job)

    def _blocks_taken(self, served: Served, after: dict[EngineRequest, int]) -> set[int]:
        """Return the blocks allocated or shared in the current plan; fill ``after`` with known tokens."""
        memory = self.memory
        taken: set[int] = set()
        for request in self._admitted:
            for group in self._groups:
                taken.update(memory.block_table(request, group=group.number))
        ends: dict[EngineRequest, list[int]] = {}
        for request, before, known in served(None):
            after[request] = known
            tracked = self._offering.get(request)
            if tracked is not None:
                ends[request] = [len(table) for table in tracked.tables]
            for group in self._groups:
                if group.keeps_all and known <= before + 1 and before % group.group.block_size:
                    continue  # its token is in the same block as the previous one
                table = memory.block_table(request, group=group.number)
                # States for drafts are at the table's end, however many tokens were computed before.
                noted = self._tracked[request] if group.group.draft_states else tracked
                if noted is not None and not group.keeps_all:
                    own = noted.tables[group.number]
                    new = table[len(own) :]
                    own += new
                    taken.update(new)
                else:
                    taken.update(table[-(-before // group.group.block_size) :])
        taken.discard(NULL)
        if self._others:
            self._forget_taken(ends, taken)
        return taken

    def _forget_taken(self, ends: dict[EngineRequest, list[int]], taken: Collection[int]) -> None:
        """Forget blocks outside windows that were freed and have been allocated again."""
        for request, tracked in self._offering.items():
            for group in self._others:
                table = tracked.tables[group.number]
                end = ends[request][group.number] if request in ends else len(table)
                for place in range(tracked.following[group.number] * group.blocks, end):
                    if table[place] in taken:
                        table[place] = NULL

    def _offer(self, tracked: Tracked, known: int, plan: Transfers, taken: set[int]) -> None:
        """Offer the tier a request's filled chunks that have not been offered yet.

        Args:
            tracked: the request.
            known: number of its known tokens whose KV exists once the iteration has run.
            plan: the transfers to which the job is added.
            taken: blocks allocated in the plan; used if the request has finished.
        """
        request = tracked.request
        most = min(known, request.prompt) if self._prompt_only else known
        until: list[int] = []
        offered: list[ChunkRun] = []
        is_whole = self._prompt_only  # whether everything to be offered has been
        for group in self._groups:
            number = group.number
            end = most // group.tokens
            if group.group.drafts and most > request.prompt and not tracked.is_over:
                end -= 1  # the drafter's KV of the last chunk is incomplete
            if tracked.is_over or not group.keeps_all:
                end = min(end, len(tracked.tables[number]) // group.blocks)
            start = tracked.following[number]
            if end < start:
                end = start
            until.append(end)
            if is_whole and end < request.prompt // group.tokens:
                is_whole = False
            if start == end or group.has_states:
                continue
            if group.keeps_all:
                offered += tracked.runs(group, start, end)
            else:
                for chunk in range(start, end):
                    if self._is_kept(tracked, group, chunk, end):
                        offered += tracked.runs(group, chunk, chunk + 1)
        copy = self.backing.offer(tracked.use, offered) if offered else NOTHING
        if copy is None:
            self._retries = True
            return
        tracked.following = until
        if is_whole:
            del self._offering[request]
        if copy.runs:
            job = self._store_job(tracked, copy)
            self._begin(job)
            plan.stores.append(job)
            if tracked.is_over and self._pending_reads.begun_late(job, taken):
                plan.flushed[job] = None

    def _store_job(self, tracked: Tracked, copy: Copy) -> Job:
        """Return the job that stores the given chunks of a request."""
        at_once: list[int] = []
        places: list[tuple[int, int, int]] = []
        blocks = 0
        for run in copy.runs:
            group = self._groups[group_of(run)]
            first, end = run[1] * group.blocks, run[2] * group.blocks
            if group.keeps_all:
                places.append((group.number, first, end))
                blocks += end - first
            else:
                at_once += [block for block in tracked.tables[group.number][first:end] if block != NULL]
        return Job(tracked, copy, blocks=blocks + len(at_once), read_at_once=at_once, places=places)

    def _offer_states(self, plan: Transfers) -> None:
        """Offer the tier the recurrent states cached on the device since the last plan."""
        for request, number, block, end in sorted(
            self.memory.take_states(), key=lambda state: state[0].order
        ):
            tracked = self._tracked.get(request)
            group = self._groups[number]
            known = request.prompt if self._prompt_only else request.length
            if tracked is None or end > known or end % group.tokens:
                continue
            chunk = end // group.tokens
            copy = self.backing.offer(tracked.use, tracked.runs(group, chunk - 1, chunk))
            if copy is not None and copy.runs:
                job = Job(tracked, copy, read_at_once=[block])
                self._begin(job)
                plan.stores.append(job)

    def _is_kept(self, tracked: Tracked, group: OffloadGroup, chunk: int, end: int) -> bool:
        """Return whether a sliding-window group's chunk is worth storing and its needed blocks exist."""
        rule = group.group.rule
        assert isinstance(rule, SlidingWindow)
        size, request = group.group.block_size, tracked.request
        first = chunk * group.blocks
        blocks = range(first, first + group.blocks)
        table = tracked.tables[group.number]
        wanted: set[int] = set()
        if self._ends_at is None or self._ends_at % size:
            wanted.update(blocks)  # a load may end within a block, so any block may be needed
        else:
            further = int(group.group.drafts)
            contiguous = -(-rule.behind // size) + further
            for tokens in (request.prompt - 1, request.junction):
                if tokens > 0:
                    last = tokens // self._ends_at * self._ends_at // size + further
                    wanted.update(range(max(first, last - contiguous), min(last, end * group.blocks)))
        if table[blocks[-1]] == NULL or not any(block in wanted for block in blocks):
            return False
        return all(table[block] != NULL for block in blocks if block in wanted)
