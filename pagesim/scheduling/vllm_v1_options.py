"""The options of vLLM v1, under its server's names, and what the server takes for those left out."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from pydantic import Field

from pagesim.errors import PagesimError
from pagesim.scheduling.options import MOST, Machine, SchedulerOptions
from pagesim.scheduling.vllm_releases import RELEASES, Release

_AS_SERVED = "as the release's server on this GPU when left out"


LARGEST_GRAPH = 512
"""Tokens of the largest iteration that the server captures as a CUDA graph, however many may run."""


class VllmV1Options(SchedulerOptions):
    """See `VllmV1`. What depends on the release or the GPU is None until `resolved` has replaced it."""

    vllm_version: Literal["0.11.2", "0.19.0", "0.33.0"] = Field("0.33.0", description="Release to decide as.")
    max_num_seqs: int | None = Field(
        None, ge=1, le=MOST, description=f"Running requests at most; {_AS_SERVED}."
    )
    max_num_batched_tokens: int | None = Field(
        None, ge=1, le=MOST, description=f"Tokens of an iteration at most; {_AS_SERVED}."
    )
    watermark: float | None = Field(
        None, ge=0, lt=1, description="Share of the blocks that an admission leaves free; 0.33.0 only."
    )
    enable_prefix_caching: bool = Field(True, description="Find blocks of prompts that were computed before.")
    prefix_cache_retention_interval: int | None = Field(
        None,
        ge=-1,
        le=MOST,
        description="Of layers with a window or a state, what can be found behind the ends of prompts: 0 for "
        "nothing, else every so many tokens, or -1 for everything; 0.33.0 only.",
    )
    disable_hybrid_kv_cache_manager: bool | None = Field(
        None,
        description="Whether layers with a window or chunks keep all tokens; when left out they do not.",
    )
    enable_chunked_prefill: bool = Field(True, description="Whether a prompt may run in chunks.")
    long_prefill_token_threshold: int = Field(
        0, ge=0, le=MOST, description="A request's tokens in an iteration at most; 0 for no limit."
    )
    scheduler_reserve_full_isl: bool | None = Field(
        None, description="Admit a prompt only if all of it fits; as the release when left out."
    )
    scheduling_policy: Literal["fcfs", "priority"] = Field(
        "fcfs", description="Serve first what came first, or what has the smallest priority."
    )
    async_scheduling: bool | None = Field(
        None, description="Schedule the next batch while the one before it runs."
    )
    max_cudagraph_capture_size: int | None = Field(
        None,
        ge=0,
        le=MOST,
        description="Tokens of the largest iteration that CUDA graphs launch; as the server when left out.",
    )
    speculative_method: Literal["ngram", "eagle3"] | None = Field(
        None, description="Where drafts come from: n-grams of the request, or an EAGLE-like draft model."
    )
    speculative_tokens: int | None = Field(
        None, ge=1, le=MOST, description="Drafts that a request's step verifies at most."
    )
    acceptance: float | None = Field(
        None, ge=0, le=1, description="Chance of a draft to be accepted if those before it are."
    )
    kv_offloading_size: float | None = Field(
        None,
        gt=0,
        le=1 << 20,
        description="GiB of host memory, of all GPUs together, for KV that was computed.",
    )
    kv_offloading_chunks: int | None = Field(
        None, ge=0, le=MOST, description="Chunks of KV on the host, instead of a size."
    )
    kv_offloading_chunk_blocks: int | None = Field(
        None, ge=1, le=4096, description="Blocks of an offloaded chunk; 1 when left out."
    )
    kv_offloading_eviction: Literal["lru", "arc"] | None = Field(
        None,
        description="Which chunks leave the host first: by LRU of requests, or by ARC; lru when left out.",
    )
    kv_offloading_threshold: int | None = Field(
        None,
        ge=0,
        le=MOST,
        description="Times that a chunk is offered before it is stored; 1 when left out.",
    )
    kv_offloading_prompt_only: bool | None = Field(
        None, description="Offload prompts, and nothing that was generated; so when left out."
    )

    kv_offloading_load: Literal["always", "auto"] | None = Field(
        None,
        description="Load whatever the host has, as vLLM does, or only what is there earlier than computed "
        "again, and store only that; always when left out.",
    )

    tiers: tuple[str, ...] | None = Field(
        None,
        description="A tier behind the device, that next to it first, instead of kv_offloading_size: "
        "NAME:CAPACITY[:BANDWIDTH…], such as host:64GiB:25GB/s. Repeatable.",
    )

    @property
    def offloads(self) -> bool:
        """Whether KV is offloaded to a tier beside the device."""
        return (
            bool(self.tiers) or self.kv_offloading_size is not None or self.kv_offloading_chunks is not None
        )

    @property
    def tier_option(self) -> str:
        """The name of the option that asks for tiers."""
        return "tiers" if self.tiers else "kv_offloading_size"

    @property
    def tiers_asked(self) -> str:
        """That option with its value, for a sentence."""
        for name, value in (
            ("tiers", " ".join(self.tiers or ())),
            ("kv_offloading_size", self.kv_offloading_size),
        ):
            if value:
                return f"{name} is {value}"
        return f"kv_offloading_chunks is {self.kv_offloading_chunks}"


Own = TypeVar("Own", bound=VllmV1Options)


def resolved(options: Own, machine: Machine) -> Own:
    """Return what the release's server runs with: the options given, and its own for those left out.

    Only what the release knows no option for stays open.

    Raises:
        PagesimError: the release has no such option, or its server would not start with these.
    """
    version = options.vllm_version
    release = RELEASES[version]
    for name in release.lacks:
        if getattr(options, name) is not None:
            raise PagesimError(f"{name} is no option of vLLM {version}; leave it out")
    tokens, sequences = _limits(options, release, machine)
    defaults: dict[str, Any] = {
        "max_num_batched_tokens": tokens,
        "max_num_seqs": sequences,
        "watermark": 0.0,
        "prefix_cache_retention_interval": 0,
        "scheduler_reserve_full_isl": release.reserves_full_isl,
        "async_scheduling": release.async_scheduling,
        "max_cudagraph_capture_size": min(2 * sequences, LARGEST_GRAPH),
    }
    if options.offloads:
        defaults |= {
            "kv_offloading_chunk_blocks": 1,
            "kv_offloading_threshold": 0,
            "kv_offloading_prompt_only": True,
            "kv_offloading_load": "always",
        }
        if not options.tiers:
            defaults["kv_offloading_eviction"] = "lru"
    taken = {
        name: value
        for name, value in defaults.items()
        if name not in release.lacks and getattr(options, name) is None
    }
    _check(options, release, machine.max_model_len, tokens, sequences)
    return options.model_copy(update=taken)


def _limits(options: VllmV1Options, release: Release, machine: Machine) -> tuple[int, int]:
    """Return the tokens and the requests of an iteration; the default of each depends on the other."""
    tier, longest = release.tier(machine), machine.max_model_len
    sequences = options.max_num_seqs or tier.max_num_seqs
    tokens = options.max_num_batched_tokens
    if tokens is None:
        tokens = tier.max_num_batched_tokens
        if not options.enable_chunked_prefill:
            tokens = max(longest, tokens)
        tokens = min(sequences * longest, tokens)
    return tokens, options.max_num_seqs or min(sequences, tokens)


def _check(options: VllmV1Options, release: Release, longest: int, tokens: int, sequences: int) -> None:
    """Refuse what the server refuses when it starts, and what no log has checked."""
    if options.async_scheduling and not release.async_scheduling:
        raise PagesimError(
            f"async_scheduling of vLLM {options.vllm_version} is in no log of its decisions; leave it out, "
            "or choose vllm_version 0.19.0 or 0.33.0"
        )
    if options.scheduling_policy == "priority" and not release.serves_by_priority:
        raise PagesimError(
            f"scheduling_policy priority of vLLM {options.vllm_version} is in no log of its decisions; leave "
            "it out, or choose vllm_version 0.33.0"
        )
    if tokens < sequences:
        raise PagesimError(
            f"max_num_seqs is {sequences}, more than the {tokens} of max_num_batched_tokens; vLLM does not "
            "start so: lower it, or raise max_num_batched_tokens"
        )
    if not options.enable_chunked_prefill and tokens < longest:
        raise PagesimError(
            f"max_num_batched_tokens is {tokens}, less than the {longest} of max_model_len; without "
            "enable_chunked_prefill vLLM does not start so: raise it, or lower max_model_len"
        )
    _check_speculation(options, release, tokens)
    _check_offloading(options)
    threshold = options.long_prefill_token_threshold
    if release.bounds_threshold and threshold > longest:
        raise PagesimError(
            f"long_prefill_token_threshold is {threshold}, more than the {longest} of max_model_len; vLLM "
            f"{options.vllm_version} does not start so: lower it"
        )


def _check_offloading(options: VllmV1Options) -> None:
    """Refuse a tier beside what no log of the release shows with one."""
    if not options.offloads:
        return
    asked = options.tier_option
    if options.tiers:
        for name in ("kv_offloading_size", "kv_offloading_chunks", "kv_offloading_eviction"):
            value = getattr(options, name)
            if value is not None:
                raise PagesimError(
                    f"{name} is {value}, and tiers is {' '.join(options.tiers)}: both say where KV is kept "
                    "beside the device; give one of them (a tier has its size and its eviction, as "
                    "host:64GiB:arc)"
                )
    if options.vllm_version != "0.33.0":
        raise PagesimError(
            f"{asked} is for vLLM 0.33.0, not {options.vllm_version}: what that release decides "
            "with a tier on the host is not checked by any log"
        )
    if options.speculative_tokens is not None:
        raise PagesimError(f"{asked} with speculative_tokens is in no log of vLLM's decisions; leave one out")
    if options.prefix_cache_retention_interval:
        raise PagesimError(
            f"{asked} with prefix_cache_retention_interval "
            f"{options.prefix_cache_retention_interval} is in no log of vLLM's decisions; leave that out"
        )


def _check_speculation(options: VllmV1Options, release: Release, tokens: int) -> None:
    """Refuse drafts of which something is not said, and what no log of the release shows."""
    together = ("speculative_method", "speculative_tokens", "acceptance")
    missing = [name for name in together if getattr(options, name) is None]
    if len(missing) == len(together):
        return
    if missing:
        given = next(name for name in together if name not in missing)
        raise PagesimError(f"{given} goes with {' and '.join(missing)}: give all of {', '.join(together)}")
    if not release.speculates:
        raise PagesimError(
            f"speculative_tokens is for vLLM 0.33.0, not {options.vllm_version}: what that release decides "
            "with drafts is not checked by any log"
        )
    drafts = options.speculative_tokens or 0
    if tokens <= drafts:
        raise PagesimError(
            f"max_num_batched_tokens is {tokens}, and a step with speculative_tokens {drafts} has "
            f"{drafts + 1}: raise it, or lower speculative_tokens"
        )
