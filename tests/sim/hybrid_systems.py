"""Random hybrid caches under vLLM v1, and what becomes of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np

from pagesim.accounting.ledger import GROUP_ENTRIES, HYBRID_ENTRIES
from pagesim.costs import CostModel
from pagesim.costs.affine import Affine
from pagesim.kvcache import (
    DENSE,
    BlockManager,
    ChunkedLocal,
    Full,
    HybridManager,
    KVGroup,
    SlidingWindow,
    State,
)
from pagesim.kvcache.typed.typed import TypedManager
from pagesim.scheduling.content import Contents
from pagesim.scheduling.observer import Observer
from pagesim.scheduling.vllm_v1 import VllmV1, VllmV1Options
from pagesim.sim.clock import to_ticks
from pagesim.workloads.trace import Trace
from tests.sim.drive import drive
from tests.sim.slow_ledgers import SlowLedger, SlowTypes

LONGEST = 400


@dataclass(frozen=True)
class HybridCase:
    """A cache, a scheduler's options and a trace."""

    groups: list[KVGroup]
    blocks: int
    caches: bool
    retention: int
    options: VllmV1Options
    trace: Trace
    aborts: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """Columns over requests and over iterations, and how often requests were preempted."""

    columns: dict[str, np.ndarray]
    recomputed: int


def random_groups(rnd: Random, caches: bool) -> list[KVGroup]:
    """Return a mixture of groups whose blocks have as many bytes, padded."""
    size = rnd.choice((1, 2, 4, 16))
    other = size * rnd.choice((1, 1, 2, 3))

    def window() -> SlidingWindow:
        return SlidingWindow(rnd.choice((1, 2, 5, 17, 40, 90)))

    def chunk() -> ChunkedLocal:
        return ChunkedLocal(other * rnd.choice((1, 4, 7)))

    def state() -> tuple[int, State]:
        if caches or rnd.random() < 0.3:
            return size, State(aligned=True, checkpoint=rnd.choice((None, 1, size)))
        return LONGEST, State()

    rules = rnd.choice(
        (
            [(size, window())],
            [(size, chunk())],
            [(size, Full()), (size, window())],
            [(size, Full()), (size, window()), (size, window()), (other, window())],
            [(size, window()), (other, Full()), (size, window())],
            [(size, Full()), (size, chunk()), (size, chunk())],
            [(size, Full()), state()],
            [(size, Full()), state(), state()],
            [(size, Full()), (size, window()), state()],
            [(size, Full()), (other, chunk()), (size, window())],
        )
    )
    page = 24 * max(block for block, _ in rules)
    filled = [
        rnd.randint(1, page) if isinstance(rule, State) else block * rnd.randint(1, page // block)
        for block, rule in rules
    ]
    return [
        KVGroup(block, rule, page_bytes=page, filled_bytes=full)
        for (block, rule), full in zip(rules, filled, strict=True)
    ]


def random_trace(rnd: Random) -> Trace:
    """Return requests some of which begin alike, and some of which follow one another."""
    requests = rnd.choice((5, 25, 40))
    arrival = np.sort([round(rnd.random() * rnd.choice((1, 6)), rnd.choice((1, 6))) for _ in range(requests)])
    prompt = np.array([rnd.randint(1, 120) for _ in range(requests)])
    output = np.array([rnd.choice((1, 2, rnd.randint(1, 80))) for _ in range(requests)])
    columns = {}
    kind = rnd.choice(("plain", "prefix", "sessions", "hashes"))
    if kind == "prefix":
        columns["prefix_tokens"] = np.minimum(rnd.randint(1, 110), prompt)
    elif kind == "sessions":
        columns["session_id"] = np.array([rnd.randint(0, requests // 4) for _ in range(requests)])
    elif kind == "hashes":
        columns["hash_block_size"] = rnd.choice((1, 4, 16))
        document = [rnd.randint(0, 2) for _ in range(requests)]
        columns["hash_ids"] = [
            tuple(
                1000 * which + block if rnd.random() < 0.97 else rnd.randint(10**6, 10**9)
                for block in range(-(-int(tokens) // columns["hash_block_size"]))
            )
            for which, tokens in zip(document, prompt, strict=True)
        ]
    if rnd.random() < 0.3:
        columns["priority"] = np.array([rnd.randint(-1, 2) for _ in range(requests)])
    return Trace(arrival, prompt, output, **columns)


def random_options(rnd: Random, trace: Trace, **given: Any) -> VllmV1Options:
    """Return options of a scheduler for a trace, with those that are given."""
    by_priority = trace.priority is not None and rnd.random() < 0.7
    budget = rnd.choice((16, 64, 200))
    return VllmV1Options(
        async_scheduling=rnd.random() < 0.5,
        max_num_batched_tokens=budget,
        max_num_seqs=min(budget, rnd.choice((2, 8, 64))),
        long_prefill_token_threshold=rnd.choice((0, 0, 20)),
        **({"scheduling_policy": "priority"} if by_priority else {}),
        # Without the gate prompts that arrived at one instant may preempt each other for ever, as in vLLM.
        scheduler_reserve_full_isl=True if by_priority else rnd.choice((True, False)),
        **given,
    )


def random_aborts(rnd: Random, trace: Trace) -> list[tuple[int, int]]:
    """Return when clients of a trace go away, and of which requests: seldom any."""
    if rnd.random() >= 0.2:
        return []
    rows = rnd.sample(range(len(trace)), 3)
    return sorted((to_ticks(float(trace.arrival_s[row]) + 4 * rnd.random()), row) for row in rows)


def in_flight(case: HybridCase) -> int:
    """Return the tokens that can be scheduled and not be computed yet."""
    assert case.options.max_num_batched_tokens is not None
    return (2 if case.options.async_scheduling else 1) * case.options.max_num_batched_tokens


def random_case(seed: int) -> HybridCase:
    """Return the case of a seed."""
    rnd = Random(seed)
    caches = rnd.random() < 0.6
    groups, trace = random_groups(rnd, caches), random_trace(rnd)
    least = sum(3 if isinstance(g.rule, State) else -(-220 // g.block_size) + 2 for g in groups)
    options = random_options(rnd, trace, enable_prefix_caching=caches)
    aligned = np.lcm.reduce([g.block_size for g in groups])
    retention = rnd.choice((0, DENSE, int(aligned))) if caches else 0
    aborts = random_aborts(rnd, trace)
    blocks = rnd.choice((least, least, least + least // 3, 2 * least, 3000))
    return HybridCase(groups, blocks, caches, retention, options, trace, aborts)


def make_memory(case: HybridCase) -> BlockManager:
    """Return the memory of a case, empty."""
    how = {"longest": LONGEST, "in_flight": in_flight(case)}
    if (rules := case.options.draft_rules) is not None:
        how |= {"hash_lookahead": rules.hash_lookahead, "prefill_lookahead": rules.prefill_lookahead}
    return HybridManager(case.blocks, case.groups, caches=case.caches, retention=case.retention, **how)


def drafting_case(seed: int) -> HybridCase:
    """Return a case whose decoding requests verify drafts."""
    case, rnd = random_case(seed), Random(seed + 0.5)
    drafts = rnd.choice((1, 2, 3, 7))
    method = rnd.choice(("ngram", "eagle3", "mtp", "mtp", "draft_model", "dflash", "suffix"))
    config: dict[str, Any] = {"method": method, "num_speculative_tokens": drafts}
    if method == "mtp" and rnd.random() < 0.5:
        config["n_predict"] = drafts
    if rnd.random() < 0.3:
        config["disable_lookahead_block_hashes"] = True
    elif rnd.random() < 0.2:
        config["disable_eagle_block_drop"] = True
    if rnd.random() < 0.2:
        config["num_speculative_tokens_per_batch_size"] = [(1, 2, drafts), (3, 60, drafts // 2)]
    given = {
        "speculative_config": json.dumps(config),
        "acceptance": rnd.choice((None, 0.0, 0.6, 0.9, 1.0)),
        "async_scheduling": method != "suffix" and case.options.async_scheduling,
        "long_prefill_token_threshold": 0,
    }
    options = case.options.model_copy(update=given)
    rules = options.draft_rules
    assert rules is not None
    drops = [rules.drops_block and rnd.random() < 0.7 for _ in case.groups]
    groups = []
    for group, drops_block in zip(case.groups, drops, strict=True):
        rule = group.rule
        if isinstance(rule, State):
            rule = replace(rule, drafts=drafts)
        elif isinstance(rule, SlidingWindow):
            rule = replace(rule, retained=max(0, rules.prefill_lookahead - 1))
        groups.append(replace(group, rule=rule, drops_block=drops_block))
    more = sum(group.draft_states or -(-3 * drafts // group.block_size) for group in groups)
    blocks = min(case.blocks, case.blocks * rnd.choice((1, 1, 2)) // 2 + 40) + more
    return replace(case, groups=groups, options=options, blocks=blocks)


def window_case(seed: int) -> HybridCase:
    """Return a case of full attention and windows that caches prefixes, often in little memory."""
    case, rnd = random_case(seed), Random(seed)
    size = rnd.choice((1, 2, 4, 16))
    full, window, other = Full(), *[SlidingWindow(rnd.choice((1, 2, 5, 17, 40, 90))) for _ in range(2)]
    rules = rnd.choice(
        (
            [window],
            [window, window],
            [full, window],
            [full, window, window],
            [window, full, window],
            [full, window, window, other],
            [window, other, other],
            [full, window, full],
        )
    )
    groups = [KVGroup(size, rule, page_bytes=24 * size, filled_bytes=size * 24) for rule in rules]
    least = sum(-(-220 // size) + 2 for _ in groups)
    return replace(
        case,
        groups=groups,
        caches=True,
        retention=0,
        blocks=rnd.choice((least, least, least * 5 // 4, 3000)),
        options=case.options.model_copy(update={"enable_prefix_caching": True}),
    )


def replay(
    case: HybridCase,
    *,
    fast_forward: bool,
    chunk: int | None = None,
    slow: Observer | None = None,
    memory: BlockManager | None = None,
    cost: CostModel | None = None,
) -> Outcome:
    """Return everything that was decided and counted.

    Args:
        case: the model's KV groups, the options and the requests.
        fast_forward: whether iterations that decide nothing are taken at once.
        chunk: iterations after which the records are handed on.
        slow: what is kept beside, such as a slow ledger.
        memory: of the case, empty; one with tables if left out.
        cost: what iterations take; a straight line if left out.
    """
    trace = case.trace
    memory = make_memory(case) if memory is None else memory
    scheduler = VllmV1(memory, case.options, max_model_len=LONGEST)
    rows = np.arange(len(trace))
    served = [
        row
        for row in rows
        if not scheduler.refusal(int(trace.prompt_tokens[row]), int(trace.output_tokens[row]), 1)
    ]
    contents = None
    if case.caches:
        ahead = scheduler.hash_lookahead(case.options)
        contents = Contents(trace, rows, min(group.block_size for group in case.groups), lookahead=ahead)
    columns, _ = drive(
        scheduler,
        trace,
        Affine(0.01, 1e-4, 1e-6) if cost is None else cost,
        fast_forward=fast_forward,
        chunk=chunk,
        observers=[] if slow is None else [slow],
        aborts=[(ticks, row) for ticks, row in case.aborts if row in served],
        rows=served,
        contents=contents,
    )
    if isinstance(memory, HybridManager | TypedManager):
        memory.check_integrity()
    return Outcome(columns, int(columns["recomputes"].sum()))


def entries_of(case: HybridCase) -> list[str]:
    """Return the entries of a case's ledger: of the whole cache, and of each group."""
    of_groups = [f"{entry}_{group}" for group in range(len(case.groups)) for entry in GROUP_ENTRIES]
    return [*HYBRID_ENTRIES, *of_groups]


def compare(
    case: HybridCase,
    slow: SlowLedger | SlowTypes,
    entries: Sequence[str],
    *,
    seed: int,
    make: Callable[[HybridCase], BlockManager] = make_memory,
) -> Outcome:
    """Replay a seed's case by steps beside a slow ledger, and in fast-forward, which must agree."""
    stepped = replay(case, fast_forward=False, slow=slow, memory=make(case))
    columns = stepped.columns
    # Where the records are cut into chunks changes nothing either.
    other = replay(case, fast_forward=True, chunk=1 + seed % 50, memory=make(case)).columns
    assert other.keys() == columns.keys()
    for name, column in columns.items():
        assert np.array_equal(column, other[name]), f"seed {seed}: {name} differs with fast-forward"
    assert len(slow.seen) == len(columns["clock"])
    for name in entries:
        counted = np.array([each.get(name, 0) for each in slow.seen])
        assert np.array_equal(columns[name], counted), f"seed {seed}: {name} differs from the slow ledger"
    return stepped
