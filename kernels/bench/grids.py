"""Grids: every combination of parameters that a bench measures, with their bounds checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from pagesim.errors import PagesimError
from pagesim.kernels.bench.peers import PEERS
from pagesim.kernels.bench.rows import Point
from pagesim.models import ModelSpec

HEAD_SIZES = (32, 64, 72, 80, 96, 112, 120, 128, 160, 192, 256, 512)
WHOLE_DTYPES = ("fp16", "bf16", "fp32")
DTYPES = (*WHOLE_DTYPES, "fp8", "fp8_per_token_head", "int8_per_token_head")
LAYOUTS = ("NHD", "HND", "VLLM")
MAX_BLOCK_SIZE = 4096
MAX_CONTEXT = 1 << 20
MAX_BATCH = 1 << 14
MAX_QUERIES = 64

WHOLE = 0
"""As a window: the whole context."""

PLANNED = 0
"""As a number of splits: whatever the planner chooses."""

DECODE_OPS = ("paged-decode", "contiguous-decode", "gather-decode", "sdpa-decode")
PREFILL_OPS = ("paged-prefill", "sdpa-prefill")
VARIED_OPS = ("paged-decode", "contiguous-decode")
"""Which of the decode ops take several queries a sequence, and windows."""

COPY_OPS = ("device-copy", "reshape-and-cache", "copy-blocks", "gather-blocks", "scatter-blocks")
CORES = ("cuda", "tensor")
"""What FlashInfer decodes with: it has a kernel for each, and leaves the choice to the caller."""
STRATEGIES = ("copy-each", "copy-batch", "gather", "zero-copy")
DIRECTIONS = ("out", "in")
HOST_BLOCKS = ("neighbours", "scattered")


@dataclass(frozen=True)
class AttentionGrid:
    """Attention over every combination of these.

    What an op does not depend on is left out of its points: a contiguous cache has no block size.

    Args:
        shapes: (batch, context) pairs.
        prompts: (batch, new tokens, context with them) of prefill.
        block_sizes: from 1 to 4096.
        heads: (query heads, KV heads).
        head_sizes: among ``HEAD_SIZES``.
        dtypes: fp16, bf16, fp32, or, for the cache beside fp16 queries, fp8, with a scale a token and head
            fp8_per_token_head or int8_per_token_head.
        layouts: of the paged cache.
        splits: forced numbers of splits, 0 for the planner's choice.
        queries: of a sequence in decode, 1 to 64; more than one in our own kernels.
        windows: tokens that a query sees, 0 for all; others in our own kernels.
        ops: which ops; peers by their names.

    Raises:
        PagesimError: a value is off; the message names it and the bound.
    """

    shapes: tuple[tuple[int, int], ...] = ()
    prompts: tuple[tuple[int, int, int], ...] = ()
    block_sizes: tuple[int, ...] = (16,)
    heads: tuple[tuple[int, int], ...] = ((32, 8),)
    head_sizes: tuple[int, ...] = (128,)
    dtypes: tuple[str, ...] = ("fp16",)
    layouts: tuple[str, ...] = ("NHD",)
    splits: tuple[int, ...] = (PLANNED,)
    queries: tuple[int, ...] = (1,)
    windows: tuple[int, ...] = (WHOLE,)
    ops: tuple[str, ...] = (*DECODE_OPS, *PREFILL_OPS)

    def __post_init__(self) -> None:
        for batch, context in self.shapes:
            _within("batch", batch, 1, MAX_BATCH)
            _within("context", context, 1, MAX_CONTEXT)
        for batch, query, context in self.prompts:
            _within("batch", batch, 1, MAX_BATCH)
            _within("context", context, 1, MAX_CONTEXT)
            _within("query", query, 1, context)
        for size in self.block_sizes:
            _within("block_size", size, 1, MAX_BLOCK_SIZE)
        for q_heads, kv_heads in self.heads:
            if kv_heads < 1 or q_heads < 1 or q_heads % kv_heads:
                raise PagesimError(
                    f"heads is {q_heads}/{kv_heads}; it must be query heads / KV heads, "
                    "the first a multiple of the second"
                )
        for size in self.head_sizes:
            _among("head_size", size, HEAD_SIZES)
        for dtype in self.dtypes:
            _among("dtype", dtype, DTYPES)
        for layout in self.layouts:
            _among("layout", layout, LAYOUTS)
        for splits in self.splits:
            _within("splits", splits, 0, 1024)
        for queries in self.queries:
            _within("queries", queries, 1, MAX_QUERIES)
        for window in self.windows:
            _within("window", window, 0, MAX_CONTEXT)
        for op in self.ops:
            _among("op", op, (*DECODE_OPS, *PREFILL_OPS, *PEERS))

    def points(self) -> Iterator[Point]:
        """Yield the points, those that are compared with one another in a row."""
        models = product(self.heads, self.head_sizes, self.dtypes)
        for (q_heads, kv_heads), head_size, dtype in models:
            model = {"q_heads": q_heads, "kv_heads": kv_heads, "head_size": head_size, "dtype": dtype}
            for batch, context in self.shapes:
                shape = {"batch": batch, "context": context, **model}
                for op in self.ops:
                    if op not in PREFILL_OPS:
                        yield from self._decode(op, shape)
            for batch, query, context in self.prompts:
                shape = {"batch": batch, "context": context, "query": query, **model}
                for op in self.ops:
                    if op in PREFILL_OPS:
                        yield from self._prefill(op, shape)

    def _decode(self, op: str, shape: dict[str, Any]) -> Iterator[Point]:
        if op not in VARIED_OPS and not (1 in self.queries and WHOLE in self.windows):
            return
        if op == "sdpa-decode":
            if shape["dtype"] in WHOLE_DTYPES:
                yield Point("attention", op, shape)
            return
        for layout in self.layouts:
            if op == "contiguous-decode":
                if layout != "VLLM":
                    yield from self._splits(op, {**shape, "layout": layout})
                continue
            for block_size in self.block_sizes:
                paged = {**shape, "layout": layout, "block_size": block_size}
                if op == "paged-decode":
                    yield from self._splits(op, paged)
                elif op == "flashinfer-decode":
                    yield from (Point("attention", op, {**paged, "cores": cores}) for cores in CORES)
                else:
                    yield Point("attention", op, paged)

    def _splits(self, op: str, shape: dict[str, Any]) -> Iterator[Point]:
        for queries, window, splits in product(self.queries, self.windows, self.splits):
            asked = {"queries": (queries, 1), "window": (window, WHOLE), "splits": (splits, PLANNED)}
            given = {name: value for name, (value, usual) in asked.items() if value != usual}
            yield Point("attention", op, {**shape, **given})

    def _prefill(self, op: str, shape: dict[str, Any]) -> Iterator[Point]:
        if op == "sdpa-prefill":
            # Its causal mask is for whole prompts.
            whole = shape["query"] == shape["context"] and WHOLE in self.windows
            if whole and shape["dtype"] in WHOLE_DTYPES:
                yield Point("attention", op, shape)
            return
        for layout, block_size, window in product(self.layouts, self.block_sizes, self.windows):
            given = {} if window == WHOLE else {"window": window}
            yield Point("attention", op, {**shape, "layout": layout, "block_size": block_size, **given})


@dataclass(frozen=True)
class SwapGrid:
    """Swaps over every combination of these.

    Args:
        shapes: (pieces a block, bytes a piece, blocks): a model has a piece for each layer's keys and one for
            its values.
        strategies: how.
        directions: ``out`` of the device, ``in``.
        host_blocks: where blocks go in the swap space: ``neighbours``, or ``scattered``.
        beside_decode: whether decoding beside each strategy is measured too; on a GPU only.
        in_iterations: blocks that an iteration swaps, in front of its layers and layer by layer.

    Raises:
        PagesimError: a value is off; the message names it and the bound.
    """

    shapes: tuple[tuple[int, int, int], ...]
    strategies: tuple[str, ...] = STRATEGIES
    directions: tuple[str, ...] = DIRECTIONS
    host_blocks: tuple[str, ...] = ("neighbours",)
    beside_decode: bool = False
    in_iterations: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for pieces, size, blocks in self.shapes:
            _within("pieces", pieces, 1, 1024)
            _within("piece_bytes", size, 16, 1 << 30)
            _within("blocks", blocks, 1, 1 << 20)
            if size % 16:
                raise PagesimError(f"piece_bytes is {size}; it must be a multiple of 16")
        for strategy in self.strategies:
            _among("strategy", strategy, STRATEGIES)
        for direction in self.directions:
            _among("direction", direction, DIRECTIONS)
        for where in self.host_blocks:
            _among("host_blocks", where, HOST_BLOCKS)
        for blocks in self.in_iterations:
            _within("blocks", blocks, 1, ITERATION["batch"] * ITERATION["context"] // ITERATION["block_size"])

    def points(self) -> Iterator[Point]:
        """Yield the points: of each size one large copy, then the strategies."""
        for pieces, size, blocks in self.shapes:
            for direction in self.directions:
                whole = {"direction": direction, "piece_bytes": pieces * size * blocks}
                yield Point("swap", "pinned-copy", whole)
                for strategy, where in product(self.strategies, self.host_blocks):
                    yield Point("swap", "swap", self._swap(strategy, direction, where, pieces, size, blocks))
        if self.beside_decode:
            pieces, size, blocks = max(self.shapes, key=lambda shape: shape[0] * shape[1] * shape[2])
            for strategy, direction in product(self.strategies, self.directions):
                swap = self._swap(strategy, direction, self.host_blocks[0], pieces, size, blocks)
                yield Point("swap", "decode-beside-swap", {**swap, **DECODE_BESIDE})
        for blocks, strategy, direction in product(self.in_iterations, self.strategies, self.directions):
            size = ITERATION["block_size"] * ITERATION["kv_heads"] * ITERATION["head_size"] * 2
            swap = self._swap(strategy, direction, self.host_blocks[0], ITERATION_PIECES, size, blocks)
            yield Point("swap", "swap-by-layer", {**swap, **ITERATION})

    @staticmethod
    def _swap(
        strategy: str, direction: str, where: str, pieces: int, size: int, blocks: int
    ) -> dict[str, Any]:
        return {
            "strategy": strategy,
            "direction": direction,
            "host_blocks": where,
            "pieces": pieces,
            "piece_bytes": size,
            "blocks": blocks,
        }


DECODE_BESIDE = {
    "batch": 64, "context": 4096, "block_size": 16, "q_heads": 32, "kv_heads": 8, "head_size": 128,
    "dtype": "fp16", "layout": "NHD",
}  # fmt: skip
"""The decode step that is measured beside swaps."""


ITERATION: dict[str, Any] = {
    "batch": 32, "context": 2048, "block_size": 16, "q_heads": 32, "kv_heads": 8, "head_size": 128,
    "dtype": "fp16", "layout": "NHD", "n": 53248, "k": 4096,
}  # fmt: skip
"""An iteration that swaps by layer: the shapes of Llama-3.1-8B, a layer's weights as a matrix of n × k."""

ITERATION_PIECES = 2 * 32
"""Keys and values of its layers."""


@dataclass(frozen=True)
class CopyGrid:
    """Ops that move bytes within the device.

    Args:
        sizes: bytes of plain copies.
        tokens: of cache writes.
        block_copies: (pieces a block, bytes a piece, blocks) of copies, gathers and scatters of blocks.
        block_sizes: of cache writes.
        kv_heads: of cache writes.
        head_size: of cache writes.
        dtypes: of cache writes; the first is that of block copies.
        layouts: of cache writes.

    Raises:
        PagesimError: a value is off; the message names it and the bound.
    """

    sizes: tuple[int, ...]
    tokens: tuple[int, ...]
    block_copies: tuple[tuple[int, int, int], ...]
    block_sizes: tuple[int, ...] = (16,)
    kv_heads: tuple[int, ...] = (8, 40)
    head_size: int = 128
    dtypes: tuple[str, ...] = ("fp16",)
    layouts: tuple[str, ...] = ("NHD",)
    ops: tuple[str, ...] = COPY_OPS

    def __post_init__(self) -> None:
        AttentionGrid(
            block_sizes=self.block_sizes,
            heads=tuple((heads, heads) for heads in self.kv_heads),
            head_sizes=(self.head_size,),
            dtypes=self.dtypes,
            layouts=self.layouts,
        )
        SwapGrid(self.block_copies)
        for size in self.sizes:
            _within("piece_bytes", size, 16, 1 << 34)
        for tokens in self.tokens:
            _within("tokens", tokens, 1, 1 << 24)
        for op in self.ops:
            _among("op", op, COPY_OPS)

    def points(self) -> Iterator[Point]:
        """Yield the points."""
        for op in self.ops:
            if op == "device-copy":
                yield from (Point("copy", op, {"piece_bytes": size}) for size in self.sizes)
            elif op == "reshape-and-cache":
                axes = product(self.kv_heads, self.dtypes, self.layouts, self.block_sizes, self.tokens)
                for heads, dtype, layout, block_size, tokens in axes:
                    cache = {"block_size": block_size, "kv_heads": heads, "head_size": self.head_size}
                    yield Point("copy", op, {"tokens": tokens, **cache, "dtype": dtype, "layout": layout})
            else:
                for pieces, size, blocks in self.block_copies:
                    pool: dict[str, Any] = {"pieces": pieces, "piece_bytes": size, "blocks": blocks}
                    yield Point("copy", op, {**pool, "dtype": self.dtypes[0]})


@dataclass(frozen=True)
class GemmGrid:
    """The matrix products of linear layers.

    Args:
        layers: (n, k): numbers out and in of a token.
        tokens: m, in an iteration.
        dtypes: of both factors.

    Raises:
        PagesimError: a value is off; the message names it and the bound.
    """

    layers: tuple[tuple[int, int], ...]
    tokens: tuple[int, ...]
    dtypes: tuple[str, ...] = ("fp16",)

    def __post_init__(self) -> None:
        for n, k in self.layers:
            _within("n", n, 1, 1 << 20)
            _within("k", k, 1, 1 << 20)
        for tokens in self.tokens:
            _within("tokens", tokens, 1, 1 << 20)
        for dtype in self.dtypes:
            _among("dtype", dtype, WHOLE_DTYPES)

    def points(self) -> Iterator[Point]:
        """Yield the points."""
        for (n, k), dtype, m in product(dict.fromkeys(self.layers), self.dtypes, self.tokens):
            yield Point("gemm", "linear", {"m": m, "n": n, "k": k, "dtype": dtype})


Grid = AttentionGrid | SwapGrid | CopyGrid | GemmGrid


def layers_of(model: ModelSpec) -> tuple[tuple[int, int], ...]:
    """Return (n, k) of a model's linear layers: qkv, attention's output, the MLP's two, the LM head."""
    q, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    up = 2 * model.ffn if model.gated else model.ffn
    return (
        (q + 2 * kv, model.hidden),
        (model.hidden, q),
        (up, model.hidden),
        (model.hidden, model.ffn),
        (model.vocab, model.hidden),
    )


def _within(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise PagesimError(f"{name} is {value}; it must be from {least} to {most}")


def _among(name: str, value: int | str, known: Sequence[int | str]) -> None:
    if value not in known:
        raise PagesimError(f"{name} is {value}; it must be one of {', '.join(map(str, known))}")
