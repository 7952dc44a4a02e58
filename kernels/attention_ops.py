"""The ops that attend: decode over a paged cache and without one, and prefill; see ``api.py``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache as kept
from functools import partial

import torch
from torch import Tensor

from pagesim.errors import PagesimError
from pagesim.kernels import reference
from pagesim.kernels.cache import Cache
from pagesim.kernels.cache_ops import gather_sequences
from pagesim.kernels.checks import (
    QUERY_DTYPES,
    bounds_are_checked,
    check_cache,
    check_contexts,
    check_lengths,
    check_out,
    check_query,
    check_score_scale,
    check_tensor,
    use_triton,
)
from pagesim.kernels.gpu import capability_of, gpu_of
from pagesim.kernels.launch import Launch, run_all
from pagesim.kernels.planner import DecodePlan, plan_decode
from pagesim.kernels.variant import PLAIN, Variant


def decode_attention(
    q: Tensor,
    cache: Cache,
    block_table: Tensor,
    context_lens: Tensor,
    *,
    scale: float | None = None,
    variant: Variant = PLAIN,
    plan: DecodePlan | None = None,
    out: Tensor | None = None,
    backend: str = "auto",
    check: bool = True,
) -> Tensor:
    """Attend with one new token a sequence, or its last few, to its paged context.

    Several tokens a sequence, as a speculated continuation has them, are verified at once: each sees itself
    and all tokens before it. A sequence with fewer of them than others has them last; what stands before
    them sees what a query at its place would, or, before the first token, gives zeros.

    Args:
        q: ``[batch, q_heads, D]`` or ``[batch, queries, q_heads, D]``, float16, bfloat16 or float32; query
            head h reads KV head ``h // (q_heads // kv_heads)``.
        cache: of the queries' type or in FP8.
        block_table: int32 ``[batch, max_blocks]``.
        context_lens: int32 ``[batch]``, the queries' own tokens included; a sequence of length 0 gets zeros.
        scale: of the dot products.
        variant: window, soft cap and sinks; entries of the table before a window are not read.
        plan: from ``decode_plan``; without one, contexts may be of any length that the table has room for.
        out: where the result goes, as ``q``.
        backend: what computes it.
        check: whether the other arguments are looked at.

    Returns:
        As ``q``.

    Raises:
        PagesimError: an argument is off.
    """
    if check:
        check_cache(cache, Cache, paged=True)
        check_query("q", q, _axes(q), cache.sizes, cache.key_cache)
        seen = None
        if variant.window is not None:
            seen = partial(_first_seen, context_lens, _queries(q), variant.window)
        check_contexts(q.shape[0], block_table, context_lens, cache.sizes, q.device, seen)
        check_score_scale(scale)
        variant.check(q)
    return _decode(
        q, cache, block_table, context_lens, scale, variant, plan, check_out(out, q, check), backend
    )


def contiguous_decode_attention(
    q: Tensor,
    cache: Cache,
    context_lens: Tensor,
    *,
    scale: float | None = None,
    variant: Variant = PLAIN,
    plan: DecodePlan | None = None,
    out: Tensor | None = None,
    backend: str = "auto",
    check: bool = True,
) -> Tensor:
    """Attend with one new token a sequence to a padded contiguous context: the same kernel, not paged.

    Args:
        q: ``[batch, q_heads, D]`` or ``[batch, queries, q_heads, D]``.
        cache: one made with ``paged=False``, of as many sequences.
        context_lens: int32 ``[batch]``; what lies beyond is never read.
        scale: of the dot products.
        variant: window, soft cap and sinks.
        plan: from ``decode_plan``; without one, contexts may be of any length up to ``max_context``.
        out: where the result goes, as ``q``.
        backend: what computes it.
        check: whether the other arguments are looked at.

    Returns:
        As ``q``.

    Raises:
        PagesimError: an argument is off.
    """
    if check:
        check_cache(cache, Cache, paged=False)
        check_query("q", q, _axes(q), cache.sizes, cache.key_cache)
        if (held := cache.sizes.num_blocks) != len(q):
            raise PagesimError(f"cache holds {held} sequences; {len(q)} are needed, as many as q has rows")
        check_tensor("context_lens", context_lens, (q.shape[0],), (torch.int32,), q.device, contiguous=True)
        check_lengths(context_lens, cache.sizes.block_size, "as the cache has room for")
        check_score_scale(scale)
        variant.check(q)
    return _decode(q, cache, None, context_lens, scale, variant, plan, check_out(out, q, check), backend)


def gather_decode_attention(
    q: Tensor,
    cache: Cache,
    block_table: Tensor,
    context_lens: Tensor,
    *,
    max_context: int | None = None,
    scale: float | None = None,
    variant: Variant = PLAIN,
    plan: DecodePlan | None = None,
    workspace: Cache | None = None,
    out: Tensor | None = None,
    backend: str = "auto",
    check: bool = True,
) -> Tensor:
    """Do what is done without a paged kernel: copy the contexts into a padded batch, then attend to that.

    Args:
        q: ``[batch, q_heads, D]`` or ``[batch, queries, q_heads, D]``.
        cache: of the queries' type or in FP8.
        block_table: int32 ``[batch, max_blocks]``.
        context_lens: int32 ``[batch]``.
        max_context: how wide the padded batch is; without it as wide as the workspace or the table.
        scale: of the dot products.
        variant: window, soft cap and sinks; all of a context is copied.
        plan: for the second half.
        workspace: what ``gather_sequences`` returned for such a batch.
        out: where the result goes, as ``q``.
        backend: what computes it.
        check: whether the other arguments are looked at.

    Returns:
        As ``q``.

    Raises:
        PagesimError: an argument is off.
    """
    padded = gather_sequences(
        cache,
        block_table,
        context_lens,
        max_context=max_context,
        out=workspace,
        backend=backend,
        check=check,
    )
    return contiguous_decode_attention(
        q,
        padded,
        context_lens,
        scale=scale,
        variant=variant,
        plan=plan,
        out=out,
        backend=backend,
        check=check,
    )


def prefill_attention(
    q: Tensor,
    cache: Cache,
    block_table: Tensor,
    context_lens: Tensor,
    query_starts: Tensor,
    *,
    max_query_len: int | None = None,
    scale: float | None = None,
    variant: Variant = PLAIN,
    out: Tensor | None = None,
    backend: str = "auto",
    check: bool = True,
) -> Tensor:
    """Attend with several new tokens a sequence, each to itself and all tokens before it.

    The new tokens are the last of their context and already cached (``reshape_and_cache``). With a context
    as long as the queries this is a whole prompt, or its recomputation; with a longer one, a chunk of it or
    a cached prefix.

    Args:
        q: ``[tokens, q_heads, D]``, one sequence after another.
        cache: of the queries' type or in FP8.
        block_table: int32 ``[batch, max_blocks]``.
        context_lens: int32 ``[batch]``, new tokens included.
        query_starts: int32 ``[batch + 1]``, from 0 to ``tokens``: the rows of sequence b are
            ``query_starts[b]`` to ``query_starts[b + 1]``; there may be none.
        max_query_len: the most new tokens of any sequence, if it is known: fewer idle programs are started.
        scale: of the dot products.
        variant: window, soft cap and sinks; entries of the table before a window are not read.
        out: where the result goes, as ``q``.
        backend: what computes it.
        check: whether the other arguments are looked at.

    Returns:
        ``[tokens, q_heads, D]``, as ``q``.

    Raises:
        PagesimError: an argument is off.
    """
    if check:
        check_cache(cache, Cache, paged=True)
        check_query("q", q, ("tokens",), cache.sizes, cache.key_cache)
        batch = len(context_lens)
        check_tensor("query_starts", query_starts, (batch + 1,), (torch.int32,), q.device, contiguous=True)
        seen = None
        if variant.window is not None:
            seen = partial(_first_seen, context_lens, query_starts, variant.window)
        check_contexts(batch, block_table, context_lens, cache.sizes, q.device, seen)
        _check_queries(query_starts, context_lens, len(q), max_query_len)
        check_score_scale(scale)
        variant.check(q)
    out = check_out(out, q, check)
    if use_triton(backend, q):
        from pagesim.kernels import prefill

        longest = len(q) if max_query_len is None else max_query_len
        capability = capability_of(q.device)
        launch = prefill.launch(
            q, cache, block_table, context_lens, query_starts, longest, scale, out, capability, variant
        )
        return run_all([launch], out)
    return out.copy_(
        reference.prefill_attention(
            q,
            cache.key_cache,
            cache.value_cache,
            block_table,
            context_lens,
            query_starts,
            scale=_plain_scale(scale, cache),
            **cache.as_stored,
            **variant.as_given,
        )
    )


def decode_plan(
    q: Tensor,
    cache: Cache,
    context_lens: Tensor | Sequence[int],
    *,
    window: int | None = None,
    capacity: bool = False,
    num_splits: int | None = None,
    work_list: bool | None = None,
    tile: int | None = None,
    num_warps: int | None = None,
    num_stages: int | None = None,
) -> DecodePlan:
    """Plan a decode step for the GPU that the queries are on (an H200, where they are on none).

    Args:
        q: ``[batch, q_heads, D]`` or ``[batch, queries, q_heads, D]``.
        cache: a paged or a contiguous one.
        context_lens: tokens of each sequence; a tensor on a GPU is waited for.
        window: tokens that a query sees (``Variant``); None for all so far.
        capacity: whether these are the most tokens that sequences may have, in a CUDA graph say.
        num_splits: into how many splits the longest sequence is cut, instead of what the planner would
            choose.
        work_list: whether programs take their work from a list, likewise.
        tile: tokens a tile, likewise.
        num_warps: warps a program, likewise.
        num_stages: tiles in flight, likewise.

    Raises:
        PagesimError: an argument is off.
    """
    check_tensor("q", q, (*_axes(q), "q_heads", "D"), QUERY_DTYPES)
    check_cache(cache, Cache)
    sizes = cache.sizes
    lengths = context_lens.tolist() if isinstance(context_lens, Tensor) else list(context_lens)
    return plan_decode(
        lengths,
        q_heads=q.shape[-2],
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        block_size=sizes.block_size if cache.paged else 0,
        kv_bytes=cache.dtype.itemsize,
        layout=cache.layout,
        gpu=gpu_of(q.device),
        queries=_queries(q),
        window=window,
        capacity=capacity,
        num_splits=num_splits,
        work_list=work_list,
        tile=tile,
        num_warps=num_warps,
        num_stages=num_stages,
    )


def _decode(
    q: Tensor,
    cache: Cache,
    block_table: Tensor | None,
    context_lens: Tensor,
    scale: float | None,
    variant: Variant,
    plan: DecodePlan | None,
    out: Tensor,
    backend: str,
) -> Tensor:
    if use_triton(backend, q):
        plan = plan or _capacity_plan(q, cache, block_table, variant.window)
        return run_all(
            _decode_launches()(q, cache, block_table, context_lens, scale, plan, out, variant), out
        )
    options = {"scale": _plain_scale(scale, cache), **cache.as_stored, **variant.as_given}
    pair = (cache.key_cache, cache.value_cache)
    if block_table is None:
        return out.copy_(reference.contiguous_decode_attention(q, *pair, context_lens, **options))
    return out.copy_(reference.decode_attention(q, *pair, block_table, context_lens, **options))


@kept
def _decode_launches() -> Callable[..., list[Launch]]:
    """Return what launches decode attention, looked up once: an import takes as long as a check."""
    from pagesim.kernels import decode

    return decode.launches


def _plain_scale(scale: float | None, cache: Cache) -> float:
    return cache.sizes.head_dim**-0.5 if scale is None else float(scale)


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


def _capacity_plan(q: Tensor, cache: Cache, block_table: Tensor | None, window: int | None) -> DecodePlan:
    blocks = 1 if block_table is None else block_table.shape[1]
    return decode_plan(q, cache, [blocks * cache.sizes.block_size] * len(q), window=window, capacity=True)


def _axes(q: Tensor) -> tuple[str, ...]:
    return ("batch", "queries") if isinstance(q, Tensor) and q.dim() == 4 else ("batch",)


def _queries(q: Tensor) -> int:
    return q.shape[1] if q.dim() == 4 else 1


def _first_seen(context_lens: Tensor, queries: Tensor | int, window: int) -> Tensor:
    """Return the first token of each sequence that any of its queries sees, ``[batch]``.

    Queries are so many of each sequence, or int32 ``[batch + 1]`` where those of each begin.
    """
    if isinstance(queries, Tensor):
        queries = queries.diff()
    return (context_lens.long() - (queries - 1) - window).clamp_min(0)
