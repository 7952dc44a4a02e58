"""What the kernels promise on a GPU, and whether rows that were measured keep it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from pagesim.kernels.bench.peers import PEERS
from pagesim.kernels.bench.rows import OK, Row, is_planned

FULL_TOKENS = 256 << 10
"""batch × context from which a GPU is taken to be full."""

PROMPT_TOKENS = 2048
"""Tokens from which a prompt is long."""

LARGE_BYTES = 256 * 10**6
"""Bytes from which a copy is large."""

OPT_PIECES = 80
OPT_TOKEN_BYTES = 40 * 128 * 2
"""OPT-13B: keys and values of 40 layers, and the bytes of a token in one of them."""


@dataclass(frozen=True)
class Bar:
    """One promise.

    Attributes:
        promise: what is promised.
        needed: the bound, in words.
        measured: the worst that was measured, in words; what is missing, where nothing was.
        kept: whether the worst keeps the bound; None where nothing was measured.
    """

    promise: str
    needed: str
    measured: str
    kept: bool | None


def verdict(rows: Iterable[Row]) -> list[Bar]:
    """Return every promise with what a GPU's rows say of it."""
    good = [row for row in rows if row["status"] == OK and row["machine"]["device"] == "cuda"]
    return [judge(good) for judge in _JUDGES]


def _bandwidth(rows: Sequence[Row]) -> Bar:
    found = [row["fraction"] for row in rows if _is_full_decode(row)]
    return _at_least("paged decode, GPU full, block 16 to 256", 0.90, "of copy bandwidth", found)


def _block_size(rows: Sequence[Row]) -> Bar:
    small = [row for row in rows if _is_full_decode(row) and row["block_size"] == 16]
    large = [row for row in rows if _is_full_decode(row) and row["block_size"] == 128]
    return _at_most("block 16 against block 128, GPU full", 1.05, "of the time", _ratios(small, large))


def _paging(rows: Sequence[Row]) -> Bar:
    paged = [row for row in rows if _is_full_decode(row)]
    contiguous = [row for row in rows if row["op"] == "contiguous-decode"]
    ratios = _ratios(paged, contiguous)
    return _at_most("paged against contiguous, GPU full", 1.02, "of the time", ratios)


def _peers(rows: Sequence[Row]) -> Bar:
    ours = [row for row in rows if _is_decode(row) and row["batch"] <= 8]
    theirs = [row for row in rows if row["op"] in PEERS]
    also = ("block_size", "layout")
    ratios = _ratios(ours, theirs, also)
    bar = _at_most("paged decode against the best peer, batch 1 to 8", 1.15, "of its time", ratios)
    if not ratios:
        return Bar(bar.promise, bar.needed, "no peer is installed", None)
    each = []
    for name, mine in _by_peer(theirs).items():
        if of_one := _ratios(ours, mine, also):
            each.append(f"{name} {min(of_one):.0%} to {max(of_one):.0%}")
    return replace(bar, measured=f"{bar.measured}; {', '.join(each)}")


def _by_peer(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each peer, those of FlashInfer by the cores that it used."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        name = row["op"].removesuffix("-decode")
        found.setdefault(f"{name} ({row['cores']} cores)" if row["cores"] else name, []).append(row)
    return found


def _fp8(rows: Sequence[Row]) -> Bar:
    """FP8 caches have half the bytes: what is gained of a possible factor of two."""
    ours = [row for row in rows if row["op"] == "paged-decode" and is_planned(row) and row["layout"] == "NHD"]
    shape = tuple(name for name in _SHAPE if name != "dtype")
    halved = [row for row in ours if row["dtype"] == "fp8" and row["batch"] * row["context"] >= FULL_TOKENS]
    whole = [row for row in ours if row["dtype"] == "fp16"]
    gains = [1 / ratio for ratio in _ratios(halved, whole, ("block_size",), shape)]
    said = f"{min(gains):.2f} times, the least of {len(gains)}" if gains else _NOTHING
    kept = min(gains) >= 1.7 if gains else None
    return Bar("paged decode of FP8 caches, GPU full", "≥ 1.7 times the speed of fp16", said, kept)


def _prefill(rows: Sequence[Row]) -> Bar:
    ours = [row for row in rows if _is_prompt(row)]
    theirs = [row for row in rows if row["op"] == "sdpa-prefill"]
    speeds = [1 / ratio for ratio in _ratios(ours, theirs, also=("query",))]
    return _at_least("paged prefill, whole prompts from 2048 tokens", 0.70, "of SDPA's speed", speeds)


def _gather(rows: Sequence[Row]) -> Bar:
    found = [
        row["fraction"]
        for row in rows
        if _is_opt_swap(row, "gather") and row["piece_bytes"] == 16 * OPT_TOKEN_BYTES and row["blocks"] >= 16
    ]
    return _at_least("gather swap, OPT-13B, from 16 blocks of 16 tokens", 0.90, "of one pinned copy", found)


def _copy_each(rows: Sequence[Row]) -> Bar:
    """The paper's Fig. 19a: copies of small pieces waste the link, and larger blocks mend it."""
    promise, needed = "a copy a block, OPT-13B, over block size", "rises to at least twice"
    points = sorted(
        (row["piece_bytes"] // OPT_TOKEN_BYTES, row["fraction"])
        for row in rows
        if _is_opt_swap(row, "copy-each") and row["direction"] == "out" and row["host_blocks"] == "neighbours"
    )
    if len({size for size, _ in points}) < 2:
        return Bar(promise, needed, _NOTHING, None)
    (small, first), (large, last) = points[0], points[-1]
    said = f"{first:.0%} of one pinned copy at {small}, {last:.0%} at {large} tokens a block"
    return Bar(promise, needed, said, last >= 2 * first)


def _cache_write(rows: Sequence[Row]) -> Bar:
    return _copying(rows, "reshape-and-cache", "cache write (reshape-and-cache), large")


def _block_copy(rows: Sequence[Row]) -> Bar:
    return _copying(rows, "copy-blocks", "block copy, large")


_JUDGES: tuple[Callable[[Sequence[Row]], Bar], ...] = (
    _bandwidth,
    _block_size,
    _paging,
    _peers,
    _fp8,
    _prefill,
    _gather,
    _copy_each,
    _cache_write,
    _block_copy,
)

_NOTHING = "not measured"


def _copying(rows: Sequence[Row], op: str, promise: str) -> Bar:
    found = [
        row["fraction"]
        for row in rows
        if row["op"] == op
        and row["bytes_moved"] >= LARGE_BYTES
        and (row["layout"] or "NHD") == "NHD"
        and row["dtype"] == "fp16"
    ]
    return _at_least(promise, 0.80, "of copy bandwidth", found)


def _is_decode(row: Row) -> bool:
    """Whether a row is a paged decode as the planner would have it, of the shapes that are promised."""
    return row["op"] == "paged-decode" and is_planned(row) and _is_promised(row)


def _is_prompt(row: Row) -> bool:
    """Whether a row is the prefill of whole prompts, of the shapes that are promised."""
    return (
        row["op"] == "paged-prefill"
        and is_planned(row)
        and _is_promised(row)
        and bool(row["query"] == row["context"] and row["query"] >= PROMPT_TOKENS)
    )


def _is_promised(row: Row) -> bool:
    return bool(
        (row["q_heads"], row["kv_heads"]) in ((32, 8), (40, 40))
        and (row["head_size"], row["dtype"], row["layout"]) == (128, "fp16", "NHD")
        and row["block_size"] >= 16
    )


def _is_full_decode(row: Row) -> bool:
    return _is_decode(row) and bool(row["batch"] * row["context"] >= FULL_TOKENS)


def _is_opt_swap(row: Row, strategy: str) -> bool:
    return bool(row["op"] == "swap" and row["strategy"] == strategy and row["pieces"] == OPT_PIECES)


_SHAPE = ("batch", "context", "q_heads", "kv_heads", "head_size", "dtype")


def _ratios(
    ours: Sequence[Row], theirs: Sequence[Row], also: tuple[str, ...] = (), names: tuple[str, ...] = _SHAPE
) -> list[float]:
    """Return our time over their best for every row of ours that has a counterpart."""
    best: dict[tuple[object, ...], float] = {}
    for row in theirs:
        if is_planned(row):
            shape = tuple(row[name] for name in (*names, *also))
            best[shape] = min(row["median_s"], best.get(shape, float("inf")))
    shapes = [(row["median_s"], tuple(row[name] for name in (*names, *also))) for row in ours]
    return [time / best[shape] for time, shape in shapes if shape in best]


def _at_least(promise: str, bound: float, of_what: str, found: Sequence[float]) -> Bar:
    said = f"{min(found):.1%}, the worst of {len(found)}" if found else _NOTHING
    return Bar(promise, f"≥ {bound:.0%} {of_what}", said, min(found) >= bound if found else None)


def _at_most(promise: str, bound: float, of_what: str, found: Sequence[float]) -> Bar:
    said = f"{max(found):.1%}, the worst of {len(found)}" if found else _NOTHING
    return Bar(promise, f"≤ {bound:.0%} {of_what}", said, max(found) <= bound if found else None)
