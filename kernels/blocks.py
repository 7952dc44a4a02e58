"""Whole blocks of many caches moved in one launch: copy-on-write, gather to swap out, scatter to swap in.

A block is moved as words of 32 bits, four a thread, whatever its type and layout. The caches' addresses are
an array that the kernel reads, so that keys and values of all layers move together.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagesim.kernels.cache import BlockPool
from pagesim.kernels.launch import Launch

WORDS = 4096
"""Words a program moves: 16 KB, which 128 threads have in flight as eight loads of 16 bytes each."""


@triton.jit
def copy_kernel(
    addresses,  # int64 [caches]
    pairs,  # int64 [pairs, 2]
    words_a_block,
    stride_block,  # words
    WORDS: tl.constexpr,
):
    """Copy a piece of one block of one cache to another block of it."""
    pair = tl.program_id(0) // tl.cdiv(words_a_block, WORDS)
    cache = cache_at(addresses)
    source = cache + tl.load(pairs + 2 * pair) * stride_block
    target = cache + tl.load(pairs + 2 * pair + 1) * stride_block
    move(source, target, words_a_block, WORDS)


@triton.jit
def gather_kernel(
    addresses,  # int64 [caches]
    block_ids,  # int64 [ids]
    staging,  # int32 [ids, caches, words_a_block]
    words_a_block,
    stride_block,
    WORDS: tl.constexpr,
):
    """Copy a piece of one block of one cache into the staging memory."""
    block = tl.program_id(0) // tl.cdiv(words_a_block, WORDS)
    source = cache_at(addresses) + tl.load(block_ids + block) * stride_block
    # All caches of a block side by side, so that it crosses the link in one copy.
    target = staging + (block.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * words_a_block
    move(source, target, words_a_block, WORDS)


@triton.jit
def scatter_kernel(
    addresses,  # int64 [caches]
    block_ids,  # int64 [ids]
    staging,  # int32 [ids, caches, words_a_block]
    words_a_block,
    stride_block,
    WORDS: tl.constexpr,
):
    """Copy a piece of the staging memory into one block of one cache."""
    block = tl.program_id(0) // tl.cdiv(words_a_block, WORDS)
    source = staging + (block.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * words_a_block
    target = cache_at(addresses) + tl.load(block_ids + block) * stride_block
    move(source, target, words_a_block, WORDS)


@triton.jit
def cache_at(addresses):
    """Return a pointer to the words of the cache that this program works on.

    Of an address that is loaded Triton does not know that it is a multiple of 16 bytes, as ``check_blocks``
    makes sure; untold, it would move 4 bytes a thread.
    """
    address = tl.load(addresses + tl.program_id(1))
    return tl.multiple_of(address.to(tl.pointer_type(tl.int32)), 16)


@triton.jit
def move(source, target, words_a_block, WORDS: tl.constexpr):
    """Copy this program's piece of a block."""
    word = tl.program_id(0) % tl.cdiv(words_a_block, WORDS) * WORDS + tl.arange(0, WORDS)  # [WORDS]
    mask = word < words_a_block
    tl.store(target + word, tl.load(source + word, mask=mask), mask=mask)


def copy(pool: BlockPool, pairs: Tensor) -> Launch:
    """Return what copies block ``pairs[i, 0]`` to block ``pairs[i, 1]`` in every cache."""
    return _launch(copy_kernel, pool, len(pairs), {"pairs": pairs})


def gather(pool: BlockPool, block_ids: Tensor, out: Tensor) -> Launch:
    """Return what copies blocks of every cache to ``out``, ``[ids, caches, *block]``."""
    return _launch(gather_kernel, pool, len(block_ids), {"block_ids": block_ids, "staging": _words(out)})


def scatter(staging: Tensor, pool: BlockPool, block_ids: Tensor) -> Launch:
    """Return what copies ``staging`` to blocks of every cache."""
    return _launch(scatter_kernel, pool, len(block_ids), {"block_ids": block_ids, "staging": _words(staging)})


def _words(staging: Tensor) -> Tensor:
    return staging.view(torch.uint8).view(torch.int32)


def _launch(kernel: object, pool: BlockPool, blocks: int, arguments: dict[str, Tensor]) -> Launch:
    words = pool.words
    piece = min(WORDS, 1 << (words - 1).bit_length())
    return Launch(
        kernel,
        (-(-words // piece) * blocks, len(pool)),
        {
            "addresses": pool.addresses,
            **arguments,
            "words_a_block": words,
            "stride_block": pool.stride,
            "WORDS": piece,
        },
    )
