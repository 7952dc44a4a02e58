"""The attention ops of ``pagesim.kernels``: check the arguments, then run the Triton kernel or the reference.

Terms shared by all ops:

- ``batch`` sequences, each with a *context* of tokens whose keys and values are cached;
- a *cache* (``Cache``) of ``blocks`` blocks of ``block_size`` token slots, with a key and a value of D
  numbers per slot and KV head, of the queries' type or in FP8 (e4m3, multiplied by a scale when read);
- ``block_table``, int32 ``[batch, max_blocks]``: token t of sequence b lies in slot ``t % block_size`` of
  physical block ``block_table[b, t // block_size]``; entries beyond a context are never read;
- ``context_lens``, int32 ``[batch]``: tokens in the cache, including those being computed; 0 for an idle row;
- ``scale``: factor for dot products;
- ``backend``: ``auto`` runs the Triton kernel on a GPU and the reference on a CPU; ``triton`` and
  ``reference`` force one of them;
- ``check``: False if the same arguments were already checked: a model's layers share their batch, and
  checks for every layer would take longer than small kernels.

Every error is a ``PagesimError``, one sentence that names the argument. Block ids, slots and lengths are
always checked on a CPU. On a GPU they are only checked under ``checked_bounds()``, because that requires
waiting for the GPU.
"""

from __future__ import annotations

from math import isfinite

import torch
from torch import Tensor

from pagesim.errors import PagesimError
from pagesim.kernels import reference
from pagesim.kernels.cache import Cache, LatentCache
from pagesim.kernels.checks import (
    check_batch,
    check_kind,
    check_number,
    check_out,
    check_queries,
    check_starts,
    check_tensor,
    check_variant,
    use_triton,
)

MAX_SPLITS = 65_535


def paged_attention(
    q: Tensor,
    cache: Cache,
    block_table: Tensor,
    context_lens: Tensor,
    query_starts: Tensor | None = None,
    *,
    max_query_len: int | None = None,
    max_context: int | None = None,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    num_splits: int | None = None,
    out: Tensor | None = None,
    backend: str = "auto",
    check: bool = True,
) -> Tensor:
    """Compute attention of each sequence's newest tokens to themselves and all tokens before them.

    One query per sequence is a decode step; several verify draft tokens. As many as the context has tokens
    are a prompt; fewer are a chunk of one, or a prompt after a cached prefix. A batch may mix all kinds. The
    queries' own keys and values must already be in the cache (``reshape_and_cache``).

    Args:
        q: ``[tokens, q_heads, D]``, one sequence after another; float16, bfloat16 or float32. Query head h
            reads KV head ``h // (q_heads // kv_heads)``.
        cache: cache of the queries' type or in FP8.
        block_table: int32 ``[batch, max_blocks]``.
        context_lens: int32 ``[batch]``; a sequence of length 0 gets zeros.
        query_starts: int32 ``[batch + 1]``, from 0 to ``tokens``: the rows of sequence b are
            ``query_starts[b]`` to ``query_starts[b + 1]``, possibly none. None for one query per sequence.
        max_query_len: maximum number of queries of any sequence, if known.
        max_context: the longest context, or the longest possible one in a CUDA graph, if known; otherwise,
            the table's capacity is used. It determines the number of splits.
        scale: factor for dot products, above 0; 1/√D if omitted.
        window: tokens that a query sees, including its own (Mistral, Gemma, gpt-oss); None for all.
            Earlier tokens and their table entries are not read, so their blocks may be freed.
        softcap: c in ``c · tanh(score / c)``, which replaces scores (Gemma 2); None for no cap.
        sinks: learned score of each query head, float32 ``[q_heads]``, which takes part in the softmax
            without a value (gpt-oss), neither scaled nor capped; -inf for a head without one. None for none.
        num_splits: number of splits per context: 1 is one pass (PagedAttention's v1), more are followed by
            a reduction (v2); None to choose.
        out: tensor for the result, like ``q``.
        backend: implementation to use.
        check: whether to check the other arguments.

    Returns:
        ``[tokens, q_heads, D]``, like ``q``.

    Raises:
        PagesimError: an argument is invalid.
    """
    if check:
        _check_attention(q, cache, block_table, context_lens, query_starts, max_query_len, window)
        check_variant(q, scale, window, softcap, sinks)
        if num_splits is not None:
            check_number("num_splits", num_splits, 1, MAX_SPLITS)
    out = check_out(out, q, check)
    scale = cache.sizes.head_dim**-0.5 if scale is None else float(scale)
    if not use_triton(backend, q):
        variant = {"window": window, "softcap": softcap, "sinks": sinks}
        batch = (block_table, context_lens, query_starts)
        return out.copy_(reference.paged_attention(q, cache, *batch, scale=scale, **variant))  # type: ignore[arg-type]
    from pagesim.kernels import attention
    from pagesim.kernels.launch import run_all

    if max_query_len is None:
        max_query_len = 1 if query_starts is None else len(q)
    if num_splits is None:
        longest = block_table.shape[1] * cache.sizes.block_size if max_context is None else max_context
        longest = longest if window is None else min(longest, window + max_query_len)
        rows = -(-len(q) * q.shape[1] // cache.sizes.kv_heads // 64)
        programs = max(len(context_lens), rows) * cache.sizes.kv_heads
        num_splits = attention.choose_splits(programs, longest, q.device)
    return run_all(
        attention.launches(
            q,
            cache,
            block_table,
            context_lens,
            query_starts,
            out,
            max_query_len=max_query_len,
            scale=scale,
            window=window,
            softcap=softcap,
            sinks=sinks,
            num_splits=num_splits,
        ),
        out,
    )


def mla_decode_attention(
    q: Tensor,
    cache: LatentCache,
    block_table: Tensor,
    context_lens: Tensor,
    *,
    scale: float,
    max_context: int | None = None,
    num_splits: int | None = None,
    out: Tensor | None = None,
    backend: str = "auto",
    check: bool = True,
) -> Tensor:
    """Compute attention of one new token per sequence to its paged latents (MLA, DeepSeek-V2, 2024).

    Args:
        q: ``[batch, q_heads, latent_dim + rope_dim]``: for each head, the query times the key projection,
            and the rotated part.
        cache: cache of the queries' type.
        block_table: int32 ``[batch, max_blocks]``.
        context_lens: int32 ``[batch]``; a sequence of length 0 gets zeros.
        scale: factor for dot products, above 0. It follows from the head size before the projections, which
            the cache does not show: 192 in DeepSeek-V3.
        max_context: the longest context, if known.
        num_splits: number of splits per context; None to choose.
        out: tensor for the result, ``[batch, q_heads, latent_dim]``.
        backend: implementation to use.
        check: whether to check the other arguments.

    Returns:
        ``[batch, q_heads, latent_dim]``, still to be multiplied with the value projection.

    Raises:
        PagesimError: an argument is invalid.
    """
    if check:
        check_kind("cache", cache, LatentCache)
        check_tensor("q", q, ("batch", "q_heads", cache.sizes.head_dim), (cache.dtype,), cache.device)
        check_batch(block_table, context_lens, *cache.sizes[:2], q.device)
        check_tensor("context_lens", context_lens, (len(q),), (torch.int32,))
        if not q.shape[1]:
            raise PagesimError("q has 0 heads; at least 1 is needed")
        if not (isfinite(scale) and scale > 0):
            raise PagesimError(f"scale is {scale}; a positive number is needed")
        if num_splits is not None:
            check_number("num_splits", num_splits, 1, MAX_SPLITS)
    out = check_out(out, q[..., : cache.latent_dim], check)
    if not use_triton(backend, q):
        return out.copy_(reference.mla_decode_attention(q, cache, block_table, context_lens, scale=scale))
    from pagesim.kernels import attention, mla
    from pagesim.kernels.launch import run_all

    if num_splits is None:
        longest = block_table.shape[1] * cache.sizes.block_size if max_context is None else max_context
        num_splits = attention.choose_splits(len(q) * -(-q.shape[1] // 32), longest, q.device)
    launches = mla.launches(q, cache, block_table, context_lens, out, scale=scale, num_splits=num_splits)
    return run_all(launches, out)


def _check_attention(
    q: Tensor,
    cache: Cache,
    block_table: Tensor,
    context_lens: Tensor,
    query_starts: Tensor | None,
    max_query_len: int | None,
    window: int | None,
) -> None:
    check_kind("cache", cache, Cache)
    blocks, block_size, kv_heads, head_dim = cache.sizes
    check_queries(q, kv_heads, head_dim, cache.dtype, cache.device)
    queries: int | Tensor = 1
    if query_starts is None:
        check_tensor("context_lens", context_lens, (len(q),), (torch.int32,))
    else:
        check_tensor("context_lens", context_lens, ("batch",), (torch.int32,), q.device)
        check_starts(query_starts, context_lens, len(q), max_query_len)
        queries = query_starts.diff()
    seen = None
    if window is not None and isinstance(window, int):
        seen = (context_lens.long() - (queries - 1) - window).clamp_min(0)
    check_batch(block_table, context_lens, blocks, block_size, q.device, seen)
