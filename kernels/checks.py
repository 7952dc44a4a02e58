"""Checks of the ops' arguments, whose errors name the argument in one sentence."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache as kept
from math import isfinite
from operator import index

import torch
from torch import Tensor

from pagesim.errors import PagesimError
from pagesim.kernels.requirements import installed

QUERY_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
FP8 = torch.float8_e4m3fn

BACKENDS = ("auto", "triton", "reference")

_checked: ContextVar[bool] = ContextVar(
    "checked_bounds", default=os.environ.get("PAGESIM_CHECK_BOUNDS") == "1"
)


@contextmanager
def checked_bounds(on: bool = True) -> Iterator[None]:
    """Check block ids, slots and lengths of tensors on a GPU, too, which synchronizes with it at every call.

    On a CPU they are always checked. The environment variable ``PAGESIM_CHECK_BOUNDS=1`` has the same
    effect for a whole process.
    """
    token = _checked.set(on)
    try:
        yield
    finally:
        _checked.reset(token)


def bounds_are_checked(tensor: Tensor) -> bool:
    """Return whether to check the contents of this tensor."""
    return tensor.device.type == "cpu" or _checked.get()


def use_triton(backend: str, tensor: Tensor) -> bool:
    """Return whether an op on this tensor runs its Triton kernel rather than the reference.

    Raises:
        PagesimError: the backend is unknown, or Triton is requested and cannot run here.
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
        shape: size of each axis, or a word for an axis of any size.
        dtypes: allowed types.
        device: required device; None for any.
        contiguous: whether the whole tensor must be contiguous; if not, only its last axis must.

    Raises:
        PagesimError: one of these is wrong.
    """
    if not isinstance(tensor, Tensor):
        raise PagesimError(f"{name} is a {type(tensor).__name__}; a torch.Tensor is needed")
    sizes = tensor.shape
    fits = len(sizes) == len(shape) and all(
        isinstance(want, str) or size == want for size, want in zip(sizes, shape, strict=True)
    )
    if not fits:
        raise PagesimError(f"{name} has the shape {list(sizes)}; [{', '.join(map(str, shape))}] is needed")
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


def check_fp8(name: str, cache: Tensor) -> None:
    """Reject e4m3 on a GPU without this type."""
    if cache.dtype == FP8 and cache.device.type == "cuda":
        capability = torch.cuda.get_device_capability(cache.device)
        if capability < (8, 9):
            raise PagesimError(
                f"{name} is float8_e4m3fn; that needs compute capability 8.9, and this GPU has"
                f" {'.'.join(map(str, capability))}"
            )


def check_scale(name: str, scale: float | Tensor, kv_heads: int, cache: Tensor) -> None:
    """Check the scale of FP8 values: one positive number, or one per KV head; other caches have none."""
    if isinstance(scale, Tensor):
        check_tensor(name, scale, (kv_heads,), (torch.float32,), cache.device, contiguous=True)
        if bounds_are_checked(scale) and not (fine := scale.isfinite() & (scale > 0)).all():
            head = int(fine.logical_not().nonzero()[0])
            raise PagesimError(f"{name}[{head}] is {float(scale[head])}; a positive number is needed")
    elif not (isinstance(scale, float | int) and isfinite(scale) and scale > 0):
        raise PagesimError(f"{name} is {scale!r}; a positive number or a tensor [kv_heads] is needed")
    if cache.dtype != FP8 and (isinstance(scale, Tensor) or scale != 1):
        raise PagesimError(
            f"{name} is given; only a float8_e4m3fn cache is scaled, and this is {_short(cache.dtype)}"
        )


def check_kind(name: str, value: object, kind: type) -> None:
    """Check that an argument is an object of a given class."""
    if not isinstance(value, kind):
        raise PagesimError(f"{name} is a {type(value).__name__}; a {kind.__name__} is needed")


def check_queries(
    q: Tensor, kv_heads: int, head_dim: int, cache_dtype: torch.dtype, device: torch.device
) -> None:
    """Check queries, ``[tokens, q_heads, D]``, against the cache that they attend to."""
    check_tensor("q", q, ("tokens", "q_heads", head_dim), QUERY_DTYPES, device)
    if not q.shape[1] or q.shape[1] % kv_heads:
        raise PagesimError(f"q has {q.shape[1]} heads; a multiple of the cache's {kv_heads} is needed")
    if cache_dtype not in (q.dtype, FP8):
        raise PagesimError(f"q is {_short(q.dtype)}; {_short(cache_dtype)} is needed, as the cache is")


def check_out(out: Tensor | None, like: Tensor, check: bool = True) -> Tensor:
    """Return the tensor for the result: ``out`` if given and valid, else a new one."""
    if out is None:
        return torch.empty_like(like, memory_format=torch.contiguous_format)
    if check:
        check_tensor("out", out, like.shape, (like.dtype,), like.device)
    return out


def check_batch(
    block_table: Tensor,
    context_lens: Tensor,
    num_blocks: int,
    block_size: int,
    device: torch.device,
    first_seen: Tensor | None = None,
) -> None:
    """Check a batch's block table and lengths against a cache.

    Args:
        block_table: int32 ``[batch, max_blocks]``.
        context_lens: int32 ``[batch]``.
        num_blocks: number of blocks in the cache.
        block_size: tokens per block of the cache.
        device: required device of both.
        first_seen: first token of each sequence that any query sees, ``[batch]``; None for token 0.
    """
    check_tensor("context_lens", context_lens, ("batch",), (torch.int32,), device, contiguous=True)
    batch = len(context_lens)
    check_tensor("block_table", block_table, (batch, "max_blocks"), (torch.int32,), device)
    if not bounds_are_checked(block_table) or not batch:
        return
    low, high = (int(value) for value in context_lens.aminmax())
    room = block_table.shape[1] * block_size
    if low < 0 or high > room:
        raise PagesimError(
            f"context_lens holds {low if low < 0 else high}; 0 to {room} is allowed, as block_table has room"
        )
    column = torch.arange(block_table.shape[1], device=device)
    used = column < -(-context_lens.long() // block_size)[:, None]  # [batch, max_blocks]
    if first_seen is not None:
        used &= column >= (first_seen.long() // block_size)[:, None]
    wrong = used & ((block_table < 0) | (block_table >= num_blocks))
    if wrong.any():
        row, at = wrong.nonzero()[0].tolist()
        raise PagesimError(
            f"block_table[{row}, {at}] is {block_table[row, at]}; 0 to {num_blocks - 1} is allowed"
        )


def check_starts(query_starts: Tensor, context_lens: Tensor, tokens: int, max_query_len: int | None) -> None:
    """Check the start of each sequence's queries, int32 ``[batch + 1]``."""
    batch = len(context_lens)
    check_tensor("query_starts", query_starts, (batch + 1,), (torch.int32,), context_lens.device)
    if max_query_len is not None and max_query_len < 0:
        raise PagesimError(f"max_query_len is {max_query_len}; at least 0 is needed")
    if not bounds_are_checked(query_starts):
        return
    first, last, lengths = int(query_starts[0]), int(query_starts[-1]), query_starts.diff()
    if first or last != tokens:
        raise PagesimError(
            f"query_starts goes from {first} to {last}; from 0 to {tokens} is needed, the rows of q"
        )
    if (wrong := (lengths < 0) | (lengths > context_lens)).any():
        row = int(wrong.nonzero()[0])
        raise PagesimError(
            f"query_starts gives sequence {row} {lengths[row]} rows; 0 to {context_lens[row]} is allowed, its"
            " context_lens"
        )
    if max_query_len is not None and batch and int(lengths.max()) > max_query_len:
        raise PagesimError(
            f"max_query_len is {max_query_len}; query_starts has a sequence of {int(lengths.max())} rows"
        )


def check_variant(
    q: Tensor, scale: float | None, window: int | None, softcap: float | None, sinks: Tensor | None
) -> None:
    """Check the options for variants of attention that some models use."""
    if scale is not None and not (isfinite(scale) and scale > 0):
        raise PagesimError(f"scale is {scale}; a positive number is needed")
    if window is not None:
        check_number("window", window, 1)
    if softcap is not None and not (isfinite(softcap) and softcap > 0):
        raise PagesimError(f"softcap is {softcap}; a positive number is needed, None for no cap")
    if sinks is not None:
        check_tensor("sinks", sinks, (q.shape[1],), (torch.float32,), q.device, contiguous=True)
        if bounds_are_checked(sinks) and (wrong := ~(sinks < float("inf"))).any():
            head = int(wrong.nonzero()[0])
            raise PagesimError(f"sinks[{head}] is {float(sinks[head])}; a number is needed, -inf for no sink")


def check_number(name: str, value: int, least: int, most: int = 2**31 - 1) -> None:
    """Check a whole number against its bounds."""
    try:
        index(value)
    except TypeError:
        raise PagesimError(f"{name} is {value!r}; a whole number is needed") from None
    if not least <= value <= most:
        raise PagesimError(f"{name} is {value}; {least} to {most} is allowed")


def check_ids(name: str, ids: Tensor, bound: int, *, distinct: bool = False, least: int = 0) -> None:
    """Check that block ids or slots are below a bound and, optionally, distinct."""
    if not bounds_are_checked(ids) or not ids.numel():
        return
    low, high = (int(value) for value in ids.aminmax())
    if low < least or high >= bound:
        raise PagesimError(f"{name} holds {low if low < least else high}; {least} to {bound - 1} is allowed")
    if distinct and (ids.sort().values.diff() == 0).any():
        raise PagesimError(f"{name} holds a number twice; each block or slot may be written once")


def check_slots(slot_mapping: Tensor, tokens: int, slots: int, device: torch.device) -> None:
    """Check the slots for new tokens, int64 ``[tokens]``."""
    check_tensor("slot_mapping", slot_mapping, (tokens,), (torch.int64,), device, contiguous=True)
    check_ids("slot_mapping", slot_mapping, slots, least=-1)
    if bounds_are_checked(slot_mapping):
        check_ids("slot_mapping", slot_mapping[slot_mapping >= 0], slots, distinct=True)


def check_blocks(caches: object) -> list[Tensor]:
    """Return a list of caches that have the same shape and contiguous blocks."""
    if isinstance(caches, Tensor) or not isinstance(caches, Sequence) or not caches:
        raise PagesimError("caches is no list of tensors; put a single cache into a list")
    first = caches[0]
    for i, cache in enumerate(caches):
        name = f"caches[{i}]"
        any_shape: tuple[int | str, ...] = ("blocks", "…")
        if isinstance(first, Tensor) and first.dim() >= 2:
            any_shape = tuple(first.shape)
        dtypes = (first.dtype,) if i else (*QUERY_DTYPES, FP8, torch.uint8)
        check_tensor(name, cache, any_shape, dtypes, first.device if i else None)
        if len(cache) and not cache[0].is_contiguous():
            raise PagesimError(
                f"{name} has the strides {list(cache.stride())}; each block must lie in one piece"
            )
        if cache.stride(0) != first.stride(0):
            raise PagesimError(
                f"{name} has the block stride {cache.stride(0)}; {first.stride(0)}, the first's, is needed"
            )
        size, stride = cache[:1].numel() * cache.element_size(), cache.stride(0) * cache.element_size()
        if size % 16 or stride % 16 or cache.data_ptr() % 16:
            raise PagesimError(f"{name} has blocks that do not begin and end at multiples of 16 bytes")
    return list(caches)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
