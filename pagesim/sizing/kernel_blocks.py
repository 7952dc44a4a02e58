"""How the kernels that vLLM 0.33.0 chooses on a GPU affect what layers keep and the block size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pagesim.errors import PagesimError
from pagesim.models.layers import (
    FullLayer,
    IndexerLayer,
    LatentLayer,
    Layer,
    RingLayer,
    StateLayer,
    WindowLayer,
    kv_element_bytes,
)

HOPPER = 90
"""Default compute capability, times ten."""

OTHER_VENDOR = 0
"""Value used instead for GPUs that are not NVIDIA's."""

KERNEL_BLOCK = 16
"""Block size granularity of most attention kernels, in tokens: they take any multiple."""

LATENT_BLOCK = 64
"""The same for sparse latent attention kernels, and on Hopper for latent vectors in fp8."""

BLACKWELL_LATENT_BLOCK = 32
"""The same for latent vector kernels on server Blackwell GPUs (FLASHINFER_MLA)."""

SPARSE_BLOCK = 128
"""The same for kernels of per-head keys and values with an indexer (MiniMax-M3)."""

COMPRESSED_BLOCK = 256
"""The same for compressed latent vector kernels (DeepSeek V4)."""

WIDE_HEAD = 512
"""Head dimension that FlashAttention's kernel supports on Hopper; in fp8 it needs blocks of 64 tokens."""

DELTA_KEY_DIM = 128
"""Key dimension that FlashInfer's gated delta rule kernels support on Blackwell GPUs."""


def as_kept(layers: Sequence[Layer], capability: int) -> list[Layer]:
    """Return the layers as the kernels that run on a GPU store them.

    Sources: ``_resolve_gdn_prefill_backend`` (layers/mamba/gdn/qwen_gdn_linear_attn.py), under CUDA 13, and
    ``_canonicalize_sparse_mla_kv_cache_dtype`` (layers/attention/mla_attention.py).

    Raises:
        PagesimError: none of vLLM's kernels for such layers runs on that GPU.
    """
    family = capability // 10
    if family == 8 and any(isinstance(layer, IndexerLayer) for layer in layers) and _latent(layers):
        raise PagesimError(
            f"the GPU has compute capability {capability / 10:.1f}, and vLLM's kernels for latent vectors "
            "with an indexer need 9.0 (Hopper): choose another GPU"
        )

    def kept(layer: Layer) -> Layer:
        match layer:
            case StateLayer(checkpoint=int(tokens), state=(*_, keys)) if tokens > 1:
                leaves = capability == HOPPER or (family in (10, 12) and keys == DELTA_KEY_DIM)
                return layer if leaves else replace(layer, checkpoint=None)
            case LatentLayer(fp8_bytes=size) if size and family == 10:
                return replace(layer, fp8_bytes=0)
            case LatentLayer(fp8_bytes=size) if size and family == 12:
                return replace(layer, token_bytes=size)
        return layer

    return [kept(layer) for layer in layers]


def kernels_block(
    layers: Sequence[Layer], kv_dtype: str, capability: int, *, image_prefixes: bool = False
) -> int:
    """Return the block size in tokens that the attention kernels of all these layers take on a GPU.

    Source: ``_get_backend_priorities`` (platforms/cuda.py), ``get_supported_kernel_block_sizes`` of the
    backends (v1/attention/backends and v1/attention/backends/mla).

    Args:
        layers: what each layer keeps.
        kv_dtype: data type of the cache.
        capability: compute capability of the GPU, times ten.
        image_prefixes: whether the tokens of an image attend to one another bidirectionally.
    """
    family, in_8_bits = capability // 10, kv_element_bytes(kv_dtype) == 1
    heads = {layer.head_dim for layer in layers if isinstance(layer, FullLayer)}
    indexers = [layer for layer in layers if isinstance(layer, IndexerLayer)]
    if not _latent(layers):
        if indexers:
            return SPARSE_BLOCK
        if family == 10 and image_prefixes and heads <= {WIDE_HEAD // 2, WIDE_HEAD}:
            return LATENT_BLOCK  # TRITON_FLASHINFER
        return LATENT_BLOCK if family == 9 and in_8_bits and WIDE_HEAD in heads else KERNEL_BLOCK
    if any(isinstance(layer, LatentLayer) and layer.tokens_per_state > 1 for layer in layers):
        return COMPRESSED_BLOCK
    if indexers:
        states = 32 if family != 12 else LATENT_BLOCK
        return max(LATENT_BLOCK, *[states * layer.tokens_per_state for layer in indexers])
    if family == 10:
        return BLACKWELL_LATENT_BLOCK
    return LATENT_BLOCK if family == 9 and in_8_bits else KERNEL_BLOCK


def check_block(layers: Sequence[Layer], block_size: int) -> None:
    """Refuse a block size that none of vLLM's kernels for these layers on NVIDIA GPUs supports.

    Args:
        layers: what each layer keeps.
        block_size: tokens per block, as given by a flag.

    Raises:
        PagesimError: it is not a multiple of the kernels' granularity.
    """
    step = KERNEL_BLOCK
    if any(isinstance(layer, LatentLayer) and layer.tokens_per_state > 1 for layer in layers):
        step = COMPRESSED_BLOCK
    elif _latent(layers) and any(isinstance(layer, IndexerLayer) for layer in layers):
        step = LATENT_BLOCK
    if block_size % step:
        raise PagesimError(
            f"block_size is {block_size}; vLLM's kernels for such layers take multiples of {step}: choose one"
        )


def packs(layers: Sequence[Layer]) -> bool:
    """Return whether pages of different sizes lie side by side in a block (vLLM's layout BLHNC)."""
    return any(isinstance(layer, WindowLayer | RingLayer) and layer.block_size for layer in layers)


def stride(layer: Layer, kv_dtype: str, capability: int) -> int:
    """Return the alignment, in bytes, of the distance between blocks where pages are packed (`packs`).

    Sparse attention kernels read whole rows, or pages of a fixed number of rows
    (``customize_spec`` of v1/attention/backends/mla).
    """
    match layer:
        case IndexerLayer(alignment=1):
            return LATENT_BLOCK * layer.bytes_per_token(kv_dtype)
        case LatentLayer(alignment=1):
            in_16_bits = capability // 10 == 9 and kv_element_bytes(kv_dtype) == 2
            rows = 1 if in_16_bits else BLACKWELL_LATENT_BLOCK if capability // 10 == 10 else LATENT_BLOCK
            return rows * layer.bytes_per_token(kv_dtype)
    return 1


def _latent(layers: Sequence[Layer]) -> bool:
    return any(isinstance(layer, LatentLayer) for layer in layers)
