"""The default points of each bench, which take minutes rather than hours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pagesim.kernels.bench.grid import Grid, Values
from pagesim.kernels.bench.rows import DIRECTIONS, STRATEGIES, Point
from pagesim.models import ModelSpec, model

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

HEADS = ("q_heads", "kv_heads")
SHAPE = ("batch", "context")
PROMPT = ("batch", "query", "context")

FULL = ((64, 4096), (256, 1024))
"""(batch, context) that fill a GPU: 256k tokens."""

SMALL = ((1, 1024), (1, 16384), (8, 4096))
"""Shapes for which launches, splits and the reduction matter."""

PROMPTS = ((1, 2048, 2048), (4, 2048, 2048), (1, 8192, 8192), (4, 512, 4096))
"""(batch, new tokens, context): whole prompts, as torch's attention does too, and chunks after a prefix."""

CLIFF = (4 * KIB, 16 * KIB, 28 * KIB, 64 * KIB, 256 * KIB, MIB)
"""Bytes per piece around 28 KiB, where the time of batched copies was seen to jump (vllm#42212)."""

MOVES = ("copy-blocks", "gather-blocks", "scatter-blocks")
OURS = ("paged-decode", "paged-decode-v1", "paged-decode-v2", "contiguous-decode", "sdpa-decode")
FP16: Values = {HEADS: ((32, 8),), "head_size": (128,), "dtype": ("fp16",), "layout": ("NHD",)}


def default_points(bench: str, device: str, quick: bool = False, peers: Iterable[str] = ()) -> list[Point]:
    """Return the points of a bench.

    Args:
        bench: ``attention``, ``swap``, ``copy`` or ``gemm``.
        device: ``cpu`` or ``cuda``.
        quick: whether to return only a few points, as always for a CPU, whose times say nothing.
        peers: ops of the installed peers.
    """
    if bench == "attention":
        grids = _attention_cpu() if device == "cpu" else _attention(quick, tuple(peers))
    else:
        grids = {"swap": _swap, "copy": _copy, "gemm": _gemm}[bench](device, quick)
    return list({str(point): point for grid in grids for point in grid.points()}.values())


def swap_shapes(spec: ModelSpec, block_sizes: Iterable[int], tokens: int) -> tuple[tuple[int, int, int], ...]:
    """Return (pieces per block, bytes per piece, blocks) of this many fp16 tokens, for each block size."""
    token_bytes = 2 * spec.kv_heads * spec.head_dim
    return tuple((2 * spec.layers, token_bytes * size, -(-tokens // size)) for size in block_sizes)


def layers_of(spec: ModelSpec) -> tuple[tuple[int, int], ...]:
    """Return (n, k) of a model's linear layers: QKV, attention output, the MLP's two, and the LM head."""
    q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    up = 2 * spec.ffn if spec.gated else spec.ffn
    return (
        (q + 2 * kv, spec.hidden),
        (spec.hidden, q),
        (up, spec.hidden),
        (spec.hidden, spec.ffn),
        (spec.vocab, spec.hidden),
    )


def _attention_cpu() -> Iterator[Grid]:
    common: Values = {HEADS: ((4, 1),), "head_size": (64,), "dtype": ("fp32",), "layout": ("NHD",)}
    blocks: Values = {**common, SHAPE: ((2, 64),), "block_size": (16,)}
    yield Grid("attention", (*OURS, "gather-decode"), blocks)
    prompts: Values = {**common, PROMPT: ((1, 32, 32),), "block_size": (16,)}
    yield Grid("attention", ("paged-prefill", "sdpa-prefill"), prompts)
    latents: Values = {SHAPE: ((2, 64),), "q_heads": (4,), "block_size": (16,), "dtype": ("fp32",)}
    yield Grid("attention", ("mla-decode",), latents)


def _attention(quick: bool, peers: tuple[str, ...]) -> Iterator[Grid]:
    decode, cores = (*OURS, *peers), ("cuda", "tensor")
    prefill = ("paged-prefill", "sdpa-prefill")
    if quick:
        yield Grid(
            "attention", decode, {**FP16, SHAPE: (FULL[0], SMALL[2]), "block_size": (16, 128), "cores": cores}
        )
        yield Grid("attention", prefill, {**FP16, PROMPT: PROMPTS[:1], "block_size": (16,)})
        yield Grid(
            "attention",
            ("mla-decode",),
            {SHAPE: FULL[:1], "q_heads": (128,), "block_size": (64,), "dtype": ("fp16",)},
        )
        return
    both: Values = {**FP16, HEADS: ((32, 8), (40, 40))}
    one: Values = {**FP16, SHAPE: FULL[:1], "block_size": (16,)}
    ours = ("paged-decode",)
    yield Grid("attention", decode, {**both, SHAPE: FULL, "block_size": (16, 128, 256), "cores": cores})
    yield Grid("attention", decode, {**both, SHAPE: SMALL, "block_size": (16, 128), "cores": cores})
    yield Grid("attention", prefill, {**both, PROMPT: PROMPTS, "block_size": (16,)})
    yield Grid("attention", ("gather-decode",), {**FP16, SHAPE: (SMALL[2], *FULL), "block_size": (16,)})
    yield Grid("attention", ours, {**FP16, SHAPE: SMALL, "splits": (1, 4, 16), "block_size": (16,)})
    yield Grid("attention", (*ours, "contiguous-decode"), {**one, "dtype": ("bf16", "fp8", "fp32")})
    yield Grid("attention", ours, {**one, SHAPE: (*SMALL, FULL[0]), "queries": (4, 8)})
    yield Grid("attention", ours, {**one, SHAPE: (*SMALL, FULL[0]), "window": (1024,)})
    yield Grid(
        "attention", prefill[:1], {**FP16, PROMPT: PROMPTS[2:3], "window": (1024,), "block_size": (16,)}
    )
    yield Grid("attention", ours, {**one, "layout": ("NHD", "HND"), "head_size": (64, 72, 80, 96, 256, 512)})
    yield Grid("attention", ours, {**one, "block_size": (1, 2, 4, 8, 32, 64)})
    shapes = (*SMALL, *FULL)
    yield Grid(
        "attention",
        ("mla-decode",),
        {SHAPE: shapes, "q_heads": (128, 16), "block_size": (64,), "dtype": ("fp16",)},
    )


def _swap(device: str, quick: bool) -> Iterator[Grid]:
    if device == "cpu":
        yield from _swaps(((2, 16 * KIB, 16),), STRATEGIES[:2])
        return
    opt = model("opt-13b")
    if not quick:
        yield from _swaps(swap_shapes(opt, (1, 4, 16, 64, 256), 512), STRATEGIES)
        yield from _swaps(tuple((1, size, count) for size in CLIFF for count in (16, 256)), STRATEGIES)
    yield from _swaps(swap_shapes(opt, (16,), 256), STRATEGIES, ("scattered",))


def _swaps(
    shapes: Iterable[tuple[int, int, int]],
    strategies: tuple[str, ...],
    host_blocks: tuple[str, ...] = ("neighbours",),
) -> Iterator[Grid]:
    """Yield one large copy for each size, then the strategies."""
    for shape in shapes:
        pieces, size, blocks = shape
        whole = pieces * size * blocks
        yield Grid("swap", ("pinned-copy",), {"direction": DIRECTIONS, "piece_bytes": (whole,)})
        values: Values = {("pieces", "piece_bytes", "blocks"): (shape,), "host_blocks": host_blocks}
        yield Grid("swap", ("swap",), {**values, "strategy": strategies, "direction": DIRECTIONS})


def _copy(device: str, quick: bool) -> Iterator[Grid]:
    shape = ("pieces", "piece_bytes", "blocks")
    common: Values = {"block_size": (16,), "layout": ("NHD",)}
    if device == "cpu":
        yield Grid("copy", ("device-copy",), {"piece_bytes": (MIB,)})
        fp32: Values = {**common, "kv_heads": (4,), "head_size": (64,), "dtype": ("fp32",)}
        yield Grid("copy", ("reshape-and-cache",), {**fp32, "tokens": (64,)})
        yield Grid("copy", MOVES, {shape: ((2, 16 * KIB, 16),), "dtype": ("fp32",)})
        return
    sizes = (256 * MIB,) if quick else (MIB, 16 * MIB, 256 * MIB, GIB)
    yield Grid("copy", ("device-copy",), {"piece_bytes": sizes})
    writes: Values = {**common, "kv_heads": (8, 40), "head_size": (128,), "dtype": ("fp16",)}
    tokens: tuple[int, ...] = (8192,) if quick else (1, 256, 8192, 65536)
    yield Grid("copy", ("reshape-and-cache",), {**writes, "tokens": tokens})
    piece = 16 * 40 * 128 * 2  # the keys of a block of 16 tokens in one layer of OPT-13B
    counts = (1024,) if quick else (4, 64, 1024)
    yield Grid("copy", MOVES, {shape: tuple((2, piece, count) for count in counts), "dtype": ("fp16",)})
    yield Grid("copy", ("reshape-and-cache",), {**writes, "dtype": ("bf16", "fp8"), "tokens": tokens[-1:]})
    yield Grid("copy", ("reshape-and-cache",), {**writes, "layout": ("HND",), "tokens": tokens[-1:]})


def _gemm(device: str, quick: bool) -> Iterator[Grid]:
    if device == "cpu":
        sizes = ((192, 64), (64, 256))
        yield Grid("gemm", ("linear",), {("n", "k"): sizes, "m": (1, 16), "dtype": ("fp32",)})
        return
    m: tuple[int, ...] = (1, 256) if quick else (1, 16, 64, 256, 1024, 4096)
    yield Grid("gemm", ("linear",), {("n", "k"): layers_of(model("opt-13b")), "m": m, "dtype": ("fp16",)})
