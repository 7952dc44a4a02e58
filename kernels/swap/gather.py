"""Gather and copy: blocks are gathered contiguously on the device and cross the link in large copies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import torch

from pagesim.errors import PagesimError
from pagesim.kernels.cache import BlockPool
from pagesim.kernels.cache_ops import gather_blocks, scatter_blocks
from pagesim.kernels.requirements import INSTALL, installed
from pagesim.kernels.swap.base import BlockIds, Blocks, Direction, Pools, SwapStrategy

ALIGNMENT = 16
"""Bytes that a kernel moves at once."""


class GatherCopy(SwapStrategy):
    """Gathers blocks contiguously on the device and sends them in large copies; the reverse for swap-in.

    Neighbouring host blocks cross in one copy. Even a single host block is one copy of all layers, megabytes
    for a real model, which a link transfers at nearly its full rate. Layer by layer, a block is as many
    copies as there are layers.

    Args:
        pools: pools to copy between.
        staging_bytes: device memory for gathering; it holds at least one block.

    Raises:
        PagesimError: pieces are not a multiple of 16 bytes, or ``staging_bytes`` is negative.
        Unavailable: triton is not installed, on a GPU.
    """

    name: ClassVar[str] = "gather"

    def __init__(self, pools: Pools, staging_bytes: int = 128 << 20) -> None:
        super().__init__(pools)
        if pools.piece_bytes % ALIGNMENT:
            raise PagesimError(
                f"strategy {self.name}: a piece is {pools.piece_bytes} bytes; it must be a multiple of"
                f" {ALIGNMENT}"
            )
        if staging_bytes < 0:
            raise PagesimError(f"staging_bytes is {staging_bytes}; it must be at least 0")
        # The kernels accept the caches' dtypes; bytes are moved four at a time and never interpreted.
        self._words = [row.view(torch.float32) for row in pools.rows()]
        self._of_pieces = {(0, pools.pieces): BlockPool(self._words)}
        room = min(max(1, staging_bytes // pools.block_bytes), pools.device_blocks)
        shape = (room * pools.pieces, pools.piece_bytes)
        self._staging = torch.empty(shape, dtype=torch.uint8, device=pools.device)
        if self.stream is not None:  # the strategy may be deleted during a swap
            self._staging.record_stream(self.stream)

    @classmethod
    def lacks(cls, device: torch.device) -> str | None:
        if device.type == "cuda" and not installed("triton"):
            return f"its kernel needs triton: {INSTALL}"
        return None

    def move(self, direction: Direction, blocks: Blocks, pieces: slice) -> None:
        ids, there = blocks.on(self.pools.device)[0], blocks.host
        pool = self._pool(pieces)
        room = len(self._staging) // len(pool)
        for first in range(0, len(ids), room):
            part = slice(first, min(first + room, len(ids)))
            count = part.stop - part.start
            staged = self._staging[: count * len(pool)].view(count, len(pool), self.pools.piece_bytes)
            if direction == "out":
                gather_blocks(pool, ids[part], out=staged.view(torch.float32), check=False)
            self._cross(direction, staged, there[part], pieces)
            if direction == "in":
                scatter_blocks(staged.view(torch.float32), pool, ids[part], check=False)

    def _pool(self, pieces: slice) -> BlockPool:
        """Return the pool of the caches that hold some pieces, checked once."""
        key = (pieces.start, pieces.stop)
        if key not in self._of_pieces:
            self._of_pieces[key] = BlockPool(self._words[pieces])
        return self._of_pieces[key]

    def _cross(self, direction: Direction, staged: torch.Tensor, blocks: BlockIds, pieces: slice) -> None:
        """Copy between staged blocks ``[N, pieces, piece_bytes]`` and host blocks."""
        # Neighbouring blocks are only contiguous on the host with all their pieces.
        whole = staged.shape[1] == self.pools.pieces
        for row, block, length in _runs(blocks, longest=len(blocks) if whole else 1):
            there = self.pools.host[block : block + length, pieces]
            here = staged[row : row + length]
            target, source = (there, here) if direction == "out" else (here, there)
            target.copy_(source, non_blocking=True)


def _runs(blocks: BlockIds, longest: int) -> Iterator[tuple[int, int, int]]:
    """Yield (position, first block, length) of each run of neighbours in ascending ``blocks``."""
    if longest == 1:
        yield from ((place, block, 1) for place, block in enumerate(blocks.tolist()))
        return
    starts = np.flatnonzero(np.diff(blocks, prepend=blocks[0] - 2) != 1)
    ends = np.append(starts[1:], len(blocks))
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        yield start, int(blocks[start]), end - start
