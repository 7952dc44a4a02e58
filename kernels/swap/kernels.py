"""Swaps with a kernel: gather the pieces and copy once, or write host memory from the GPU directly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import torch

from pagesim.errors import PagesimError
from pagesim.kernels.needs import INSTALL, installed
from pagesim.kernels.swap.base import BlockIds, Direction, Pools, SwapStrategy

ALIGNMENT = 16
"""Bytes that a piece must be a multiple of: the kernel moves 16 at a time."""

Side = tuple[torch.Tensor, torch.Tensor, int]
"""Where blocks are: addresses of the caches ``[P]``, ids ``[N]``, bytes between two blocks."""


class _WithKernel(SwapStrategy):
    """What the two share: a kernel that copies pieces, on the CPU plain indexing."""

    programs: int

    def __init__(self, pools: Pools) -> None:
        super().__init__(pools)
        if pools.piece_bytes % ALIGNMENT:
            raise PagesimError(
                f"strategy {self.name}: a piece is {pools.piece_bytes} bytes; "
                f"it must be a multiple of {ALIGNMENT}"
            )
        self._cache_bases = torch.tensor([cache.data_ptr() for cache in pools.caches], device=pools.device)

    @classmethod
    def lacks(cls, device: torch.device) -> str | None:
        if device.type == "cuda" and not installed("triton"):
            return f"its kernel needs triton: {INSTALL}"
        return None

    def _exchange(self, direction: Direction, device: BlockIds, blocks: torch.Tensor, ids: BlockIds) -> None:
        """Copy between the caches' blocks ``device`` and rows ``ids`` of ``blocks [M, P, piece_bytes]``."""
        if self.stream is None:
            self._exchange_rows(direction, device, blocks, ids)
            return
        from pagesim.kernels.swap.pieces import copy_pieces

        pools = self.pools
        ours: Side = (self._cache_bases, self._on_device(device), pools.piece_bytes)
        bases = blocks.data_ptr() + torch.arange(pools.pieces, device=pools.device) * pools.piece_bytes
        theirs: Side = (bases, self._on_device(ids), pools.block_bytes)
        source, target = (ours, theirs) if direction == "out" else (theirs, ours)
        copy_pieces(source, target, pools.piece_bytes, self.programs)

    def _exchange_rows(
        self, direction: Direction, device: BlockIds, blocks: torch.Tensor, ids: BlockIds
    ) -> None:
        ours, theirs = torch.from_numpy(device), torch.from_numpy(ids)
        for piece, cache in enumerate(self.pools.rows()):
            if direction == "out":
                blocks[theirs, piece] = cache[ours]
            else:
                cache[ours] = blocks[theirs, piece]

    def _on_device(self, ids: BlockIds) -> torch.Tensor:
        return torch.from_numpy(ids).pin_memory().to(self.pools.device, non_blocking=True)


class GatherCopy(_WithKernel):
    """A kernel gathers the blocks side by side on the device, large copies take them across; and back.

    Host blocks that are neighbours cross in one copy. Even a host block by itself is a copy of all layers,
    megabytes for a real model, which a link takes at nearly its full rate.

    Args:
        pools: what to copy between.
        staging_bytes: device memory to gather in; at least one block is held.
    """

    name: ClassVar[str] = "gather"
    sentence: ClassVar[str] = "a kernel gathers the blocks, one large pinned copy takes them across"
    programs = 2048  # all of the GPU, for the few microseconds it takes

    def __init__(self, pools: Pools, staging_bytes: int = 128 << 20) -> None:
        super().__init__(pools)
        room = min(max(1, staging_bytes // pools.block_bytes), pools.device_blocks)
        shape = (room, pools.pieces, pools.piece_bytes)
        self._staging = torch.empty(shape, dtype=torch.uint8, device=pools.device)
        if self.stream is not None:  # a strategy may be dropped while its last swap is under way
            self._staging.record_stream(self.stream)

    def _move(self, direction: Direction, device: BlockIds, host: BlockIds) -> None:
        order = np.argsort(host)  # so that neighbours on the host are neighbours in the staging buffer
        room = len(self._staging)
        for first in range(0, len(order), room):
            part = order[first : first + room]
            rows = np.arange(len(part))
            if direction == "out":
                self._exchange("out", device[part], self._staging, rows)
            for row, block, length in _runs(host[part]):
                there, here = self.pools.host[block : block + length], self._staging[row : row + length]
                target, source = (there, here) if direction == "out" else (here, there)
                target.copy_(source, non_blocking=True)
            if direction == "in":
                self._exchange("in", device[part], self._staging, rows)


class ZeroCopy(_WithKernel):
    """A kernel reads or writes pinned host memory itself; nothing is staged and no copy engine is used.

    It is meant for small pieces, where a copy's fixed cost is most of it. It takes multiprocessors from
    whatever runs beside it: ``programs`` bounds how many.

    Args:
        pools: what to copy between.
        programs: thread blocks of the kernel; 32 keep 512 KiB in flight, some times what PCIe 5.0 x16 needs.
    """

    name: ClassVar[str] = "zero-copy"
    sentence: ClassVar[str] = "a kernel reads and writes pinned host memory directly"

    def __init__(self, pools: Pools, programs: int = 32) -> None:
        super().__init__(pools)
        if programs < 1:
            raise PagesimError(f"programs is {programs}; it must be at least 1")
        self.programs = programs

    def _move(self, direction: Direction, device: BlockIds, host: BlockIds) -> None:
        self._exchange(direction, device, self.pools.host, host)


def _runs(blocks: BlockIds) -> Iterator[tuple[int, int, int]]:
    """Yield (place, first block, length) for each run of neighbours in ascending ``blocks``."""
    starts = np.flatnonzero(np.diff(blocks, prepend=blocks[0] - 2) != 1)
    ends = np.append(starts[1:], len(blocks))
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        yield start, int(blocks[start]), end - start
