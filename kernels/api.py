"""The ops of ``pagesim.kernels``: arguments are checked here, then the Triton kernel or the reference runs.

Words that all ops share:

- ``batch`` sequences, each with a *context* of tokens whose keys and values are cached;
- a *cache* of ``blocks`` blocks of ``block_size`` token slots, a key and a value of D numbers a slot and KV
  head, in one of the layouts of ``layouts.py``, of the queries' type or in FP8 (e4m3, multiplied by a scale
  when read);
- ``block_table``, int32 ``[batch, max_blocks]``: token t of sequence b lies in slot ``t % block_size`` of
  block ``block_table[b, t // block_size]``; entries beyond a context are never read;
- ``context_lens``, int32 ``[batch]``: tokens in the cache, those being computed included; 0 for an idle row;
- ``scale``: what a dot product is multiplied by, 1/√D unless given;
- ``k_scale``, ``v_scale``: what a stored FP8 number is multiplied by, one factor or float32 ``[kv_heads]``;
- ``backend``: ``auto`` runs the Triton kernel on a GPU and the reference on a CPU; ``triton`` and
  ``reference`` insist.

Every error is a ``PagesimError``, one sentence that names the argument. Block ids, slots and lengths are
looked at on a CPU always and on a GPU only under ``checked_bounds()``, because looking means waiting for
the GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite, sqrt

from pagesim.errors import PagesimError

try:
    import torch
except ModuleNotFoundError as missing:
    raise PagesimError(
        "pagesim.kernels needs torch, which is not installed: pip install 'pagesim[kernels]'"
    ) from missing

from torch import Tensor

from pagesim.kernels import reference
from pagesim.kernels.checks import (
    FP8,
    QUERY_DTYPES,
    bounds_are_checked,
    check_blocks,
    check_caches,
    check_ids,
    check_lengths,
    check_out,
    check_query,
    check_scale,
    check_table,
    check_tensor,
    checked_bounds,
    use_triton,
)
from pagesim.kernels.launch import Launch
from pagesim.kernels.layouts import NHD, Layout, Sizes, find_layout
from pagesim.kernels.planner import DecodePlan, Gpu, plan_decode

__all__ = [
    "checked_bounds",
    "contiguous_decode_attention",
    "copy_blocks",
    "decode_attention",
    "decode_plan",
    "gather_blocks",
    "gather_decode_attention",
    "gather_sequences",
    "prefill_attention",
    "reshape_and_cache",
    "scatter_blocks",
]

_CACHES = ("key_cache", "value_cache")


def decode_attention(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    *,
    layout: str | Layout = NHD,
    scale: float | None = None,
    k_scale: float | Tensor = 1.0,
    v_scale: float | Tensor = 1.0,
    plan: DecodePlan | None = None,
    out: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Attend with one new token a sequence to its paged context.

    Args:
        q: ``[batch, q_heads, D]``, float16, bfloat16 or float32; query head h reads KV head
            ``h // (q_heads // kv_heads)``.
        key_cache: blocks of keys in ``layout``.
        value_cache: blocks of values in ``layout``.
        block_table: int32 ``[batch, max_blocks]``.
        context_lens: int32 ``[batch]``; a sequence of length 0 gets zeros.
        layout: of the caches.
        scale: of the dot products.
        k_scale: of FP8 keys.
        v_scale: of FP8 values.
        plan: from ``decode_plan``; without one, every context is taken to be as long as the table is wide.
        out: where the result goes, as ``q``.
        backend: what computes it.

    Returns:
        ``[batch, q_heads, D]``, as ``q``.

    Raises:
        PagesimError: an argument is off.
    """
    layout = find_layout(layout)
    sizes = check_caches(key_cache, value_cache, layout, names=_CACHES)
    check_query("q", q, "batch", sizes, key_cache)
    _check_contexts(q.shape[0], block_table, context_lens, sizes, q.device)
    options = _scales(scale, k_scale, v_scale, sizes, key_cache)
    out = check_out(out, q)
    if use_triton(backend, q):
        from pagesim.kernels import decode

        plan = plan or _capacity_plan(q, key_cache, block_table.shape[1] * sizes.block_size, layout)
        return _run(
            decode.launches(
                q, key_cache, value_cache, block_table, context_lens, layout, *options, plan, out
            ),
            out,
        )
    scale, k_scale, v_scale = options
    return out.copy_(
        reference.decode_attention(
            q,
            key_cache,
            value_cache,
            block_table,
            context_lens,
            layout=layout,
            scale=scale,
            k_scale=k_scale,
            v_scale=v_scale,
        )
    )


def contiguous_decode_attention(
    q: Tensor,
    key: Tensor,
    value: Tensor,
    context_lens: Tensor,
    *,
    layout: str | Layout = NHD,
    scale: float | None = None,
    k_scale: float | Tensor = 1.0,
    v_scale: float | Tensor = 1.0,
    plan: DecodePlan | None = None,
    out: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Attend with one new token a sequence to a padded contiguous context: the same kernel, not paged.

    Args:
        q: ``[batch, q_heads, D]``.
        key: ``[batch, max_context, kv_heads, D]`` in layout NHD, ``[batch, kv_heads, max_context, D]`` in
            HND.
        value: as ``key``.
        context_lens: int32 ``[batch]``; what lies beyond is never read.
        layout: NHD or HND.
        scale: of the dot products.
        k_scale: of FP8 keys.
        v_scale: of FP8 values.
        plan: from ``decode_plan``; without one, every context is taken to be ``max_context``.
        out: where the result goes, as ``q``.
        backend: what computes it.

    Returns:
        ``[batch, q_heads, D]``, as ``q``.

    Raises:
        PagesimError: an argument is off.
    """
    layout = find_layout(layout)
    if layout.key.chunk_bytes is not None:
        raise PagesimError(f"layout is {layout.name}; a contiguous cache is NHD or HND")
    sizes = check_caches(key, value, layout, names=("key", "value"), paged=False)
    check_query("q", q, "batch", sizes, key)
    check_tensor("key", key, (q.shape[0], *key.shape[1:]), (key.dtype,))
    check_tensor("context_lens", context_lens, (q.shape[0],), (torch.int32,), q.device, contiguous=True)
    check_lengths(context_lens, sizes.block_size, "as key has room for")
    options = _scales(scale, k_scale, v_scale, sizes, key)
    out = check_out(out, q)
    if use_triton(backend, q):
        from pagesim.kernels import decode

        plan = plan or _capacity_plan(q, key, sizes.block_size, layout)
        return _run(decode.launches(q, key, value, None, context_lens, layout, *options, plan, out), out)
    scale, k_scale, v_scale = options
    return out.copy_(
        reference.contiguous_decode_attention(
            q, key, value, context_lens, layout=layout, scale=scale, k_scale=k_scale, v_scale=v_scale
        )
    )


def gather_decode_attention(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    *,
    max_context: int | None = None,
    layout: str | Layout = NHD,
    scale: float | None = None,
    k_scale: float | Tensor = 1.0,
    v_scale: float | Tensor = 1.0,
    plan: DecodePlan | None = None,
    workspace: tuple[Tensor, Tensor] | None = None,
    out: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Do what is done without a paged kernel: copy the contexts into a padded batch, then attend to that.

    Args:
        q: ``[batch, q_heads, D]``.
        key_cache: blocks of keys in ``layout``.
        value_cache: blocks of values in ``layout``.
        block_table: int32 ``[batch, max_blocks]``.
        context_lens: int32 ``[batch]``.
        max_context: how wide the padded batch is; without it as wide as the table.
        layout: of the caches; the padded batch is NHD.
        scale: of the dot products.
        k_scale: of FP8 keys.
        v_scale: of FP8 values.
        plan: for the second half.
        workspace: two tensors ``[batch, max_context, kv_heads, D]`` of the caches' type for the padded batch.
        out: where the result goes, as ``q``.
        backend: what computes it.

    Returns:
        ``[batch, q_heads, D]``, as ``q``.

    Raises:
        PagesimError: an argument is off.
    """
    key, value = gather_sequences(
        key_cache,
        value_cache,
        block_table,
        context_lens,
        max_context=max_context,
        layout=layout,
        out=workspace,
        backend=backend,
    )
    return contiguous_decode_attention(
        q,
        key,
        value,
        context_lens,
        scale=scale,
        k_scale=k_scale,
        v_scale=v_scale,
        plan=plan,
        out=out,
        backend=backend,
    )


def gather_sequences(
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    *,
    max_context: int | None = None,
    layout: str | Layout = NHD,
    out: tuple[Tensor, Tensor] | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Copy paged contexts into a padded contiguous batch.

    Args:
        key_cache: blocks of keys in ``layout``.
        value_cache: blocks of values in ``layout``.
        block_table: int32 ``[batch, max_blocks]``.
        context_lens: int32 ``[batch]``; what lies beyond them in the result is left as it is.
        max_context: how wide the batch is; without it as wide as the table.
        layout: of the caches.
        out: two tensors to write to.
        backend: what does it.

    Returns:
        Keys and values, ``[batch, max_context, kv_heads, D]`` in the caches' type.

    Raises:
        PagesimError: an argument is off.
    """
    layout = find_layout(layout)
    sizes = check_caches(key_cache, value_cache, layout, names=_CACHES)
    batch = len(context_lens)
    _check_contexts(batch, block_table, context_lens, sizes, key_cache.device)
    if max_context is None:
        max_context = block_table.shape[1] * sizes.block_size
    check_lengths(context_lens, max_context, "as max_context says")
    shape = (batch, max_context, sizes.kv_heads, sizes.head_dim)
    key, value = out or (key_cache.new_empty(shape), value_cache.new_empty(shape))
    for name, tensor in (("out[0]", key), ("out[1]", value)):
        check_tensor(name, tensor, shape, (key_cache.dtype,), key_cache.device)
    if use_triton(backend, key_cache):
        from pagesim.kernels import sequences

        launch = sequences.launch(key_cache, value_cache, block_table, context_lens, layout, key, value)
        _run([launch], key)
    else:
        reference.gather_sequences(
            key_cache, value_cache, block_table, context_lens, key, value, layout=layout
        )
    return key, value


def prefill_attention(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    query_starts: Tensor,
    *,
    max_query_len: int | None = None,
    layout: str | Layout = NHD,
    scale: float | None = None,
    k_scale: float | Tensor = 1.0,
    v_scale: float | Tensor = 1.0,
    out: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Attend with several new tokens a sequence, each to itself and all tokens before it.

    The new tokens are the last of their context and already cached (``reshape_and_cache``). With a context
    as long as the queries this is a whole prompt, or its recomputation; with a longer one, a chunk of it or
    a cached prefix.

    Args:
        q: ``[tokens, q_heads, D]``, one sequence after another.
        key_cache: blocks of keys in ``layout``.
        value_cache: blocks of values in ``layout``.
        block_table: int32 ``[batch, max_blocks]``.
        context_lens: int32 ``[batch]``, new tokens included.
        query_starts: int32 ``[batch + 1]``, from 0 to ``tokens``: the rows of sequence b are
            ``query_starts[b]`` to ``query_starts[b + 1]``; there may be none.
        max_query_len: the most new tokens of any sequence, if it is known: fewer idle programs are started.
        layout: of the caches.
        scale: of the dot products.
        k_scale: of FP8 keys.
        v_scale: of FP8 values.
        out: where the result goes, as ``q``.
        backend: what computes it.

    Returns:
        ``[tokens, q_heads, D]``, as ``q``.

    Raises:
        PagesimError: an argument is off.
    """
    layout = find_layout(layout)
    sizes = check_caches(key_cache, value_cache, layout, names=_CACHES)
    check_query("q", q, "tokens", sizes, key_cache)
    batch = len(context_lens)
    _check_contexts(batch, block_table, context_lens, sizes, q.device)
    check_tensor("query_starts", query_starts, (batch + 1,), (torch.int32,), q.device, contiguous=True)
    _check_queries(query_starts, context_lens, len(q), max_query_len)
    options = _scales(scale, k_scale, v_scale, sizes, key_cache)
    out = check_out(out, q)
    if use_triton(backend, q):
        from pagesim.kernels import prefill

        launch = prefill.launch(
            q,
            key_cache,
            value_cache,
            block_table,
            context_lens,
            query_starts,
            len(q) if max_query_len is None else max_query_len,
            layout,
            *options,
            out,
            _capability(q.device),
        )
        return _run([launch], out)
    scale, k_scale, v_scale = options
    return out.copy_(
        reference.prefill_attention(
            q,
            key_cache,
            value_cache,
            block_table,
            context_lens,
            query_starts,
            layout=layout,
            scale=scale,
            k_scale=k_scale,
            v_scale=v_scale,
        )
    )


def reshape_and_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    layout: str | Layout = NHD,
    k_scale: float | Tensor = 1.0,
    v_scale: float | Tensor = 1.0,
    backend: str = "auto",
) -> None:
    """Write new tokens' keys and values into their slots, in the cache's layout and type.

    Args:
        key: ``[tokens, kv_heads, D]``.
        value: as ``key``.
        key_cache: blocks of keys in ``layout``, of the type of ``key`` or FP8.
        value_cache: blocks of values in ``layout``.
        slot_mapping: int64 ``[tokens]``, ``block · block_size + slot in it``; −1 for a token that is not
            written. No slot may occur twice.
        layout: of the caches.
        k_scale: what FP8 keys are divided by; what then exceeds ±448 becomes ±448.
        v_scale: what FP8 values are divided by.
        backend: what does it.

    Raises:
        PagesimError: an argument is off.
    """
    layout = find_layout(layout)
    sizes = check_caches(key_cache, value_cache, layout, names=_CACHES)
    dtypes = QUERY_DTYPES if key_cache.dtype == FP8 else (key_cache.dtype,)
    check_tensor("key", key, ("tokens", sizes.kv_heads, sizes.head_dim), dtypes, key_cache.device)
    check_tensor("value", value, key.shape, (key.dtype,), key_cache.device)
    check_tensor("slot_mapping", slot_mapping, (len(key),), (torch.int64,), key_cache.device, contiguous=True)
    check_ids("slot_mapping", slot_mapping, sizes.num_blocks * sizes.block_size, least=-1)
    if bounds_are_checked(slot_mapping):
        kept = slot_mapping[slot_mapping >= 0]
        check_ids("slot_mapping", kept, sizes.num_blocks * sizes.block_size, distinct=True)
    _, k_scale, v_scale = _scales(None, k_scale, v_scale, sizes, key_cache)
    if use_triton(backend, key_cache):
        from pagesim.kernels import cache_write

        launch = cache_write.launch(
            key, value, key_cache, value_cache, slot_mapping, layout, k_scale, v_scale
        )
        _run([launch], key_cache)
    else:
        reference.reshape_and_cache(
            key, value, key_cache, value_cache, slot_mapping, layout=layout, k_scale=k_scale, v_scale=v_scale
        )


def copy_blocks(caches: Sequence[Tensor], pairs: Tensor, *, backend: str = "auto") -> None:
    """Copy blocks within each of several caches, in one launch (copy-on-write).

    Args:
        caches: tensors of one shape whose first axis is the block: the key and value caches of all layers,
            say.
        pairs: int64 ``[pairs, 2]``, from and to. No block may be written twice, nor written and read.
        backend: what does it.

    Raises:
        PagesimError: an argument is off.
    """
    caches = check_blocks(caches)
    check_tensor("pairs", pairs, ("pairs", 2), (torch.int64,), caches[0].device, contiguous=True)
    check_ids("pairs", pairs, len(caches[0]))
    check_ids("pairs[:, 1]", pairs[:, 1], len(caches[0]), distinct=True)
    if bounds_are_checked(pairs) and torch.isin(pairs[:, 1], pairs[:, 0]).any():
        raise PagesimError("pairs holds a block that is both read and written; copies happen in no order")
    if use_triton(backend, caches[0]):
        from pagesim.kernels import blocks

        _run([blocks.copy(caches, pairs)], pairs)
    else:
        reference.copy_blocks(caches, pairs)


def gather_blocks(
    caches: Sequence[Tensor], block_ids: Tensor, *, out: Tensor | None = None, backend: str = "auto"
) -> Tensor:
    """Copy blocks of several caches next to each other, in one launch: what a swap sends out in one piece.

    Args:
        caches: tensors of one shape whose first axis is the block.
        block_ids: int64 ``[ids]``.
        out: ``[ids, caches, *block]`` to write to; beside caches on a GPU it may be pinned host memory.
        backend: what does it.

    Returns:
        ``[ids, caches, *block]``: of each block its part in every cache.

    Raises:
        PagesimError: an argument is off.
    """
    caches = check_blocks(caches)
    shape = _staging_shape(caches, block_ids)
    if out is None:
        out = caches[0].new_empty(shape)
    _check_staging("out", out, shape, caches[0])
    if use_triton(backend, caches[0]):
        from pagesim.kernels import blocks

        _run([blocks.gather(caches, block_ids, out)], block_ids)
    else:
        reference.gather_blocks(caches, block_ids, out)
    return out


def scatter_blocks(
    staging: Tensor, caches: Sequence[Tensor], block_ids: Tensor, *, backend: str = "auto"
) -> None:
    """Copy what ``gather_blocks`` gathered into blocks of several caches, in one launch.

    Args:
        staging: ``[ids, caches, *block]``; beside caches on a GPU it may be pinned host memory.
        caches: tensors of one shape whose first axis is the block.
        block_ids: int64 ``[ids]``, none twice.
        backend: what does it.

    Raises:
        PagesimError: an argument is off.
    """
    caches = check_blocks(caches)
    shape = _staging_shape(caches, block_ids)
    check_ids("block_ids", block_ids, len(caches[0]), distinct=True)
    _check_staging("staging", staging, shape, caches[0])
    if use_triton(backend, caches[0]):
        from pagesim.kernels import blocks

        _run([blocks.scatter(staging, caches, block_ids)], block_ids)
    else:
        reference.scatter_blocks(staging, caches, block_ids)


def decode_plan(
    q: Tensor,
    key_cache: Tensor,
    context_lens: Tensor | Sequence[int],
    *,
    layout: str | Layout = NHD,
    paged: bool = True,
    num_splits: int | None = None,
    tile: int | None = None,
    num_warps: int | None = None,
    num_stages: int | None = None,
) -> DecodePlan:
    """Plan a decode step for the GPU that the queries are on (an H200, where they are on none).

    Args:
        q: ``[batch, q_heads, D]``.
        key_cache: blocks of keys, or the padded contiguous keys.
        context_lens: tokens of each sequence; a tensor on a GPU is waited for.
        layout: of the cache.
        paged: whether ``key_cache`` is one of blocks.
        num_splits: into how many splits the longest sequence is cut, instead of what the planner would
            choose.
        tile: tokens a tile, likewise.
        num_warps: warps a program, likewise.
        num_stages: tiles in flight, likewise.

    Raises:
        PagesimError: an argument is off.
    """
    layout = find_layout(layout)
    check_tensor("q", q, ("batch", "q_heads", "D"), QUERY_DTYPES)
    check_tensor("key_cache", key_cache, layout.key.axes, (*QUERY_DTYPES, FP8))
    sizes = layout.sizes(key_cache)
    lengths = context_lens.tolist() if isinstance(context_lens, Tensor) else list(context_lens)
    return plan_decode(
        lengths,
        q_heads=q.shape[1],
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        block_size=sizes.block_size if paged else 0,
        kv_bytes=key_cache.element_size(),
        layout=layout,
        gpu=_gpu(q.device),
        num_splits=num_splits,
        tile=tile,
        num_warps=num_warps,
        num_stages=num_stages,
    )


def _run(launches: Iterable[Launch], out: Tensor) -> Tensor:
    for launch in launches:
        launch.run(out)
    return out


def _check_contexts(
    batch: int, block_table: Tensor, context_lens: Tensor, sizes: Sizes, device: torch.device
) -> None:
    check_tensor("context_lens", context_lens, (batch,), (torch.int32,), device, contiguous=True)
    check_tensor("block_table", block_table, (batch, "max_blocks"), (torch.int32,), device)
    check_lengths(context_lens, block_table.shape[1] * sizes.block_size, "as block_table has room for")
    check_table(block_table, context_lens, sizes)


def _check_queries(
    query_starts: Tensor, context_lens: Tensor, tokens: int, max_query_len: int | None
) -> None:
    if max_query_len is not None and max_query_len < 0:
        raise PagesimError(f"max_query_len is {max_query_len}; at least 0 is needed")
    if not bounds_are_checked(query_starts):
        return
    first, last, lengths = int(query_starts[0]), int(query_starts[-1]), query_starts.diff()
    if first or last != tokens:
        raise PagesimError(
            f"query_starts goes from {first} to {last}; from 0 to {tokens} is needed, the rows of q"
        )
    if ((lengths < 0) | (lengths > context_lens)).any():
        row = int(((lengths < 0) | (lengths > context_lens)).nonzero()[0])
        raise PagesimError(
            f"query_starts gives sequence {row} {lengths[row]} rows; 0 to {context_lens[row]} is allowed, its"
            " context_lens"
        )
    if max_query_len is not None and len(lengths) and int(lengths.max()) > max_query_len:
        raise PagesimError(
            f"max_query_len is {max_query_len}; query_starts has a sequence of {int(lengths.max())} rows"
        )


def _scales(
    scale: float | None, k_scale: float | Tensor, v_scale: float | Tensor, sizes: Sizes, cache: Tensor
) -> tuple[float, float | Tensor, float | Tensor]:
    if scale is not None and not isfinite(scale):
        raise PagesimError(f"scale is {scale}; a finite number is needed")
    for name, factor in (("k_scale", k_scale), ("v_scale", v_scale)):
        check_scale(name, factor, sizes, cache)
    return 1 / sqrt(sizes.head_dim) if scale is None else float(scale), k_scale, v_scale


def _staging_shape(caches: Sequence[Tensor], block_ids: Tensor) -> tuple[int, ...]:
    check_tensor("block_ids", block_ids, ("ids",), (torch.int64,), caches[0].device, contiguous=True)
    check_ids("block_ids", block_ids, len(caches[0]))
    return (len(block_ids), len(caches), *caches[0].shape[1:])


def _check_staging(name: str, staging: Tensor, shape: tuple[int, ...], cache: Tensor) -> None:
    reachable = (
        isinstance(staging, Tensor) and cache.is_cuda and staging.device.type == "cpu" and staging.is_pinned()
    )
    check_tensor(name, staging, shape, (cache.dtype,), None if reachable else cache.device, contiguous=True)


def _capacity_plan(q: Tensor, cache: Tensor, capacity: int, layout: Layout) -> DecodePlan:
    return decode_plan(q, cache, [capacity] * len(q), layout=layout)


def _gpu(device: torch.device) -> Gpu:
    if device.type != "cuda":
        return Gpu()
    facts = torch.cuda.get_device_properties(device)
    return Gpu(sms=facts.multi_processor_count, shared_bytes=facts.shared_memory_per_multiprocessor)


def _capability(device: torch.device) -> int:
    if device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
