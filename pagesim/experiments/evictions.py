"""Eviction policies beside each other on one trace, at each capacity, with the bound that none exceeds."""

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
"""Beside the policies: Belady's, where a block need not be cached."""

Seconds = Callable[[int, int], float]
"""Seconds to compute a prompt of so many tokens, of which so many are found."""


def recompute_weights(model: ModelSpec, prompts: PromptBlocks) -> list[float]:
    """Return of each block the FLOPs to compute it again, over those of its linear layers: ``[blocks]``.

    With B tokens a block, a block behind d others takes 1 + a·(d + ½), where a is attention's FLOPs over B
    pairs and the linear layers' over one token.

    Args:
        model: whose FLOPs they are.
        prompts: whose blocks.
    """
    linear = sum(model.flops_by_compute.values())
    ratio = model.prefill_attention_flops_per_pair * prompts.tokens / linear
    return [1 + ratio * (depth + 0.5) for depth in prompts.depth]


def prefill_seconds(cost: CostModel) -> Seconds:
    """Return what computes the seconds of a prompt that is alone on its GPUs, in one iteration.

    The token that gives the first one of the output is computed in any case.

    Args:
        cost: of the model on its GPUs.
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
    """Yield a row of each policy and of the bound at each capacity.

    Prompts are served one after another, so nothing depends on time but what ends: a policy sees what a
    scheduler would show it if each request were over before the next one came.

    Columns: ``policy``; ``capacity_blocks``, ``capacity_tokens`` and ``capacity_pct`` of all different
    content; ``hits`` (blocks) and ``hit_pct`` of prompt tokens; ``of_bound_pct`` and ``of_unlimited_pct`` of
    the hits there; ``evictions``; ``not_cached``, blocks for which there was no room; ``recomputed_pct``,
    FLOPs of the full blocks that were computed, over those of all; ``ttft_saved_s``, the mean over requests.
    What the bound would do block by block is not known, and its last four are None.

    Args:
        prompts: of a trace.
        policies: names of `EVICTION_POLICIES`.
        capacities: blocks.
        weights: FLOPs to compute each block again, see `recompute_weights`.
        seconds: of a prompt; without, no time is saved.

    Raises:
        PagesimError: there is no such policy.
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
    """Return who evicts whom, a row a block in the order of eviction: ``[evictions, 3]``.

    Its columns are the request that had the block evicted, the last one that used it, and the next one that
    asks for it, or -1 where none does.

    Args:
        prompts: of a trace; requests are numbered in order of arrival.
        policy: a name of `EVICTION_POLICIES`.
        capacity: blocks.
        weights: FLOPs to compute each block again.
    """
    future = prompts.future
    used: dict[int, tuple[int, float]] = {}  # by block, its last request and its next
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
    """Serve prompt after prompt, and yield of each how many of its blocks were there."""
    view, future = cache.view, prompts.future
    for at, blocks in enumerate(future.blocks):
        view.now = prompts.arrival_s[at]
        if prompts.priority is not None:
            view.priority = prompts.priority[at]
        yield cache.serve(blocks, future.following[at])


def serve_policies(
    system: System, trace: Trace, policies: Sequence[str], capacity: int
) -> Iterator[dict[str, Any]]:
    """Yield a row of each policy, as that of a tier beside a device that runs vLLM v1.

    Columns: ``policy``; ``engine_hit_pct`` of the prompt tokens of requests that were scheduled, found on the
    device or in the tier; ``engine_ttft_s``, the mean.

    Args:
        system: whose policy and tiers are replaced; its device caches prefixes in vLLM's own order.
        trace: is replayed each time, with its arrivals.
        policies: names of `EVICTION_POLICIES`; those that know the future are left out.
        capacity: bytes of the tier.

    Raises:
        PagesimError: an option is off.
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
