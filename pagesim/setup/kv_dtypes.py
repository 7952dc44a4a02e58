"""The data type of the KV cache, as vLLM and SGLang resolve it if none is given."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pagesim.errors import PagesimError
from pagesim.models import ModelSpec
from pagesim.models.layers import KV_DTYPE_BYTES, IndexerLayer, LatentLayer
from pagesim.scheduling.sglang import SglangOptions
from pagesim.scheduling.vllm_releases import RELEASES
from pagesim.setup.presets import POLICY_PLUGINS
from pagesim.setup.registry import SCHEDULERS
from pagesim.setup.system import System
from pagesim.sizing.kernel_blocks import HOPPER

if TYPE_CHECKING:
    from pagesim.setup.engine_config import EngineConfig

DEFAULT_KV_DTYPE = "fp16"
"""KV cache data type if neither the user nor the checkpoint specifies one: 16 bits, like the model."""

BLACKWELL = 100
"""Compute capability of the first Blackwell GPUs, times ten."""


def default_kv_dtype(config: EngineConfig) -> str:
    """Return the data type of a KV cache for which none is given, a key of `KV_DTYPE_BYTES`.

    Raises:
        PagesimError: the checkpoint's KV cache has a type whose bytes are not known.
    """
    system, spec = config.system, config.model
    if is_sglang(system):
        return _sglang_kv_dtype(config) or DEFAULT_KV_DTYPE
    kind = SCHEDULERS.find(system.scheduler or POLICY_PLUGINS.find(system.policy).scheduler)
    field = kind.Options.model_fields.get("vllm_version")
    version = system.option("vllm_version") or (field and field.default)
    release = RELEASES.get(version or "")
    # Another weight dtype means another checkpoint, whose cache type is not known.
    if release is None or not release.follows_checkpoint or system.weight_dtype is not None:
        return DEFAULT_KV_DTYPE
    sm10x = (config.gpu.capability or 0) // 10 == 10
    found = spec.kv_dtype or DEFAULT_KV_DTYPE
    if spec.fp8_on_sm10x and found == DEFAULT_KV_DTYPE and sm10x:
        return "fp8"
    if found not in KV_DTYPE_BYTES:
        raise PagesimError(
            f"kv_cache_dtype is left out, and the checkpoint of {system.model} has a KV cache in {found}"
            ", whose bytes are not known here: give kv_cache_dtype fp8 or bf16"
        )
    return found


def is_sglang(system: System) -> bool:
    """Return whether a system's engine is SGLang."""
    kind = system.scheduler or POLICY_PLUGINS.find(system.policy).scheduler
    return issubclass(SCHEDULERS.find(kind).Options, SglangOptions)


def _capability(config: EngineConfig) -> int:
    """Return the GPU's compute capability, times ten, or Hopper's if it is not known; 0 on AMD GPUs."""
    return HOPPER if config.capability is None else config.capability


def _is_sparse(spec: ModelSpec) -> bool:
    """Return whether an indexer selects the latent vectors that attention reads (DSA)."""
    layers = spec.cache_layers
    return any(isinstance(layer, IndexerLayer) for layer in layers) and any(
        isinstance(layer, LatentLayer) and not layer.token_bytes for layer in layers
    )


def _sglang_kv_dtype(config: EngineConfig) -> str:
    """Return the data type of SGLang's KV cache if none is given; empty for 16 bits.

    Source: ``_dsa_kv_cache_dtype_default`` (arg_groups/overrides.py), mem_cache/kv_cache_dtype.py.
    """
    spec = config.model
    if _is_sparse(spec):
        return "fp8" if _capability(config) >= BLACKWELL else ""
    return "fp8" if spec.kv_dtype == "fp8" and not spec.kv_by_vllm else ""


def kept_by_sglang(config: EngineConfig, spec: ModelSpec) -> ModelSpec:
    """Return a model whose latent vectors have the bytes that SGLang's kernels of sparse attention keep.

    In fp8 those on AMD and Blackwell GPUs keep no scales, unless for GLM on a workstation's GPU. Source:
    ``_dsa_split_backend_resolution`` (arg_groups/overrides.py), mem_cache/kv_cache_configurator.py 3415.
    """
    capability = _capability(config)
    if not _is_sparse(spec) or 0 < capability < BLACKWELL or (spec.fp8_on_sm10x and capability >= 120):
        return spec
    return replace(
        spec,
        cached=tuple(
            replace(layer, fp8_bytes=0) if isinstance(layer, LatentLayer) else layer
            for layer in spec.cache_layers
        ),
    )
