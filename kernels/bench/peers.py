"""Other libraries' paged decode kernels, measured with ours if they are installed; all are optional.

The adapters use the public interfaces of FlashInfer 0.7.2.post1 and vLLM 0.33.0, as in their packages. If a
peer's interface has changed since, its points fail and are recorded as such. If a peer computes something
else than asked, it fails the check that all ops go through.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pagesim.kernels.bench.rows import Point
from pagesim.kernels.requirements import Unavailable, installed

if TYPE_CHECKING:
    import torch

    from pagesim.kernels.bench.inputs import Inputs
    from pagesim.kernels.timing import Call


@dataclass(frozen=True)
class Peer:
    """A library's decode op.

    Args:
        op: its name among the bench's ops.
        package: package to import it from.
        layouts: cache layouts that it supports.
        block_multiple: number that block sizes must be a multiple of.
        make: returns one call per batch of paged inputs.
    """

    op: str
    package: str
    layouts: tuple[str, ...]
    block_multiple: int
    make: Callable[[Inputs, float, Point], list[Call]]


DTYPES = ("fp16", "bf16")


def require(peer: Peer, point: Point) -> None:
    """Check that a peer supports a point.

    Raises:
        Unavailable: the peer is not installed or does not support it; the message says which.
    """
    if not installed(peer.package):
        raise Unavailable(f"{peer.package} is not installed")
    if point["layout"] not in peer.layouts:
        raise Unavailable(f"{peer.op} reads layout {' or '.join(peer.layouts)}, not {point['layout']}")
    if point["dtype"] not in DTYPES:
        raise Unavailable(f"{peer.op} is measured in {' or '.join(DTYPES)}, not {point['dtype']}")
    if point["block_size"] % peer.block_multiple:
        raise Unavailable(
            f"{peer.op} needs a block size that is a multiple of {peer.block_multiple}, "
            f"not {point['block_size']}"
        )


def _flashinfer(given: Inputs, scale: float, point: Point) -> list[Call]:
    """FlashInfer: a wrapper is planned once for a batch and run at every layer (docs.flashinfer.ai)."""
    import torch

    flashinfer: Any = import_module("flashinfer")
    sizes = given.cache.sizes
    q_heads, device = given.queries.shape[2], given.queries.device
    batch, width = given.tables.shape[1:]
    starts = torch.arange(0, batch * width + 1, width, dtype=torch.int32, device=device)
    last_lengths = (given.lengths - 1) % sizes.block_size + 1
    # The batches run one after another, so they can share the memory for partial results.
    room = torch.zeros(256 << 20, dtype=torch.uint8, device=device)
    # Among its tensor-core kernels, FA3's is for prompts: on an H100 it decodes at a third of the rate.
    tensor = point.parameters.get("cores") == "tensor"
    how = {"use_tensor_cores": True, "backend": "fa2"} if tensor else {}

    def planned(q: torch.Tensor, table: torch.Tensor) -> Call:
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(room, given.cache.layout, **how)
        wrapper.plan(
            starts,
            table.flatten(),
            last_lengths,
            q_heads,
            sizes.kv_heads,
            sizes.head_dim,
            sizes.block_size,
            q_data_type=q.dtype,
            kv_data_type=given.cache.key_cache.dtype,
            sm_scale=scale,
        )
        return lambda: wrapper.run(q, (given.cache.key_cache, given.cache.value_cache))

    return [planned(*each) for each in zip(given.queries, given.tables, strict=True)]


VLLM_SEGMENTS = 16
VLLM_LEAST_PROGRAMS = 128
"""vLLM's own thresholds for splitting contexts, and its number of splits (its Triton backend)."""


def _vllm(given: Inputs, scale: float, point: Point) -> list[Call]:
    """Triton attention of vLLM, with the memory for split contexts that vLLM's own backend provides."""
    import torch

    try:
        unified: Any = import_module("vllm.v1.attention.ops.triton_unified_attention")
    except ModuleNotFoundError:
        raise Unavailable("this vllm has no triton_unified_attention") from None
    sizes = given.cache.sizes
    batch, q_heads = given.queries.shape[1:3]
    device = given.queries.device
    starts = torch.arange(batch + 1, dtype=torch.int32, device=device)
    longest = int(given.lengths.max())
    threshold = max(1, VLLM_LEAST_PROGRAMS // sizes.kv_heads)
    padded = 1 << (sizes.head_dim - 1).bit_length()
    room = (threshold, q_heads, VLLM_SEGMENTS)
    split = {
        "seq_threshold_3D": threshold,
        "num_par_softmax_segments": VLLM_SEGMENTS,
        "softmax_segm_output": torch.empty((*room, padded), device=device),
        "softmax_segm_max": torch.empty(room, device=device),
        "softmax_segm_expsum": torch.empty(room, device=device),
    }
    outs = torch.empty_like(given.queries)

    def attend(q: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        unified.unified_attention(
            q=q,
            k=given.cache.key_cache,
            v=given.cache.value_cache,
            out=out,
            cu_seqlens_q=starts,
            max_seqlen_q=1,
            seqused_k=given.lengths,
            max_seqlen_k=longest,
            softmax_scale=scale,
            causal=True,
            window_size=(-1, -1),
            block_table=table,
            softcap=0.0,
            q_descale=None,
            k_descale=None,
            v_descale=None,
            **split,
        )
        return out

    return given.calls(attend, outs)


PEERS = {
    peer.op: peer
    for peer in (
        Peer("flashinfer-decode", "flashinfer", ("NHD", "HND"), 1, _flashinfer),
        Peer("vllm-triton-decode", "vllm", ("NHD",), 16, _vllm),
    )
}
"""The peers by op."""


def peers_found() -> list[str]:
    """Return the ops of the peers that are installed."""
    return [op for op, peer in PEERS.items() if installed(peer.package)]
