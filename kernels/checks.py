"""What the arguments of an op must be; whatever is off is a sentence that names the argument."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache as kept
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from pagesim.errors import PagesimError
from pagesim.kernels.layouts import Layout, Sizes
from pagesim.kernels.requirements import installed

HEAD_DIMS = (32, 64, 72, 80, 96, 112, 120, 128, 160, 192, 256, 512)
MAX_BLOCK_SIZE = 4096
MAX_BATCH = 65_535
"""Sequences are an axis of a grid, and of the second and third CUDA allows as many programs."""

QUERY_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
FP8 = torch.float8_e4m3fn
BYTES = (FP8, torch.int8)
"""What is stored in a byte and has scales."""

BACKENDS = ("auto", "triton", "reference")

_checked: ContextVar[bool] = ContextVar(
    "checked_bounds", default=os.environ.get("PAGESIM_CHECK_BOUNDS") == "1"
)


@contextmanager
def checked_bounds(on: bool = True) -> Iterator[None]:
    """Check block ids, slots and lengths of tensors on a GPU too, which waits for the GPU at every call.

    On a CPU they are always checked. The environment variable ``PAGESIM_CHECK_BOUNDS=1`` has the same
    effect for a whole process.
    """
    token = _checked.set(on)
    try:
        yield
    finally:
        _checked.reset(token)


def bounds_are_checked(tensor: Tensor) -> bool:
    """Return whether what stands in this tensor is to be looked at."""
    return tensor.device.type == "cpu" or _checked.get()


def use_triton(backend: str, tensor: Tensor) -> bool:
    """Return whether an op on this tensor runs its Triton kernel; the reference runs otherwise.

    Raises:
        PagesimError: the backend is unknown, or Triton is asked for and cannot run here.
    """
    if backend not in BACKENDS:
        raise PagesimError(f"backend is {backend!r}; it must be one of {', '.join(BACKENDS)}")
    if backend == "reference" or (backend == "auto" and tensor.device.type == "cpu"):
        return False
    if not _has_triton():
        raise PagesimError(
            "backend 'triton' needs triton, which is not installed: pip install '.[kernels]' in the "
            "checkout, or take backend='reference'"
        )
    if tensor.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise PagesimError(
            f"backend is 'triton' and the tensors are on {tensor.device}; a CUDA GPU is needed, or"
            " TRITON_INTERPRET=1 in the environment"
        )
    return True


@kept
def _has_triton() -> bool:
    return installed("triton")


def check_tensor(
    name: str,
    tensor: object,
    shape: Sequence[int | str],
    dtypes: Sequence[torch.dtype],
    device: torch.device | None = None,
    *,
    contiguous: bool = False,
) -> None:
    """Check a tensor's kind, axes, type, device and strides.

    Args:
        name: the argument's name.
        tensor: the argument.
        shape: for each axis its size, or a word for one that may have any.
        dtypes: the types allowed.
        device: where it must be; None for anywhere.
        contiguous: whether all of it must lie in one piece; if not, only its last axis must.

    Raises:
        PagesimError: something is off.
    """
    if not isinstance(tensor, Tensor):
        raise PagesimError(f"{name} is a {type(tensor).__name__}; a torch.Tensor is needed")
    if not _fits(tensor.shape, shape):
        raise PagesimError(
            f"{name} has the shape {list(tensor.shape)}; [{', '.join(map(str, shape))}] is needed"
        )
    if tensor.dtype not in dtypes:
        raise PagesimError(f"{name} is {_short(tensor.dtype)}; {' or '.join(map(_short, dtypes))} is needed")
    if device is not None and tensor.device != device:
        raise PagesimError(f"{name} is on {tensor.device}; it must be on {device}, as the first tensor is")
    if contiguous:
        if not tensor.is_contiguous():
            raise PagesimError(
                f"{name} has the strides {list(tensor.stride())}; a contiguous tensor is needed"
            )
    elif tensor.dim() and tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
        raise PagesimError(f"{name} has the strides {list(tensor.stride())}; the last must be 1")


def _fits(have: Sequence[int], wanted: Sequence[int | str]) -> bool:
    if have == wanted:
        return True
    if len(have) != len(wanted):
        return False
    for size, want in zip(have, wanted, strict=True):
        if size != want and not isinstance(want, str):
            return False
    return True


def check_caches(key_cache: Tensor, value_cache: Tensor, layout: Layout, *, paged: bool = True) -> Sizes:
    """Check a pair of caches against their layout and each other, and return what they hold."""
    pair = (("key_cache", key_cache, layout.key), ("value_cache", value_cache, layout.value))
    for name, cache, storage in pair:
        check_tensor(name, cache, storage.axes, (*QUERY_DTYPES, *BYTES))
    sizes = layout.sizes(key_cache)
    if not sizes.kv_heads:
        raise PagesimError(f"key_cache has the shape {list(key_cache.shape)}; at least one KV head is needed")
    if sizes.head_dim not in HEAD_DIMS:
        raise PagesimError(f"key_cache has head size {sizes.head_dim}; one of {_list(HEAD_DIMS)} is needed")
    size = sizes.block_size
    if paged and not 1 <= size <= MAX_BLOCK_SIZE:
        raise PagesimError(f"key_cache has block size {size}; 1 to {MAX_BLOCK_SIZE} tokens are allowed")
    for name, cache, storage in pair:
        shape = storage.shape(sizes, key_cache.element_size())
        check_tensor(name, cache, shape, (key_cache.dtype,), key_cache.device)
    check_fp8("key_cache", key_cache)
    return sizes


def check_fp8(name: str, cache: Tensor) -> None:
    """Refuse e4m3 on a GPU that has no such type."""
    if cache.dtype == FP8 and cache.device.type == "cuda":
        capability = torch.cuda.get_device_capability(cache.device)
        if capability < (8, 9):
            raise PagesimError(
                f"{name} is float8_e4m3fn; that needs compute capability 8.9, and this GPU has"
                f" {'.'.join(map(str, capability))}"
            )


def check_query(name: str, q: Tensor, axes: tuple[str, ...], sizes: Sizes, cache: Tensor) -> None:
    """Check queries, ``[*axes, q_heads, D]``, against the cache that they attend to."""
    check_tensor(name, q, (*axes, "q_heads", sizes.head_dim), QUERY_DTYPES, cache.device)
    if not q.shape[-2] or q.shape[-2] % sizes.kv_heads:
        raise PagesimError(
            f"{name} has {q.shape[-2]} heads; a multiple of the cache's {sizes.kv_heads} KV heads is needed"
        )
    if cache.dtype not in (q.dtype, *BYTES):
        raise PagesimError(f"{name} is {_short(q.dtype)}; {_short(cache.dtype)} is needed, as the cache is")


def check_out(out: Tensor | None, like: Tensor, check: bool = True) -> Tensor:
    """Return where the result goes: ``out`` if it is given and fits, else a new tensor."""
    if out is None:
        return torch.empty_like(like, memory_format=torch.contiguous_format)
    if check:
        check_tensor("out", out, like.shape, (like.dtype,), like.device)
    return out


def check_cache(cache: object, kind: type[Any], *, paged: bool | None = None) -> None:
    """Check that an argument is a cache, a paged or a contiguous one if that is said."""
    if not isinstance(cache, kind):
        raise PagesimError(f"cache is a {type(cache).__name__}; Cache(key_cache, value_cache) is needed")
    if paged is not None and cache.paged is not paged:
        kinds = ("a contiguous cache", "a paged one")
        raise PagesimError(f"cache is {kinds[cache.paged]}; {kinds[paged]} is needed")


def check_scales(k_scale: float | Tensor, v_scale: float | Tensor, sizes: Sizes, cache: Tensor) -> None:
    """Check the factors of stored numbers: one, one a KV head, or one a token and KV head."""
    given = {"k_scale": k_scale, "v_scale": v_scale}
    if not any(isinstance(scale, Tensor) and scale.dim() == 3 for scale in given.values()):
        if cache.dtype == torch.int8:
            raise PagesimError(
                "key_cache is int8; k_scale and v_scale [blocks, kv_heads, block_size] are needed beside it"
            )
        for name, scale in given.items():
            check_scale(name, scale, sizes, cache)
        return
    if cache.dtype not in BYTES:
        raise PagesimError(
            "k_scale is given; only a float8_e4m3fn or int8 cache is scaled, and this is"
            f" {_short(cache.dtype)}"
        )
    shape = (sizes.num_blocks, sizes.kv_heads, sizes.block_size)
    for name, scale in given.items():
        check_tensor(name, scale, shape, (torch.float32,), cache.device)
    assert isinstance(k_scale, Tensor)
    assert isinstance(v_scale, Tensor)
    if k_scale.stride() != v_scale.stride():
        raise PagesimError(
            f"v_scale has the strides {list(v_scale.stride())}; {list(k_scale.stride())}, k_scale's, are"
            " needed"
        )


def check_scale(name: str, scale: float | Tensor, sizes: Sizes, cache: Tensor) -> None:
    """Check a factor of FP8 numbers: a positive number, or one a KV head; other caches have none."""
    if isinstance(scale, Tensor):
        check_tensor(name, scale, (sizes.kv_heads,), (torch.float32,), cache.device, contiguous=True)
        if bounds_are_checked(scale) and not (fine := scale.isfinite() & (scale > 0)).all():
            head = int(fine.logical_not().nonzero()[0])
            raise PagesimError(f"{name}[{head}] is {float(scale[head])}; a positive number is needed")
    elif not (isinstance(scale, float | int) and isfinite(scale) and scale > 0):
        raise PagesimError(f"{name} is {scale!r}; a positive number or a tensor [kv_heads] is needed")
    if cache.dtype != FP8 and (isinstance(scale, Tensor) or scale != 1):
        raise PagesimError(
            f"{name} is given; only a float8_e4m3fn cache is scaled, and this is {_short(cache.dtype)}"
        )


def check_lengths(context_lens: Tensor, longest: int, what: str) -> None:
    """Check that there are not too many contexts, and none is negative or longer than there is room for."""
    if len(context_lens) > MAX_BATCH:
        raise PagesimError(f"context_lens has {len(context_lens)} sequences; at most {MAX_BATCH} are allowed")
    if bounds_are_checked(context_lens) and len(context_lens):
        low, high = (int(value) for value in context_lens.aminmax())
        if low < 0 or high > longest:
            raise PagesimError(
                f"context_lens holds {low if low < 0 else high}; 0 to {longest} is allowed, {what}"
            )


def check_table(
    block_table: Tensor, context_lens: Tensor, sizes: Sizes, first_seen: Tensor | None = None
) -> None:
    """Check that the entries of the tokens that are seen name blocks of the cache."""
    if not bounds_are_checked(block_table):
        return
    used = -(-context_lens.long() // sizes.block_size)  # [batch], blocks
    column = torch.arange(block_table.shape[1], device=used.device)
    reached = column < used[:, None]
    if first_seen is not None:
        reached &= column >= (first_seen.long() // sizes.block_size)[:, None]
    wrong = reached & ((block_table < 0) | (block_table >= sizes.num_blocks))
    if wrong.any():
        row, at = wrong.nonzero()[0].tolist()
        raise PagesimError(
            f"block_table[{row}, {at}] is {block_table[row, at]}; 0 to {sizes.num_blocks - 1} is allowed"
        )


def check_ids(name: str, ids: Tensor, bound: int, *, distinct: bool = False, least: int = 0) -> None:
    """Check that block ids or slots lie below a bound, and optionally that none occurs twice."""
    if not bounds_are_checked(ids) or not ids.numel():
        return
    low, high = (int(value) for value in ids.aminmax())
    if low < least or high >= bound:
        raise PagesimError(f"{name} holds {low if low < least else high}; {least} to {bound - 1} is allowed")
    if distinct and (ids.sort().values.diff() == 0).any():
        raise PagesimError(f"{name} holds a number twice; each block or slot may be written once")


def check_blocks(caches: object) -> list[Tensor]:
    """Return a list of caches which have the same shape and whose blocks each lie in one piece."""
    if isinstance(caches, Tensor) or not isinstance(caches, Sequence) or not caches:
        raise PagesimError("caches is no list of tensors; put a single cache into a list")
    first = caches[0]
    for i, cache in enumerate(caches):
        name = f"caches[{i}]"
        shape: tuple[int | str, ...] = ("blocks", "…") if i == 0 else tuple(first.shape)
        if i == 0 and isinstance(cache, Tensor) and cache.dim() >= 2:
            shape = tuple(cache.shape)
        check_tensor(
            name,
            cache,
            shape,
            (*QUERY_DTYPES, *BYTES, torch.uint8) if i == 0 else (first.dtype,),
            first.device if i else None,
        )
        if len(cache) and not cache[0].is_contiguous():
            raise PagesimError(
                f"{name} has the strides {list(cache.stride())}; each block must lie in one piece"
            )
        if cache.stride(0) != first.stride(0):
            raise PagesimError(
                f"{name} has the block stride {cache.stride(0)}; {first.stride(0)}, the first's, is needed"
            )
        if (
            cache[:1].numel() * cache.element_size() % 16
            or cache.stride(0) * cache.element_size() % 16
            or cache.data_ptr() % 16
        ):
            raise PagesimError(f"{name} has blocks that do not begin and end at multiples of 16 bytes")
    return list(caches)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _list(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


def check_contexts(
    batch: int,
    block_table: Tensor,
    context_lens: Tensor,
    sizes: Sizes,
    device: torch.device,
    first_seen: Callable[[], Tensor] | None = None,
) -> None:
    """Check the block table and the lengths of a batch over a cache of these sizes.

    Args:
        batch: sequences.
        block_table: blocks of each.
        context_lens: tokens of each.
        sizes: of the cache.
        device: where all must be.
        first_seen: gives the first token of each that a query sees; None where that is token 0.
    """
    check_tensor("context_lens", context_lens, (batch,), (torch.int32,), device, contiguous=True)
    check_tensor("block_table", block_table, (batch, "max_blocks"), (torch.int32,), device)
    check_lengths(context_lens, block_table.shape[1] * sizes.block_size, "as block_table has room for")
    check_table(block_table, context_lens, sizes, first_seen() if first_seen else None)


def check_score_scale(scale: float | None) -> None:
    """Check the factor of dot products, if one is given."""
    if scale is not None and not isfinite(scale):
        raise PagesimError(f"scale is {scale}; a finite number is needed")
