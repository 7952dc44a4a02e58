"""Random systems under vllm-v1 whose layer types have memory of their own, replayed and walked slowly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import numpy as np

from pagesim.accounting.chunks import Chunk
from pagesim.accounting.ledger import GROUP_ENTRIES
from pagesim.accounting.records import Recorder
from pagesim.accounting.request_log import RequestLog
from pagesim.costs.affine import Affine
from pagesim.kvcache import ChunkedLocal, Full, JengaKV, KVGroup, PooledKV, SlidingWindow, State
from pagesim.kvcache.typed.typed import TypedKV
from pagesim.scheduling.arrivals import Arrivals
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.observer import Observer
from pagesim.scheduling.vllm_v1 import VllmV1, VllmV1Options
from pagesim.sim.clock import to_ticks
from pagesim.sim.engine import Engine
from pagesim.sim.executors import PredictedExecutor
from pagesim.sim.pipelined import PipelinedEngine
from tests.sim.hybrid_systems import LONGEST, HybridCase, Outcome, first_needed, random_trace

Make = Callable[[HybridCase], TypedKV]


def random_types(rnd: Random) -> list[KVGroup]:
    """Return types whose pages differ in bytes, by odds and ends."""
    size = rnd.choice((1, 2, 4, 16))
    rules = rnd.choice(
        (
            [Full()],
            [SlidingWindow(17)],
            [Full(), SlidingWindow(rnd.choice((1, 5, 40)))],
            [SlidingWindow(40), Full(), SlidingWindow(5)],
            [Full(), ChunkedLocal(rnd.choice((3, 16, 50)))],
            [Full(), State()],
            [State(), SlidingWindow(17), Full(), Full()],
        )
    )
    return [
        KVGroup(LONGEST, rule, page_bytes=rnd.choice((6, 24, 35)))
        if isinstance(rule, State)
        else KVGroup(size, rule, page_bytes=size * rnd.choice((1, 2, 3, 5)))
        for rule in rules
    ]


def random_case(seed: int) -> HybridCase:
    """Return the case of a seed; ``blocks`` says how many longest requests there is room for, about."""
    rnd = Random(seed)
    groups, trace = random_types(rnd), random_trace(rnd)
    budget = rnd.choice((16, 64, 200))
    by_priority = trace.priority is not None and rnd.random() < 0.7
    options = VllmV1Options(
        async_scheduling=rnd.random() < 0.5,
        max_num_batched_tokens=budget,
        max_num_seqs=min(budget, rnd.choice((2, 8, 64))),
        enable_prefix_caching=False,
        long_prefill_token_threshold=rnd.choice((0, 0, 20)),
        **({"scheduling_policy": "priority"} if by_priority else {}),
        scheduler_reserve_full_isl=True if by_priority else rnd.choice((True, False)),
        watermark=rnd.choice((0.0, 0.05)),
    )
    aborts = []
    if rnd.random() < 0.2:
        rows = rnd.sample(range(len(trace)), 3)
        aborts = sorted((to_ticks(float(trace.arrival_s[row]) + 4 * rnd.random()), row) for row in rows)
    return HybridCase(groups, rnd.choice((1, 2, 40)), False, 0, options, trace, aborts)


def _in_flight(case: HybridCase) -> int:
    assert case.options.max_num_batched_tokens is not None
    return (2 if case.options.async_scheduling else 1) * case.options.max_num_batched_tokens


def pools_of(case: HybridCase) -> PooledKV:
    """Return pools, one of them rather small, that hold a request of 220 tokens at least."""
    sizes = [
        case.blocks * group.most(220, LONGEST, _in_flight(case)) + (number == 0)
        for number, group in enumerate(case.groups)
    ]
    return PooledKV(sizes, case.groups, longest=LONGEST, in_flight=_in_flight(case))


def jenga_of(case: HybridCase) -> JengaKV:
    """Return two-level memory that holds a request of 220 tokens at least."""
    whole = JengaKV(10**6, case.groups, longest=LONGEST, in_flight=_in_flight(case))
    return JengaKV(
        case.blocks * whole.blocks_for(220), case.groups, longest=LONGEST, in_flight=_in_flight(case)
    )


def replay(case: HybridCase, make: Make, *, fast_forward: bool, slow: SlowTypes | None = None) -> Outcome:
    """Return everything that was decided and counted."""
    options, trace = case.options, case.trace
    memory = make(case)
    scheduler = VllmV1(memory, options, max_model_len=LONGEST)
    served = [
        row
        for row in range(len(trace))
        if scheduler.accepts(int(trace.prompt_tokens[row]), int(trace.output_tokens[row]), 1)
    ]
    scheduler.expect(Arrivals(trace, np.array(served)))
    log = RequestLog(len(trace))
    chunks: list[Chunk] = []
    recorder = Recorder(scheduler, log, chunks.append)
    engine = Engine if scheduler.in_flight == 1 else PipelinedEngine
    engine(
        scheduler,
        PredictedExecutor(Affine(0.01, 1e-4, 1e-6)),
        recorder,
        observers=[] if slow is None else [slow],
        fast_forward=fast_forward,
        aborts=[(ticks, row) for ticks, row in case.aborts if row in served],
    ).replay()
    memory.check_integrity()
    assert memory.free_blocks == memory.num_blocks, "what was taken is given back"
    columns = {"first_token": log.first_token, "finish": log.finish, "recomputes": log.recomputes}
    columns |= {name: np.concatenate([getattr(c, name) for c in chunks]) for name in ("clock", "ticks")}
    columns["blocks"] = np.concatenate([c.ledger.physical_blocks for c in chunks])
    for entry in chunks[0].ledger.entries:
        columns[entry] = np.concatenate([c.ledger.entries[entry] for c in chunks])
    for number in range(len(case.groups)):
        for entry in GROUP_ENTRIES:
            parts = [c.ledger.groups[number].entries[entry] for c in chunks]
            columns[f"{entry}_{number}"] = np.concatenate(parts)
    return Outcome({name: np.array(column) for name, column in columns.items()}, sum(log.recomputes))


class SlowTypes(Observer):
    """Walks every page of every request in every iteration, and looks after the memory's bounds.

    Attributes:
        seen: of each iteration the bytes of each entry.
    """

    def __init__(self) -> None:
        self.seen: list[dict[str, int]] = []

    def begun(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler

    def next_look(self) -> int:
        return 0  # every iteration

    def planned(self, batch: Batch, now: int, start: int, ticks: int) -> None:
        memory = self.scheduler.memory
        assert isinstance(memory, PooledKV | JengaKV)
        memory.check_integrity()
        chunks = dict(batch.chunks)
        entries: Counter[str] = Counter()
        pages = 0
        for number, group in enumerate(memory.groups):
            for request in self.scheduler.running.values():
                length = memory.length(request)
                computed = chunks.get(request, request.growth if request.decodes else 0)
                needed = first_needed(group, length - computed)
                span = request.kv
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
        if isinstance(memory, JengaKV):
            taken = memory.two_level.cut * memory.page_bytes
            entries["padding"] = taken - pages
        else:
            taken = pages
        entries["free"] = memory.capacity_bytes - taken
        self.seen.append(dict(entries))
