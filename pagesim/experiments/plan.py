"""How a GPU's memory is used under vLLM, and how many requests fit, without a trace."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from pagesim.api import run
from pagesim.errors import CapacityError, PagesimError
from pagesim.hardware.gpus import GIB
from pagesim.models import model
from pagesim.scheduling.data_parallel_options import OF_BALANCER, OF_RANKS
from pagesim.scheduling.vllm_releases import RELEASES
from pagesim.scheduling.vllm_v1_options import VllmV1Options
from pagesim.setup.block_plans import (
    block_plan,
    check_cache_bytes,
    check_longest,
    pipeline_stages,
    refused_graphs,
)
from pagesim.setup.data_parallel import experts_on_each_gpu, ranks_of
from pagesim.setup.engine_config import EngineConfig
from pagesim.setup.notes import kernel_notes, kv_notes
from pagesim.setup.system import System
from pagesim.sizing import BlockGroup, BlockPlan, Capacity, Division, divide
from pagesim.sizing.division import POSTED, requested_bytes
from pagesim.workloads.trace import Trace

POLICY = "vllm-v1"


class MemoryPart(NamedTuple):
    """A part of a GPU's memory: its use, its size in bytes, and how the size is known."""

    name: str
    bytes: int
    known: str


class StagePlan(NamedTuple):
    """A stage of a pipeline.

    Attributes:
        layers: number of layers.
        weights: bytes of their weights on each of its GPUs; None if not computed.
        cache_bytes: bytes left for the cache on each of its GPUs.
        block_bytes: bytes of a block on each of its GPUs.
        blocks: number of blocks that would fit if it were the only stage.
    """

    layers: int
    weights: int | None
    cache_bytes: int
    block_bytes: int
    blocks: int


@dataclass(frozen=True)
class Plan:
    """The memory of a vLLM engine before it has served any request.

    Args:
        system: the serving system.
        settled: relevant options, with the release's defaults for those that were not given.
        memory: bytes of each GPU.
        requested: bytes that the engine may use on each GPU.
        division: estimated use of each GPU's memory; None if ``cache_bytes`` was given. In a pipeline, that
            of a GPU in the stage with the fewest blocks.
        cache_bytes: bytes left for the cache on each GPU, in a pipeline on each GPU of that stage.
        sized: the cache that fits, including the null block.
        blocks: blocks of the cache, and the layer groups that use them.
        keeps_all: whether all layers keep every token, and in the same way.
        notes: notes on the model's numbers.
        weights_are: how reliable the bytes of the weights are (`ModelSpec.weights_are`).
        blocks_of_ranks: blocks of each data-parallel rank, including the null block, ``[R]``; all other
            attributes are of the first rank, which has the most experts.
        experts: experts on each GPU, rank by rank, if they are split differently from the rest; else empty.
        stages: stages of the pipeline, or the only one.
    """

    system: System
    settled: dict[str, Any]
    memory: int
    requested: int
    division: Division | None
    cache_bytes: int
    sized: Capacity
    blocks: BlockPlan
    keeps_all: bool
    notes: tuple[str, ...] = ()
    weights_are: str = "exact"
    blocks_of_ranks: tuple[int, ...] = ()
    experts: tuple[int, ...] = ()
    stages: tuple[StagePlan, ...] = ()

    @cached_property
    def at_once(self) -> int:
        """Number of longest requests that the scheduler can run concurrently without preemption.

        With speculative decoding, whose steps cannot be fast-forwarded, a bound from final block counts.
        """
        most = min((self.blocks.num_blocks - 1) // self.blocks.least_blocks, self.settled["max_num_seqs"])
        return most if self.is_bound else _at_once(self.system, self.blocks, most)

    @property
    def is_bound(self) -> bool:
        """Whether ``at_once`` is a bound rather than the result of a replay."""
        return "drafts" in self.settled

    @property
    def parts(self) -> tuple[MemoryPart, ...]:
        """The uses of each GPU's memory; they add up to all of it except for less than a block."""
        of = self.division
        rest = MemoryPart(
            "not requested", self.memory - self.requested, f"{self.memory / GIB:.2f} GiB in all"
        )
        if of is None and self.cache_bytes == self.system.kv_cache_memory_bytes:
            others = self.memory - self.cache_bytes
            return (
                MemoryPart("weights and all else", others, f"{self.memory / GIB:.2f} GiB in all"),
                MemoryPart("KV cache", self.cache_bytes, "as given"),
            )
        if of is None:
            used = MemoryPart(
                "weights and all else", self.requested - self.cache_bytes, "what the log leaves"
            )
            return rest, used, MemoryPart("KV cache", self.cache_bytes, "from the log")
        return (
            rest,
            MemoryPart("weights", of.weights, self.weights_are),
            *([MemoryPart("adapters", of.adapters, "exact")] if of.adapters else []),
            *([MemoryPart("drafter", of.drafter, "estimated")] if of.drafter else []),
            MemoryPart("activations", of.activations, "estimated"),
            MemoryPart("CUDA graphs", of.graphs, "estimated" if of.graphs else "none counted"),
            MemoryPart("other", of.other, "estimated"),
            MemoryPart("KV cache", self.cache_bytes, "what is left"),
        )

    @property
    def tokens(self) -> int:
        """The "GPU KV cache size", in tokens."""
        return self.tokens_in(self.sized.num_blocks)

    def tokens_in(self, num_blocks: int) -> int:
        """Return the "GPU KV cache size" of ``num_blocks`` blocks, in tokens."""
        if RELEASES[self.settled["vllm_version"]].prints_whole_requests:
            return self.blocks.holding(num_blocks).tokens
        return num_blocks * self.sized.block_size

    @property
    def concurrency(self) -> float:
        """The "Maximum concurrency for ``max_model_len`` tokens per request"."""
        return self.blocks.concurrency

    @property
    def off_by(self) -> tuple[int, float, float] | None:
        """Number of posted logs of such models, with their median and largest error (`division.POSTED`)."""
        if self.division is None:
            return None
        return POSTED[bool(model(self.system.model).tower) and not self.system.language_model_only]

    @property
    def tokens_of_ranks(self) -> int:
        """Tokens that the caches of all data-parallel ranks hold together."""
        return sum(self.tokens_in(blocks) for blocks in self.blocks_of_ranks)

    @property
    def log(self) -> tuple[str, ...]:
        """The lines of the engine's start-up log about its cache."""
        longest = self.settled["max_model_len"]
        return (
            f"Available KV cache memory: {self.cache_bytes / GIB:.2f} GiB",
            f"GPU KV cache size: {self.tokens:,} tokens",
            f"Maximum concurrency for {longest:,} tokens per request: {self.concurrency:.2f}x",
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the whole plan, for JSON."""
        return {
            "model": self.system.model,
            "gpu": self.system.gpu,
            "options": self.settled,
            "memory": {part.name.lower().replace(" ", "_") + "_bytes": part.bytes for part in self.parts},
            "known": {part.name.lower().replace(" ", "_"): part.known for part in self.parts},
            "block_size": self.sized.block_size,
            "block_bytes": self.sized.block_bytes,
            "num_blocks": self.sized.num_blocks,
            **({"stages": [each._asdict() for each in self.stages]} if len(self.stages) > 1 else {}),
            "groups": [self._of_group(group) for group in self.blocks.groups],
            "padding": self.blocks.padding,
            "blocks_per_request": self.blocks.most_blocks,
            "scheduler_block": self.blocks.scheduler_block,
            "hash_block": self.blocks.hash_block,
            "state_mode": self.blocks.state_mode,
            "tokens": self.tokens,
            "max_concurrency": self.concurrency,
            "at_once": self.at_once,
            "log": list(self.log),
            **self._of_ranks(),
            "off_by_gib_on_posted_logs": self.off_by
            and dict(zip(("logs", "median", "most"), self.off_by, strict=True)),
            "notes": list(self.notes),
        }

    def _of_ranks(self) -> dict[str, Any]:
        """Return entries for several engines and for experts that are split differently from the rest."""
        several = len(self.blocks_of_ranks) > 1
        return {
            **({"blocks_of_ranks": list(self.blocks_of_ranks)} if several else {}),
            **({"tokens_of_ranks": self.tokens_of_ranks} if several else {}),
            **({"experts_on_each_gpu": list(self.experts)} if self.experts else {}),
        }

    def _of_group(self, group: BlockGroup) -> dict[str, Any]:
        return {
            "kind": group.kind,
            "window": getattr(group.rule, "window", None),
            "chunk": getattr(group.rule, "chunk", None),
            "layers": len(group.layers),
            "block_size": group.block_size,
            "page_bytes": group.page_bytes,
            "bytes": group.bytes,
            "real_bytes": group.real_bytes,
            "padding": self.blocks.padding_of(group),
            "blocks_per_request": group.most_blocks,
        }


def plan(
    system: System,
    *,
    cache_bytes: int | None = None,
    enforce_eager: bool = False,
    full_graphs: bool = True,
) -> Plan:
    """Plan the memory of a system with policy ``vllm-v1``, and count the requests that fit.

    Args:
        system: the serving system; its cost model is ignored.
        cache_bytes: bytes left for the cache on each GPU according to the engine's log, not an estimate.
        enforce_eager: whether no CUDA graphs are captured.
        full_graphs: whether captured graphs contain a whole iteration, as by default.

    Raises:
        CapacityError: the model does not fit, the cache cannot hold one request of the maximum length, or
            there are more sequences than the engine starts with.
        PagesimError: an option is invalid.
    """
    changes: dict[str, Any] = {"sizing": "vllm"}
    if cache_bytes is not None:
        changes["kv_cache_memory_bytes"] = cache_bytes
    if enforce_eager:
        changes["max_cudagraph_capture_size"] = 0
    config = EngineConfig(system.model_copy(update=changes))
    options = config.options
    if not isinstance(options, VllmV1Options) or config.policy.allocator != "paged":
        raise PagesimError(f"policy is {system.policy}; a plan is one of vLLM's memory: choose {POLICY}")
    spec, device, blocks = config.model, config.gpu, block_plan(config)
    how, given = config.vllm_memory, config.system.kv_cache_memory_bytes
    enforce_eager |= options.max_cudagraph_capture_size == 0
    sized = config.capacity_of(blocks, None)
    blocks = blocks.holding(sized.num_blocks)
    check_longest(system, blocks)
    if cache_bytes is None:
        check_cache_bytes(config, sized)
    if full_graphs and not enforce_eager and (refusal := refused_graphs(options, blocks)):
        raise CapacityError(refusal)
    ranges = pipeline_stages(config)
    tp = system.tensor_parallel_size
    divisions = [divide(spec, device, how, tp=tp, layers=each) for each in ranges] if given is None else []
    lefts = [each.cache for each in divisions] if given is None else [given] * len(ranges)
    stages = tuple(
        [
            StagePlan(len(layers), of.weights if of else None, left, size, left // size if size else 0)
            for layers, of, left, size in zip_longest(ranges, divisions, lefts, blocks.stage_bytes)
        ]
    )
    speculation = options.speculation
    fewest = min(range(len(stages)), key=lambda stage: stages[stage].blocks)
    settled = {
        "tensor_parallel_size": tp,
        **options.model_dump(
            include={"data_parallel_size", "enable_expert_parallel", *OF_BALANCER}, exclude_none=True
        ),
        **({"pipeline_parallel_size": len(stages)} if len(stages) > 1 else {}),
        **({"weight_dtype": spec.weights_in_words} if spec.has_weights else {}),
        "kv_cache_dtype": config.kv_dtype,
        **(
            {"gpu_memory_utilization": how.gpu_memory_utilization}
            if system.kv_cache_memory_bytes is None
            else {"kv_cache_memory_bytes": system.kv_cache_memory_bytes}
        ),
        "max_model_len": blocks.max_model_len,
        **options.model_dump(include={"vllm_version", "max_num_batched_tokens", "max_num_seqs"}),
        **({} if speculation is None else {"drafts": f"{speculation.tokens} by {speculation.drafter}"}),
        "enforce_eager": enforce_eager,
        **({} if system.flashinfer_sampler else {"flashinfer_sampler": False}),
    }
    if not spec.keeps_all:
        settled |= options.model_dump(
            include={"enable_prefix_caching", "async_scheduling", "disable_hybrid_kv_cache_manager"},
            exclude_none=True,
        )
    return Plan(
        system=system,
        settled=settled,
        memory=device.memory_bytes,
        requested=requested_bytes(device, how.gpu_memory_utilization),
        division=divisions[fewest] if divisions else None,
        cache_bytes=lefts[fewest],
        sized=sized,
        blocks=blocks,
        keeps_all=spec.keeps_all,
        notes=(*spec.notes, *kv_notes(config), *kernel_notes(config)),
        weights_are=spec.weights_are,
        blocks_of_ranks=tuple(_blocks_of_ranks(config, blocks)),
        experts=tuple(experts_on_each_gpu(spec, system.tensor_parallel_size)),
        stages=stages,
    )


def _blocks_of_ranks(config: EngineConfig, blocks: BlockPlan) -> list[int]:
    """Return the blocks of each data-parallel rank; ranks with fewer experts per GPU have more."""
    found: dict[tuple[int, int], int] = {}
    each = []
    for rank in range(ranks_of(config.system)):
        of_rank = replace(config, rank=rank)
        held = of_rank.model.expert_shares(config.system.tensor_parallel_size)
        if held not in found:
            found[held] = of_rank.capacity_of(blocks, None).num_blocks
        each.append(found[held])
    return each


def blocks_behind(available_gib: float, block_bytes: int) -> tuple[int, int]:
    """Return the fewest and most blocks of a cache with this size in a log, in GiB with two decimals."""
    least, most = (int((available_gib + change) * GIB) // block_bytes for change in (-0.005, 0.005))
    return least, most


def rule_of(group: BlockGroup) -> str:
    """Return a group's rule for keeping blocks, followed by other kinds of layers in the group."""
    size = getattr(group.rule, "window", None) or getattr(group.rule, "chunk", None)
    others = [kind for kind in dict.fromkeys(layer.kind for layer in group.layers) if kind != group.kind]
    return " ".join([group.kind, *([f"{size:,}"] if size else []), *(f"and {kind}" for kind in others)])


def _at_once(system: System, blocks: BlockPlan, most: int) -> int:
    """Return how many longest requests, up to ``most``, run concurrently without preemption.

    They are replayed. All arrive at once with prompts of one token, so that they grow in lock-step and reach
    the largest total that they can ever hold. Durations of iterations do not matter.
    """
    alone = dict.fromkeys(("data_parallel_size", *OF_RANKS, *OF_BALANCER))
    memory = system.model_copy(update={**alone, "num_blocks": blocks.num_blocks, "cost": "affine:0.01,0,0"})

    def preempts(number: int) -> bool:
        requests = Trace(
            arrival_s=np.zeros(number),
            prompt_tokens=np.ones(number, np.int64),
            output_tokens=np.full(number, blocks.max_model_len - 1),
        )
        return bool(run(memory, requests, steps="none").summary["preemptions"]["recompute"])

    # No more requests run than fit at their ends, and rarely many fewer. So search downwards with growing
    # steps, then bisect. A window's worst case, as in the concurrency, is not a bound.
    run_on, too_many, step = most, most + 1, 1
    while run_on and preempts(run_on):
        too_many, run_on, step = run_on, max(0, run_on - step), 2 * step
    return run_on + bisect_left(range(run_on + 1, too_many), True, key=preempts)
