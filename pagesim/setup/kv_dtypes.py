"""The dtype of a system's KV cache where none is given: its checkpoint's, where the engine goes by that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pagesim.costs.specs.catalogue import model
from pagesim.costs.specs.gpus import gpu
from pagesim.costs.specs.layers import KV_DTYPE_BYTES
from pagesim.errors import PagesimError
from pagesim.scheduling.vllm_releases import RELEASES
from pagesim.setup.presets import POLICY_PLUGINS
from pagesim.setup.registry import SCHEDULERS

if TYPE_CHECKING:
    from pagesim.setup.scenario import SystemFields

UNTOLD = "fp16"
"""Where neither a user nor a checkpoint says one: 16 bits, as the model has."""


def kv_dtype_of(system: SystemFields) -> str:
    """Return the dtype of a system's KV cache, one of `KV_DTYPE_BYTES`.

    Raises:
        PagesimError: there is no such model, or the bytes of the cache of its checkpoint are not known here.
    """
    if system.kv_cache_dtype is not None:
        return system.kv_cache_dtype
    kind = SCHEDULERS.find(system.scheduler or POLICY_PLUGINS.find(system.policy).scheduler)
    field = kind.Options.model_fields.get("vllm_version")
    version = system.option("vllm_version") or (field and field.default)
    release = RELEASES.get(version or "")
    # Another weight dtype is another checkpoint, of whose cache nothing is known.
    if release is None or not release.follows_checkpoint or system.weight_dtype is not None:
        return UNTOLD
    spec = model(system.model)
    found = spec.kv_dtype or UNTOLD
    if spec.fp8_on_sm10x and found == UNTOLD and (gpu(system.gpu).capability or 0) // 10 == 10:
        return "fp8"
    if found not in KV_DTYPE_BYTES:
        raise PagesimError(
            f"kv_cache_dtype is left out, and the checkpoint of {system.model} has a KV cache in {found}, "
            "whose bytes are not known here: give kv_cache_dtype fp8 or bf16"
        )
    return found


def kv_notes(system: SystemFields) -> tuple[str, ...]:
    """Return that the dtype of a system's KV cache is its checkpoint's, if it is."""
    if system.kv_cache_dtype is not None or kv_dtype_of(system) == UNTOLD:
        return ()
    said = f"as the checkpoint of {system.model} says"
    if not model(system.model).kv_dtype:
        said = f"as vLLM keeps that of {system.model} on {system.gpu}"
    return (f"the KV cache is {kv_dtype_of(system)}, {said}: give kv_cache_dtype bf16 for 16 bits",)
