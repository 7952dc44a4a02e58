"""Compares engines on one load at saturation, on equal terms and on each engine's own terms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from typing import Any, Literal

import numpy as np

from pagesim.accounting.metrics import STRICT_ENTRIES
from pagesim.errors import CapacityError, PagesimError
from pagesim.models import model
from pagesim.results.result import Result
from pagesim.setup.comparison import each_policy
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.presets import BLOCK_SIZE, parts_of
from pagesim.setup.registry import SCHEDULERS
from pagesim.setup.system import System
from pagesim.workloads.trace import Trace

POLICIES = (
    *("vllm-v1", "sglang", "trtllm", "trtllm-max-util", "lightllm"),
    *("vllm-sosp", "orca-max", "orca-pow2", "orca-oracle"),
)
"""Current engines, and the systems of the PagedAttention paper."""

CROWD = 2
"""Number of clients per request of mean length that the first engine's cache holds."""

NO_TIME = "overhead_s=0,sequence_s=0"
"""Options of a cost model with which an engine's loop takes no time."""

Sizing = Literal["same", "own"]
Loop = Literal["none", "own"]

TERMS: tuple[tuple[Sizing, Loop], ...] = (("same", "none"), ("same", "own"), ("own", "none"), ("own", "own"))
"""Whether an engine has the first engine's KV bytes or its own, and whether its loop takes time.

With the same bytes, memory limits the number of running sequences instead of an engine's own limit, unless
``max_num_seqs`` is given.
"""


def serve_engines(
    system: System, trace: Trace, policies: Sequence[str] = POLICIES, *, clients: int | None = None
) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    """Yield a row and notes of each engine on each of the `TERMS`; clients send when answers arrive.

    If an engine does not start on its own terms, its row has only ``policy``, ``sizing`` and ``loop``, and a
    note with the reason. Means are over the time while requests wait. Each ``_percent`` of an entry of the
    strict view is a share of the cache. ``repeated_percent`` is the share of computed tokens that were
    recomputed after preemptions and retractions. ``hit_percent`` is the share of prompt tokens that hit in
    the cache when requests were first admitted.

    Args:
        system: model, GPU, cost and other common options; its policy and number of blocks are ignored.
            Without ``max_model_len``, it is the least power of two that fits every request.
        trace: requests, sent in their order; their arrival times are ignored.
        policies: names of policies; the first one determines the cache size on equal terms.
        clients: number of clients; None for twice the requests of mean length in the first engine's cache.

    Raises:
        PagesimError: a policy is unknown, an option is invalid, or the cost has no loop to leave out.
    """
    from pagesim.api import run  # the command's help needs no engine

    if system.cost.startswith("affine"):
        raise PagesimError(
            f"cost is {system.cost!r}; auto, a profile or roofline is needed, for engines' own times"
        )
    base = system.model_copy(
        update={
            "num_blocks": None,
            "cpu_blocks": None,
            "sizing": None,
            "max_concurrency": 1,
            "max_model_len": system.length or _longest(system, trace),
        }
    )
    first = base.model_copy(update={"policy": policies[0]})
    slots = _slots(run(first, trace.take(slice(0, 1)), steps="none"))
    trace = trace.with_columns({"arrival_s": np.zeros(len(trace))})
    sent = clients or ceil(CROWD * slots / float(np.mean(trace.prompt_tokens + trace.output_tokens)))
    base = base.model_copy(update={"max_concurrency": sent})
    terms = {"num_blocks": slots // BLOCK_SIZE, "max_num_seqs": base.option("max_num_seqs") or sent}
    same = each_policy(base.model_copy(update=terms), policies)
    own = {policy: each_policy(base, [policy])[policy] for policy in policies}
    for sizing, loop in TERMS:
        for policy in policies:
            one = _taking_long_prompts((same if sizing == "same" else own)[policy])
            if loop == "none":
                one = one.model_copy(update={"cost": one.cost + ("," if ":" in one.cost else ":") + NO_TIME})
            try:
                result = run(one, trace, steps="iterations")
            except CapacityError as error:
                terms_alone = {"policy": policy, "sizing": sizing, "loop": loop}
                yield terms_alone, (f"{policy}: {error}",)
                continue
            yield _served(policy, sizing, loop, result), result.notes


def _longest(system: System, trace: Trace) -> int:
    asked = int((trace.prompt_tokens + trace.output_tokens).max())
    return min(1 << (asked - 1).bit_length(), model(system.model).max_model_len)


def _taking_long_prompts(system: System) -> System:
    """Return a system that accepts the longest prompt: chunked if its engine can, else in one iteration."""
    parts = parts_of(system.policy, system.scheduler, system.reservation, system.allocator)
    options = SCHEDULERS.find(parts.scheduler).Options.model_fields
    if "enable_chunked_prefill" in options:
        chunks = system.option("enable_chunked_prefill")
        return system.model_copy(update={"enable_chunked_prefill": True if chunks is None else chunks})
    if "max_num_batched_tokens" not in options:
        return system
    least = max(options["max_num_batched_tokens"].default, system.length or 0)
    most = system.option("max_num_batched_tokens") or least
    return system.model_copy(update={"max_num_batched_tokens": most})


def _slots(result: Result) -> int:
    """Return the number of token slots of a run's cache."""
    memory = result.summary["memory"]
    return int(memory["num_blocks"]) * int(memory["block_size"])


def _served(policy: str, sizing: Sizing, loop: Loop, result: Result) -> dict[str, Any]:
    steps, requests, summary = result.steps, result.requests, result.summary
    assert steps is not None
    full = steps[(steps["num_waiting"] > 0) & (steps["num_batched_tokens"] > 0)]
    if not len(full):
        raise PagesimError(f"under {policy} no request waits: more clients are needed")
    slots, weights = _slots(result), full["step_s"].to_numpy()
    entries = [entry for entry in STRICT_ENTRIES if entry in full]
    served = requests[requests["status"] == "finished"]
    computed = int(steps["num_batched_tokens"].sum())
    # The last token of a request is never an input.
    once = int((served["prompt_tokens"] + served["output_tokens"] - 1 - served["cached_tokens"]).sum())
    tokens = model(result.scenario.model).kv_bytes_per_token(
        EngineConfig(result.scenario).kv_dtype, result.scenario.tensor_parallel_size
    )
    return {
        "policy": policy,
        "sizing": sizing,
        "loop": loop,
        "kv_gib": slots * tokens / (1 << 30),
        "batch": float(np.average(full["num_running_seqs"], weights=weights)),
        "finished": len(served),
        "preempted": sum(summary["preemptions"].values()),
        "repeated_percent": 100 * (computed - once) / computed,
        "hit_percent": 100 * float(served["cached_tokens"].sum() / max(1, served["prompt_tokens"].sum())),
        "tokens_per_s": float(summary["throughput"]["tokens_per_s"]),
        **{f"{name}_{at}_s": summary[name][at] for name in ("ttft", "tpot") for at in ("p50", "p99")},
        **{f"{e}_percent": float(100 * np.average(full[e], weights=weights) / slots) for e in entries},
    }
