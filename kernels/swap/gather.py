"""Gather and copy: blocks are collected side by side on the device and cross the link in large copies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import torch

from pagesim.errors import PagesimError
from pagesim.kernels.api import gather_blocks, scatter_blocks
from pagesim.kernels.swap.base import BlockIds, Direction, Pools, SwapStrategy
from pagesim.kernels.swap.kernel import check_pieces, ids_on, lacks_triton


class GatherCopy(SwapStrategy):
    """A kernel gathers the blocks side by side on the device, large copies take them across; and back.

    Host blocks that are neighbours cross in one copy. Even a host block by itself is a copy of all layers,
    megabytes for a real model, which a link takes at nearly its full rate.

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
        room = min(max(1, staging_bytes // pools.block_bytes), pools.device_blocks)
        self._staging = torch.empty((room, *pools.host.shape[1:]), dtype=torch.uint8, device=pools.device)
        if self.stream is not None:  # a strategy may be dropped while its last swap is under way
            self._staging.record_stream(self.stream)

    @classmethod
    def lacks(cls, device: torch.device) -> str | None:
        return lacks_triton(device)

    def _move(self, direction: Direction, device: BlockIds, host: BlockIds) -> None:
        order = np.argsort(host)  # so that neighbours on the host are neighbours in the staging buffer
        for first in range(0, len(order), len(self._staging)):
            part = order[first : first + len(self._staging)]
            staged = self._staging[: len(part)]
            ids, words = ids_on(self.pools.device, device[part]), staged.view(torch.float32)
            if direction == "out":
                gather_blocks(self._words, ids, out=words)
            for row, block, length in _runs(host[part]):
                there, here = self.pools.host[block : block + length], staged[row : row + length]
                target, source = (there, here) if direction == "out" else (here, there)
                target.copy_(source, non_blocking=True)
            if direction == "in":
                scatter_blocks(words, self._words, ids)


def _runs(blocks: BlockIds) -> Iterator[tuple[int, int, int]]:
    """Yield (place, first block, length) for each run of neighbours in ascending ``blocks``."""
    starts = np.flatnonzero(np.diff(blocks, prepend=blocks[0] - 2) != 1)
    ends = np.append(starts[1:], len(blocks))
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        yield start, int(blocks[start]), end - start
