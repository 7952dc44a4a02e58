"""KV groups under an engine: counted as tabled, fast-forward as stepping, whatever the groups are."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from pagesim.accounting.chunks import Chunk
from pagesim.accounting.records import Recorder
from pagesim.accounting.request_log import RequestLog
from pagesim.costs.affine import Affine
from pagesim.kvcache import (
    RESERVATIONS,
    CountedKV,
    Full,
    KVCache,
    KVGroup,
    Reserved,
    SlidingWindow,
    TabledKV,
)
from pagesim.scheduling.arrivals import Arrivals
from pagesim.scheduling.continuous import SospOptions, VllmSosp
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.vllm_v1 import VllmV1, VllmV1Options
from pagesim.sim.engine import Engine
from pagesim.sim.executors import PredictedExecutor
from pagesim.workloads.trace import Trace

LONGEST = 400


def random_groups(rnd: Random) -> list[KVGroup]:
    """Return groups of one rule, or a mixture, of equal or different block sizes."""
    size = rnd.choice((1, 2, 4, 16))

    def window() -> SlidingWindow:
        return SlidingWindow(rnd.choice((1, 5, 17, 40)))

    return rnd.choice(
        (
            [KVGroup(size)],
            [KVGroup(size, window())],
            [KVGroup(size), KVGroup(size, window())],
            [KVGroup(size, window()), KVGroup(2 * size), KVGroup(size, window())],
            [KVGroup(3 * size), KVGroup(2 * size, window())],
        )
    )


def random_trace(rnd: Random) -> Trace:
    requests = rnd.choice((5, 25))
    arrival = np.sort([round(rnd.random() * 4, rnd.choice((1, 6))) for _ in range(requests)])
    prompt = np.array([rnd.randint(1, 90) for _ in range(requests)])
    return Trace(arrival, prompt, np.array([rnd.randint(1, 60) for _ in range(requests)]))


def replay(scheduler: Scheduler, trace: Trace, *, fast_forward: bool) -> dict[str, np.ndarray]:
    """Return everything that was decided, in columns over requests and iterations."""
    scheduler.expect(Arrivals(trace, np.arange(len(trace))))
    log = RequestLog(len(trace))
    chunks: list[Chunk] = []
    recorder = Recorder(scheduler, log, chunks.append)
    cost = PredictedExecutor(Affine(0.01, 1e-4, 1e-6))
    Engine(scheduler, cost, recorder, fast_forward=fast_forward).replay()
    memory = scheduler.memory
    assert memory.free_blocks == memory.num_blocks, "what was taken is given back"
    if memory.names_blocks:
        memory.check_integrity()
    columns = {"first_token": log.first_token, "finish": log.finish, "recomputes": log.recomputes}
    columns |= {
        name: np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in ("clock", "ticks")
    }
    columns["blocks"] = np.concatenate([chunk.ledger.physical_blocks for chunk in chunks])
    for entry in chunks[0].ledger.entries:
        columns[entry] = np.concatenate([chunk.ledger.entries[entry] for chunk in chunks])
    return {name: np.array(column) for name, column in columns.items()}


def compare(seed: int) -> int:
    """Replay a seed's system in four ways that must agree; return how often a request was preempted."""
    rnd = Random(seed)
    groups, trace = random_groups(rnd), random_trace(rnd)
    least = sum(-(-160 // group.block_size) + 1 for group in groups)
    blocks = rnd.choice((least, 2 * least, 3000))
    if rnd.random() < 0.75:
        budget = rnd.choice((16, 64, 200))
        options = VllmV1Options(
            async_scheduling=False,
            max_num_batched_tokens=budget,
            max_num_seqs=min(budget, rnd.choice((2, 8, 64))),
            scheduler_reserve_full_isl=rnd.choice((True, False)),
        )
        kind: type[Scheduler] = VllmV1
    else:
        options, kind = SospOptions(max_num_seqs=rnd.choice((2, 8, 64))), VllmSosp

    def once(memory: type[KVCache], fast_forward: bool) -> dict[str, np.ndarray]:
        scheduler = kind(memory(blocks, groups), options, max_model_len=LONGEST)
        return replay(scheduler, trace, fast_forward=fast_forward)

    base = once(CountedKV, True)
    for memory, fast_forward in ((CountedKV, False), (TabledKV, True), (TabledKV, False)):
        other = once(memory, fast_forward)
        for name, column in base.items():
            assert np.array_equal(column, other[name]), (
                f"seed {seed}: {name} differs with {memory.__name__}, fast_forward={fast_forward}; {groups}"
            )
    return int(base["recomputes"].sum())


def test_groups_of_every_rule_and_mixtures_are_counted_as_tabled_and_fast_forward_as_they_step():
    assert sum(compare(seed) for seed in range(60)) > 0, "none was short of memory"


@pytest.mark.slow
def test_many_groups_of_every_rule_and_mixtures_agree():
    assert sum(compare(seed) for seed in range(1000, 2500)) > 0


@pytest.mark.parametrize("reservation", ["max", "pow2", "oracle"])
def test_reserved_groups_are_counted_as_tabled(reservation):
    groups = [KVGroup(16, Reserved(RESERVATIONS[reservation](LONGEST)))]
    trace = random_trace(Random(3))
    ways = [
        replay(VllmSosp(memory(100, groups), SospOptions(), max_model_len=LONGEST), trace, fast_forward=ff)
        for memory in (CountedKV, TabledKV)
        for ff in (True, False)
    ]
    assert all(np.array_equal(ways[0][name], way[name]) for way in ways for name in way)


def test_a_window_holds_no_more_than_its_blocks_once_it_is_full():
    trace = Trace(np.zeros(1), np.array([4]), np.array([100]))
    memory = CountedKV(100, [KVGroup(4, SlidingWindow(8))])
    scheduler = VllmV1(memory, VllmV1Options(async_scheduling=False), max_model_len=LONGEST)
    blocks = replay(scheduler, trace, fast_forward=True)["blocks"]
    assert blocks.max() == 3  # 8 tokens reach into three blocks of 4
    assert Full().skipped(100) == 0
