"""How a decode step is cut into programs: the tile, the splits, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil
from operator import index

from pagesim.errors import PagesimError
from pagesim.kernels.layouts import NHD, Layout


@dataclass(frozen=True, slots=True)
class Gpu:
    """What the planner must know of a GPU; an H200 unless said otherwise.

    Args:
        sms: streaming multiprocessors.
        shared_bytes: shared memory of one.

    Raises:
        PagesimError: one of them is less than 1.
    """

    sms: int = 132
    shared_bytes: int = 228 * 1024

    def __post_init__(self) -> None:
        _check_within("sms", self.sms, 1)
        _check_within("shared_bytes", self.shared_bytes, 1)


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """How a batch of decode queries is cut up; any plan gives the right answer.

    A program takes one KV head of one sequence and a split of its tokens, tile after tile. How long a split
    is follows from the sequence's own length (``split_tokens``): skewed batches are cut where they are long,
    and a plan for contexts of any length cuts short ones as finely as it cuts long ones.

    Args:
        tile: tokens that are loaded and multiplied at once, a power of two from 16.
        tokens_per_split: of a split at least, a multiple of ``tile``.
        num_splits: the most that any sequence takes. With 1 the kernel writes the output itself
            (PagedAttention's v1); with more, a reduction over partial results follows (v2).
        num_warps: warps a program, a power of two.
        num_stages: tiles in flight, the one being multiplied included.

    Raises:
        PagesimError: a number is off.
    """

    tile: int
    tokens_per_split: int
    num_splits: int
    num_warps: int
    num_stages: int

    def __post_init__(self) -> None:
        _check_power_of_two("tile", self.tile, 16)
        _check_power_of_two("num_warps", self.num_warps, 1, MAX_WARPS)
        if self.tokens_per_split < 1 or self.tokens_per_split % self.tile:
            raise PagesimError(
                f"tokens_per_split is {self.tokens_per_split}; a multiple of tile, which is {self.tile}, is"
                " needed"
            )
        _check_within("num_splits", self.num_splits, 1, MAX_SPLITS)
        _check_within("num_stages", self.num_stages, 1)

    def split_tokens(self, length: int) -> int:
        """Return the tokens of a split of a sequence of this length, by the rule of the kernels."""
        return max(self.tokens_per_split, ceil(length / (self.num_splits * self.tile)) * self.tile)

    def splits(self, length: int) -> int:
        """Return how many splits of a sequence of this length hold tokens."""
        return ceil(length / self.split_tokens(length))


MAX_SPLITS = 65_535
"""Splits are the third axis of a grid, of which CUDA allows as many programs."""

MAX_WARPS = 32
"""A program has at most 1024 threads."""

MIN_SPLIT_TOKENS = 256
"""A split shorter than this is not worth its start and its share of the reduction."""

START_TILES = 10.0
"""What starting and draining a program costs, in tiles (flashinfer#4904, measured on a GH200)."""

REDUCE_TILES = 0.22
"""What the reduction costs for each split, in tiles (the same source)."""

Tiles = Mapping[int, int]
"""Tiles of a sequence → how many sequences have as many."""

_KEY_BYTES = 16 * 1024  # of a tile
_FLYING_BYTES = 48 * 1024  # of keys and values a program, where tiles are small
_REGISTERS = 65536  # of one multiprocessor, on every GPU since Kepler


def plan_decode(
    context_lens: Sequence[int],
    *,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    kv_bytes: int = 2,
    layout: Layout = NHD,
    gpu: Gpu | None = None,
    queries: int = 1,
    window: int | None = None,
    capacity: bool = False,
    num_splits: int | None = None,
    tile: int | None = None,
    num_warps: int | None = None,
    num_stages: int | None = None,
) -> DecodePlan:
    """Choose how a decode step is cut up.

    With W the work of all programs, in tiles and starts, and P that of one whole split, the step takes about
    ``ceil(W / P / slots)`` rounds of P, and a reduction in proportion to the splits; the number of splits
    with the least of this is taken. For equal lengths W / P is the number of programs.

    A plan for a capacity is one for contexts whose lengths are not known, in a CUDA graph say. For equal
    lengths from ``MIN_SPLIT_TOKENS``, doubled up to the capacity, its time is divided by that of the plan for
    this length; the plan whose largest such ratio is least is taken.

    Args:
        context_lens: tokens of each sequence, as far as they are known; too small a guess costs only time.
        q_heads: query heads.
        kv_heads: KV heads.
        head_dim: elements of a head's vector.
        block_size: tokens a block; 0 for a contiguous cache.
        kv_bytes: bytes of a stored element.
        layout: of the cache.
        gpu: what the step runs on; None for an H200.
        queries: of each sequence.
        window: tokens that a query sees; None for all so far.
        capacity: whether ``context_lens`` are the most tokens that sequences may have, not what they have.
        num_splits: into how many splits the longest sequence is cut.
        tile: tokens a tile, a power of two from 16.
        num_warps: warps a program.
        num_stages: tiles in flight.

    Raises:
        PagesimError: an argument is out of range.
    """
    for length in {*context_lens}:
        _check_within("context_lens", length, 0, says="holds")
    _check_within("head_dim", head_dim, 1)
    _check_within("block_size", block_size, 0)
    _check_within("kv_bytes", kv_bytes, 1)
    _check_within("queries", queries, 0)
    _check_within("window", window, 1)
    _check_within("num_splits", num_splits, 1, MAX_SPLITS)
    _check_within("num_stages", num_stages, 1)
    _check_power_of_two("tile", tile, 16)
    _check_power_of_two("num_warps", num_warps, 1, MAX_WARPS)
    if q_heads < 1 or kv_heads < 1 or q_heads % kv_heads:
        raise PagesimError(f"q_heads is {q_heads}; a multiple of kv_heads, which is {kv_heads}, is needed")
    gpu = gpu or Gpu()
    padded_dim = 1 << (head_dim - 1).bit_length()
    if tile is None:
        # What is stored in a byte takes two in registers: twice the tokens would leave room for two programs.
        tile = min(128, max(16, _KEY_BYTES // (padded_dim * max(2, kv_bytes))))
        if layout.value.chunk_bytes is not None and block_size:
            # A value vector lies across its block: only within a block are tokens neighbours.
            tile = min(tile, max(16, block_size & -block_size))
    context_lens = [read_tokens(length, tile, queries, window) for length in context_lens]
    rows = query_rows(queries * (q_heads // kv_heads), head_dim)
    warps = num_warps or (8 if rows > 32 else 4)
    stages = num_stages or min(5, max(3, 1 + _FLYING_BYTES // (2 * tile * padded_dim * kv_bytes)))
    longest = max(context_lens, default=0)
    slots = gpu.sms * _programs_a_sm(gpu, tile, padded_dim, kv_bytes, warps, stages)
    if capacity and num_splits is None and longest:
        rows = sum(length > 0 for length in context_lens)
        num_splits, least = _splits_for_any(rows, ceil(longest / tile), kv_heads, tile, slots)
        return DecodePlan(tile, least * tile, num_splits, warps, stages)
    if num_splits is None:
        tiles = Counter(ceil(length / tile) for length in context_lens if length)
        num_splits = _best_splits(tiles, kv_heads, tile, slots)
    tokens_per_split = max(1, ceil(longest / num_splits / tile)) * tile
    return DecodePlan(tile, tokens_per_split, max(1, ceil(longest / tokens_per_split)), warps, stages)


def first_seen(length: int, queries: int = 1, window: int | None = None) -> int:
    """Return the first token that any of a sequence's last ``queries`` sees, by the rule of the kernels."""
    return 0 if window is None else max(length - (queries - 1) - window, 0)


def read_tokens(length: int, tile: int, queries: int = 1, window: int | None = None) -> int:
    """Return how many tokens of a sequence are cut into splits: those from the first tile that is seen."""
    return length - first_seen(length, queries, window) // tile * tile


def query_rows(vectors: int, head_dim: int) -> int:
    """Return how many of the ``vectors`` that read a KV head a program takes, as rows of a matrix.

    There are as many vectors as query heads of a KV head times queries of a sequence. Tensor cores want 16 at
    least. The most are what fits into registers: more would spill.
    """
    most = 64 if head_dim <= 128 else 16
    return min(most, max(16, 1 << (vectors - 1).bit_length()))


def _programs_a_sm(gpu: Gpu, tile: int, padded_dim: int, kv_bytes: int, warps: int, stages: int) -> int:
    """Return how many programs run on one multiprocessor at once, from what compiled kernels take."""
    shared = 2 * tile * padded_dim * kv_bytes * max(1, stages - 1) + 8 * 1024
    registers = 240 if padded_dim > 128 else 168
    return max(1, min(gpu.shared_bytes // shared, _REGISTERS // (registers * 32 * warps)))


def _time(tiles: Tiles, splits: int, least: int, kv_heads: int, slots: int) -> float:
    """Return the estimated time of a step, in tiles.

    Args:
        tiles: how many sequences have so many tiles.
        splits: of a sequence at most.
        least: tiles of a split at least.
        kv_heads: KV heads.
        slots: programs that run at once.
    """
    work, chain, filled = 0.0, 0, 0
    for count, times in tiles.items():
        each = max(least, ceil(count / splits))
        own = ceil(count / each)
        work += times * (count + START_TILES * own)
        chain, filled = max(chain, min(each, count)), max(filled, own)
    one = chain + START_TILES
    return ceil(kv_heads * work / one / slots) * one + (REDUCE_TILES * filled if splits > 1 else 0)


def _best_splits(tiles: Tiles, kv_heads: int, tile: int, slots: int) -> int:
    """Return the number of splits whose estimated time is least; the fewest of equals."""
    longest = max(tiles, default=0)
    best, least = 1, float("inf")
    splits, most = 1, min(MAX_SPLITS, max(1, longest * tile // MIN_SPLIT_TOKENS))
    while splits <= most:
        time = _time(tiles, splits, ceil(longest / splits), kv_heads, slots)
        if time < least:
            best, least = splits, time
        splits += max(1, splits // 8)  # every count up to 16, then in steps of an eighth
    return best


@cache
def _splits_for_any(rows: int, longest: int, kv_heads: int, tile: int, slots: int) -> tuple[int, int]:
    """Return splits, and tiles of one at least, for sequences of any equal length up to ``longest`` tiles."""
    shortest = max(1, MIN_SPLIT_TOKENS // tile)
    lengths = [longest]
    while lengths[-1] > shortest:
        lengths.append(max(shortest, lengths[-1] // 2))
    chosen = {length: _best_splits({length: rows}, kv_heads, tile, slots) for length in lengths}
    reachable = {
        length: _time({length: rows}, splits, ceil(length / splits), kv_heads, slots)
        for length, splits in chosen.items()
    }

    def losses(cut: tuple[int, int]) -> tuple[float, float]:
        ratios = [_time({n: rows}, *cut, kv_heads, slots) / time for n, time in reachable.items()]
        return max(ratios), sum(ratios)

    # Of a single split no size is asked.
    cuts = [(splits, least) for splits in sorted({*chosen.values()}) for least in sorted(lengths)]
    splits, least = min(cuts, key=losses)
    return splits, longest if splits == 1 else least


def _check_power_of_two(name: str, value: int | None, least: int, most: int | None = None) -> None:
    if value is None:
        return
    outside = value < least or (most is not None and value > most)
    if outside or value & (value - 1):
        end = "" if most is None else f" to {most}"
        raise PagesimError(f"{name} is {value}; a power of two from {least}{end} is needed")


def _check_within(
    name: str, value: int | None, least: int, most: int | None = None, *, says: str = "is"
) -> None:
    """Check a whole number against its bounds; None stands for one that is not given."""
    if value is None:
        return
    try:
        index(value)
    except TypeError:
        raise PagesimError(f"{name} {says} {value!r}; a whole number is needed") from None
    if value < least:
        raise PagesimError(f"{name} {says} {value}; at least {least} is needed")
    if most is not None and value > most:
        raise PagesimError(f"{name} {says} {value}; at most {most} is allowed")
