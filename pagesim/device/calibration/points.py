"""Points: the operators and sizes to measure for a system, and the benchmark points that time them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pagesim.costs.operators.dtypes import dtypes
from pagesim.costs.operators.products import products
from pagesim.device.calibration.rank import AttentionShape, TensorParallelRank
from pagesim.kernels.bench.rows import Point, visible_pairs

ITERATION = "iteration"
"""A whole decode iteration of a live run; its time beyond the parts is overhead."""

LAUNCHES = ("launch-decode", "launch-prompt", "launch-mixed")
"""Launching an iteration's kernels from the host without waiting for them, by kind of iteration."""


class Measurement(NamedTuple):
    """One measurement to make of an operator.

    Attributes:
        operator: term of a `Sample`, or `ITERATION` or one of `LAUNCHES`.
        block_size, size, context: fields of a `Sample`.
        points: benchmark points, each with the number of times an iteration runs it.
    """

    operator: str
    block_size: int
    size: int
    context: int
    points: tuple[tuple[Point, int], ...]


@dataclass(frozen=True)
class CalibrationGrid:
    """The sizes to measure.

    Args:
        tokens: tokens of linear layers and cache writes.
        sequences: sequences of the LM head.
        batches: sequences of decode attention.
        contexts: tokens of context per sequence of decode attention.
        prompts: batches of prompts, as (prompts, tokens per prompt).
        chunks: continued prompts, as (new tokens, context).
        blocks: blocks per copy or swap.
        iterations: sequences of whole iterations.
        most_context: largest total context of a decode batch, in tokens.
    """

    tokens: tuple[int, ...]
    sequences: tuple[int, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    prompts: tuple[tuple[int, int], ...]
    chunks: tuple[tuple[int, int], ...]
    blocks: tuple[int, ...]
    iterations: tuple[int, ...]
    most_context: int = 1 << 30

    def quick(self) -> CalibrationGrid:
        """Return the grid with every second size of each list, plus its last."""
        fewer: dict[str, Any] = {
            name: (*sizes[:-1:2], sizes[-1]) for name, sizes in vars(self).items() if isinstance(sizes, tuple)
        }
        return replace(self, **fewer)


def measurements(
    rank: TensorParallelRank, grid: CalibrationGrid, block_sizes: Sequence[int], *, model: str, on_gpu: bool
) -> Iterator[Measurement]:
    """Yield a system's measurements: by block size, then independent of it, then whole iterations.

    Args:
        rank: what one GPU of the system computes.
        grid: sizes to measure.
        block_sizes: block sizes of the cache, in tokens.
        model: identifier of the model, such as a digest, for points that run the model itself.
        on_gpu: whether the device works while the host launches further kernels.
    """
    for block_size in block_sizes:
        yield from _attention(rank, grid, block_size)
        yield from _moves(rank, grid, block_size)
    first = block_sizes[0]
    for size in grid.tokens:
        # Cache writes go slot by slot, so the block size does not matter.
        writes = [(_write(rank, each, size, first), count) for each, count in rank.attention.items()]
        yield Measurement("write", 0, size, 0, tuple(writes))

    def of_model(op: str, **size: int) -> tuple[tuple[Point, int], ...]:
        return ((Point("model", op, {"run": model, **size}), 1),)

    for size in grid.tokens:
        linear = of_model("layers", tokens=size) if rank.is_built else _products(rank, size)
        yield Measurement("linear", 0, size, 0, linear)
    for size in grid.sequences:
        head = {"m": size, "n": rank.spec.vocab, "k": rank.spec.hidden, "dtype": rank.dtype}
        of_head = of_model("head", batch=size) if rank.is_built else ((Point("gemm", "linear", head), 1),)
        yield Measurement("head", 0, size, 0, of_head)
    if rank.runs_live:
        for op in LAUNCHES * on_gpu:
            yield Measurement(op, first, 1, 0, of_model(op, block_size=first))
        for size in grid.iterations:
            yield Measurement(ITERATION, first, size, 0, of_model(ITERATION, batch=size, block_size=first))


def _attention(rank: TensorParallelRank, grid: CalibrationGrid, block_size: int) -> Iterator[Measurement]:
    """Yield attention by span: decoding, decoding with drafts, prompts and prompt chunks."""
    longest = rank.spec.max_model_len
    decodes = [
        (batch, context)
        for batch in grid.batches
        for context in grid.contexts
        if context <= longest and batch * context <= grid.most_context
    ]
    chunks = [(count, new, new) for count, new in grid.prompts]
    chunks += [(1, new, context) for new, context in grid.chunks]
    for span in dict.fromkeys(each.span for each in rank.attention):
        alike = {each: count for each, count in rank.attention.items() if each.span == span}
        within = f" window:{span}" if span else ""
        seen = set()
        for batch, context in decodes:
            tokens = batch * min(context, span or context)
            if (batch, tokens) not in seen:  # contexts beyond the window cost no more
                seen.add((batch, tokens))
                points = tuple(
                    (_decode(rank, each, batch, context, block_size), n) for each, n in alike.items()
                )
                yield Measurement(f"decode{within}", block_size, batch, tokens, points)
        if rank.queries > 1:
            for batch, context in decodes:
                if context >= rank.queries:
                    points = tuple(
                        (_decode(rank, each, batch, context, block_size, rank.queries), n)
                        for each, n in alike.items()
                    )
                    yield Measurement("decode_drafts", block_size, batch, batch * context, points)
        for count, new, context in chunks:
            if context <= longest:
                points = tuple(
                    (_prefill(rank, each, count, new, context, block_size), n) for each, n in alike.items()
                )
                pairs = visible_pairs(points[0][0])
                yield Measurement(f"prefill{within}", block_size, count * new, pairs, points)


def _decode(
    rank: TensorParallelRank, of: AttentionShape, batch: int, context: int, block_size: int, queries: int = 1
) -> Point:
    shape = {"batch": batch, "context": context, "q_heads": rank.heads, "block_size": block_size}
    common = {**shape, "dtype": rank.cache}
    if of.latent:
        return Point("attention", "mla-decode", {**common, **of.latent_columns})
    # Batches with drafts do not run as graphs.
    several = {"queries": queries} if queries > 1 else {"splits": rank.splits(batch, of.span)}
    given = {name: value for name, value in {"window": of.span, **several}.items() if value}
    return Point("attention", "paged-decode", {**common, **of.head_columns, **given})


def _prefill(
    rank: TensorParallelRank, of: AttentionShape, batch: int, query: int, context: int, block_size: int
) -> Point:
    shape = {"batch": batch, "context": context, "query": query, "q_heads": rank.heads}
    dtype = rank.dtype if of.latent else rank.cache
    window = {"window": of.span} if of.span else {}
    common = {**shape, **window, "block_size": block_size, "dtype": dtype}
    return Point("attention", "paged-prefill", {**common, **of.head_columns})


def _write(rank: TensorParallelRank, of: AttentionShape, tokens: int, block_size: int) -> Point:
    common = {"tokens": tokens, "block_size": block_size, "dtype": rank.cache}
    if of.latent:
        return Point("copy", "mla-write", {**common, **of.latent_columns})
    return Point("copy", "reshape-and-cache", {**common, **of.head_columns})


def _moves(rank: TensorParallelRank, grid: CalibrationGrid, block_size: int) -> Iterator[Measurement]:
    """Yield copies within the device and swaps in both directions, for blocks of all layers."""
    pieces, size = rank.pieces(block_size)
    for blocks in grid.blocks:
        moved = {"pieces": pieces, "piece_bytes": size, "blocks": blocks}
        copy = Point("copy", "copy-blocks", {**moved, "dtype": rank.dtype})
        yield Measurement("copy", block_size, blocks, 0, ((copy, 1),))
        for direction in ("out", "in"):
            # A fresh free list allocates neighbouring host blocks.
            how = {"strategy": rank.swap, "direction": direction, "host_blocks": "neighbours"}
            swap = Point("swap", "swap", {**how, **moved})
            yield Measurement(f"swap_{direction}", block_size, blocks, 0, ((swap, 1),))


def _products(rank: TensorParallelRank, tokens: int) -> tuple[tuple[Point, int], ...]:
    """Return the benchmark points of all layers' matrix products, without experts."""
    found: Counter[tuple[int, int]] = Counter()
    for each in products(rank.whole, rank.tp, dtypes(rank.whole), latent=True):
        found[each.n, each.k] += each.layers
    return tuple(
        (Point("gemm", "linear", {"m": tokens, "n": n, "k": k, "dtype": rank.dtype}), layers)
        for (n, k), layers in found.items()
    )


_GPU = CalibrationGrid(
    tokens=(
        1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896,
        1024, 1280, 1536, 1792, 2048, 2560, 3072, 4096,
    ),
    sequences=(1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256),
    batches=(1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256),
    contexts=(32, 128, 256, 512, 768, 1024, 1536, 2048, 4096, 8192),
    prompts=(
        (1, 16), (1, 32), (1, 64), (1, 128), (1, 192), (1, 256), (1, 384), (1, 512), (1, 768), (1, 1024),
        (1, 1536), (1, 2048), (1, 4096), (2, 128), (2, 512), (2, 1024), (4, 64), (4, 256), (4, 512),
        (8, 32), (8, 128), (8, 256), (16, 64), (16, 128),
    ),
    chunks=(
        (16, 512), (64, 512), (64, 2048), (256, 512), (256, 1024), (256, 2048), (512, 2048), (1024, 2048),
    ),
    blocks=(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256),
    iterations=(1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256),
)  # fmt: skip

_CPU = CalibrationGrid(
    tokens=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
    sequences=(1, 2, 4, 8, 16, 32, 64),
    batches=(1, 4, 16, 64),
    contexts=(16, 64, 256, 1024),
    prompts=((1, 4), (1, 16), (1, 64), (1, 256), (1, 1024), (2, 64), (4, 128), (8, 16)),
    chunks=((16, 128), (64, 256), (256, 1024)),
    blocks=(1, 2, 4, 8, 16, 64),
    iterations=(1, 2, 4, 8, 16, 32, 64),
    most_context=20_000,
)
"""Few enough sizes for about a minute, since the result says nothing about a GPU."""


def grid_for(device: str, *, quick: bool) -> CalibrationGrid:
    """Return the sizes to measure on a device.

    Args:
        device: ``cpu`` or ``cuda``.
        quick: whether to use fewer sizes on a GPU; on a CPU there are few in any case.
    """
    if device == "cpu":
        return _CPU
    return _GPU.quick() if quick else _GPU
