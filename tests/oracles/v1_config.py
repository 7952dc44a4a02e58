"""Configuration of vLLM's V1 engine: the options of a log as the objects that its scheduler asks.

Differences between the releases stand here and nowhere else in the driver.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
import vllm.v1.core.sched.scheduler as scheduler_module
from options import OptionsV1
from vllm.config.cache import CacheConfig
from vllm.config.scheduler import SchedulerConfig
from vllm.config.vllm import VllmConfig
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput

try:
    from vllm.utils.hashing import sha256
except ImportError:
    from vllm.utils import sha256


class Off:
    """A configuration in which whatever was not given is None: off."""

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class EngineConfig(Off):
    """What vLLM calls a ``VllmConfig``, without the model, the devices and all else that it would look up."""


# What a release derives from its configuration is derived by its own code.
for _name in (
    "max_concurrent_batches",
    "max_in_flight_tokens",
    "num_speculative_tokens",
    "num_lookahead_tokens",
    "num_prefill_lookahead_tokens",
    "num_hash_lookahead_tokens",
):
    if hasattr(VllmConfig, _name):
        setattr(EngineConfig, _name, getattr(VllmConfig, _name))


class Speculation(Off):
    """A ``SpeculativeConfig``: n-grams of the prompt, or a draft head as EAGLE's that looks ahead."""

    def __init__(self, method: str, tokens: int) -> None:
        super().__init__(method=method, num_speculative_tokens=tokens, max_num_new_slots_for_drafting=0)

    def _looks_ahead(self) -> bool:
        return self.method.startswith("eagle")

    use_eagle = use_eagle_block_drop = needs_eagle_block_drop = _looks_ahead

    def _no(self) -> bool:
        return False

    use_dspark = use_dflash = uses_draft_model = use_multi_module_mtp = use_ngram_gpu = _no


class FreeText(Off):
    """A ``StructuredOutputManager`` of requests that ask for no structure."""

    def should_advance(self, *args: Any, **kwargs: Any) -> bool:
        return False

    def accept_tokens(self, *args: Any, **kwargs: Any) -> bool:
        return True


def known(call: Any, **given: Any) -> dict[str, Any]:
    """Return those arguments that a call takes in this release.

    Raises:
        ValueError: one that it does not take is neither None, 0 nor False.
    """
    taken = inspect.signature(call).parameters
    if lost := [name for name, value in given.items() if value and name not in taken]:
        raise ValueError(f"this release has no {lost[0]}")
    return {name: value for name, value in given.items() if name in taken}


def engine_config(options: OptionsV1) -> EngineConfig:
    """Return a log's options as vLLM's configuration."""
    scheduler = SchedulerConfig(
        **known(
            SchedulerConfig,
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_model_len=options.max_model_len,
            enable_chunked_prefill=options.enable_chunked_prefill,
            long_prefill_token_threshold=options.long_prefill_token_threshold,
            is_encoder_decoder=False,
            async_scheduling=options.async_scheduling,
            watermark=options.watermark,
            policy=options.scheduling_policy,
        )
    )
    cache = CacheConfig(block_size=options.block_size, enable_prefix_caching=options.enable_prefix_caching)
    cache.num_gpu_blocks = options.num_blocks
    speculation = None
    if options.speculative_method is not None:
        speculation = Speculation(options.speculative_method, options.speculative_tokens)
    return EngineConfig(
        scheduler_config=scheduler,
        cache_config=cache,
        speculative_config=speculation,
        model_config=Off(
            max_model_len=options.max_model_len, runner_type="generate", skip_tokenizer_init=True
        ),
        parallel_config=Off(
            data_parallel_index=0,
            data_parallel_rank=0,
            data_parallel_size=1,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            pipeline_parallel_size=1,
            tensor_parallel_size=1,
        ),
        observability_config=Off(per_request_spec_decode_metrics="none"),
        ec_manager_config=Off(get_encoder_cache_manager_obj=lambda: None),
        aux_output_config=Off(),
        use_v2_model_runner=True,
    )


def kv_cache_config(options: OptionsV1) -> KVCacheConfig:
    """Return a cache of one group of full-attention layers."""
    layers = FullAttentionSpec(
        block_size=options.block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    return KVCacheConfig(
        num_blocks=options.num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], layers)],
    )


def block_hasher(config: EngineConfig) -> Any:
    """Return what hashes a request's blocks; None without prefix caching."""
    if not config.cache_config.enable_prefix_caching:
        return None
    init_none_hash(sha256)
    ahead = config.num_hash_lookahead_tokens
    return get_request_block_hasher(config.cache_config.block_size, sha256, *([ahead] if ahead else []))


def without_encoder() -> None:
    """Let 0.11.2 look for no encoder in a model that has none; later releases see it for themselves."""
    if hasattr(scheduler_module, "compute_encoder_budget"):
        scheduler_module.compute_encoder_budget = lambda **_: (0, 0)


def sampled_tokens(ids: list[int]) -> Any:
    """Return the tokens that a request sampled, in the type that the release takes them in."""
    kind = str(ModelRunnerOutput.__dataclass_fields__["sampled_token_ids"].type)
    return np.array(ids, dtype=np.int64) if "ndarray" in kind else ids
