"""Random systems and traces: every policy, samples, swaps, chunks, prefixes, aborts, tiny memories, ties.

Each is replayed in several ways, which must agree to the bit: fast-forward and stepping, over counted and
over tabled memory (where there are two forms), as a cluster of one (SGLang), and with everything in a radix
tree counted anew in every iteration.

    python tests/sim/random_systems.py --count 5000 --seed 1

prints what the systems had in them, and stops at the first that differs; with ``--policy sglang`` only such.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pandas as pd

from pagesim.accounting.request_log import RequestLog
from pagesim.errors import PagesimError
from pagesim.experiments.clusters.engine import Replica
from pagesim.experiments.clusters.fleet import Fleet, ReplicaPool
from pagesim.experiments.clusters.routers import RoundRobin
from pagesim.kvcache import BlockManager
from pagesim.kvcache.radix import RadixManager
from pagesim.results.recorded_tables import request_columns
from pagesim.results.step_table import StepTable
from pagesim.scheduling.added import AddedArrivals
from pagesim.scheduling.observer import Observer
from pagesim.setup.prepare import PreparedSystem, prepare
from pagesim.setup.server import Server
from pagesim.setup.system import System, checked
from pagesim.workloads.trace import Trace
from tests.sim.random_options import (
    STATES,
    UNEQUAL,
    WINDOWS,
    cadence,
    delays_and_priorities,
    drafts_of_sglang,
    model_options,
    second_pool,
    tier_options,
)
from tests.sim.slow_ledgers import SlowTreeLedger

POLICIES = (
    *("vllm-sosp", "vllm-sosp", "vllm-v0", "vllm-v0"),
    *("vllm-v1", "vllm-v1", "vllm-v1", "vllm-v1", "vllm-v1", "vllm-v1"),
    *("sglang", "sglang", "sglang"),
    *("trtllm", "trtllm", "trtllm", "lightllm"),
    *("orca-max", "orca-pow2", "orca-oracle", "contiguous-max", "static"),
    *("token-granular", "virtual-contiguous", "paged-oracle"),
)


@dataclass(frozen=True)
class Case:
    """A system and a trace."""

    options: dict[str, Any]
    trace: Trace


@dataclass(frozen=True)
class Outcome:
    """Everything that was decided: columns over requests and over iterations, and what a summary counts."""

    requests: dict[str, Any]
    steps: pd.DataFrame
    counts: dict[str, Any]
    memory: type[BlockManager]


def policy_of(seed: int) -> str:
    """Return the policy of the case of a seed."""
    return Random(seed).choice(POLICIES)


def random_case(seed: int) -> Case:
    """Return the case of a seed."""
    rnd = Random(seed)
    policy = rnd.choice(POLICIES)
    options: dict[str, Any] = {"policy": policy, "cost": "affine:0.02,1e-4,8e-6,1e-3"}
    size = 1 if policy in ("token-granular", "lightllm") else rnd.choice((1, 2, 4, 16))
    blocks = rnd.choice((5, 12, 40, 120)) * (16 // size)
    if policy == "virtual-contiguous":
        options |= {"page_size": "64K", "num_blocks": blocks}
    else:
        options |= {"block_size": size, "num_blocks": blocks}
    if policy == "paged-oracle":
        options |= {"policy": "orca-oracle", "allocator": "paged"}
    options |= _scheduler_options(rnd, policy, blocks)
    options |= tier_options(Random(seed + 0.5), options)
    options |= model_options(Random(seed + 0.625), options)
    options |= cadence(Random(seed + 0.375), options)
    options |= delays_and_priorities(Random(seed + 0.4375), options)
    options |= drafts_of_sglang(Random(seed + 0.40625), options)
    options |= second_pool(Random(seed + 0.34375), options)
    if rnd.random() < 0.1:
        options["until"] = rnd.random() * 5
    if rnd.random() < 0.25:
        options["max_concurrency"] = rnd.choice((1, 2, 5, 20))
        if rnd.random() < 0.2 and policy != "static":
            options["client_timeout"] = rnd.choice((0.1, 0.5, 3.0))
    capacity = blocks * size
    trace = _random_trace(rnd, policy, capacity)
    if "enable_priority_scheduling" in options:
        draw = Random(seed + 0.4375)
        trace = trace.with_columns(
            {"priority": np.array([draw.choice((0, 0, 5, 40)) for _ in range(len(trace))])}
        )
    if "speculative_method" in options and (short := Random(seed + 0.75)).random() < 0.5:
        trace = _with_short_prompts(short, trace)
    return Case(options, trace)


def _scheduler_options(rnd: Random, policy: str, blocks: int) -> dict[str, Any]:
    some: dict[str, Any] = {}

    def perhaps(name: str, *values: Any, chance: float = 0.4) -> None:
        if rnd.random() < chance:
            some[name] = rnd.choice(values)

    if policy == "static":
        perhaps("max_batch", 1, 2, 5)
        return some
    if policy == "sglang":
        perhaps("schedule_policy", "lof", "lpm", "dfs-weight", "hrrn", "shortest-prefill-first", chance=0.6)
        perhaps("schedule_conservativeness", 0.0, 0.1, chance=0.9)
        perhaps("chunked_prefill_size", -1, 16, 48, 208, chance=0.8)
        perhaps("max_prefill_tokens", 30, 200)
        perhaps("prefill_max_requests", 1, 3, chance=0.2)
        perhaps("enable_mixed_chunk", True)
        perhaps("max_running_requests", 1, 2, 3, 8)
        perhaps("disable_overlap_schedule", True)
        perhaps("disable_radix_cache", True, chance=0.2)
        perhaps("radix_eviction_policy", "lfu", "fifo", "mru", "filo")
        perhaps("ignore_eos", True, chance=0.2)
        perhaps("max_new_tokens", 20, 100)
        return some
    if policy == "trtllm":
        some["max_batch_size"] = rnd.choice((1, 2, 3, 8, 60))
        some["max_num_tokens"] = rnd.choice((60, 100, 300))
        perhaps("capacity_scheduler_policy", "MAX_UTILIZATION", chance=0.7)
        perhaps("enable_chunked_prefill", True, chance=0.7)
        perhaps("context_chunking_policy", "EQUAL_PROGRESS")
        perhaps("disable_overlap_scheduler", True)
        if "disable_overlap_scheduler" in some:
            perhaps("max_new_tokens", 20, 100)
        return some
    if policy == "lightllm":
        perhaps("running_max_req_size", 1, 2, 3, 8)
        perhaps("batch_max_tokens", 60, 200)
        perhaps("max_new_tokens", 20, 100)
        return some
    perhaps("max_num_seqs", 1, 2, 3, 8)
    perhaps("watermark", 0.0, 0.03, 0.2)
    if policy in ("vllm-sosp", "vllm-v0", "token-granular"):
        perhaps("preemption", "swap", "auto")
        some["cpu_blocks"] = rnd.choice((0, blocks // 3, 4 * blocks))
        perhaps("max_num_batched_tokens", 60, 200)
    if policy == "vllm-v0":
        perhaps("vllm_version", "0.1.7", "0.2.0", "0.2.7")
        perhaps("max_paddings", 0, 30)
    if policy == "vllm-v1":
        perhaps("vllm_version", "0.11.2", "0.19.0", "0.33.0", chance=0.7)
        perhaps("max_num_batched_tokens", 16, 60, 200, chance=0.8)
        perhaps("long_prefill_token_threshold", 5, 30)
        perhaps("enable_chunked_prefill", False, chance=0.2)
        perhaps("scheduler_reserve_full_isl", True, False)
        some["enable_prefix_caching"] = rnd.random() < 0.8
        perhaps("scheduling_policy", "priority", chance=0.3)
        some["async_scheduling"] = rnd.random() < 0.5
        _let_start(rnd, some)
        if some.get("vllm_version", "0.33.0") == "0.33.0" and rnd.random() < 0.4:
            some["speculative_method"] = rnd.choice(("ngram", "eagle3"))
            some["speculative_tokens"] = rnd.choice((1, 3, 7))
            some["acceptance"] = rnd.choice((0.0, 0.6, 0.9, 1.0))
    return some


def _let_start(rnd: Random, some: dict[str, Any]) -> None:
    """Change what a release of vllm-v1 does not know or does not start with."""
    version = some.get("vllm_version", "0.33.0")
    if version != "0.33.0":
        some.pop("watermark", None)
    if version == "0.11.2":
        some.pop("scheduler_reserve_full_isl", None)
        some["async_scheduling"] = False
    if version != "0.33.0":
        some.pop("scheduling_policy", None)
    if some.get("scheduling_policy") == "priority":
        # Without the gate, prompts that arrived at one instant may preempt each other for ever, as in vLLM.
        some.pop("scheduler_reserve_full_isl", None)
    if not some.get("enable_chunked_prefill", True):
        some["max_model_len"] = some["max_num_batched_tokens"] = rnd.choice((60, 200))


def _random_trace(rnd: Random, policy: str, capacity: int) -> Trace:
    requests = rnd.choice((3, 12, 30, 60))
    span = rnd.choice((0.0, 0.3, 2.0, 10.0)) * requests / 10
    arrival = np.sort([rnd.random() * span for _ in range(requests)])
    if rnd.random() < 0.5:
        arrival = np.round(arrival, 1)  # ties
    longest = max(2, min(capacity // 2, 300))
    prompt = np.array([rnd.randint(1, longest) for _ in range(requests)])
    output = np.array([rnd.randint(1, max(2, min(longest, 80))) for _ in range(requests)])
    columns: dict[str, Any] = {}
    kinds = ["plain", "samples", "uneven", "beams", "aborts", "sessions", "prefix", "mixed"]
    if policy in ("vllm-v1", "sglang"):
        kinds += ["sessions", "prefix", "prefix", "prefix", "hashes", "hashes"]
    if policy == "sglang":  # it refuses samples
        kinds = [kind for kind in kinds if kind not in ("samples", "uneven", "mixed")]
    kind = rnd.choice(kinds)
    if kind in ("samples", "uneven", "mixed"):
        columns["n"] = np.array([rnd.choice((1, 1, 2, 4)) for _ in range(requests)])
    if kind == "uneven":
        columns["sample_tokens"] = [
            (int(most), *(rnd.randint(1, int(most)) for _ in range(int(n) - 1)))
            for most, n in zip(output, columns["n"], strict=True)
        ]
    if kind == "beams" and policy not in ("vllm-v1", "sglang", "trtllm", "lightllm"):
        columns["beam_width"] = np.array([rnd.choice((1, 2, 4)) for _ in range(requests)])
    if kind in ("aborts", "mixed") and policy != "static":
        columns["abort_s"] = arrival + np.array(
            [rnd.choice((0.0, 0.5, 3.0, 1e4)) * rnd.random() for _ in range(requests)]
        )
    if kind in ("sessions", "mixed"):
        columns["session_id"] = np.array([rnd.randint(0, requests // 3) for _ in range(requests)])
        if rnd.random() < 0.5:
            columns["think_s"] = [rnd.choice((0.0, 0.02, 0.5, 3 * rnd.random())) for _ in range(requests)]
    if kind == "hashes":
        columns["hash_block_size"] = rnd.choice((1, 4, 16))
        document = [rnd.randint(0, 1) for _ in range(requests)]
        columns["hash_ids"] = [
            tuple(
                1000 * which + block if rnd.random() < 0.97 else rnd.randint(10**6, 10**9)
                for block in range(-(-int(tokens) // columns["hash_block_size"]))
            )
            for which, tokens in zip(document, prompt, strict=True)
        ]
    if policy == "vllm-v1" and rnd.random() < 0.3:
        columns["priority"] = np.array([rnd.randint(-1, 2) for _ in range(requests)])
    if kind == "prefix":
        columns["prefix_tokens"] = np.minimum(rnd.randint(1, longest), prompt)
    return Trace(arrival, prompt, output, **columns)


def _with_short_prompts(rnd: Random, trace: Trace) -> Trace:
    """Return a trace with prompts of one token among the others; of those with hashes, as it is."""
    if trace.hash_ids is not None:
        return trace
    prompt = np.array([1 if rnd.random() < 0.6 else int(tokens) for tokens in trace.prompt_tokens])
    columns = {"prompt_tokens": prompt}
    if trace.prefix_tokens is not None:
        columns["prefix_tokens"] = np.minimum(trace.prefix_tokens, prompt)
    return trace.with_columns(columns)


def replay(
    case: Case, *, fast_forward: bool, tables: bool, cluster: bool = False, slow: bool = False
) -> Outcome | str:
    """Return what came of a case, or the sentence with which it was refused or stopped.

    Args:
        case: a system and a trace.
        fast_forward: whether iterations that decide nothing are taken at once.
        tables: whether blocks have numbers.
        cluster: whether the engine is the only replica of a cluster.
        slow: whether a radix tree and what requests hold beside it are counted anew in every iteration.
    """
    observers = [SlowTreeLedger()] if slow else []
    try:
        system = checked(System, {**case.options, "fast_forward": fast_forward})
        setting = prepare(system, case.trace)
        log = setting.new_log()
        server, table = (_replica if cluster else _alone)(setting, log, tables, observers)
    except PagesimError as error:
        return str(error)
    memory, shape = server.scheduler.memory, setting.ledger_shape()
    if memory.names_blocks or isinstance(memory, RadixManager):
        memory.check_integrity()
    steps = table.frame()
    assert (steps[list(shape.entries)].sum(axis=1) == shape.capacity).all(), "the ledger is not the cache"
    return Outcome(request_columns(setting.trace, log), steps, server.summary(), type(memory))


Replayed = tuple[Server, StepTable]


def _alone(setting: PreparedSystem, log: RequestLog, tables: bool, observers: list[Observer]) -> Replayed:
    arrivals = setting.arrivals()
    table = StepTable(arrivals, every=True, shape=setting.ledger_shape(), reserves=setting.reserves)
    how: dict[str, Any] = {"aborts": setting.aborts(), "tables": tables, "observers": observers}
    server = Server(setting, log, arrivals, consume=[table.add], **how)
    server.replay()
    return server, table


def _replica(setting: PreparedSystem, log: RequestLog, tables: bool, observers: list[Observer]) -> Replayed:
    fleet = Fleet(setting, log)
    pool, routed = ReplicaPool(fleet, RoundRobin(), 1), AddedArrivals(fleet.whole)
    replica = Replica(0, pool.states, routed, fleet.prompts, fleet.tell)
    pool.replicas.append(replica)
    table = StepTable(routed, every=True, shape=setting.ledger_shape(), reserves=setting.reserves)
    server = fleet.add(replica, setting, log, consume=[table.add], tables=tables, observers=observers)
    fleet.run(pool)
    return server, table


def first_difference(one: Outcome | str, other: Outcome | str) -> str | None:
    """Return where two outcomes differ first; None where they are equal to the bit."""
    if isinstance(one, str) or isinstance(other, str):
        return None if one == other else f"{one} | {other}"
    for name, column in one.requests.items():
        if str(list(column)) != str(list(other.requests[name])):
            rows = [
                k
                for k, (a, b) in enumerate(zip(column, other.requests[name], strict=True))
                if str(a) != str(b)
            ]
            row = rows[0]
            return f"requests, {name}, row {row}: {column[row]} and {other.requests[name][row]}"
    if len(one.steps) != len(other.steps):
        return f"{len(one.steps)} and {len(other.steps)} iterations"
    for name in one.steps:
        differs = one.steps[name].to_numpy() != other.steps[name].to_numpy()
        if differs.any():
            row = int(np.argmax(differs))
            return f"iteration {row}, {name}: {one.steps[name][row]} and {other.steps[name][row]}"
    return None if one.counts == other.counts else f"{one.counts} and {other.counts}"


def _loads_deep(counts: dict[str, Any]) -> bool:
    """Say whether anything was loaded from a tier behind the first."""
    return any(tier["chunks"]["loaded"] for tier in list(counts.get("tiers", {}).values())[1:])


WAYS: tuple[dict[str, bool], ...] = (
    {"fast_forward": False, "tables": False},
    {"fast_forward": True, "tables": True},
    {"fast_forward": False, "tables": True, "slow": True},
    {"fast_forward": True, "tables": False, "cluster": True},
)
"""How a case is replayed beside fast-forward over counted memory; the last one under SGLang only."""


def check(seed: int) -> Counter[str]:
    """Replay the case of a seed in all ways; return what it had in it.

    Raises:
        AssertionError: two ways differ.
    """
    case = random_case(seed)
    base = replay(case, fast_forward=True, tables=False)
    # Others' closed loops and tiers are looked at on a cluster's clock in an order of their own.
    ways = WAYS if case.options["policy"] == "sglang" else WAYS[:-1]
    for way in ways:
        difference = first_difference(base, replay(case, **way))
        assert difference is None, f"seed {seed}, {way}: {difference}\n{case.options}"
    return contents_of(case, base)


def contents_of(case: Case, base: Outcome | str) -> Counter[str]:
    """Return what a case had in it, of which this came."""
    if isinstance(base, str):
        return Counter({"refused": 1})
    preempted = int(base.requests["recomputes"].sum() + base.requests["swaps"].sum())
    return Counter(
        {
            "cases": 1,
            "with a preemption": int(preempted > 0),
            "with a swap": int(base.requests["swaps"].sum() > 0),
            "with prefix hits": int(base.requests["cached_tokens"].sum() > 0),
            "with samples": int(max(case.trace.n.max(), case.trace.beam_width.max()) > 1),
            "with two batches in flight": int(bool(case.options.get("async_scheduling"))),
            "with retracted requests": int(preempted > 0 and case.options["policy"] == "sglang"),
            "with paused requests": int(preempted > 0 and case.options["policy"] == "trtllm"),
            "with drafts": int("speculation" in base.counts),
            "with drafts of an only token": int(
                "speculation" in base.counts and (case.trace.prompt_tokens == 1).sum() > 1
            ),
            "with windows in larger blocks": int(case.options.get("model") == str(UNEQUAL)),
            "with a pool of windows": int(case.options.get("model") == str(WINDOWS)),
            "with a pool of states": int(case.options.get("model") == str(STATES)),
            "in a closed loop": int("due_s" in base.requests),
            "with a chain of tiers": int("tiers" in base.counts and "tiers" in case.options),
            "loads over several links": int(_loads_deep(base.counts)),
            "with aborts": int((base.requests["status"] == "aborted").any()),
            "iterations": len(base.steps),
        }
    )


def main() -> None:
    """Check as many cases as were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1, help="of the first case; the others follow")
    parser.add_argument("--policy", choices=sorted(set(POLICIES)), help="pass all others over")
    chosen = parser.parse_args()
    total: Counter[str] = Counter()
    for seed in range(chosen.seed, chosen.seed + chosen.count):
        if chosen.policy not in (None, policy_of(seed)):
            continue
        try:
            total += check(seed)
        except AssertionError as error:
            sys.exit(str(error))
        except Exception as error:
            raise RuntimeError(f"seed {seed}: {random_case(seed).options}") from error
    print("\n".join(f"{name}: {number}" for name, number in total.items()))


if __name__ == "__main__":
    main()
