"""How SGLang divides a GPU's memory: a static fraction for weights and cache, the rest for everything else.

Source: 0.5.23, ``srt/mem_cache/kv_cache_configurator.py``. SGLang measures the free memory before loading
weights; here it is estimated. docs/explanation/sglang.md compares the estimate with posted startup logs.
"""

from __future__ import annotations

from pagesim.hardware.gpus import GIB, GpuSpec
from pagesim.models.model_spec import ModelSpec
from pagesim.sizing.division import Division
from pagesim.sizing.kernel_blocks import HOPPER

STARTED_BYTES = int(0.7 * GIB)
"""Bytes that a process uses before it loads weights: the CUDA context, libraries. Logs of 2026 releases show
0.6 to 0.8 GiB on an H100 and a B200."""

LINKED_BYTES = int(1.3 * GIB)
"""Additional bytes if several GPUs share the model over NVLink: NCCL's buffers. Logs show 1.0 to
1.8 GiB on H100 and H200 under ``tp`` 2 to 16, and nothing on an RTX 3090."""


def divide_statically(
    model: ModelSpec, gpu: GpuSpec, *, tp: int = 1, mem_fraction_static: float, drafter_bytes: int = 0
) -> Division:
    """Divide the memory of each of ``tp`` GPUs as SGLang does.

    The cache gets ``mem_fraction_static`` of the memory that is free before weights are loaded, less the
    weights. The remaining fraction counts as activations; it also holds the CUDA graphs.

    Args:
        model: the model.
        gpu: the GPU.
        tp: GPUs over which weights are divided; GPUs per rank if several ranks share MLPs.
        mem_fraction_static: static fraction, in (0, 1].
        drafter_bytes: bytes of the drafter's weights on each GPU.
    """
    ranks = 1 if model.expert_division is None else model.expert_division.ranks
    linked = tp * ranks > 1 and gpu.peer.bytes_per_s > gpu.host.bytes_per_s
    free = gpu.memory_bytes - STARTED_BYTES - (LINKED_BYTES if linked else 0)
    images = 0 if model.sglang_images is None else _image_bytes(model.sglang_images[0], gpu)
    return Division(
        memory=gpu.memory_bytes,
        requested=free,
        weights=model.weight_bytes_per_gpu(tp) + drafter_bytes,
        activations=free - int(free * mem_fraction_static) + images,
        graphs=0,
        other=0,
    )


def _image_bytes(family: str, gpu: GpuSpec) -> int:
    """Return the bytes that images take after the cache is sized: their embeddings, and features on the way.

    Source: ``mm_runtime_reservation_gb`` (mem_cache/kv_cache_configurator.py), ``qwen3_vl.py``
    (arg_groups/model_overrides).
    """
    large_hopper = gpu.capability == HOPPER and gpu.memory_bytes >= 60 * GIB
    return GIB if family in ("qwen3_vl", "qwen3_vl_moe") and large_hopper else 100 << 20
