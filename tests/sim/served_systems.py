"""Random systems as they are served: drafts on layers that differ, pipeline stages, ranks of both engines.

Each is replayed with fast-forward and stepping, which must agree to the bit, and in every iteration the
entries of its ledger sum to the cache; with drafts a slow ledger counts every slot of every block table.

    python -m tests.sim.served_systems ranks --count 3000 --seed 1

prints what the systems had in them, and stops at the first that differs.
"""

from __future__ import annotations

import argparse
import signal
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pandas as pd

from pagesim.accounting.ledger import ENTRIES
from pagesim.errors import PagesimError
from pagesim.experiments.clusters.attention_ranks import AttentionDataParallel
from pagesim.experiments.clusters.data_parallel import DataParallel
from pagesim.kvcache import SlidingWindow, State
from pagesim.results.recorded_tables import request_columns
from pagesim.results.step_table import StepTable
from pagesim.setup.prepare import prepare
from pagesim.setup.system import System, checked
from pagesim.workloads.trace import Trace
from tests.sim import hybrid_systems, random_systems
from tests.sim.random_systems import UNEQUAL, Case
from tests.sim.slow_ledgers import SlowDraftLedger, SlowTreeLedger

COST = "affine:0.01,1e-5,1e-7"
DENSE, SPARSE = "opt-13b", "mixtral-8x7b"
LONGEST_S = 60
"""Seconds after which a system that is checked by hand is taken to run for ever."""


# Drafts


def check_drafts(seed: int) -> Counter[str]:
    """Replay a system with drafts beside a slow ledger, and with fast-forward; return what it had in it."""
    case, slow = hybrid_systems.drafting_case(seed), SlowDraftLedger()
    stepped = hybrid_systems.compare(case, slow, hybrid_systems.entries_of(case), seed=seed)
    columns = stepped.columns
    rules = [group.rule for group in case.groups]
    return Counter(
        {
            "cases": 1,
            "with preemptions": int(stepped.recomputed > 0),
            "with cached blocks": int(columns["cached"].any()),
            "with states": int(any(isinstance(rule, State) for rule in rules)),
            "that drop a block": int(any(group.drops_block for group in case.groups)),
            "with several modules": int(
                any(isinstance(rule, SlidingWindow) and rule.retained for rule in rules)
            ),
            "with slots that only some need": int(slow.disputed > 0),
        }
    )


# Pipeline stages


def newest_case(rnd: Random) -> Case:
    """Return a random system of vLLM 0.33.0 without tiers and drafts."""
    while True:
        case = random_systems.random_case(rnd.randrange(10**6))
        options = case.options
        if options["policy"] == "vllm-v1" and options.get("vllm_version", "0.33.0") == "0.33.0":
            break
    apart = ("kv_offloading", "tiers", "speculative", "acceptance", "model")
    kept = {name: value for name, value in options.items() if not name.startswith(apart)}
    if "model" in options:
        kept["num_blocks"] //= 2
    return Case(kept, case.trace)


def stages_case(seed: int) -> Case:
    """Return a random system in the stages of a pipeline; some of a model with windows, some with drafts."""
    rnd = Random(seed)
    case = newest_case(rnd)
    staged = {**case.options, "pipeline_parallel_size": rnd.choice((2, 2, 3, 4))}
    if rnd.random() < 0.5:
        staged |= {"model": str(UNEQUAL), "num_blocks": 2 * case.options["num_blocks"]}
    if rnd.random() < 0.4:
        drafts = {
            "speculative_method": rnd.choice(("ngram", "eagle")),
            "speculative_tokens": rnd.randint(1, 4),
        }
        staged |= {**drafts, "acceptance": rnd.choice((0.0, 0.4, 0.9)), "async_scheduling": True}
    return Case(staged, case.trace)


def check_stages(seed: int) -> Counter[str]:
    """Replay a system in stages with fast-forward, and stepping over tables; return what it had in it."""
    case = stages_case(seed)
    base = random_systems.replay(case, fast_forward=True, tables=False)
    other = random_systems.replay(case, fast_forward=False, tables=True)
    difference = random_systems.first_difference(base, other)
    assert difference is None, f"seed {seed}: {difference}\n{case.options}"
    found = random_systems.contents_of(case, base)
    kinds = ("a preemption", "prefix hits", "aborts", "windows in larger blocks", "two batches in flight")
    drafted = int("speculative_tokens" in case.options)
    counts = {name: found[name] for name in ("cases", *(f"with {kind}" for kind in kinds))}
    return Counter({**counts, "with drafts": drafted})


# Ranks of data parallelism


def replay_ranks(trace: Trace, **options: Any) -> tuple[DataParallel, list[pd.DataFrame], dict[str, Any]]:
    """Return a deployment that has served a trace, the steps of its ranks, and the requests' columns."""
    setting = prepare(checked(System, {"policy": "vllm-v1", "cost": COST, **options}), trace)
    log = setting.new_log()
    tables: list[StepTable] = []

    def watch(number: int, routed: Any) -> Any:
        tables.append(StepTable(routed, every=True, shape=setting.ledger_shape(), reserves=setting.reserves))
        return [], [tables[-1].add]

    ranks = DataParallel(setting, log, watch=watch)
    ranks.replay()
    return ranks, [table.frame() for table in tables], request_columns(setting.trace, log)


def ranks_case(seed: int) -> Case:
    """Return a random system of two to four ranks."""
    rnd = Random(seed)
    case, ranks = newest_case(rnd), rnd.choice((2, 3, 4))
    more: dict[str, Any] = {
        "data_parallel_size": ranks,
        "model": rnd.choice((DENSE, SPARSE)),
        "max_model_len": case.options.get("max_model_len", 1024),
        "data_parallel_latency": rnd.choice((None, 1e-4, 3e-3)),
        "api_server_count": rnd.choice((None, 1, 2)),
    }
    if rnd.random() < 0.3 and ranks == 4:
        more |= {"data_parallel_lb": "hybrid", "data_parallel_size_local": 2}
    if rnd.random() < 0.5 and more["model"] == SPARSE:
        more["dp_sync_interval"] = rnd.choice((1, 4, 64))
    return Case({**case.options, **more}, case.trace)


def check_ranks(seed: int) -> Counter[str]:
    """Replay a deployment with fast-forward and stepping; return what it had in it."""
    case = ranks_case(seed)
    try:
        one = replay_ranks(case.trace, **case.options)
        other = replay_ranks(case.trace, **case.options, fast_forward=False)
    except PagesimError:
        return Counter({"refused": 1})
    assert one[0].coordinator.published == other[0].coordinator.published
    assert (one[0].balancer is None) == (other[0].balancer is None)
    if one[0].balancer is not None and other[0].balancer is not None:
        assert one[0].balancer.choices == other[0].balancer.choices
    for mine, theirs in zip(one[1], other[1], strict=True):
        pd.testing.assert_frame_equal(mine, theirs, check_exact=True)
    for name, column in one[2].items():
        assert str(list(column)) == str(list(other[2][name])), name
    for mine, theirs, steps in zip(one[0].servers, other[0].servers, one[1], strict=True):
        assert mine.summary() == theirs.summary()
        memory = mine.scheduler.memory
        assert (steps[list(ENTRIES)].sum(axis=1) == memory.num_blocks * memory.block_size).all()
    return Counter(
        {
            "cases": 1,
            "with preemptions": int(one[2]["recomputes"].sum() > 0),
            "with prefix hits": int(one[2]["cached_tokens"].sum() > 0),
            "in lock-step": int(one[0].lock_step is not None),
            "with two batches in flight": int(bool(case.options.get("async_scheduling"))),
            "with aborts": int((one[2]["status"] == "aborted").any()),
        }
    )


# SGLang's ranks of attention


def attention_case(seed: int) -> Case:
    """Return a random system of two to four ranks of attention."""
    rnd = Random(seed)
    while True:
        case = random_systems.random_case(rnd.randrange(10**6))
        options = case.options
        if options["policy"] == "sglang" and "model" not in options:
            break
    size = rnd.choice((2, 4))
    more = {"attn_dp_size": size, "tensor_parallel_size": size, "model": "llama-3.1-8b"}
    more |= {"max_model_len": 4096, "cuda_graph_max_bs_prefill": rnd.choice((0, 64, 2048))}
    chunk = options.get("chunked_prefill_size", -1)
    if chunk > 0:  # it is divided over the ranks
        more["chunked_prefill_size"] = size * chunk
    if "enable_prefill_delayer" in options:  # what is refused beside it
        options = {
            name: value
            for name, value in options.items()
            if not name.startswith(("speculative_", "acceptance", "prefill_decode"))
        }
    return Case({**options, **more}, case.trace)


def replay_attention(case: Case, *, slow: bool) -> tuple[list[pd.DataFrame], dict[str, Any], list[Any]] | str:
    """Return the steps of ranks, the requests' columns and what is counted; or why it is refused."""
    try:
        setting = prepare(checked(System, {**case.options, "fast_forward": not slow}), case.trace)
    except PagesimError as error:
        return str(error)
    log, tables = setting.new_log(), []

    def watch(number: int, routed: Any) -> Any:
        tables.append(StepTable(routed, every=True, shape=setting.ledger_shape(), reserves=setting.reserves))
        return [SlowTreeLedger()] if slow else [], [tables[-1].add]

    ranks = AttentionDataParallel(setting, log, watch=watch)
    ranks.replay()
    counts = [ranks.summary(), *(server.summary() for server in ranks.servers)]
    return [table.frame() for table in tables], request_columns(setting.trace, log), counts


def check_attention(seed: int) -> Counter[str]:
    """Replay ranks of attention twice, once with everything counted anew; return what they had in them."""
    case = attention_case(seed)
    one, other = (replay_attention(case, slow=slow) for slow in (False, True))
    if isinstance(one, str) or isinstance(other, str):
        assert one == other
        return Counter({"refused": 1})
    (steps, requests, counts), (slow_steps, slow_requests, slow_counts) = one, other
    assert counts == slow_counts
    for mine, theirs in zip(steps, slow_steps, strict=True):
        pd.testing.assert_frame_equal(mine, theirs, check_exact=True)
        assert (
            mine[list(ENTRIES)].sum(axis=1) == case.options["num_blocks"] * case.options["block_size"]
        ).all()
        # One clock: a rank works, or runs an empty batch, whenever another does.
        assert len(mine) == counts[0]["lock_step"]["passes"]
        assert mine["clock"].equals(steps[0]["clock"])
    for name, column in requests.items():
        assert str(list(column)) == str(list(slow_requests[name])), name
    return Counter(
        {
            "cases": 1,
            "with preemptions": int(requests["recomputes"].sum() > 0),
            "with prefix hits": int(requests["cached_tokens"].sum() > 0),
            "with drafts": int("speculative_algorithm" in case.options),
            "with empty batches": int(counts[0]["lock_step"]["dummy_batches"] > 0),
            "with aborts": int((requests["status"] == "aborted").any()),
        }
    )


KINDS: dict[str, Callable[[int], Counter[str]]] = {
    "drafts": check_drafts,
    "stages": check_stages,
    "ranks": check_ranks,
    "attention": check_attention,
}


def _stop(*_: object) -> None:
    raise TimeoutError(f"it was not over after {LONGEST_S} s")


def main() -> None:
    """Check as many systems as were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0, help="of the first system; the others follow")
    chosen = parser.parse_args()
    total: Counter[str] = Counter()
    signal.signal(signal.SIGALRM, _stop)
    for seed in range(chosen.seed, chosen.seed + chosen.count):
        signal.alarm(LONGEST_S)
        try:
            total += KINDS[chosen.kind](seed)
        except Exception as error:
            raise RuntimeError(f"seed {seed}") from error
    print("\n".join(f"{name}: {number}" for name, number in total.items()))


if __name__ == "__main__":
    main()
