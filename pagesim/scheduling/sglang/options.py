"""Options of the `Sglang` scheduler, under SGLang's own names."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pagesim.kvcache.radix import EvictionPolicy, WritePolicy
from pagesim.scheduling.options import MOST, SchedulerOptions
from pagesim.scheduling.speculative_config import SpeculativeConfig

PolicyName = Literal["fcfs", "lof", "lpm", "dfs-weight", "hrrn", "shortest-prefill-first"]

CACHE_AWARE: tuple[PolicyName, ...] = ("lpm", "dfs-weight", "hrrn", "shortest-prefill-first")
"""Policies that look up every waiting prompt; without a prefix cache they become ``fcfs``."""

StateStrategy = Literal["auto", "extra_buffer", "no_buffer"]

MOST_RANKS = 64
"""Maximum number of attention ranks, whose turns nest: each runs inside the previous rank's turn."""

EAGLES = ("EAGLE", "EAGLE3", "NEXTN")
"""Values of ``speculative_algorithm`` whose drafter reads the model's hidden states."""

METHODS: dict[str, str] = {
    **dict.fromkeys(("EAGLE", "NEXTN"), "eagle"),
    "EAGLE3": "eagle3",
    "STANDALONE": "draft_model",
    "NGRAM": "ngram",
}
"""vLLM's name for each ``speculative_algorithm`` with a separate drafter (`speculative_config.METHODS`)."""

_BY_GPU = "Defaults to a value by the GPU."


class SglangOptions(SchedulerOptions):
    """Options of SGLang; ``block_size`` is SGLang's page size."""

    schedule_policy: PolicyName = Field("fcfs", description="Order of the waiting queue.")
    schedule_conservativeness: float = Field(
        1.0,
        ge=0,
        le=100,
        description="Scale the fraction of future tokens for which an admission leaves room.",
    )
    chunked_prefill_size: int | None = Field(
        None,
        ge=-1,
        le=MOST,
        description=f"Maximum number of prompt tokens per iteration; -1 for no chunks. {_BY_GPU}",
    )
    max_prefill_tokens: int = Field(
        16384, ge=1, le=MOST, description="Maximum number of prompt tokens that are admitted to an iteration."
    )
    prefill_max_requests: int | None = Field(
        None, ge=1, le=MOST, description="Maximum number of prompts per iteration."
    )
    enable_mixed_chunk: bool = Field(False, description="Decode running requests beside prompts in chunks.")
    dp_size: int = Field(
        1, ge=1, le=4096, description="Replicas, to which requests go in turn; each has all GPUs of its own."
    )
    attn_dp_size: int = Field(
        1,
        ge=1,
        le=MOST_RANKS,
        description="Ranks into which the GPUs are divided for attention; each has a queue and a cache of "
        "its own, and all step together.",
    )
    enable_dp_lm_head: bool = Field(
        False, description="Divide the LM head over the GPUs of each rank of attention, not over all."
    )
    ep_size: int = Field(
        1,
        ge=1,
        le=4096,
        description="GPUs over which whole experts are dealt out. Decides on what is kept only where the "
        "shared expert is one of them (Qwen3-Next).",
    )
    moe_dense_tp_size: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="GPUs over which MLPs of layers without experts are divided: 1, or all by default.",
    )
    moe_a2a_backend: Literal["none", "deepep"] = Field(
        "none", description="What carries tokens to experts; DeepEP has buffers of its own."
    )
    max_running_requests: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="Maximum number of running requests, of all ranks of attention together. Defaults to "
        "what follows from the cache's size.",
    )
    mem_fraction_static: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Fraction of GPU memory for weights and cache, under sizing sglang. Defaults to "
        "what activations and CUDA graphs leave.",
    )
    max_total_tokens: int | None = Field(
        None, ge=1, le=MOST, description="Maximum number of tokens in the cache, under sizing sglang."
    )
    cuda_graph_max_bs_decode: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description=f"Maximum number of sequences of a decode with a CUDA graph. {_BY_GPU}",
    )
    cuda_graph_max_bs_prefill: int | None = Field(
        None,
        ge=0,
        le=MOST,
        description="Maximum number of tokens of a prefill with a CUDA graph. Defaults to a chunk.",
    )
    disable_cuda_graph: bool = Field(False, description="Disable CUDA graphs.")
    disable_decode_cuda_graph: bool = Field(False, description="Disable CUDA graphs of decodes.")
    disable_prefill_cuda_graph: bool = Field(False, description="Disable CUDA graphs of prefills.")
    disable_overlap_schedule: bool = Field(
        False, description="Schedule an iteration only when the one before it has finished."
    )
    disable_radix_cache: bool = Field(False, description="Disable prefix caching.")
    radix_eviction_policy: EvictionPolicy = Field(
        "lru", description="Eviction policy: which cached leaf is evicted first."
    )
    enable_hierarchical_cache: bool = Field(
        False, description="Keep prefixes on the host, too (HiCache), without a storage backend."
    )
    hicache_ratio: float = Field(
        2.0,
        gt=0,
        le=1000,
        description="Tokens of the host's pool, as a multiple of the device's.",
    )
    hicache_size: float = Field(
        0,
        ge=0,
        le=1 << 20,
        description="Gigabytes of the host's pool for each GPU, instead of that multiple.",
    )
    hicache_write_policy: WritePolicy = Field(
        "write_through",
        description="When prefixes are copied to the host: at their first insertion, at their second "
        "(write_through_selective), or when they are evicted (write_back).",
    )
    swa_full_tokens_ratio: float = Field(
        0.8,
        gt=0,
        le=1,
        description="Tokens in the pool of layers with a window, as a fraction of those in the other pool.",
    )
    disable_hybrid_swa_memory: bool = Field(
        False, description="Keep all tokens in layers with a window, in one pool with the others."
    )
    max_mamba_cache_size: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="Maximum number of recurrent states in memory. Defaults to what "
        "mamba_full_memory_ratio leaves.",
    )
    mamba_full_memory_ratio: float = Field(
        0.9, gt=0, le=100, description="Memory for recurrent states, as a fraction of that for tokens."
    )
    mamba_radix_cache_strategy: StateStrategy = Field(
        "auto",
        description="Where prefixes keep a recurrent state: behind whole chunks (extra_buffer), or where "
        "prompts end (no_buffer, without overlap). auto is no_buffer without overlap and pages.",
    )
    mamba_ssm_dtype: Literal["float32", "bfloat16", "float16"] | None = Field(
        None, description="Data type of recurrent states. Defaults to the model's own, or float32."
    )
    mamba_track_interval: int = Field(
        256, ge=1, le=MOST, description="Tokens between states that are kept of a decode."
    )
    scheduler_recv_interval: int = Field(
        1, ge=1, le=MOST, description="Decodes from one look at what has arrived to the next."
    )
    enable_prefill_delayer: bool = Field(
        False, description="Hold prompts back while fewer find a place than ran together before."
    )
    prefill_delayer_max_delay_passes: int = Field(
        30, ge=1, le=MOST, description="Maximum number of iterations for which prompts are held back."
    )
    prefill_delayer_token_usage_low_watermark: float | None = Field(
        None, ge=0, le=1, description="Fraction of the cache in use below which no prompt is held back."
    )
    prefill_delayer_queue_min_ratio: float | None = Field(
        None,
        ge=0,
        le=MOST,
        description="Hold prompts back, too, while fewer wait than this fraction of the running requests.",
    )
    prefill_delayer_max_delay_ms: float | None = Field(
        None,
        ge=0,
        le=MOST,
        description="Maximum milliseconds for which that fraction holds prompts back. Defaults to 5000.",
    )
    enable_priority_scheduling: bool = Field(
        False, description="Serve requests by the priority column of the trace, the largest number first."
    )
    schedule_low_priority_values_first: bool = Field(False, description="Serve the smallest number first.")
    disable_priority_preemption: bool = Field(
        False, description="Preempt no running request for a more important one."
    )
    priority_scheduling_preemption_threshold: int = Field(
        10,
        ge=0,
        le=MOST,
        description="Preempt for requests whose priority exceeds that of running ones by more than this.",
    )
    retraction_policy: Literal["length", "priority"] = Field(
        "length",
        description="Which requests are retracted first: those with the fewest output tokens, or the least "
        "important of them. No log of SGLang's checks priority.",
    )
    max_queued_requests: int | None = Field(
        None, ge=1, le=MOST, description="Maximum number of waiting requests; others are rejected."
    )
    min_free_slots_delay: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="Hold prompts back until so many more requests may run, while any runs.",
    )
    prefill_decode_interval: int = Field(
        0, ge=0, le=MOST, description="Iterations without prompts behind each one with prompts."
    )
    prefill_decode_interval_min_bs: int = Field(
        0, ge=0, le=MOST, description="Running requests below which such an interval ends at once."
    )
    speculative_algorithm: Literal["EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM"] | None = Field(
        None, description="Who drafts tokens that the model verifies: NEXTN is the model's own MTP module."
    )
    speculative_num_steps: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Number of tokens that are drafted one after another. Defaults to 5 for Llama and 3 for "
        "others.",
    )
    speculative_eagle_topk: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Number of branches of the tree of drafts. Defaults to 4 for Llama and 1 for others.",
    )
    speculative_num_draft_tokens: int | None = Field(
        None,
        ge=2,
        le=1024,
        description="Number of tokens that a step verifies per request, its last one included. Defaults to "
        "8 for Llama, and to one more than the steps where there is one branch.",
    )
    speculative_draft_model_path: str | None = Field(
        None, description="The model that drafts. Left out, EAGLE and NEXTN take the model's own module."
    )
    acceptance: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Probability that a draft is accepted if all before it are. Defaults to the algorithm's "
        "preset.",
    )
    ignore_eos: bool = Field(
        False, description="Generate all tokens that requests ask for, as benchmarks do."
    )
    max_new_tokens: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="Minimum number of output tokens that a request asks for; a stop token ends it earlier.",
    )

    @property
    def caches(self) -> bool:
        """Whether prefixes are cached."""
        return not self.disable_radix_cache

    def tracking_slots(self, page: int) -> int:
        """Return how many state slots a running request holds for the tree, in addition to its own.

        Args:
            page: tokens per page.
        """
        strategy = self.mamba_radix_cache_strategy
        if strategy == "auto" and self.disable_overlap_schedule and page == 1:
            strategy = "no_buffer"
        if strategy == "no_buffer" or not self.caches:
            return 0
        return 1 if self.disable_overlap_schedule else 2

    @property
    def keys_by_pairs(self) -> bool:
        """Whether the radix tree is keyed by pairs of tokens."""
        return self.speculative_algorithm in EAGLES

    @property
    def speculation(self) -> SpeculativeConfig | None:
        """The drafter, in the terms of ``--speculative-config``; None without speculative decoding.

        Its ``num_speculative_tokens`` is the most draft tokens that a step can accept. With speculative
        decoding, the options must be resolved.
        """
        algorithm, path = self.speculative_algorithm, self.speculative_draft_model_path
        steps, verified = self.speculative_num_steps, self.speculative_num_draft_tokens
        if algorithm is None:
            return None
        assert steps is not None
        assert verified is not None
        method = "mtp" if path is None and algorithm in ("EAGLE", "NEXTN") else METHODS[algorithm]
        most = verified - 1 if algorithm == "NGRAM" else min(steps, verified - 1)
        given = {"method": method, "model": path, "num_speculative_tokens": most, "n_predict": 1}
        return SpeculativeConfig.model_validate(given)

    @property
    def graphs_decodes(self) -> bool:
        """Whether decodes are launched by CUDA graphs."""
        return not (self.disable_cuda_graph or self.disable_decode_cuda_graph)

    @property
    def graphs_prompts(self) -> bool:
        """Whether prompts are launched by CUDA graphs."""
        return not (self.disable_cuda_graph or self.disable_prefill_cuda_graph)
