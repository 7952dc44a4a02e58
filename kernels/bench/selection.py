"""Selection: from a command's options, as they were written, to the points of a bench."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pagesim.errors import PagesimError
from pagesim.kernels.bench.defaults import HEADS, MOVES, OURS, default_points, layers_of
from pagesim.kernels.bench.exported import points as exported
from pagesim.kernels.bench.grid import Grid, Values, check_value
from pagesim.kernels.bench.peers import peers_found
from pagesim.kernels.bench.rows import DIRECTIONS, STRATEGIES, Point
from pagesim.kernels.requirements import installed, require_device
from pagesim.models import model as find_model

Asked = Mapping[str, str]
"""A grid's options as they were written; those left out are not there."""

_SWAP_SIZES = {"pieces": (2,), "piece_bytes": (64 << 10,), "blocks": (16,)}


def device(name: str | None) -> str:
    """Return a device that is there: the one that was named, else a GPU if there is one.

    Raises:
        PagesimError: the one that was named is unknown or not there, or torch is missing.
    """
    if name is None:
        name = "cpu"
        if installed("torch"):
            import torch

            name = "cuda" if torch.cuda.is_available() else "cpu"
    require_device(name)
    return name


def points(bench: str, device: str, quick: bool, asked: Asked) -> list[Point]:
    """Return the points of a bench: of a grid if any of its options was given, else the default ones.

    Raises:
        PagesimError: an option is off; the message names it, its value and what was expected.
    """
    if not asked:
        return default_points(bench, device, quick, peers_found())
    if "workload" in asked:
        return _workload(asked, device)
    choose = {"attention": _attention, "swap": _swap, "copy": _copy, "gemm": _gemm}[bench]
    found = [point for grid in choose(asked, device) for point in grid.points()]
    if not found:
        raise PagesimError(f"{', '.join(asked)}: together these leave nothing to measure")
    return found


def _workload(given: Asked, device: str) -> list[Point]:
    """Return a point for each batch of exported block tables."""
    others = [name for name in given if name not in ("workload", "dtype")]
    if others:
        raise PagesimError(f"{others[0]} goes with no workload, whose batches say it; leave one of them out")
    folder = Path(given["workload"])
    return [
        point
        for dtype in _words(given, "dtype", _dtypes(device))
        for point in exported(folder, dtype, one_head=device == "cpu")
    ]


def _attention(given: Asked, device: str) -> list[Grid]:
    query = _numbers(given, "query", ())
    values: dict[str | tuple[str, ...], tuple[object, ...]] = {
        HEADS: _heads(given.get("heads", "32/8")),
        "head_size": _numbers(given, "head_size", (128,)),
        "dtype": _words(given, "dtype", _dtypes(device)),
        "batch": _numbers(given, "batch", (1, 8)),
        "context": (contexts := _numbers(given, "context", (1024,))),
        "layout": _words(given, "layout", ("NHD",)),
        "block_size": _numbers(given, "block_size", (16,)),
        "queries": _numbers(given, "queries", (1,)),
        "window": _numbers(given, "window", (0,)),
        "splits": _splits(given.get("splits", "auto")),
        "cores": ("cuda", "tensor"),
    }
    if device == "cpu" and any(values["splits"]):
        raise PagesimError("splits is for device cuda; on a CPU the reference runs, which has none")
    if query:
        pairs = tuple((q, c) for c in contexts for q in query if q <= c)
        if not pairs:
            raise PagesimError(f"query is {given['query']}; it must be at most context, {max(contexts)}")
        del values["context"]
        values["query", "context"] = pairs
    ops = ("paged-prefill", "sdpa-prefill") if query else (*OURS, "gather-decode", *peers_found())
    return [Grid("attention", _words(given, "ops", ops), values)]


def _swap(given: Asked, device: str) -> list[Grid]:
    values: Values = {
        **{name: _numbers(given, name, usual) for name, usual in _SWAP_SIZES.items()},
        "strategy": _words(given, "strategy", STRATEGIES if device == "cuda" else STRATEGIES[:2]),
        "direction": _words(given, "direction", DIRECTIONS),
        "host_blocks": _words(given, "host_blocks", ("neighbours",)),
    }
    sizes = {
        p * size * n for p in values["pieces"] for size in values["piece_bytes"] for n in values["blocks"]
    }
    whole: Values = {"piece_bytes": tuple(sorted(sizes)), "direction": values["direction"]}
    return [Grid("swap", ("swap",), values), Grid("swap", ("pinned-copy",), whole)]


def _copy(given: Asked, device: str) -> list[Grid]:
    """Return grids of the ops that the given options are about."""
    dtypes = _words(given, "dtype", _dtypes(device))
    writes = ("tokens", "block_size", "kv_heads", "head_size", "layout")
    grids = []
    if "size" in given:
        grids.append(Grid("copy", ("device-copy",), {"piece_bytes": _numbers(given, "size", ())}))
    if set(given) == {"dtype"} or any(name in given for name in writes):
        values: Values = {
            "tokens": _numbers(given, "tokens", (1024,)),
            "block_size": _numbers(given, "block_size", (16,)),
            "kv_heads": _numbers(given, "kv_heads", (8,)),
            "head_size": _numbers(given, "head_size", (128,)),
            "dtype": dtypes,
            "layout": _words(given, "layout", ("NHD",)),
        }
        grids.append(Grid("copy", ("reshape-and-cache",), values))
    if any(name in given for name in _SWAP_SIZES):
        moved: Values = {name: _numbers(given, name, usual) for name, usual in _SWAP_SIZES.items()}
        grids.append(Grid("copy", MOVES, {**moved, "dtype": dtypes[:1]}))
    return grids


def _gemm(given: Asked, device: str) -> list[Grid]:
    tokens = _numbers(given, "tokens", (1, 64, 1024))
    for each in tokens:
        check_value("tokens", each)
    values: Values = {
        ("n", "k"): layers_of(find_model(given.get("model", "opt-13b"))),
        "m": tokens,
        "dtype": _words(given, "dtype", _dtypes(device)),
    }
    return [Grid("gemm", ("linear",), values)]


def _dtypes(device: str) -> tuple[str, ...]:
    return ("fp32",) if device == "cpu" else ("fp16",)


def _words(given: Asked, name: str, default: tuple[str, ...]) -> tuple[str, ...]:
    if name not in given:
        return default
    words = tuple(word.strip() for word in given[name].split(","))
    if not all(words):
        raise PagesimError(f"{name} is {given[name]!r}; it must be words separated by commas")
    return words


def _numbers(given: Asked, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    if name not in given:
        return default
    return tuple(_number(name, part, given[name]) for part in given[name].split(","))


def _number(name: str, part: str, whole: str) -> int:
    part = part.strip()
    if not part.isascii() or not part.isdigit() or len(part) > 18:
        raise PagesimError(f"{name} is {whole!r}; it must be whole numbers separated by commas")
    return int(part)


def _heads(text: str) -> tuple[tuple[int, int], ...]:
    pairs = []
    for part in text.split(","):
        q_heads, slash, kv_heads = part.partition("/")
        try:
            pair = _number("heads", q_heads, text), _number("heads", kv_heads if slash else q_heads, text)
        except PagesimError:
            pair = (0, 0)
        if not pair[1] or not pair[0] or pair[0] % pair[1]:
            raise PagesimError(
                f"heads is {text}; it must be query heads / KV heads, the first a multiple of the second, as"
                " 32/8,40/40"
            )
        pairs.append(pair)
    return tuple(pairs)


def _splits(text: str) -> tuple[int, ...]:
    numbers = []
    for part in (part.strip() for part in text.split(",")):
        if part == "auto":
            numbers.append(0)
        elif part.isascii() and part.isdigit() and int(part[:9]) >= 1:
            numbers.append(int(part[:9]))
        else:
            raise PagesimError(
                f"splits is {text!r}; it must be auto or whole numbers from 1, separated by commas"
            )
    return tuple(numbers)
