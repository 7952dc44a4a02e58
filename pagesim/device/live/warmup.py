"""Warm-up: run everything once before timing, so that no iteration pays for compiling or loading."""

from __future__ import annotations

import numpy as np
import torch

from pagesim.device.live.batch import Columns, columns_alike, table_width
from pagesim.device.live.cached_attention import CachedAttention
from pagesim.device.live.executor import MeasuredExecutor


def warm_up(executor: MeasuredExecutor, *, most_sequences: int, most_tokens: int) -> None:
    """Run batches of many sizes without storing KV, and swap and copy blocks that are still empty.

    Args:
        executor: executor before its first iteration.
        most_sequences: most sequences that may decode at once.
        most_tokens: most prompt tokens in an iteration.
    """
    on_gpu = executor.pools.device.type == "cuda"
    longest = executor.longest
    decodes = _sizes(min(most_sequences, 256)) if on_gpu else [1, 3]
    prompts = _sizes(most_tokens) if on_gpu else [2, 17]
    for batch in decodes:
        held = min(longest, executor.pools.num_blocks * executor.pools.block_size // batch)
        for context in {1, max(1, held)}:
            _run(executor, [1] * batch, context)
    for tokens in prompts:
        length = min(tokens, longest)
        rest = [length] * (tokens // length)
        _run(executor, [new for new in rest if new > 1], length)
        _run(executor, [1, 1, *(new for new in rest if new > 1)], length)
    if on_gpu:
        _try_splits(executor)
    _move(executor)
    if on_gpu:
        torch.cuda.synchronize()


def _sizes(most: int) -> list[int]:
    """Return powers of two up to ``most``, some numbers between them, and ``most``."""
    powers = [1 << power for power in range(most.bit_length()) if 1 << power <= most]
    return sorted({*powers, *(3 * power for power in powers if 3 * power <= most), most})


def _columns(executor: MeasuredExecutor, new: list[int], context: int) -> Columns:
    """Return sequences with the given new tokens and context, whose blocks are all block 0."""
    width = table_width(-(-context // executor.pools.block_size))
    return columns_alike(new, context, np.zeros((len(new), width), np.int32))


def _run(executor: MeasuredExecutor, new: list[int], context: int) -> None:
    if not new:
        return
    executor.compute(executor.staging.put(_columns(executor, new, context))).argmax(dim=-1).cpu()


def _try_splits(executor: MeasuredExecutor) -> None:
    """Run the decode kernel with 1, 2 and 16 splits; 1 and multiples of 16 are compiled separately."""
    spec, pools = executor.model.spec, executor.pools
    batch = executor.staging.put(_columns(executor, [1], executor.longest))
    queries = torch.zeros(
        (1, spec.heads, spec.head_dim), dtype=executor.model.dtype, device=executor.model.device
    )
    for splits in (1, 2, 16):
        attend = CachedAttention(pools, batch, num_splits=splits)
        attend.decode(0, queries, batch.tables, batch.decode_lengths, torch.empty_like(queries))


def _move(executor: MeasuredExecutor) -> None:
    pools = executor.pools
    for count in (1, min(3, pools.num_blocks, pools.host_blocks)):
        if pools.host_blocks:
            pairs = [(block, block) for block in range(count)]
            pools.swap_out(pairs)
            pools.swap_in(pairs)
    if pools.num_blocks > 1:
        pools.copy([(0, 1)])
