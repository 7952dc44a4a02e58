"""Where a GPU's memory goes under vLLM, and how many requests fit, without a trace."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from pagesim.api import run
from pagesim.errors import PagesimError
from pagesim.hardware.gpus import GIB
from pagesim.models import model
from pagesim.scheduling.data_parallel_options import OF_RANKS
from pagesim.scheduling.vllm_releases import RELEASES
from pagesim.scheduling.vllm_v1_options import VllmV1Options
from pagesim.setup.block_plans import (
    block_plan,
    check_cache_bytes,
    check_graphs,
    check_longest,
    pipeline_stages,
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
    """A part of a GPU's memory: what for, how many bytes, and how that is known."""

    name: str
    bytes: int
    known: str


class StagePlan(NamedTuple):
    """A stage of a pipeline.

    Attributes:
        layers: that it has.
        weights: bytes of them on each of its GPUs; None where they are not looked at.
        cache_bytes: what is left for the cache there.
        block_bytes: of a block there.
        blocks: that would fit if it were the only stage.
    """

    layers: int
    weights: int | None
    cache_bytes: int
    block_bytes: int
    blocks: int


@dataclass(frozen=True)
class Plan:
    """The memory of an engine of vLLM before it has served anything.

    Args:
        system: what serves.
        settled: the options that decide, those left out as the release's server takes them.
        memory: bytes of each GPU.
        requested: bytes of it that the engine may use.
        division: what each GPU's memory is for, estimated; None where ``cache_bytes`` was given. In a
            pipeline a GPU's of the stage with the fewest blocks.
        cache_bytes: what is left for the cache on each GPU, or on each of that stage.
        sized: the cache that fits, the null block included.
        blocks: its blocks, and the groups of layers that take them.
        keeps_all: whether all layers keep every token, and all of them alike.
        notes: what to know of the model's numbers.
        weights_are: how far to trust the bytes of the weights (`ModelSpec.weights_are`).
        blocks_of_ranks: the blocks of each data-parallel rank, the null block included, ``[R]``; all else is
            of the first one, which has the most experts.
        experts: on each GPU, rank after rank, where they are divided otherwise than all else; else empty.
        stages: those of a pipeline, or the only one.
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
        """How many longest requests the scheduler runs side by side to their ends, preempting none.

        With drafts, whose steps cannot be taken together, how many could by what each holds in the end.
        """
        most = min((self.blocks.num_blocks - 1) // self.blocks.least_blocks, self.settled["max_num_seqs"])
        return most if self.is_bound else _at_once(self.system, self.blocks, most)

    @property
    def is_bound(self) -> bool:
        """Whether ``at_once`` was not replayed."""
        return "drafts" in self.settled

    @property
    def parts(self) -> tuple[MemoryPart, ...]:
        """Where each GPU's memory goes; the parts make up all of it, but for what is less than a block."""
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
        """The "GPU KV cache size"."""
        return self.tokens_in(self.sized.num_blocks)

    def tokens_in(self, num_blocks: int) -> int:
        """Return the "GPU KV cache size" of so many blocks."""
        if RELEASES[self.settled["vllm_version"]].prints_whole_requests:
            return self.blocks.holding(num_blocks).tokens
        return num_blocks * self.sized.block_size

    @property
    def concurrency(self) -> float:
        """The "Maximum concurrency for ``max_model_len`` tokens per request"."""
        return self.blocks.concurrency

    @property
    def off_by(self) -> tuple[int, float, float] | None:
        """How far the estimate is off on posted start-up logs of such models (`division.POSTED`)."""
        if self.division is None:
            return None
        return POSTED[bool(model(self.system.model).tower) and not self.system.language_model_only]

    @property
    def tokens_of_ranks(self) -> int:
        """The tokens that the caches of all data-parallel ranks hold together."""
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
        """Return all of it, for JSON."""
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
        """Return what is of several engines, and of experts that are divided otherwise than all else."""
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
    """Plan the memory of a system of policy ``vllm-v1``, and count the requests that fit.

    Args:
        system: what serves; its cost model is not looked at.
        cache_bytes: what the engine's log says is left for the cache on each GPU, instead of the estimate.
        enforce_eager: whether no CUDA graphs are captured.
        full_graphs: whether those that are captured hold a whole iteration, as by default.

    Raises:
        CapacityError: the model does not fit, the cache cannot hold one request of the longest length, or
            there are more sequences than the engine starts with.
        PagesimError: an option is off.
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
    if full_graphs and not enforce_eager:
        check_graphs(options, blocks)
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
        **options.model_dump(include={"data_parallel_size", "enable_expert_parallel"}, exclude_none=True),
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
    """Return the blocks of each data-parallel rank; those whose GPUs have fewer experts have more."""
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
    """Return the fewest and the most blocks of a cache whose GiB are these in a log, with two decimals."""
    least, most = (int((available_gib + change) * GIB) // block_bytes for change in (-0.005, 0.005))
    return least, most


def rule_of(group: BlockGroup) -> str:
    """Return by what rule a group keeps blocks, and of what layers it is if they have another one."""
    size = getattr(group.rule, "window", None) or getattr(group.rule, "chunk", None)
    others = [kind for kind in dict.fromkeys(layer.kind for layer in group.layers) if kind != group.kind]
    return " ".join([group.kind, *([f"{size:,}"] if size else []), *(f"and {kind}" for kind in others)])


def _at_once(system: System, blocks: BlockPlan, most: int) -> int:
    """Return how many of at most so many longest requests run side by side to their ends, none preempted.

    They are replayed: all arrive at once with a prompt of one token, so that all grow in step, and together
    hold the most that they ever can. What an iteration takes does not matter.
    """
    alone = dict.fromkeys(("data_parallel_size", *OF_RANKS))
    memory = system.model_copy(update={**alone, "num_blocks": blocks.num_blocks, "cost": "affine:0.01,0,0"})

    def preempts(number: int) -> bool:
        requests = Trace(
            arrival_s=np.zeros(number),
            prompt_tokens=np.ones(number, np.int64),
            output_tokens=np.full(number, blocks.max_model_len - 1),
        )
        return bool(run(memory, requests, steps="none").summary["preemptions"]["recompute"])

    # No more can be there than hold, in the end, what they must; hardly fewer run, so look downwards, farther
    # each time, and then between. A window's worst case, as in the concurrency, is no bound.
    run_on, too_many, step = most, most + 1, 1
    while run_on and preempts(run_on):
        too_many, run_on, step = run_on, max(0, run_on - step), 2 * step
    return run_on + bisect_left(range(run_on + 1, too_many), True, key=preempts)
