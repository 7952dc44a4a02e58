"""What each bench measures by default: first the points that have a promised bar, minutes and not hours."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from pagesim.kernels.bench.decode_grids import LatentGrid, SharedPrefixGrid
from pagesim.kernels.bench.grids import (
    AttentionGrid,
    CopyGrid,
    GemmGrid,
    Grid,
    SwapGrid,
    layers_of,
)
from pagesim.kernels.bench.peers import peers_found
from pagesim.kernels.bench.rows import Point
from pagesim.models import ModelSpec, model

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

FULL = ((64, 4096), (256, 1024))
"""(batch, context) that fill a GPU: 256k tokens."""

SMALL = ((1, 1024), (1, 16384), (8, 4096))
"""Where launches, splits and the reduction count."""

ITERATION_BLOCKS = (64, 256)
"""That an iteration swaps: a context of 1,024 tokens, which crosses while it computes, and one of 4,096."""

PROMPTS = ((1, 2048, 2048), (4, 2048, 2048), (1, 8192, 8192), (4, 512, 4096))
"""(batch, new tokens, context): whole prompts, as torch's attention does too, and chunks after a prefix."""

PEER_BLOCKS = (16, 128, 256)
"""Block sizes of peers: vLLM's, a tile of FlashAttention 4, the least of FlashAttention 2."""

CLIFF = (4 * KIB, 16 * KIB, 28 * KIB, 64 * KIB, 256 * KIB, MIB)
"""Bytes of a piece around which batched copies were seen to jump, at 28 KiB (vllm#42212)."""

GQA, MHA = (32, 8), (40, 40)


def default_points(bench: str, device: str, quick: bool = False) -> list[Point]:
    """Return the points of a bench.

    Args:
        bench: ``attention``, ``swap``, ``copy`` or ``gemm``.
        device: ``cpu`` or ``cuda``.
        quick: only a few of them.
    """
    grids = {"attention": _attention, "swap": _swap, "copy": _copy, "gemm": _gemm}[bench]
    return list(chain.from_iterable(grid.points() for grid in grids(device, quick)))


def swap_shapes(spec: ModelSpec, block_sizes: Iterable[int], tokens: int) -> tuple[tuple[int, int, int], ...]:
    """Return (pieces a block, bytes a piece, blocks) of so many tokens of a model in fp16, by block size."""
    token_bytes = 2 * spec.kv_heads * spec.head_dim
    return tuple((2 * spec.layers, token_bytes * size, -(-tokens // size)) for size in block_sizes)


AnyGrid = Grid | SharedPrefixGrid | LatentGrid


def _attention(device: str, quick: bool) -> tuple[AnyGrid, ...]:
    if device == "cpu":
        return (
            SharedPrefixGrid(
                shapes=((4, 64, 32),) if quick else ((4, 64, 32), (4, 128, 96)),
                heads=((4, 1),),
                head_size=64,
                dtype="fp32",
            ),
            LatentGrid(
                shapes=((2, 64),) if quick else ((2, 64), (4, 128)),
                q_heads=(4,),
                block_sizes=(16,),
                dtype="fp32",
            ),
            AttentionGrid(
                shapes=((2, 64),) if quick else ((1, 128), (4, 128), (4, 512)),
                prompts=((1, 32, 32),) if quick else ((1, 64, 64), (2, 32, 128)),
                block_sizes=(16,) if quick else (1, 16, 128),
                heads=((4, 1),) if quick else ((4, 1), (4, 4)),
                head_sizes=(64,),
                dtypes=("fp32",),
            ),
        )
    compared = ("paged-decode", "contiguous-decode", "sdpa-decode")
    if quick:
        return (
            AttentionGrid(shapes=(FULL[0], SMALL[2]), block_sizes=(16, 128), ops=(*compared, *peers_found())),
            AttentionGrid(prompts=((1, 2048, 2048),), ops=("paged-prefill", "sdpa-prefill")),
            SharedPrefixGrid(shapes=((64, 4096, 2048),)),
            LatentGrid(shapes=((64, 4096),)),
        )
    both = (GQA, MHA)
    one = FULL[:1]
    return (
        AttentionGrid(shapes=FULL, block_sizes=(16, 32, 64, 128, 256), heads=both, ops=compared),
        AttentionGrid(shapes=SMALL, block_sizes=PEER_BLOCKS, heads=both, ops=compared),
        AttentionGrid(shapes=(*SMALL, *FULL), block_sizes=PEER_BLOCKS, heads=both, ops=tuple(peers_found())),
        AttentionGrid(prompts=PROMPTS, heads=both, ops=("paged-prefill", "sdpa-prefill")),
        AttentionGrid(shapes=(SMALL[2], *FULL), heads=both, ops=("gather-decode",)),
        AttentionGrid(shapes=SMALL, splits=(1, 4, 16), ops=("paged-decode",)),
        AttentionGrid(
            shapes=one,
            dtypes=("bf16", "fp8", "fp8_per_token_head", "int8_per_token_head", "fp32"),
            ops=("paged-decode", "contiguous-decode"),
        ),
        AttentionGrid(shapes=(*SMALL, FULL[0]), queries=(4, 8), ops=("paged-decode",)),
        AttentionGrid(shapes=(*SMALL, FULL[0]), windows=(1024,), ops=("paged-decode",)),
        AttentionGrid(prompts=PROMPTS[2:3], windows=(1024,), ops=("paged-prefill",)),
        AttentionGrid(shapes=one, layouts=("HND", "VLLM"), ops=("paged-decode", "contiguous-decode")),
        AttentionGrid(shapes=one, head_sizes=(64, 72, 80, 96, 256, 512), ops=("paged-decode",)),
        AttentionGrid(shapes=one, block_sizes=(1, 2, 4, 8), ops=("paged-decode",)),
        SharedPrefixGrid(
            shapes=(
                (64, 4096, 2048),
                (8, 4096, 2048),
                (2, 4096, 2048),
                (64, 2048, 256),
                (16, 32_768, 32_000),
            ),
            heads=both,
        ),
        LatentGrid(shapes=(*SMALL, *FULL), q_heads=(128, 16), block_sizes=(64,)),
    )


def _swap(device: str, quick: bool) -> tuple[Grid, ...]:
    if device == "cpu":
        cpu = ("copy-each", "gather", "zero-copy")
        sizes = (16 * KIB,) if quick else (4 * KIB, 64 * KIB, 256 * KIB)
        counts = (16,) if quick else (16, 64)
        return (SwapGrid(tuple((2, size, count) for size in sizes for count in counts), cpu),)
    opt = model("opt-13b")
    if quick:
        return (SwapGrid(swap_shapes(opt, (16,), 256), beside_decode=True),)
    return (
        SwapGrid(swap_shapes(opt, (1, 4, 16, 64, 256), 512)),
        SwapGrid(swap_shapes(opt, (16,), 256), host_blocks=("scattered",), beside_decode=True),
        SwapGrid((), in_iterations=ITERATION_BLOCKS),
        SwapGrid(tuple((1, size, count) for size in CLIFF for count in (16, 256))),
    )


def _copy(device: str, quick: bool) -> tuple[Grid, ...]:
    if device == "cpu":
        return (
            CopyGrid(
                sizes=(MIB,) if quick else (MIB, 64 * MIB),
                tokens=(64,) if quick else (1, 64, 1024),
                block_copies=((2, 16 * KIB, 16),),
                kv_heads=(4,),
                head_size=64,
                dtypes=("fp32",),
            ),
        )
    tokens: tuple[int, ...] = (8192,) if quick else (1, 256, 8192, 65536)
    piece = 16 * 40 * 128 * 2  # the keys of a block of 16 tokens in one layer of OPT-13B
    sizes: tuple[int, ...] = (256 * MIB,) if quick else (MIB, 16 * MIB, 256 * MIB, GIB)
    counts: tuple[int, ...] = (1024,) if quick else (4, 64, 1024)
    return (
        CopyGrid(sizes, tokens, block_copies=tuple((2, piece, count) for count in counts)),
        CopyGrid(
            (),
            tokens[-1:],
            (),
            dtypes=("fp8", "fp8_per_token_head", "int8_per_token_head"),
            ops=("reshape-and-cache",),
        ),
        CopyGrid((), tokens[-1:], (), layouts=("HND", "VLLM"), ops=("reshape-and-cache",)),
    )


def _gemm(device: str, quick: bool) -> tuple[Grid, ...]:
    if device == "cpu":
        return (GemmGrid(((192, 64), (64, 256)), (1, 16) if quick else (1, 16, 256), ("fp32",)),)
    return (GemmGrid(layers_of(model("opt-13b")), (1, 256) if quick else (1, 16, 64, 256, 1024, 4096)),)
