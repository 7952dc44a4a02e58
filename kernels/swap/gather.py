"""Gather and copy: blocks are collected side by side on the device and cross the link in large copies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import ClassVar

import numpy as np
import torch

from pagesim.errors import PagesimError
from pagesim.kernels.api import BlockPool, gather_blocks, scatter_blocks
from pagesim.kernels.swap.base import BlockIds, Blocks, Direction, Pools, SwapStrategy
from pagesim.kernels.swap.kernel import check_pieces, lacks_triton


class GatherCopy(SwapStrategy):
    """A kernel gathers the blocks side by side on the device, large copies take them across; and back.

    The staging memory has two halves: while one crosses the link, the other is gathered or scattered. Host
    blocks that are neighbours cross in one copy. Even a host block by itself is a copy of all layers,
    megabytes for a real model, which a link takes at nearly its full rate. Layer by layer a block is as many
    copies as there are layers.

    Args:
        pools: what to copy between.
        staging_bytes: device memory to gather in; at least one block is held.

    Raises:
        PagesimError: pieces are not a multiple of 16 bytes, or ``staging_bytes`` is negative.
        Unavailable: triton is not installed, on a GPU.
    """

    name: ClassVar[str] = "gather"
    sentence: ClassVar[str] = "a kernel gathers the blocks, one large pinned copy takes them across"

    def __init__(self, pools: Pools, staging_bytes: int = 128 << 20) -> None:
        super().__init__(pools)
        check_pieces(self.name, pools)
        if staging_bytes < 0:
            raise PagesimError(f"staging_bytes is {staging_bytes}; it must be at least 0")
        # The kernels take the dtypes of caches; bytes are moved four at a time and never looked at.
        self._words = [row.view(torch.float32) for row in pools.rows()]
        whole = slice(0, pools.pieces)
        self._of_pieces = {(whole.start, whole.stop): BlockPool(self._words)}
        room = min(max(1, staging_bytes // pools.block_bytes), pools.device_blocks)
        staging = torch.empty((room, *pools.host.shape[1:]), dtype=torch.uint8, device=pools.device)
        half = max(1, room // 2)
        self._halves = [Half(part) for part in (staging[:half], staging[half : 2 * half]) if len(part)]
        self._link: torch.cuda.Stream | None = None
        if self.stream is not None:
            self._link = torch.cuda.Stream(pools.device)  # type: ignore[no-untyped-call]
            for stream in (self.stream, self._link):  # a strategy may be dropped while a swap is under way
                staging.record_stream(stream)

    @classmethod
    def lacks(cls, device: torch.device) -> str | None:
        return lacks_triton(device)

    def move(self, direction: Direction, blocks: Blocks, pieces: slice) -> None:
        ids, there = blocks.on(self.pools.device)[0], blocks.host
        pool = self._pool(pieces)
        size = len(self._halves[0].part(len(pool)))
        if self.stream is not None and self._link is not None:
            self._link.wait_stream(self.stream)
        for turn, first in enumerate(range(0, len(ids), size)):
            part = slice(first, min(first + size, len(ids)))
            half = self._halves[turn % len(self._halves)]
            staged = half.part(len(pool))[: part.stop - part.start]
            if direction == "out":
                half.wait_on(self.stream)  # for the copies of what it held before
                gather_blocks(pool, ids[part], out=staged.view(torch.float32), check=False)
                self._cross(direction, half, staged, there[part], pieces)
            else:
                half.wait_on(self._link)
                self._cross(direction, half, staged, there[part], pieces)
                scatter_blocks(staged.view(torch.float32), pool, ids[part], check=False)
                half.free_after(self.stream)
        if self.stream is not None and self._link is not None:
            self.stream.wait_stream(self._link)

    def _pool(self, pieces: slice) -> BlockPool:
        """Return the caches that hold some pieces, checked once."""
        key = (pieces.start, pieces.stop)
        if key not in self._of_pieces:
            self._of_pieces[key] = BlockPool(self._words[pieces])
        return self._of_pieces[key]

    def _cross(
        self, direction: Direction, half: Half, staged: torch.Tensor, blocks: BlockIds, pieces: slice
    ) -> None:
        """Copy between part of a half and host blocks, beside the kernels of the other half."""
        link, kernels = self._link, self.stream
        if link is not None and kernels is not None and direction == "out":
            link.wait_stream(kernels)
        # Neighbours lie side by side on the host with all their pieces only.
        runs = _runs(blocks) if staged.shape[1] == self.pools.pieces else _each(blocks)
        with nullcontext() if link is None else torch.cuda.stream(link):
            for row, block, length in runs:
                there = self.pools.host[block : block + length, pieces]
                here = staged[row : row + length]
                target, source = (there, here) if direction == "out" else (here, there)
                target.copy_(source, non_blocking=True)
        if direction == "out":
            half.free_after(link)
        elif link is not None and kernels is not None:
            kernels.wait_stream(link)


class Half:
    """Half of the staging memory: while one is gathered or scattered, the other crosses the link.

    Args:
        memory: uint8 ``[blocks, P, piece_bytes]``.
    """

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self._free: torch.cuda.Event | None = None

    def part(self, pieces: int) -> torch.Tensor:
        """Return it as blocks of fewer pieces, uint8 ``[blocks, pieces, piece_bytes]``."""
        room = len(self.memory) * self.memory.shape[1] // pieces
        rows = self.memory.flatten(0, 1)[: room * pieces]
        return rows.view(room, pieces, self.memory.shape[2])

    def free_after(self, stream: torch.cuda.Stream | None) -> None:
        """Say that it is free when what a stream holds by now is done."""
        if stream is not None:
            self._free = stream.record_event()

    def wait_on(self, stream: torch.cuda.Stream | None) -> None:
        """Let a stream wait until it is free."""
        if stream is not None and self._free is not None:
            stream.wait_event(self._free)


def _runs(blocks: BlockIds) -> Iterator[tuple[int, int, int]]:
    """Yield (place, first block, length) of each run of neighbours in ascending ``blocks``."""
    starts = np.flatnonzero(np.diff(blocks, prepend=blocks[0] - 2) != 1)
    ends = np.append(starts[1:], len(blocks))
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        yield start, int(blocks[start]), end - start


def _each(blocks: BlockIds) -> Iterator[tuple[int, int, int]]:
    """Yield (place, block, 1) of each block."""
    for place, block in enumerate(blocks.tolist()):
        yield place, block, 1
