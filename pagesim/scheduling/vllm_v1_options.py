"""The options of vLLM v1, under its server's names, and the server's defaults for unset ones."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from pydantic import Field

from pagesim.errors import PagesimError
from pagesim.scheduling.data_parallel_options import DataParallelOptions, check_data_parallel
from pagesim.scheduling.options import MOST, Machine
from pagesim.scheduling.speculative_config import DraftRules, SpeculativeConfig, read_speculative_config
from pagesim.scheduling.vllm_releases import RELEASES, Release

_AS_SERVED = "Defaults to what the release's server takes on this GPU."


LARGEST_GRAPH = 512
"""Upper bound on the default size, in tokens, of the largest iteration captured as a CUDA graph."""


class VllmV1Options(DataParallelOptions):
    """Options of vLLM v1; those that depend on the release or the GPU are None until `resolved` sets them."""

    vllm_version: Literal["0.11.2", "0.19.0", "0.33.0"] = Field(
        "0.33.0", description="Release whose scheduler is simulated."
    )
    max_num_seqs: int | None = Field(
        None, ge=1, le=MOST, description=f"Maximum number of running requests. {_AS_SERVED}"
    )
    max_num_batched_tokens: int | None = Field(
        None, ge=1, le=MOST, description=f"Maximum number of tokens per iteration. {_AS_SERVED}"
    )
    watermark: float | None = Field(
        None, ge=0, lt=1, description="Fraction of the blocks that an admission must leave free; 0.33.0 only."
    )
    enable_prefix_caching: bool = Field(
        True, description="Reuse the cached blocks of earlier requests with the same prefix."
    )
    prefix_cache_retention_interval: int | None = Field(
        None,
        ge=-1,
        le=MOST,
        description="Retain windows and states within a prompt every this many tokens; 0 retains only "
        "those that its end or a junction needs, -1 all. 0.33.0 only.",
    )
    prefix_match_unit: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="Tokens of a hash of a prefix. Defaults to the largest number that divides all blocks. "
        "0.33.0 only.",
    )
    mamba_ssm_cache_dtype: Literal["float32", "bfloat16", "float16"] | None = Field(
        None, description="Data type of recurrent states. Defaults to the model's. 0.33.0 only."
    )
    decode_context_parallel_size: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="GPUs of a tensor-parallel group over which the tokens of a block are divided. "
        "Defaults to 1. 0.33.0 only.",
    )
    pipeline_parallel_size: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Stages of a pipeline, each with some of the layers. Defaults to 1. 0.33.0 only.",
    )
    disable_hybrid_kv_cache_manager: bool | None = Field(
        None,
        description="Keep all tokens in layers with a window or chunks. Off by default.",
    )
    enable_chunked_prefill: bool = Field(True, description="Split prompts into chunks.")
    long_prefill_token_threshold: int = Field(
        0, ge=0, le=MOST, description="Maximum number of a request's tokens per iteration; 0 for no limit."
    )
    prefill_schedule_interval: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="Steps from one that computes prompts to the next one that may, while others decode; "
        "0.33.0 only.",
    )
    scheduler_reserve_full_isl: bool | None = Field(
        None, description="Admit a prompt only if all of it fits. Defaults to the release's."
    )
    scheduling_policy: Literal["fcfs", "priority"] = Field(
        "fcfs", description="Order of service: first come, first served, or the smallest priority first."
    )
    async_scheduling: bool | None = Field(
        None, description="Schedule the next batch while the current one runs."
    )
    max_cudagraph_capture_size: int | None = Field(
        None,
        ge=0,
        le=MOST,
        description="Maximum number of tokens of an iteration that is launched as a CUDA graph. "
        "Defaults to the server's.",
    )
    speculative_config: str | None = Field(
        None, description="The JSON object of vLLM's --speculative-config."
    )
    speculative_method: (
        Literal["ngram", "ngram_gpu", "suffix", "mtp", "eagle", "eagle3", "draft_model", "dflash", "dspark"]
        | None
    ) = Field(None, description="Source of drafts (--spec-method), without --speculative-config.")
    speculative_tokens: int | None = Field(
        None, ge=0, le=1024, description="Number of drafts that a step verifies per request; 0 for none."
    )
    acceptance: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Probability that a draft is accepted if all before it are. Defaults to the method's "
        "preset.",
    )
    kv_offloading_size: float | None = Field(
        None,
        gt=0,
        le=1 << 20,
        description="Host memory for offloaded KV, in GiB, of all GPUs together.",
    )
    kv_offloading_chunks: int | None = Field(
        None, ge=0, le=MOST, description="Number of KV chunks on the host, instead of a size."
    )
    kv_offloading_chunk_blocks: int | None = Field(
        None, ge=1, le=4096, description="Blocks per offloaded chunk. Defaults to 1."
    )
    kv_offloading_eviction: Literal["lru", "arc"] | None = Field(
        None,
        description="Eviction policy of the host's chunks: LRU of requests, or ARC. Defaults to lru.",
    )
    kv_offloading_threshold: int | None = Field(
        None,
        ge=0,
        le=MOST,
        description="Number of times that a chunk is offered before it is stored. Defaults to 1.",
    )
    kv_offloading_prompt_only: bool | None = Field(
        None, description="Offload prompts and no generated tokens. On by default."
    )

    kv_offloading_load: Literal["always", "auto"] | None = Field(
        None,
        description="Load whatever the host has, as vLLM does, or load and store only what is loaded "
        "faster than recomputed. Defaults to always.",
    )

    kv_connector: Literal["nixl"] | None = Field(
        None,
        description="Connector to other engines that no request uses: nixl, which keeps the blocks of "
        "requests in flight until their batch is over. 0.33.0 only.",
    )
    performance_mode: Literal["balanced", "interactivity", "throughput"] | None = Field(
        None,
        description="With throughput, double the defaults of max_num_seqs and max_num_batched_tokens. "
        "0.33.0 only.",
    )
    tiers: tuple[str, ...] | None = Field(
        None,
        description="Add a tier behind the device, the nearest first, instead of kv_offloading_size: "
        "NAME:CAPACITY[:BANDWIDTH…], such as host:64GiB:25GB/s. Repeatable.",
    )

    @property
    def speculation(self) -> SpeculativeConfig | None:
        """Speculative decoding configuration; None without speculative decoding."""
        if self.speculative_config is not None:
            return read_speculative_config(self.speculative_config)
        if self.speculative_method is None or self.speculative_tokens == 0:
            return None
        return SpeculativeConfig.model_validate(
            {"method": self.speculative_method, "num_speculative_tokens": self.speculative_tokens}
        )

    @property
    def draft_rules(self) -> DraftRules | None:
        """Effects of draft tokens on scheduling and memory, for `resolved` options; None without drafts."""
        speculation = self.speculation
        if speculation is None:
            return None
        return speculation.rules(
            caches=self.enable_prefix_caching,
            connects=self.offloads or self.kv_connector is not None,
            max_num_batched_tokens=self.max_num_batched_tokens or 0,
        )

    @property
    def offloads(self) -> bool:
        """Whether KV is offloaded to a tier behind the device."""
        return (
            bool(self.tiers) or self.kv_offloading_size is not None or self.kv_offloading_chunks is not None
        )

    @property
    def tier_option(self) -> str:
        """Name of the option that configures tiers."""
        return "tiers" if self.tiers else "kv_offloading_size"

    @property
    def tiers_asked(self) -> str:
        """The given tier option and its value, for a message."""
        for name, value in (
            ("tiers", " ".join(self.tiers or ())),
            ("kv_offloading_size", self.kv_offloading_size),
        ):
            if value:
                return f"{name} is {value}"
        return f"kv_offloading_chunks is {self.kv_offloading_chunks}"


def batches_in_flight(options: VllmV1Options) -> int:
    """Return the maximum number of batches scheduled before the outcome of the first of them is known.

    Source: vLLM 0.33.0, ``max_concurrent_batches`` in config/vllm.py.

    Args:
        options: resolved options.
    """
    return (options.pipeline_parallel_size or 1) + bool(options.async_scheduling)


Own = TypeVar("Own", bound=VllmV1Options)


def resolved(options: Own, machine: Machine) -> Own:
    """Return the options with which the release's server runs: the given ones and its defaults.

    Options that the release does not have stay None, as do some without a server default.

    Raises:
        PagesimError: the release lacks a given option, or the options are invalid or not supported.
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
    speculation = _drafting(options, release, machine, tokens)
    given: dict[str, Any] = {}
    if speculation is not None:
        if speculation.drafter == "suffix":
            defaults["async_scheduling"] = False  # it uses the V1 model runner, which waits for each step
        if speculation.modules > 1:
            given["speculative_config"] = speculation.model_dump_json(exclude_defaults=True)
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
    served = options.model_copy(update={**taken, **given})
    stages = served.pipeline_parallel_size or 1
    if speculation is not None and stages > 1 and not served.async_scheduling:
        raise PagesimError(
            f"pipeline_parallel_size is {stages}, and steps are not scheduled asynchronously; which drafts "
            "vLLM then has of the batches in flight is in no log of its decisions: leave out "
            "no-async-scheduling, the drafts or the stages"
        )
    return served


def _limits(options: VllmV1Options, release: Release, machine: Machine) -> tuple[int, int]:
    """Return the maximum tokens and requests of an iteration; their defaults depend on each other."""
    tier, longest = release.tier(machine), machine.max_model_len
    times = 2 if options.performance_mode == "throughput" else 1
    sequences = options.max_num_seqs or times * tier.max_num_seqs
    tokens = options.max_num_batched_tokens
    if tokens is None:
        tokens = times * tier.max_num_batched_tokens
        if not options.enable_chunked_prefill:
            tokens = max(longest, tokens)
        tokens = min(sequences * longest, tokens)
    return tokens, options.max_num_seqs or min(sequences, tokens)


def _check(options: VllmV1Options, release: Release, longest: int, tokens: int, sequences: int) -> None:
    """Reject what the server rejects at start-up, and what no log of its decisions has verified."""
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
    _check_beside(options, "decode_context_parallel_size", "offloads", "speculation")
    _check_beside(options, "pipeline_parallel_size", "offloads")
    _check_beside(options, "kv_connector", "offloads")
    _check_beside(options, "performance_mode")
    check_data_parallel(options, options.vllm_version)
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
    _check_offloading(options)
    threshold = options.long_prefill_token_threshold
    if release.bounds_threshold and threshold > longest:
        raise PagesimError(
            f"long_prefill_token_threshold is {threshold}, more than the {longest} of max_model_len; vLLM "
            f"{options.vllm_version} does not start so: lower it"
        )


def _check_beside(options: VllmV1Options, name: str, *others: str) -> None:
    """Reject an option with a release other than 0.33.0 or in combinations that no log covers.

    Args:
        options: options as given.
        name: name of the option; nothing is checked if it is unset or 1.
        others: combinations not covered: ``offloads`` with a tier, ``speculation`` with drafts.
    """
    value = getattr(options, name)
    if value in (None, 1):
        return
    beside = {
        f"vLLM {options.vllm_version}": options.vllm_version != "0.33.0",
        options.tier_option: "offloads" in others and options.offloads,
        "speculative_tokens": "speculation" in others and options.speculation is not None,
    }
    for what, is_there in beside.items():
        if is_there:
            raise PagesimError(
                f"{name} is {value}, and what {what} does beside it is in no log of vLLM's decisions: leave "
                "one of them out"
            )


def _check_offloading(options: VllmV1Options) -> None:
    """Reject a tier in combinations that no log of the release covers."""
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
    if options.prefix_cache_retention_interval:
        raise PagesimError(
            f"{asked} with prefix_cache_retention_interval "
            f"{options.prefix_cache_retention_interval} is in no log of vLLM's decisions; leave that out"
        )


def _drafting(
    options: VllmV1Options, release: Release, machine: Machine, tokens: int
) -> SpeculativeConfig | None:
    """Return the speculative decoding configuration with the model's MTP modules; None without one.

    Args:
        options: options as given.
        release: the server's release.
        machine: what the server knows of the model.
        tokens: token budget of a step.

    Raises:
        PagesimError: the options are incomplete or contradictory, or the server would not start with them.
    """
    if options.speculative_config is None:
        together = ("speculative_method", "speculative_tokens")
        given = [name for name in (*together, "acceptance") if getattr(options, name) is not None]
        missing = [name for name in together if name not in given]
        if not given:
            return None
        if missing:
            raise PagesimError(
                f"{given[0]} goes with {' and '.join(missing)}: give {' and '.join(together)}, or "
                "speculative_config"
            )
    speculation = options.speculation
    if speculation is None:
        return None
    if not release.speculates:
        raise PagesimError(
            f"speculative_tokens is for vLLM 0.33.0, not {options.vllm_version}: what that release decides "
            "with drafts is not checked by any log"
        )
    if speculation.num_speculative_tokens is None and speculation.n_predict is None:
        raise PagesimError(
            "speculative_config has no num_speculative_tokens, and vLLM does not start without: give it"
        )
    for name, said in (("method", speculation.drafter), ("tokens", speculation.tokens)):
        asked = getattr(options, f"speculative_{name}")
        if asked not in (None, said):
            raise PagesimError(
                f"speculative_{name} is {asked}, and speculative_config says {said}: leave one of them out"
            )
    modules = speculation.n_predict or machine.mtp_modules or 1
    if speculation.drafter == "mtp":
        speculation = speculation.model_copy(update={"n_predict": modules})
    drafts, used = speculation.tokens, speculation.modules
    if used > 1 and drafts > modules and drafts % modules:
        raise PagesimError(
            f"num_speculative_tokens is {drafts}; with {modules} MTP modules it must be a multiple of them, "
            "or vLLM does not start: change it"
        )
    if speculation.drafter == "suffix" and options.async_scheduling:
        raise PagesimError(
            "async_scheduling is on, and vLLM drafts with suffix in its V1 model runner, which does not "
            "schedule ahead: leave one of them out"
        )
    lookahead = max(
        drafts, speculation.rules(caches=False, connects=False, max_num_batched_tokens=0).lookahead
    )
    if tokens <= lookahead:
        raise PagesimError(
            f"max_num_batched_tokens is {tokens}, and a step with speculative_tokens {drafts} has "
            f"{lookahead + 1}: raise it, or lower speculative_tokens"
        )
    return speculation
