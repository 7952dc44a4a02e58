"""Selection: converts a command's options, as written, to the points of a bench."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pagesim.errors import PagesimError
from pagesim.kernels.bench.defaults import HEADS, OURS, default_points, layers_of
from pagesim.kernels.bench.grid import Grid, Values, check_value
from pagesim.kernels.bench.peers import peers_found
from pagesim.kernels.bench.rows import DIRECTIONS, PARAMETERS, STRATEGIES, Point
from pagesim.kernels.requirements import installed, require_device
from pagesim.models import model as find_model

Asked = Mapping[str, str]
"""A grid's options as written, without those that were not given."""

_ATTENTION: dict[str, tuple[Any, ...]] = {
    "head_size": (128,), "batch": (1, 8), "context": (1024,), "block_size": (16,),
}  # fmt: skip
_SWAP_SIZES = {"pieces": (2,), "piece_bytes": (64 << 10,), "blocks": (16,)}


def device(name: str | None) -> str:
    """Return an available device: the named one, else a GPU if there is one.

    Raises:
        PagesimError: the named device is unknown or not available, or torch is missing.
    """
    if name is None:
        name = "cpu"
        if installed("torch"):
            import torch

            name = "cuda" if torch.cuda.is_available() else "cpu"
    require_device(name)
    return name


def points(bench: str, device: str, quick: bool, asked: Asked) -> list[Point]:
    """Return the points of a bench: a grid if any of its options was given, else the default points.

    Raises:
        PagesimError: an option is invalid; the message has its name, its value and what was expected.
    """
    if not asked:
        return default_points(bench, device, quick, peers_found())
    choose = {"attention": _attention, "swap": _swap, "gemm": _gemm}[bench]
    found = [point for grid in choose(asked, device) for point in grid.points()]
    if not found:
        raise PagesimError(f"{', '.join(asked)}: together these leave nothing to measure")
    return found


def _attention(given: Asked, device: str) -> list[Grid]:
    query = _values(given, "query", ())
    values: dict[str | tuple[str, ...], tuple[Any, ...]] = {
        HEADS: _heads(given.get("heads", "32/8")),
        **{name: _values(given, name, usual) for name, usual in _ATTENTION.items()},
        "layout": ("NHD",),
        "dtype": _values(given, "dtype", _dtypes(device)),
        "cores": ("cuda", "tensor"),
    }
    if query:
        contexts = values.pop("context")
        pairs = tuple((q, c) for c in contexts for q in query if q <= c)
        if not pairs:
            raise PagesimError(f"query is {given['query']}; it must be at most context, {max(contexts)}")
        values["query", "context"] = pairs
    ops = ("paged-prefill", "sdpa-prefill") if query else (*OURS, "gather-decode", *peers_found())
    return [Grid("attention", _values(given, "ops", ops), values)]


def _swap(given: Asked, device: str) -> list[Grid]:
    sizes: dict[str | tuple[str, ...], tuple[Any, ...]] = {
        name: _values(given, name, usual) for name, usual in _SWAP_SIZES.items()
    }
    values: Values = {
        **sizes,
        "strategy": STRATEGIES if device == "cuda" else STRATEGIES[:2],
        "direction": DIRECTIONS,
        "host_blocks": ("neighbours",),
    }
    wholes = {p * size * n for p in sizes["pieces"] for size in sizes["piece_bytes"] for n in sizes["blocks"]}
    whole: Values = {"piece_bytes": tuple(sorted(wholes)), "direction": DIRECTIONS}
    return [Grid("swap", ("swap",), values), Grid("swap", ("pinned-copy",), whole)]


def _gemm(given: Asked, device: str) -> list[Grid]:
    tokens = _values(given, "tokens", (1, 64, 1024))
    for each in tokens:
        check_value("tokens", each)
    products = layers_of(find_model(given.get("model", "opt-13b")))
    return [Grid("gemm", ("linear",), {("n", "k"): products, "m": tokens, "dtype": _dtypes(device)})]


def _dtypes(device: str) -> tuple[str, ...]:
    return ("fp32",) if device == "cpu" else ("fp16",)


def _values(given: Asked, name: str, usual: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the given values of a column, or the default ones."""
    if name not in given:
        return usual
    parts = [part.strip() for part in given[name].split(",")]
    if name == "ops" or PARAMETERS.get(name) is str:
        if not all(parts):
            raise PagesimError(f"{name} is {given[name]!r}; it must be words separated by commas")
        return tuple(parts)
    if not all(re.fullmatch("[0-9]{1,18}", part) for part in parts):
        raise PagesimError(f"{name} is {given[name]!r}; it must be whole numbers separated by commas")
    return tuple(map(int, parts))


def _heads(text: str) -> tuple[tuple[int, int], ...]:
    pairs = []
    for part in text.split(","):
        found = re.fullmatch("([0-9]{1,18})(?:/([0-9]{1,18}))?", part.strip())
        pair = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not pair[1] or not pair[0] or pair[0] % pair[1]:
            raise PagesimError(
                f"heads is {text}; it must be query heads / KV heads, the first a multiple of the second, as"
                " 32/8,40/40"
            )
        pairs.append(pair)
    return tuple(pairs)
