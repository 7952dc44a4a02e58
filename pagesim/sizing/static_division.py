"""How SGLang divides the memory of a GPU: a static share for weights and cache, the rest for all else.

Source: 0.5.23, ``srt/mem_cache/kv_cache_configurator.py``. SGLang measures what is free before weights are
loaded; here it is estimated, and docs/explanation/sglang.md compares it with start-up logs that users posted.
"""

from __future__ import annotations

from pagesim.hardware.gpus import GIB, GpuSpec
from pagesim.models.model_spec import ModelSpec
from pagesim.sizing.division import Division

STARTED_BYTES = int(0.7 * GIB)
"""What a process takes before weights are loaded: the CUDA context, libraries. Logs of releases of 2026 show
0.6 to 0.8 GiB on an H100 and a B200."""

LINKED_BYTES = int(1.3 * GIB)
"""What it takes besides where several GPUs share the model over NVLink: NCCL's buffers. Logs show 1.0 to
1.8 GiB on H100 and H200 under ``tp`` 2 to 16, and nothing on an RTX 3090."""


def divide_statically(
    model: ModelSpec, gpu: GpuSpec, *, tp: int = 1, mem_fraction_static: float, drafter_bytes: int = 0
) -> Division:
    """Divide the memory of each of ``tp`` GPUs as SGLang does.

    The cache gets ``mem_fraction_static`` of what is free before weights are loaded, less the weights. What
    the share leaves is counted as activations; CUDA graphs live there, too.

    Args:
        model: the model.
        gpu: the GPU.
        tp: GPUs over which weights are divided; of each rank where MLPs are divided over several.
        mem_fraction_static: the share, in (0, 1].
        drafter_bytes: weights of what drafts, on each GPU.
    """
    ranks = 1 if model.expert_division is None else model.expert_division.ranks
    linked = tp * ranks > 1 and gpu.peer.bytes_per_s > gpu.host.bytes_per_s
    free = gpu.memory_bytes - STARTED_BYTES - (LINKED_BYTES if linked else 0)
    return Division(
        memory=gpu.memory_bytes,
        requested=free,
        weights=model.weight_bytes_per_gpu(tp) + drafter_bytes,
        activations=free - int(free * mem_fraction_static),
        graphs=0,
        other=0,
    )
