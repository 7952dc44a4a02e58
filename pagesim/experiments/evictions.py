"""Compares eviction policies on one trace at each capacity, with the upper bound of their hits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from pagesim.api import run
from pagesim.costs import CostModel, step_shape
from pagesim.eviction import EVICTION_POLICIES, OFFLINE, CacheView, PrefixCache
from pagesim.experiments.prompt_blocks import PromptBlocks
from pagesim.kvcache.tiers.names import tier_name
from pagesim.models import ModelSpec
from pagesim.setup.system import System
from pagesim.sim.clock import TICKS_PER_SECOND
from pagesim.workloads.trace import Trace

BOUND = "bound"
"""Row for Belady's bound, in which a block need not be cached."""

Seconds = Callable[[int, int], float]
"""Returns the seconds to compute a prompt, given its tokens and how many of them hit."""


def recompute_weights(model: ModelSpec, prompts: PromptBlocks) -> list[float]:
    """Return the FLOPs to recompute each block, relative to those of its linear layers: ``[blocks]``.

    With B tokens per block, a block after d others costs 1 + a·(d + ½), where a is attention's FLOPs for B
    pairs divided by the linear layers' FLOPs for one token.

    Args:
        model: model whose FLOPs to count.
        prompts: prompts that the blocks belong to.
    """
    linear = sum(model.flops_by_compute.values())
    ratio = model.prefill_attention_flops_per_pair * prompts.tokens / linear
    return [1 + ratio * (depth + 0.5) for depth in prompts.depth]


def prefill_seconds(cost: CostModel) -> Seconds:
    """Return a function for the seconds of a prompt that is alone on its GPUs, in one iteration.

    The prompt's last token, which gives the first output token, is always computed.

    Args:
        cost: cost model of the model on its GPUs.
    """
    known: dict[tuple[int, int], float] = {}

    def seconds(prompt: int, found: int) -> float:
        found = min(found, prompt - 1)
        if (prompt, found) not in known:
            shape = step_shape(0, 0, prompt=prompt - found, history=found)
            known[prompt, found] = cost.iteration(shape) / TICKS_PER_SECOND
        return known[prompt, found]

    return seconds


def compare_policies(
    prompts: PromptBlocks,
    policies: Sequence[str],
    capacities: Sequence[int],
    weights: Sequence[float],
    *,
    seconds: Seconds | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one row per policy, and one for the bound, at each capacity.

    Prompts are served one after another, as if each request finished before the next one arrives. So only
    the order of requests matters, and time only for retention that expires.

    Columns: ``policy``; ``capacity_blocks``, ``capacity_tokens`` and ``capacity_pct`` of distinct content;
    ``hits`` (blocks) and ``hit_pct`` of prompt tokens; ``of_bound_pct`` and ``of_unlimited_pct``, relative to
    the hits of the bound and of an unlimited cache; ``evictions``; ``not_cached``, blocks that found no room;
    ``recomputed_pct``, FLOPs of the full blocks computed, relative to those of all; ``ttft_saved_s``, mean
    over requests. The bound is not known block by block, so its last four are None.

    Args:
        prompts: prompts of a trace.
        policies: names of `EVICTION_POLICIES`.
        capacities: capacities in blocks.
        weights: FLOPs to recompute each block, see `recompute_weights`.
        seconds: seconds of a prompt; if omitted, ``ttft_saved_s`` is None.

    Raises:
        PagesimError: a policy does not exist.
    """
    future, tokens = prompts.future, sum(prompts.prompt_tokens)
    all_flops = sum(weights[block] for blocks in future.blocks for block in blocks)
    for capacity in capacities:
        bound = future.hits(capacity)

        def row(policy: str, hits: int, capacity: int = capacity, bound: int = bound) -> dict[str, Any]:
            return {
                "policy": policy,
                "capacity_blocks": capacity,
                "capacity_tokens": capacity * prompts.tokens,
                "capacity_pct": 100 * capacity / max(1, future.distinct),
                "hits": hits,
                "hit_pct": 100 * hits * prompts.tokens / tokens,
                "of_bound_pct": 100 * hits / bound if bound else None,
                "of_unlimited_pct": 100 * hits / future.possible_hits if future.possible_hits else None,
                **dict.fromkeys(("evictions", "not_cached", "recomputed_pct", "ttft_saved_s")),
            }

        for name in policies:
            cache = _cache(name, capacity, prompts, weights)
            hits, computed, saved = 0, 0.0, 0.0
            for at, (blocks, found) in enumerate(zip(future.blocks, _served(prompts, cache), strict=True)):
                hits += found
                computed += sum([weights[block] for block in blocks[found:]])
                if seconds is not None and found:
                    prompt = prompts.prompt_tokens[at]
                    saved += seconds(prompt, 0) - seconds(prompt, found * prompts.tokens)
            yield row(name, hits) | {
                "evictions": cache.evictions,
                "not_cached": cache.not_cached,
                "recomputed_pct": 100 * computed / all_flops if all_flops else None,
                "ttft_saved_s": None if seconds is None else saved / len(future.blocks),
            }
        yield row(BOUND, bound)


def evicted_blocks(
    prompts: PromptBlocks, policy: str, capacity: int, weights: Sequence[float]
) -> npt.NDArray[np.int64]:
    """Return which request evicts whose block, one row per eviction in order: ``[evictions, 3]``.

    The columns are the request that caused the eviction, the last one that used the block, and the next one
    that asks for it (-1 for none).

    Args:
        prompts: prompts of a trace; requests are numbered in order of arrival.
        policy: name in `EVICTION_POLICIES`.
        capacity: capacity in blocks.
        weights: FLOPs to recompute each block.
    """
    future = prompts.future
    used: dict[int, tuple[int, float]] = {}  # last and next request of each block
    rows = []
    cache = _cache(policy, capacity, prompts, weights)
    for at, _ in enumerate(_served(prompts, cache)):
        for block in cache.victims:
            last, following = used[block]
            rows.append((at, last, -1 if following == inf else int(following)))
        used.update(
            (block, (at, following))
            for block, following in zip(future.blocks[at], future.following[at], strict=True)
        )
    return np.array(rows, np.int64).reshape(-1, 3)


def _cache(policy: str, capacity: int, prompts: PromptBlocks, weights: Sequence[float]) -> PrefixCache:
    view = CacheView(capacity, prompts.depth, weights)
    return PrefixCache(view, EVICTION_POLICIES.make(policy, lambda kind: kind(view)))


def _served(prompts: PromptBlocks, cache: PrefixCache) -> Iterator[int]:
    """Serve one prompt after another, and yield the number of block hits of each."""
    view, future = cache.view, prompts.future
    for at, blocks in enumerate(future.blocks):
        view.now = prompts.arrival_s[at]
        if prompts.priority is not None:
            view.priority = prompts.priority[at]
        yield cache.serve(blocks, future.following[at])


def serve_policies(
    system: System, trace: Trace, policies: Sequence[str], capacity: int
) -> Iterator[dict[str, Any]]:
    """Yield one row per policy, used for a tier beneath a device that runs vLLM v1.

    Columns: ``policy``; ``engine_hit_pct``, the share of scheduled requests' prompt tokens that hit on the
    device or in the tier; ``engine_ttft_s``, the mean.

    Args:
        system: system whose policy and tiers are replaced; its device evicts prefixes in vLLM's own order.
        trace: trace to replay each time, with its arrivals.
        policies: names of `EVICTION_POLICIES`; offline policies are skipped.
        capacity: bytes of the tier.

    Raises:
        PagesimError: an option is invalid.
    """
    for name in policies:
        if name in OFFLINE:
            continue
        tier = f"host:{capacity}B:{tier_name(name)}"
        update = {"policy": "vllm-v1", "enable_prefix_caching": True, "tiers": [tier]}
        summary = run(system.model_copy(update=update), trace, steps="none").summary
        yield {
            "policy": name,
            "engine_hit_pct": 100 * (summary["prefix"]["share"] or 0.0),
            "engine_ttft_s": summary["ttft"]["mean"],
        }
