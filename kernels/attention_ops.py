"""The ops that attend: decode over a paged cache and without one, and prefill; see ``api.py``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pagesim.errors import PagesimError
from pagesim.kernels import reference
from pagesim.kernels.cache_ops import gather_sequences
from pagesim.kernels.checks import (
    CACHES,
    FP8,
    QUERY_DTYPES,
    bounds_are_checked,
    check_caches,
    check_contexts,
    check_lengths,
    check_out,
    check_query,
    check_tensor,
    scales,
    use_triton,
)
from pagesim.kernels.launch import run_all
from pagesim.kernels.layouts import NHD, Layout, find_layout
from pagesim.kernels.planner import DecodePlan, Gpu, plan_decode


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
    sizes = check_caches(key_cache, value_cache, layout, names=CACHES)
    check_query("q", q, "batch", sizes, key_cache)
    check_contexts(q.shape[0], block_table, context_lens, sizes, q.device)
    options = scales(scale, k_scale, v_scale, sizes, key_cache)
    out = check_out(out, q)
    if use_triton(backend, q):
        from pagesim.kernels import decode

        plan = plan or _capacity_plan(q, key_cache, block_table.shape[1] * sizes.block_size, layout)
        return run_all(
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
    options = scales(scale, k_scale, v_scale, sizes, key)
    out = check_out(out, q)
    if use_triton(backend, q):
        from pagesim.kernels import decode

        plan = plan or _capacity_plan(q, key, sizes.block_size, layout)
        return run_all(decode.launches(q, key, value, None, context_lens, layout, *options, plan, out), out)
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
    sizes = check_caches(key_cache, value_cache, layout, names=CACHES)
    check_query("q", q, "tokens", sizes, key_cache)
    batch = len(context_lens)
    check_contexts(batch, block_table, context_lens, sizes, q.device)
    check_tensor("query_starts", query_starts, (batch + 1,), (torch.int32,), q.device, contiguous=True)
    _check_queries(query_starts, context_lens, len(q), max_query_len)
    options = scales(scale, k_scale, v_scale, sizes, key_cache)
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
        return run_all([launch], out)
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
