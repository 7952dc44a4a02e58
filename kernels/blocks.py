"""Moves whole blocks of many caches in one launch: copies, gathers for swap-out, scatters for swap-in.

A block is moved as 32-bit words, four per thread, whatever its type and layout. The kernel reads the caches'
addresses from an array, so that keys and values of all layers move together.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagesim.kernels.cache import BlockPool
from pagesim.kernels.launch import Launch

WORDS = 4096
"""Words per program: 16 KB, which 128 threads keep in flight as eight loads of 16 bytes each."""


@triton.jit
def part_of(memory, ids, step, stride, words_a_block, POOL: tl.constexpr, WORDS: tl.constexpr):
    """Return where this program's block of this program's cache begins.

    Of an address that is loaded Triton does not know that it is a multiple of 16 bytes, as ``check_blocks``
    makes sure; untold, it would move 4 bytes a thread.
    """
    number = tl.program_id(0) // tl.cdiv(words_a_block, WORDS)
    if POOL:
        base = tl.load(memory + tl.program_id(1)).to(tl.pointer_type(tl.int32))
        return tl.multiple_of(base, 16) + tl.load(ids + number * step) * stride
    else:  # all caches of a block side by side, so that it crosses the link in one copy
        place = number.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
        return memory + place * words_a_block


@triton.jit
def move_kernel(
    source,  # FROM_POOL: int64 [caches], their addresses; else int32 [ids, caches, words_a_block]
    source_ids,  # FROM_POOL: int64 [ids], every step-th of an array
    target,  # TO_POOL: as source; else likewise
    target_ids,  # TO_POOL: int64 [ids], every step-th of an array
    step,
    words_a_block,
    stride_block,  # words between two blocks of a cache
    FROM_POOL: tl.constexpr,
    TO_POOL: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Copy a piece of one block of one cache."""
    read = part_of(source, source_ids, step, stride_block, words_a_block, FROM_POOL, WORDS)
    write = part_of(target, target_ids, step, stride_block, words_a_block, TO_POOL, WORDS)
    word = tl.program_id(0) % tl.cdiv(words_a_block, WORDS) * WORDS + tl.arange(0, WORDS)  # [WORDS]
    mask = word < words_a_block
    tl.store(write + word, tl.load(read + word, mask=mask), mask=mask)


def copy(pool: BlockPool, pairs: Tensor) -> Launch:
    """Return a launch that copies block ``pairs[i, 0]`` to block ``pairs[i, 1]`` in every cache."""
    return _launch(pool, pool.addresses, pairs[:, 0], pool.addresses, pairs[:, 1])


def gather(pool: BlockPool, block_ids: Tensor, out: Tensor) -> Launch:
    """Return a launch that copies blocks of every cache to ``out``, ``[ids, caches, *block]``."""
    return _launch(pool, pool.addresses, block_ids, _words(out), None)


def scatter(staging: Tensor, pool: BlockPool, block_ids: Tensor) -> Launch:
    """Return a launch that copies ``staging``, ``[ids, caches, *block]``, to blocks of every cache."""
    return _launch(pool, _words(staging), None, pool.addresses, block_ids)


def _words(staging: Tensor) -> Tensor:
    return staging.view(torch.uint8).view(torch.int32)


def _launch(
    pool: BlockPool, source: Tensor, source_ids: Tensor | None, target: Tensor, target_ids: Tensor | None
) -> Launch:
    """Return the launch of a move; a side without ids is staging memory."""
    ids = source_ids if source_ids is not None else target_ids
    assert ids is not None, "one side is the pool"
    piece = min(WORDS, triton.next_power_of_2(pool.words))
    arguments = {
        "source": source,
        "source_ids": ids if source_ids is None else source_ids,
        "target": target,
        "target_ids": ids if target_ids is None else target_ids,
        "step": ids.stride(0),
        "words_a_block": pool.words,
        "stride_block": pool.stride,
        "FROM_POOL": source_ids is not None,
        "TO_POOL": target_ids is not None,
        "WORDS": piece,
    }
    count = len(ids)
    return Launch(move_kernel, lambda _: (-(-pool.words // piece) * count, len(pool)), arguments)
