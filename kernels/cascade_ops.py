"""The op of shared-prefix (cascade) attention; see ``api.py``."""

from __future__ import annotations

from torch import Tensor

from pagesim.errors import PagesimError
from pagesim.kernels import reference
from pagesim.kernels.attention_ops import decode_plan
from pagesim.kernels.cache import Cache
from pagesim.kernels.checks import check_cache, check_out, check_query, check_score_scale, use_triton
from pagesim.kernels.launch import run_all
from pagesim.kernels.planner import DecodePlan
from pagesim.kernels.sharing import SharedPrefixes


def cascade_decode_attention(
    q: Tensor,
    cache: Cache,
    prefixes: SharedPrefixes,
    *,
    scale: float | None = None,
    plans: tuple[DecodePlan, DecodePlan] | None = None,
    out: Tensor | None = None,
    backend: str = "auto",
    check: bool = True,
) -> Tensor:
    """Attend with one new token a sequence to its paged context, and read blocks that are shared once.

    The result is that of ``decode_attention``. What is read is less: of a group's shared blocks every key and
    value once for as many of the group's query heads as a program takes, and not once a sequence.

    Args:
        q: ``[batch, q_heads, D]``, float16, bfloat16 or float32.
        cache: of the queries' type or in FP8.
        prefixes: the batch, with the groups of those that share.
        scale: of the dot products.
        plans: from ``cascade_plan``; without them, contexts may be of any length that the table has room for.
        out: where the result goes, as ``q``.
        backend: what computes it.
        check: whether the other arguments are looked at.

    Returns:
        ``[batch, q_heads, D]``, as ``q``.

    Raises:
        PagesimError: an argument is off.
    """
    if check:
        check_cache(cache, Cache, paged=True)
        check_query("q", q, ("batch",), cache.sizes, cache.key_cache)
        _check_batch(q, prefixes)
        check_score_scale(scale)
    out = check_out(out, q, check)
    if use_triton(backend, q):
        from pagesim.kernels import cascade

        if plans is None:
            longest = prefixes.block_table.shape[1] * cache.sizes.block_size
            plans = cascade_plan(q, cache, prefixes, longest=longest)
        return run_all(cascade.launches(q, cache, prefixes, scale, plans, out), out)
    pair = (cache.key_cache, cache.value_cache)
    factor = cache.sizes.head_dim**-0.5 if scale is None else float(scale)
    whole = (prefixes.block_table, prefixes.context_lens)
    return out.copy_(reference.decode_attention(q, *pair, *whole, scale=factor, **cache.as_stored))


def cascade_plan(
    q: Tensor,
    cache: Cache,
    prefixes: SharedPrefixes,
    *,
    longest: int | None = None,
    num_splits: tuple[int | None, int | None] = (None, None),
) -> tuple[DecodePlan, DecodePlan]:
    """Plan both decodes, that of the shared blocks and that of what each sequence has of its own.

    Args:
        q: ``[batch, q_heads, D]``.
        cache: of the batch.
        prefixes: the batch.
        longest: tokens of a context at most, in a CUDA graph say; without it the lengths are looked at, which
            waits for a GPU.
        num_splits: into how many splits the longest of each is cut, instead of what the planner would choose.

    Raises:
        PagesimError: an argument is off.
    """
    _check_batch(q, prefixes)
    shared = longest or prefixes.shared_lens.max().item()
    of_groups = q.new_empty((len(prefixes.members), q.shape[1] * prefixes.members.shape[1], q.shape[2]))
    capacity = longest is not None
    own = [longest] * len(q) if longest is not None else prefixes.own_lens
    return (
        decode_plan(
            of_groups, cache, [int(shared)] * len(of_groups), capacity=capacity, num_splits=num_splits[0]
        ),
        decode_plan(q, cache, own, capacity=capacity, num_splits=num_splits[1]),
    )


def _check_batch(q: Tensor, prefixes: SharedPrefixes) -> None:
    if not isinstance(prefixes, SharedPrefixes):
        raise PagesimError(
            f"prefixes is a {type(prefixes).__name__}; SharedPrefixes(cache, block_table, …) is needed"
        )
    if len(prefixes.places) != len(q):
        raise PagesimError(
            f"prefixes has {len(prefixes.places)} sequences; {len(q)} are needed, as many as q has rows"
        )
