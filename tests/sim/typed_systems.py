"""Random systems under vllm-v1 whose layer types have memory of their own."""

from __future__ import annotations

from random import Random

from pagesim.kvcache import ChunkedLocal, Full, JengaManager, KVGroup, PooledManager, SlidingWindow, State
from tests.sim.hybrid_systems import (
    LONGEST,
    HybridCase,
    in_flight,
    random_aborts,
    random_options,
    random_trace,
)


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
    options = random_options(rnd, trace, enable_prefix_caching=False)
    options = options.model_copy(update={"watermark": rnd.choice((0.0, 0.05))})
    aborts = random_aborts(rnd, trace)
    return HybridCase(groups, rnd.choice((1, 2, 40)), False, 0, options, trace, aborts)


def pools_of(case: HybridCase) -> PooledManager:
    """Return pools, one of them rather small, that hold a request of 220 tokens at least."""
    sizes = [
        case.blocks * group.most(220, LONGEST, in_flight(case)) + (number == 0)
        for number, group in enumerate(case.groups)
    ]
    return PooledManager(sizes, case.groups, longest=LONGEST, in_flight=in_flight(case))


def jenga_of(case: HybridCase) -> JengaManager:
    """Return two-level memory that holds a request of 220 tokens at least."""
    whole = JengaManager(10**6, case.groups, longest=LONGEST, in_flight=in_flight(case))
    return JengaManager(
        case.blocks * whole.blocks_for(220), case.groups, longest=LONGEST, in_flight=in_flight(case)
    )
