"""Engine config: everything an engine starts with, derived once from the user's options."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pagesim.costs import CostModel, EngineTime, Target, engine_time, parse_cost
from pagesim.costs.engines import FrontEnd, front_end
from pagesim.errors import PagesimError
from pagesim.hardware import GpuSpec, TierSpec, gpu
from pagesim.hardware.gpu_spec import GIB
from pagesim.models import ModelSpec, model
from pagesim.models.layers import KV_DTYPE_BYTES
from pagesim.scheduling.core import Scheduler
from pagesim.scheduling.options import Machine, SchedulerOptions
from pagesim.scheduling.sglang import SglangOptions, most_running, static_fraction
from pagesim.scheduling.vllm_v1_options import VllmV1Options
from pagesim.setup.block_plans import (
    block_plan,
    check_cache_bytes,
    check_kv_dtype,
    check_longest,
    divided_over,
    fitting_length,
    pipeline_stages,
    type_plan,
)
from pagesim.setup.data_parallel import divided_experts
from pagesim.setup.drafting import Drafting, drafting_of
from pagesim.setup.kv_dtypes import DEFAULT_KV_DTYPE, default_kv_dtype, is_sglang, kept_by_sglang
from pagesim.setup.offload import tier_specs, with_chunks
from pagesim.setup.pool_plans import check_chunk, pool_plan
from pagesim.setup.presets import BLOCK_SIZE, PAGE_BYTES, Policy, options_of, parts_of
from pagesim.setup.registry import SCHEDULERS
from pagesim.setup.system import MOST_BLOCKS, System
from pagesim.sizing import BlockPlan, Capacity, MemoryOptions, PoolPlan, StatePlan, TypePlan, capacity
from pagesim.sizing.activations import Images
from pagesim.sizing.adapters import Adapters
from pagesim.sizing.kv_blocks import KVBlock, Plan, Sizing, cache_of, kv_block


@dataclass(frozen=True)
class EngineConfig:
    """What the engine of a system starts with. Properties are derived on demand; most are cached.

    Args:
        system: the options as the user gave them.
        other_cost: cost model of iterations, replacing the one that the system names.
        rank: data-parallel rank of the engine.

    Raises:
        CapacityError: by any property: the model or its longest request does not fit.
        PagesimError: by any property: an option is invalid, or the engine would not start with it.
    """

    system: System
    other_cost: CostModel | None = None
    rank: int = 0

    @cached_property
    def policy(self) -> Policy:
        """The policy: scheduler, reservation and allocator, by name."""
        system = self.system
        return parts_of(system.policy, system.scheduler, system.reservation, system.allocator)

    @cached_property
    def scheduler(self) -> type[Scheduler]:
        """The scheduler's class."""
        return SCHEDULERS.find(self.policy.scheduler)

    @cached_property
    def model(self) -> ModelSpec:
        """The model, with the released weights or with weights in the given ``weight_dtype``."""
        spec, dtype = model(self.system.model), self.system.weight_dtype
        spec = spec if dtype is None else spec.with_weights(dtype)
        spec = divided_experts(spec, self.system, self.rank)
        return kept_by_sglang(self, spec) if is_sglang(self.system) else spec

    @cached_property
    def gpu(self) -> GpuSpec:
        """The GPU."""
        return gpu(self.system.gpu)

    @property
    def capability(self) -> int | None:
        """Compute capability of the GPU, times ten; None if no GPU is named or it is not known."""
        return self.gpu.capability if "gpu" in self.system.model_fields_set else None

    @property
    def tp(self) -> int:
        """GPUs over which attention and its cache are divided: one rank's under SGLang's attention DP."""
        return self.system.tensor_parallel_size // (self.system.option("attn_dp_size") or 1)

    @property
    def length_asked(self) -> int:
        """Requested length of the longest request, in tokens; the model's own if left out or ``auto``."""
        return self.system.length or self.model.max_model_len

    @cached_property
    def max_model_len(self) -> int:
        """Tokens of the longest request."""
        if self.system.max_model_len == "auto":
            return fitting_length(self)
        return self.length_asked

    @cached_property
    def kv_dtype(self) -> str:
        """Data type of the KV cache, a key of `KV_DTYPE_BYTES`: as given, or the checkpoint's."""
        return self.system.kv_cache_dtype or default_kv_dtype(self)

    @cached_property
    def machine(self) -> Machine:
        """What the engine knows at startup in addition to its options."""
        return Machine(
            self.gpu.name,
            self.gpu.memory_bytes,
            self.length_asked,
            tp=self.system.tensor_parallel_size,
            listed_mib=self.gpu.listed_mib or 0,
            model=self.system.model,
            latent=self.model.mla is not None,
            mtp_modules=len(self.model.mtp or ()),
            has_states=self.model.state_layers > 0,
            images=self.model.sglang_images,
        )

    @cached_property
    def given_options(self) -> SchedulerOptions:
        """The scheduler options that were given, and those that the policy fixes."""
        given = self.system.scheduler_options
        if given.get("tiers") and "tiers" not in self.scheduler.Options.model_fields:
            raise PagesimError(
                f"tiers is {' '.join(given['tiers'])}; scheduler {self.policy.scheduler} stores nothing in "
                "tiers: choose policy vllm-v1, or, for the paper's swap space, preemption swap with "
                "cpu_blocks under vllm-sosp"
            )
        return options_of(self.policy, given)

    @cached_property
    def options(self) -> SchedulerOptions:
        """The scheduler options, with the engine's defaults for those left out."""
        return self.scheduler.resolve(self.given_options, self.machine)

    @cached_property
    def sized_options(self) -> SchedulerOptions:
        """The options once memory is sized: a tier's chunks for its size, and running requests that fit."""
        options = self.options
        if isinstance(options, SglangOptions) and isinstance(plan := self.capacity.plan, StatePlan):
            most = most_running(options, self.capacity.slots, self.max_model_len)
            most = min(most, plan.most_running) * options.attn_dp_size  # that of a rank
            return options.model_copy(update={"max_running_requests": most})
        return with_chunks(options, self.capacity) if self.offloads else options

    @property
    def offloads(self) -> bool:
        """Whether the engine stores KV in tiers besides the device."""
        return isinstance(self.options, VllmV1Options) and self.options.offloads

    @property
    def caches_in_tree(self) -> bool:
        """Whether the engine caches prefixes in a radix tree."""
        return isinstance(self.options, SglangOptions) and self.options.caches

    @property
    def sizing(self) -> Sizing:
        """The rule that sizes the KV cache if ``num_blocks`` is left out."""
        return self.system.sizing or self.scheduler.sizing

    @property
    def gpu_memory_utilization(self) -> float:
        """Fraction of GPU memory that the engine may use, under sizing vllm."""
        share = self.system.gpu_memory_utilization
        return self.scheduler.gpu_memory_utilization(self.given_options) if share is None else share

    @property
    def granularity(self) -> tuple[int, int | None]:
        """Token slots per block, and bytes per page if memory is mapped in pages (else None).

        The first number is unused if there are pages, or if ``blocks`` has its own block size.
        """
        policy, size, page = self.policy, self.system.block_size, self.system.page_size
        if isinstance(page, int):
            if not issubclass(self.scheduler.Options, SglangOptions):
                raise PagesimError(
                    f"page_size is {page}; tokens of a page are an option of sglang, not "
                    f"{policy.scheduler}: give block_size"
                )
            if size not in (None, page):
                raise PagesimError(
                    f"page_size is {page} and block_size {size}; under sglang they are one: leave one out"
                )
            size, page = page, None
        size = size or self.scheduler.default_block_size(self.machine)
        if policy.allocator == "virtual":
            if size is not None:
                raise PagesimError(
                    f"block_size is {size}; allocator virtual takes page_size instead: a block is what a "
                    "page in every tensor holds"
                )
            return BLOCK_SIZE, PAGE_BYTES[page or "2M"]
        if page is not None:
            raise PagesimError(f"page_size is for allocator virtual, not {policy.allocator}")
        if policy.block_size is not None and size not in (None, policy.block_size):
            raise PagesimError(
                f"block_size is {size}; it must be {policy.block_size} or left out: this policy is about "
                "blocks of that size"
            )
        return size or policy.block_size or policy.default_block_size or BLOCK_SIZE, None

    @cached_property
    def blocks(self) -> Plan | None:
        """The block plan, for a cache whose size is still open; None if all layers keep the same."""
        layout, options, spec = self.policy.layout, self.options, self.model
        if KV_DTYPE_BYTES[self.kv_dtype] < KV_DTYPE_BYTES[DEFAULT_KV_DTYPE]:
            check_kv_dtype(self)
        plain = spec.is_plain and not self.drafting.layers
        if plain and layout is None and divided_over(self) == len(pipeline_stages(self)) == 1:
            return None
        if isinstance(options, SglangOptions):
            return pool_plan(self, options)
        if isinstance(options, VllmV1Options):
            return block_plan(self) if layout is None else type_plan(self, layout)
        if not (spec.keeps_all or self.scheduler.serves_hybrids):
            raise PagesimError(
                f"layers of {spec.name} keep some tokens only; scheduler {self.policy.scheduler} is "
                "simulated for layers that keep all: choose another model, or policy vllm-v1"
            )
        return None

    @cached_property
    def drafting(self) -> Drafting:
        """How the engine drafts tokens."""
        return drafting_of(self)

    @cached_property
    def block(self) -> KVBlock:
        """A block of the cache on each GPU."""
        block_size, page_bytes = self.granularity
        return kv_block(
            self.model,
            block_size=block_size,
            page_bytes=page_bytes,
            kv_dtype=self.kv_dtype,
            tp=self.tp,
            sizing=self.sizing,
            plan=self.blocks,
            draft_layers=self.drafting.attending,
        )

    @property
    def offloaded_bytes(self) -> int:
        """Bytes of weights that each GPU reads from host memory (vLLM's ``--cpu-offload-gb``)."""
        return int((self.system.cpu_offload_gb or 0) * GIB)

    @property
    def vllm_memory(self) -> MemoryOptions:
        """The options that decide how much memory vLLM's rule gives the cache."""
        # A rule other than the engine's own uses its own defaults.
        own, system = self.sizing == self.scheduler.sizing == "vllm", self.system
        options = self.options if own else self.given_options
        return MemoryOptions(
            gpu_memory_utilization=self.gpu_memory_utilization,
            max_num_batched_tokens=getattr(options, "max_num_batched_tokens", None),
            max_num_seqs=getattr(options, "max_num_seqs", None),
            cuda_graphs=self.scheduler.counts_cuda_graphs(self.given_options),
            flashinfer_sampler=system.flashinfer_sampler,
            sampler_buffers=self.scheduler.keeps_sampler_buffers(self.given_options),
            drafter_bytes=self.drafting.weights,
            images=Images(not system.language_model_only, not system.skip_mm_profiling, system.max_pixels),
            offloaded=self.offloaded_bytes,
            adapters=Adapters(system.max_loras or 0, system.max_lora_rank),
        )

    @property
    def sglang_memory(self) -> dict[str, Any]:
        """The options that decide how much memory SGLang's rule gives the cache, as arguments of `capacity`.

        Empty if another rule sizes the cache, or the number of blocks is given.
        """
        options = self.options
        if not isinstance(options, SglangOptions) or not self._is_sized_by_sglang:
            return {}
        share = static_fraction(options, self.machine)
        return {"mem_fraction_static": share, "max_total_tokens": options.max_total_tokens}

    @property
    def _is_sized_by_sglang(self) -> bool:
        return self.sizing == "sglang" and self.system.num_blocks is None

    def _check_sizing(self) -> None:
        """Refuse options that belong to another sizing rule or another scheduler."""
        system, options = self.system, self.options
        if not isinstance(options, SglangOptions):
            if self.sizing == "sglang":
                raise PagesimError(
                    f"sizing is sglang, and scheduler {self.policy.scheduler} has none of the options that "
                    "it goes by: choose policy sglang, or sizing paper or vllm"
                )
            return
        if self.sizing == "sglang" and system.gpu_memory_utilization is not None:
            raise PagesimError(
                f"gpu_memory_utilization is {system.gpu_memory_utilization}; it is for sizing vllm, and "
                "SGLang has another share: give mem_fraction_static"
            )
        beside = f"num_blocks is {system.num_blocks}" if system.num_blocks else f"sizing is {self.sizing}"
        for name in () if self._is_sized_by_sglang else ("mem_fraction_static", "max_total_tokens"):
            if (value := getattr(options, name)) is not None:
                raise PagesimError(
                    f"{name} is {value}, and {beside}, beside which it has no effect: leave one of them out"
                )

    @cached_property
    def fitting_capacity(self) -> Capacity:
        """The memory that fits next to the weights by the sizing rule, including the null block."""
        blocks = self.blocks
        # Engines of the paper's time start with a cache shorter than the longest request; later releases of
        # vLLM refuse to.
        checks_length = self.sizing == "vllm" and self.system.num_blocks is None
        sized = self.capacity_of(blocks, self.max_model_len if checks_length else None)
        if blocks is not None and checks_length:
            held = blocks.holding(sized.num_blocks)
            check_longest(self.system, held) if isinstance(held, BlockPlan) else held.check_start()
        check_cache_bytes(self, sized)
        return sized

    def capacity_of(self, blocks: Plan | None, max_model_len: int | None) -> Capacity:
        """Return the memory that fits next to the weights, including the null block.

        Args:
            blocks: block plan; None if all layers keep the same.
            max_model_len: tokens of the longest request, refused if the cache cannot hold it; None for no
                check.
        """
        block_size, page_bytes = self.granularity
        return capacity(
            self.model,
            self.gpu,
            self.vllm_memory,
            **self.sglang_memory,
            tp=self.tp,
            block_size=block_size,
            page_bytes=page_bytes,
            kv_dtype=self.kv_dtype,
            sizing=self.sizing,
            cache_bytes=self.system.kv_cache_memory_bytes,
            max_model_len=max_model_len,
            num_blocks=self.system.num_blocks,
            blocks=blocks,
            stages=pipeline_stages(self),
            draft_layers=self.drafting.attending,
        )

    @cached_property
    def capacity(self) -> Capacity:
        """The memory, excluding the null block, which no sequence ever holds."""
        system, spec, blocks = self.system, self.model, self.blocks
        has_pages = self.granularity[1] is not None
        if isinstance(self.options, SglangOptions):
            check_chunk(self.options, self.granularity[0])
        self._check_sizing()
        if system.num_blocks is None:
            sized = self.fitting_capacity
        else:
            sized = cache_of(system.num_blocks, self.block, tp=self.tp, has_swap=not has_pages, plan=blocks)
        if isinstance(sized.plan, PoolPlan | StatePlan):
            sized.plan.check_start()
        if has_pages and system.cpu_blocks:
            raise PagesimError(
                f"cpu_blocks is {system.cpu_blocks}; allocator virtual has no swap space: its pages are "
                "unmapped and never moved to the host"
            )
        if sized.num_blocks > MOST_BLOCKS:
            raise PagesimError(
                f"num_blocks of {spec.name} comes to {sized.num_blocks} blocks of {sized.block_size} tokens; "
                f"the bound is {MOST_BLOCKS}: give num_blocks, or a larger block_size"
            )
        null_blocks = 0 if isinstance(blocks, TypePlan) else self.scheduler.null_blocks
        if sized.num_blocks <= null_blocks:
            raise PagesimError(
                f"num_blocks is {sized.num_blocks}; {self.policy.scheduler} needs at least "
                f"{null_blocks + 1}, of which {null_blocks} is its null block"
            )
        # A tiny model's tokens are small, so no run fills that much swap space.
        cpu_blocks = min(sized.cpu_blocks, MOST_BLOCKS) if system.cpu_blocks is None else system.cpu_blocks
        return replace(sized, num_blocks=sized.num_blocks - null_blocks, cpu_blocks=cpu_blocks)

    @cached_property
    def tiers(self) -> tuple[TierSpec, ...]:
        """The tiers that ``tiers`` describes, starting with the closest to the device."""
        return tier_specs(self) if self.system.option("tiers") else ()

    @property
    def engine_time(self) -> EngineTime:
        """Time that the engine's loop takes in addition to kernels."""
        own = engine_time(
            self.policy.scheduler,
            getattr(self.options, "vllm_version", None),
            asynchronous=self.scheduler.schedules_ahead(self.options),
            model=self.model,
        )
        read = self.offloaded_bytes / self.gpu.host.bytes_per_s
        return replace(
            own, graphs_to=self.scheduler.graphs_to(self.options), iteration_s=own.iteration_s + read
        )

    @property
    def front_end(self) -> FrontEnd:
        """Front-end delays of clients: as given, or the engine's own."""
        given = self.system.frontend_s
        return front_end(self.policy.scheduler) if given is None else FrontEnd(*given)

    @cached_property
    def cost(self) -> CostModel:
        """The cost model of iterations."""
        if self.other_cost is not None:
            return self.other_cost
        release = getattr(self.options, "vllm_version", None)
        return parse_cost(
            self.system.cost,
            Target(
                model=self.model,
                gpu=self.gpu,
                tp=self.tp,
                block_size=self.capacity.block_size,
                kv_dtype=self.kv_dtype,
                engine=self.engine_time,
                release=f"vllm {release}" if release else "",
                drafter=self.drafting.forwards,
            ),
        )
