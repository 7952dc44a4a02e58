"""SGLang's defaults for omitted options, which depend on the GPU, the number of GPUs and the model.

Source: 0.5.23, ``srt/arg_groups/memory_hook.py``, ``cuda_graph_hook.py``, ``overrides.py``,
``model_override_base.py`` and ``srt/mem_cache/kv_cache_configurator.py``. Memory sizes are in MiB.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pagesim.errors import PagesimError
from pagesim.scheduling.options import Machine
from pagesim.scheduling.sglang.options import SglangOptions
from pagesim.scheduling.sglang.speculative_defaults import speculating

MIB = 1 << 20
"""Bytes per MiB."""


@dataclass(frozen=True, slots=True)
class GpuTier:
    """The defaults for GPUs of one class of memory size.

    Attributes:
        below_gib: GPU memory in GiB that this tier's GPUs stay below.
        chunk: tokens of ``chunked_prefill_size``.
        graphs: sequences of the largest decode with a CUDA graph, with fewer than four GPUs.
        wide_graphs: the same with four or more GPUs.
    """

    below_gib: float
    chunk: int
    graphs: int
    wide_graphs: int


TIERS = (
    GpuTier(20, 2048, 8, 8),
    GpuTier(35, 4096, 48, 160),
    GpuTier(60, 4096, 32, 160),
    GpuTier(160, 8192, 256, 512),
    GpuTier(float("inf"), 16384, 512, 512),
)

UNKNOWN = GpuTier(0, 4096, 160, 160)
"""The defaults if the GPU's memory is unknown."""

PAGED_GPUS = ("b200", "gb200", "b300", "gb300")
"""GPUs whose default attention kernels, TensorRT-LLM's, work on pages instead of single tokens."""

PAGE = 64
"""Tokens per page on those GPUs."""

LATENT_GRAPHS = 8192
"""Tokens of the largest prefill with a CUDA graph under MLA."""

RANK_CONSERVATIVENESS = 0.3
"""Factor applied to ``schedule_conservativeness`` if attention has several ranks."""

DEEPEP, DEEPEP_PREFILLS = 2 * 1024, 1024
"""Memory of DeepEP's buffers with CUDA graphs for decodes, and the addition with graphs for prefills."""

LLAMA_2_GRAPHS = 4096
"""Tokens of the largest prefill with a CUDA graph for models named llama-2."""


def tier_of(machine: Machine) -> GpuTier:
    """Return the tier of a GPU."""
    gib = _memory_mib(machine) / 1024
    return next(tier for tier in TIERS if gib < tier.below_gib) if gib else UNKNOWN


def page_size(machine: Machine) -> int:
    """Return the number of tokens per page."""
    return PAGE if machine.gpu in PAGED_GPUS else 1


def decode_graphs(options: SglangOptions, machine: Machine) -> int:
    """Return the number of sequences in the largest decode with a CUDA graph."""
    tier = tier_of(machine)
    most = tier.graphs if machine.tp < 4 else tier.wide_graphs
    return min(most, options.max_running_requests or most)


def prefill_graphs(options: SglangOptions, machine: Machine, chunk: int) -> int:
    """Return the number of tokens in the largest prefill with a CUDA graph."""
    most = min(LATENT_GRAPHS, chunk) if machine.latent else chunk
    if options.max_total_tokens is not None:
        most = min(most, options.max_total_tokens)
    return min(most, LLAMA_2_GRAPHS) if "llama-2" in machine.model.lower() else most


def captured(most: int) -> int:
    """Return how many prefill sizes of at most ``most`` tokens are captured as CUDA graphs."""
    steps = (
        (4, 33, 4),
        (48, 257, 16),
        (288, 513, 32),
        (576, 1025, 64),
        (1280, 4097, 256),
        (4608, most + 1, 512),
    )
    return sum(size <= most for start, stop, step in steps for size in range(start, stop, step))


def reserved_mib(options: SglangOptions, machine: Machine) -> float:
    """Return the MiB of a GPU's memory reserved for activations and CUDA graphs.

    Args:
        options: resolved options.
        machine: the GPUs that the model is served on.
    """
    chunk, decodes, prompts = (
        options.chunked_prefill_size,
        options.cuda_graph_max_bs_decode,
        options.cuda_graph_max_bs_prefill,
    )
    assert chunk is not None
    assert decodes is not None
    assert prompts is not None
    tokens = max(chunk if chunk > 0 else options.max_prefill_tokens, 2048)
    reserved = 512 + 1.5 * tokens + machine.tp / 8 * 1024
    if options.graphs_decodes:
        reserved += 2 * decodes
    if options.attn_dp_size > 1:
        reserved += (3 if decodes <= 300 else 4.5) * decodes * options.attn_dp_size
    if options.graphs_prompts:
        reserved += 1.5 * 1024 if machine.latent else 8 * captured(prompts)
        reserved += DEEPEP_PREFILLS if options.moe_a2a_backend == "deepep" else 0
    if _memory_mib(machine) > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    return reserved + (DEEPEP if options.moe_a2a_backend == "deepep" and options.graphs_decodes else 0)


def images_share(layers: int, width: int) -> float:
    """Return the factor by which serving images lowers ``mem_fraction_static``.

    Source: ``adjust_mem_fraction_for_vlm`` (arg_groups/memory_hook.py).

    Args:
        layers: layers of the vision tower.
        width: width of its hidden states.
    """
    size = layers * width**2 / (24 * 1024**2)  # beside CLIP's ViT-L
    return 0.95 * max(0.8, min(1.05, 1 - 0.1 * (size - 1)))


def static_fraction(options: SglangOptions, machine: Machine) -> float:
    """Return ``mem_fraction_static``: the share of a GPU's memory that weights and cache may occupy.

    Args:
        options: resolved options.
        machine: the GPUs that the model is served on.

    Raises:
        PagesimError: SGLang's default share is unknown on this GPU, or is not positive.
    """
    if options.mem_fraction_static is not None:
        return options.mem_fraction_static
    if machine.gpu.startswith("mi"):
        raise PagesimError(
            f"gpu is {machine.gpu}; what SGLang takes there for mem_fraction_static depends on AMD's kernels "
            "and is not known: give mem_fraction_static, or num_blocks"
        )
    memory = _memory_mib(machine)
    share = round((memory - reserved_mib(options, machine)) / memory, 3)
    if share <= 0:
        raise PagesimError(
            f"chunked_prefill_size is {options.chunked_prefill_size}, for which SGLang sets "
            f"{reserved_mib(options, machine):,.0f} of {machine.gpu}'s {memory:,.0f} MiB aside: lower it "
            "(-1, no chunks, goes by max_prefill_tokens), or give mem_fraction_static"
        )
    return share if machine.images is None else share * images_share(*machine.images[1:])


def most_running(options: SglangOptions, capacity: int, context: int) -> int:
    """Return one rank's ``max_running_requests``: at most half the number of tokens that its cache holds.

    Args:
        options: resolved options, or options without ``max_running_requests``.
        capacity: tokens in the cache of one attention rank.
        context: tokens of the longest request.
    """
    most = max(min(int(capacity / context * 512), 4096), 2048)
    if options.max_running_requests is not None:
        most = max(1, options.max_running_requests // options.attn_dp_size)
    return max(1, min(most, capacity // 2))


def options_of_rank(options: SglangOptions) -> SglangOptions:
    """Return the options with which one attention rank schedules.

    Args:
        options: resolved options of all ranks together.
    """
    ranks, chunk, graphs = (
        options.attn_dp_size,
        options.chunked_prefill_size,
        options.cuda_graph_max_bs_prefill,
    )
    if ranks == 1:
        return options
    of_rank: dict[str, Any] = {
        "attn_dp_size": 1,
        "schedule_conservativeness": options.schedule_conservativeness * RANK_CONSERVATIVENESS,
    }
    if options.max_running_requests is not None:
        of_rank["max_running_requests"] = max(1, options.max_running_requests // ranks)
    if options.max_mamba_cache_size is not None:
        of_rank["max_mamba_cache_size"] = options.max_mamba_cache_size // ranks
    if chunk is not None:
        of_rank["chunked_prefill_size"] = chunk // ranks or -1  # -1, no chunks, if nothing is left
        if graphs is not None and chunk > 0:
            of_rank["cuda_graph_max_bs_prefill"] = min(graphs, chunk // ranks)
    return options.model_copy(update=of_rank)


def states_of_a_request(options: SglangOptions, page: int) -> int:
    """Return how many recurrent states are counted per running request.

    Args:
        options: options, resolved or not.
        page: tokens per page.
    """
    return 3 + options.tracking_slots(page) if options.caches else 1


GRAPHS_BESIDE_IMAGES = (
    *("cohere2_vision", "glm5_next", "interns2_mobius", "kimi_k25", "kimi_k3", "minimax_m3", "minimax_m3_vl"),
    *("muse_glimmer", "muse_spark", "paddleocr_vl", "qwen3_5", "qwen3_5_moe", "qwen4_exp"),
)
"""Families with images whose prompts have CUDA graphs (configs/model_config.py 2501)."""

QWEN3_VL = ("qwen3_vl", "qwen3_vl_moe")
"""Families with defaults of their own on large Hopper GPUs (arg_groups/model_overrides/qwen3_vl.py)."""


def _with_images(options: SglangOptions, machine: Machine) -> SglangOptions:
    """Return the options with the defaults that depend on images."""
    if machine.images is None:
        return options
    family = machine.images[0]
    found: dict[str, Any] = {}
    if family not in GRAPHS_BESIDE_IMAGES:
        found["disable_prefill_cuda_graph"] = True
    large_hopper = machine.gpu.startswith(("h", "gh")) and _memory_mib(machine) >= 60 * 1024
    if family in QWEN3_VL and large_hopper and "prefill_decode_interval" not in options.model_fields_set:
        found["prefill_decode_interval"] = 22
    return options.model_copy(update=found)


def resolved(options: SglangOptions, machine: Machine) -> SglangOptions:
    """Return the options with SGLang's defaults on a machine, except those that depend on memory.

    Raises:
        PagesimError: the engine would not start with these options.
    """
    if machine.has_states and options.caches and options.mamba_radix_cache_strategy == "no_buffer":
        options = options.model_copy(update={"disable_overlap_schedule": True})
    options = _with_images(options, machine)
    chunk = options.chunked_prefill_size
    if chunk == 0:
        raise PagesimError("chunked_prefill_size is 0; it must be at least 1, or -1 for no chunks")
    if options.enable_priority_scheduling and options.schedule_policy not in ("fcfs", "lof"):
        raise PagesimError(
            f"schedule_policy is {options.schedule_policy}; it must be fcfs or lof with "
            "enable_priority_scheduling"
        )
    if options.enable_prefill_delayer and options.disable_overlap_schedule:
        raise PagesimError("enable_prefill_delayer needs overlap: leave disable_overlap_schedule out")
    if options.enable_hierarchical_cache and options.disable_radix_cache:
        raise PagesimError(
            "enable_hierarchical_cache keeps what the radix cache has: leave disable_radix_cache out"
        )
    if options.attn_dp_size > 1:
        _check_ranks(options, machine)
    if chunk is None:
        chunk = tier_of(machine).chunk
    taken = {"chunked_prefill_size": chunk}
    if options.cuda_graph_max_bs_decode is None:
        taken["cuda_graph_max_bs_decode"] = decode_graphs(options, machine)
    if options.cuda_graph_max_bs_prefill is None:
        taken["cuda_graph_max_bs_prefill"] = max(0, prefill_graphs(options, machine, chunk))
    return options.model_copy(update={**taken, **speculating(options, machine, paged=page_size(machine) > 1)})


def _check_ranks(options: SglangOptions, machine: Machine) -> None:
    """Reject options that several attention ranks do not support, or with which they are not modelled."""
    if machine.tp % options.attn_dp_size:
        raise PagesimError(
            f"attn_dp_size is {options.attn_dp_size}; it must divide tensor_parallel_size, which is "
            f"{machine.tp}"
        )
    if options.max_mamba_cache_size is not None and options.max_mamba_cache_size < options.attn_dp_size:
        raise PagesimError(
            f"max_mamba_cache_size is {options.max_mamba_cache_size}, of which {options.attn_dp_size} ranks "
            "have none each; SGLang does not start so: raise it"
        )
    if options.enable_hierarchical_cache and options.hicache_write_policy == "write_back":
        raise PagesimError(
            f"attn_dp_size is {options.attn_dp_size}; with hicache_write_policy write_back a rank waits for "
            "its copies alone, which is not modelled: choose write_through"
        )
    if options.enable_prefill_delayer and options.prefill_decode_interval:
        raise PagesimError(
            f"attn_dp_size is {options.attn_dp_size}; with enable_prefill_delayer ranks wait for each other, "
            "and with prefill_decode_interval one may not come: leave one of them out"
        )
    if options.enable_prefill_delayer and options.speculative_algorithm is not None:
        raise PagesimError(
            f"attn_dp_size is {options.attn_dp_size}; with speculative_algorithm and enable_prefill_delayer "
            "ranks wait for each other twice in a turn, which is not modelled: leave one of them out"
        )


def _memory_mib(machine: Machine) -> float:
    return machine.listed_mib or machine.memory_bytes / MIB
