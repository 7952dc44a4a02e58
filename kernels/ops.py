"""The ops of ``pagesim.kernels``: arguments are checked, then the Triton kernel or the reference runs.

Words that all ops share:

- ``batch`` sequences, each with a *context* of tokens whose keys and values are cached;
- a *cache* (``Cache``) of ``blocks`` blocks of ``block_size`` token slots, a key and a value of D numbers a
  slot and KV head, of the queries' type or in FP8 (e4m3, multiplied by a scale when read);
- ``block_table``, int32 ``[batch, max_blocks]``: token t of sequence b lies in slot ``t % block_size`` of
  physical block ``block_table[b, t // block_size]``; entries beyond a context are never read;
- ``context_lens``, int32 ``[batch]``: tokens in the cache, those being computed included; 0 for an idle row;
- ``scale``: what a dot product is multiplied by;
- ``backend``: ``auto`` runs the Triton kernel on a GPU and the reference on a CPU; ``triton`` and
  ``reference`` insist;
- ``check``: False where arguments like these were looked at already: layers of a model share their batch, and
  checks of every layer would take longer than small kernels.

Every error is a ``PagesimError``, one sentence that names the argument. Block ids, slots and lengths are
looked at on a CPU always and on a GPU only under ``checked_bounds()``, because looking means waiting for
the GPU.
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
    """Attend with each sequence's newest tokens, each to itself and all tokens before it.

    One query a sequence is a decode step; several verify a speculated continuation; as many as the context
    has tokens are a prompt, fewer a chunk of one or a prompt after a cached prefix. Sequences of all kinds
    may be mixed. The queries' own keys and values are in the cache already (``reshape_and_cache``).

    Args:
        q: ``[tokens, q_heads, D]``, one sequence after another; float16, bfloat16 or float32. Query head h
            reads KV head ``h // (q_heads // kv_heads)``.
        cache: of the queries' type or in FP8.
        block_table: int32 ``[batch, max_blocks]``.
        context_lens: int32 ``[batch]``; a sequence of length 0 gets zeros.
        query_starts: int32 ``[batch + 1]``, from 0 to ``tokens``: the rows of sequence b are
            ``query_starts[b]`` to ``query_starts[b + 1]``; there may be none. None for one query a sequence.
        max_query_len: the most queries of any sequence, if it is known.
        max_context: the longest context, or the longest there can be in a CUDA graph, if it is known; without
            it as many tokens as the table has room for. It decides into how many splits contexts are cut.
        scale: of the dot products, above 0; 1/√D unless given.
        window: tokens that a query sees, its own included (Mistral, Gemma, gpt-oss); None for all so far.
            What lies before it is not read, nor are its entries of the table: its blocks may be freed.
        softcap: c in ``c · tanh(score / c)``, which scores become (Gemma 2); None for none.
        sinks: a learned score for each query head, float32 ``[q_heads]``, that takes part in the softmax and
            has no value (gpt-oss), neither scaled nor capped; -inf for a head without one. None for none.
        num_splits: into how many splits each context is cut: 1 is one pass (PagedAttention's v1), more are
            followed by a reduction (v2); None to choose.
        out: where the result goes, as ``q``.
        backend: what computes it.
        check: whether the other arguments are looked at.

    Returns:
        ``[tokens, q_heads, D]``, as ``q``.

    Raises:
        PagesimError: an argument is off.
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
    """Attend with one new token a sequence to its paged context of latents (MLA, DeepSeek-V2, 2024).

    Args:
        q: ``[batch, q_heads, latent_dim + rope_dim]``: of each head the query times the key projection, and
            the rotated part.
        cache: of the queries' type.
        block_table: int32 ``[batch, max_blocks]``.
        context_lens: int32 ``[batch]``; a sequence of length 0 gets zeros.
        scale: of the dot products, above 0. It follows from the head size before the projections, which the
            cache does not show: 192 in DeepSeek-V3.
        max_context: the longest context, if it is known.
        num_splits: into how many splits each context is cut; None to choose.
        out: where the result goes, ``[batch, q_heads, latent_dim]``.
        backend: what computes it.
        check: whether the other arguments are looked at.

    Returns:
        ``[batch, q_heads, latent_dim]``, which the value projection is yet to be multiplied with.

    Raises:
        PagesimError: an argument is off.
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
