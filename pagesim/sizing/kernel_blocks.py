"""What the kernels that vLLM 0.33.0 chooses on a GPU make of a layer, and of the tokens of a block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pagesim.errors import PagesimError
from pagesim.models.layers import IndexerLayer, LatentLayer, Layer, StateLayer, kv_element_bytes

HOPPER = 90
"""The compute capability, ten times, that is taken where none is given."""

OTHER_VENDOR = 0
"""What stands in its place for a GPU that is not NVIDIA's."""

KERNEL_BLOCK = 16
"""Tokens of which most attention kernels take any multiple as a block."""

LATENT_BLOCK = 64
"""The same of the kernels for sparse latent attention, and on Hopper for latent vectors in fp8."""

BLACKWELL_LATENT_BLOCK = 32
"""The same of the kernels for latent vectors on a Blackwell GPU for servers (FLASHINFER_MLA)."""

DELTA_KEY_DIM = 128
"""Width of a key for which FlashInfer's kernels of a gated delta rule run on Blackwell GPUs."""


def as_kept(layers: Sequence[Layer], capability: int) -> list[Layer]:
    """Return what layers keep by the kernels that run on a GPU.

    Sources: ``_resolve_gdn_prefill_backend`` (layers/mamba/gdn/qwen_gdn_linear_attn.py), under CUDA 13, and
    ``_canonicalize_sparse_mla_kv_cache_dtype`` (layers/attention/mla_attention.py).

    Raises:
        PagesimError: none of vLLM's kernels for such layers runs there.
    """
    family = capability // 10
    if family == 8 and any(isinstance(layer, IndexerLayer) for layer in layers):
        raise PagesimError(
            f"the GPU has compute capability {capability / 10:.1f}, and vLLM's kernels for latent vectors "
            "with an indexer need 9.0 (Hopper): choose another GPU"
        )

    def kept(layer: Layer) -> Layer:
        match layer:
            case StateLayer(checkpoint=int(), always=False, state=(*_, keys)):
                leaves = capability == HOPPER or (family in (10, 12) and keys == DELTA_KEY_DIM)
                return layer if leaves else replace(layer, checkpoint=None)
            case LatentLayer(fp8_bytes=size) if size and family == 10:
                return replace(layer, fp8_bytes=0)
            case LatentLayer(fp8_bytes=size) if size and family == 12:
                return replace(layer, token_bytes=size)
        return layer

    return [kept(layer) for layer in layers]


def kernels_block(layers: Sequence[Layer], kv_dtype: str, capability: int) -> int:
    """Return the block that the attention kernels of all these layers take on a GPU.

    Source: ``_get_backend_priorities`` (platforms/cuda.py), ``get_supported_kernel_block_sizes`` of the
    backends (v1/attention/backends/mla).
    """
    if any(isinstance(layer, IndexerLayer) for layer in layers):
        return LATENT_BLOCK
    if not any(isinstance(layer, LatentLayer) for layer in layers):
        return KERNEL_BLOCK
    if capability // 10 == 10:
        return BLACKWELL_LATENT_BLOCK
    on_hopper = capability // 10 == 9
    return LATENT_BLOCK if on_hopper and kv_element_bytes(kv_dtype) == 1 else KERNEL_BLOCK
