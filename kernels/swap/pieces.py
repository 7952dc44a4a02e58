"""The zero-copy swap's Triton kernel: pieces from anywhere to anywhere that the GPU can address."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from pagesim.kernels.launch import Launch

WORD_BYTES = 8
TILE_WORDS = 2048
"""16 KiB a program and turn: with 128 threads, eight 16-byte loads in flight each."""


@triton.jit  # type: ignore[untyped-decorator]
def _copy_pieces(  # type: ignore[no-untyped-def]
    source_bases,  # [P] int64, addresses
    source_ids,  # [N] int64
    source_stride,
    target_bases,  # [P] int64, addresses
    target_ids,  # [N] int64
    target_stride,
    pieces,
    words,
    tiles_a_piece,
    tiles,
    TILE: tl.constexpr,
):
    # A fixed number of programs walks over all tiles, so that the caller says how much of the GPU is taken.
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        piece = tile // tiles_a_piece
        block = piece // pieces
        cache = piece % pieces
        source = tl.load(source_bases + cache) + tl.load(source_ids + block) * source_stride
        target = tl.load(target_bases + cache) + tl.load(target_ids + block) * target_stride
        source = tl.multiple_of(source.to(tl.pointer_type(tl.int64)), 16)
        target = tl.multiple_of(target.to(tl.pointer_type(tl.int64)), 16)
        at = (tile % tiles_a_piece) * TILE + tl.arange(0, TILE)
        tl.store(target + at, tl.load(source + at, mask=at < words), mask=at < words)


def copy_pieces(
    source: tuple[torch.Tensor, torch.Tensor, int],
    target: tuple[torch.Tensor, torch.Tensor, int],
    piece_bytes: int,
    programs: int,
) -> Launch:
    """Return what copies N blocks of P pieces: piece p of block i lies at ``bases[p] + ids[i] · stride``.

    Args:
        source: addresses of the P caches ``[P]`` int64, ids ``[N]`` int64, bytes between two blocks.
        target: the same for where they go.
        piece_bytes: bytes of a piece, a multiple of 16.
        programs: how many run at once, at most.
    """
    pieces, blocks = len(source[0]), len(source[1])
    words = piece_bytes // WORD_BYTES
    tiles_a_piece = triton.cdiv(words, TILE_WORDS)
    tiles = blocks * pieces * tiles_a_piece
    return Launch(
        _copy_pieces,
        (min(tiles, programs),),
        {
            "source_bases": source[0],
            "source_ids": source[1],
            "source_stride": source[2],
            "target_bases": target[0],
            "target_ids": target[1],
            "target_stride": target[2],
            "pieces": pieces,
            "words": words,
            "tiles_a_piece": tiles_a_piece,
            "tiles": tiles,
            "TILE": TILE_WORDS,
        },
    )
