"""Selection: from a command's options, as they were written, to the points of a bench."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from pagesim.errors import PagesimError
from pagesim.kernels.bench.decode_grids import MLA_OP, LatentGrid, SharedPrefixGrid
from pagesim.kernels.bench.defaults import AnyGrid, default_points
from pagesim.kernels.bench.grids import (
    COPY_OPS,
    DECODE_OPS,
    DIRECTIONS,
    PLANNED,
    PREFILL_OPS,
    STRATEGIES,
    WHOLE,
    AttentionGrid,
    CopyGrid,
    GemmGrid,
    Grid,
    SwapGrid,
    layers_of,
)
from pagesim.kernels.bench.peers import peers_found
from pagesim.kernels.bench.rows import Point
from pagesim.kernels.requirements import installed, require_device
from pagesim.models import model as find_model

Asked = Mapping[str, str]
"""A grid's options as they were written; those left out are not there."""


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
        return default_points(bench, device, quick)
    grid = {"attention": _attention, "swap": _swap, "copy": _copy, "gemm": _gemm}[bench](asked, device)
    found = list(grid.points())
    if not found:
        raise PagesimError(f"{', '.join(asked)}: together these leave nothing to measure")
    return found


def _attention(given: Mapping[str, str], device: str) -> AnyGrid:
    batch, context = (
        _numbers(given, name, default) for name, default in (("batch", (1, 8)), ("context", (1024,)))
    )
    query = _numbers(given, "query", ())
    dtypes = _words(given, "dtype", ("fp32",) if device == "cpu" else ("fp16",))
    if "shared" in given or MLA_OP in given.get("ops", ""):
        return _of_one_kind(given, tuple(product(batch, context)), dtypes)
    splits = _splits(given.get("splits", "auto"))
    if device == "cpu" and any(splits):
        raise PagesimError("splits is for device cuda; on a CPU the reference runs, which has none")
    shapes = tuple(product(batch, context))
    prompts = tuple((b, q, c) for b, c in shapes for q in query if q <= c)
    if query and not prompts:
        raise PagesimError(f"query is {given['query']}; it must be at most context, {max(context)}")
    ops = PREFILL_OPS if query else (*DECODE_OPS, *peers_found())
    return AttentionGrid(
        shapes=() if query else shapes,
        prompts=prompts,
        block_sizes=_numbers(given, "block_size", (16,)),
        heads=_heads(given.get("heads", "32/8")),
        head_sizes=_numbers(given, "head_size", (128,)),
        dtypes=dtypes,
        layouts=_words(given, "layout", ("NHD",)),
        splits=splits,
        queries=_numbers(given, "queries", (1,)),
        windows=_numbers(given, "window", (WHOLE,)),
        ops=_words(given, "ops", ops),
    )


def _of_one_kind(
    given: Mapping[str, str], shapes: tuple[tuple[int, int], ...], dtypes: tuple[str, ...]
) -> AnyGrid:
    """Return the grid of decode over shared prefixes, or over latents."""
    what = "shared" if "shared" in given else f"ops {MLA_OP}"
    also = {"batch", "context", "block_size", "heads", "dtype"}
    also |= {"shared", "head_size"} if "shared" in given else {"ops"}
    if beside := ", ".join(name for name in given if name not in also):
        raise PagesimError(f"{beside}: {what} is measured without; leave it out")
    if len(dtypes) != 1:
        raise PagesimError(f"dtype is {given['dtype']}; {what} takes one")
    heads = _heads(given.get("heads", "32/8" if "shared" in given else "128"))
    if "shared" not in given:
        if given["ops"].strip() != MLA_OP:
            raise PagesimError(f"ops is {given['ops']!r}; {MLA_OP} is measured without others")
        return LatentGrid(shapes, tuple(q for q, _ in heads), _numbers(given, "block_size", (64,)), dtypes[0])
    sizes = {
        name: _numbers(given, name, (usual,)) for name, usual in (("block_size", 16), ("head_size", 128))
    }
    for name, numbers in sizes.items():
        if len(numbers) != 1:
            raise PagesimError(f"{name} is {given[name]}; shared takes one")
    shared = _numbers(given, "shared", ())
    return SharedPrefixGrid(
        tuple((batch, context, tokens) for (batch, context), tokens in product(shapes, shared)),
        heads,
        sizes["block_size"][0],
        sizes["head_size"][0],
        dtypes[0],
    )


def _swap(given: Mapping[str, str], device: str) -> Grid:
    sizes = (_numbers(given, name, default) for name, default in _SWAP_SIZES.items())
    strategies = tuple(name for name in STRATEGIES if device == "cuda" or name != "copy-batch")
    return SwapGrid(
        shapes=tuple((pieces, size, blocks) for pieces, size, blocks in product(*sizes)),
        strategies=_words(given, "strategy", strategies),
        directions=_words(given, "direction", DIRECTIONS),
        host_blocks=_words(given, "host_blocks", ("neighbours",)),
    )


_SWAP_SIZES = {"pieces": (2,), "piece_bytes": (64 << 10,), "blocks": (16,)}


def _copy(given: Mapping[str, str], device: str) -> Grid:
    """Return a grid of the ops that the given options are about."""
    blocks = any(name in given for name in _SWAP_SIZES)
    writes = any(name in given for name in ("tokens", "block_size", "kv_heads", "head_size", "layout"))
    sizes = (_numbers(given, name, default) for name, default in _SWAP_SIZES.items())
    asked = {
        "device-copy": "size" in given,
        "reshape-and-cache": writes or set(given) == {"dtype"},
        **dict.fromkeys(COPY_OPS[2:], blocks),
    }
    head_sizes = _numbers(given, "head_size", (128,))
    if len(head_sizes) != 1:
        raise PagesimError(f"head_size is {given['head_size']}; a single number is expected here")
    return CopyGrid(
        sizes=_numbers(given, "size", ()),
        tokens=_numbers(given, "tokens", (1024,)),
        block_copies=tuple((p, size, count) for p, size, count in product(*sizes)),
        block_sizes=_numbers(given, "block_size", (16,)),
        kv_heads=_numbers(given, "kv_heads", (8,)),
        head_size=head_sizes[0],
        dtypes=_words(given, "dtype", ("fp32",) if device == "cpu" else ("fp16",)),
        layouts=_words(given, "layout", ("NHD",)),
        ops=tuple(op for op in COPY_OPS if asked[op]),
    )


def _gemm(given: Mapping[str, str], device: str) -> Grid:
    return GemmGrid(
        layers=layers_of(find_model(given.get("model", "opt-13b"))),
        tokens=_numbers(given, "tokens", (1, 64, 1024)),
        dtypes=_words(given, "dtype", ("fp32",) if device == "cpu" else ("fp16",)),
    )


def _words(given: Mapping[str, str], name: str, default: tuple[str, ...]) -> tuple[str, ...]:
    if name not in given:
        return default
    words = tuple(word.strip() for word in given[name].split(","))
    if not all(words):
        raise PagesimError(f"{name} is {given[name]!r}; it must be words separated by commas")
    return words


def _numbers(given: Mapping[str, str], name: str, default: tuple[int, ...]) -> tuple[int, ...]:
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
            raise PagesimError(
                f"heads is {text!r}; it must be query heads / KV heads, as 32/8,40/40"
            ) from None
        pairs.append(pair)
    return tuple(pairs)


def _splits(text: str) -> tuple[int, ...]:
    numbers = []
    for part in (part.strip() for part in text.split(",")):
        if part == "auto":
            numbers.append(PLANNED)
        elif part.isascii() and part.isdigit() and int(part[:9]) >= 1:
            numbers.append(int(part[:9]))
        else:
            raise PagesimError(
                f"splits is {text!r}; it must be auto or whole numbers from 1, separated by commas"
            )
    return tuple(numbers)
