"""Swaps by the copy engines: one copy per piece, issued one by one or all in one call."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch

from pagesim.kernels.requirements import Unavailable
from pagesim.kernels.swap.base import Blocks, Direction, Pools, SwapStrategy
from pagesim.kernels.swap.driver import Addresses, driver


class CopyEach(SwapStrategy):
    """One asynchronous copy per piece of each block, as in the PagedAttention paper's system.

    With OPT-13B and blocks of 16 tokens, these are 80 copies of 160 KiB per block. Small pieces are limited
    by the cost of a call, not by the link (Fig. 19a of the paper).
    """

    name: ClassVar[str] = "copy-each"

    @classmethod
    def lacks(cls, device: torch.device) -> str | None:
        return _lacks_driver() if device.type == "cuda" else None

    def move(self, direction: Direction, blocks: Blocks, pieces: slice) -> None:
        if self.stream is None:
            self._move_rows(direction, blocks, pieces)
            return
        targets, sources = _addresses(self.pools, direction, blocks, pieces)
        copy, size, stream = driver().copy, self.pools.piece_bytes, self.stream.cuda_stream
        for target, source in zip(targets.tolist(), sources.tolist(), strict=True):
            copy(target, source, size, stream)

    def _move_rows(self, direction: Direction, blocks: Blocks, pieces: slice) -> None:
        for piece, cache in list(enumerate(self.pools.rows()))[pieces]:
            for d, h in zip(blocks.device.tolist(), blocks.host.tolist(), strict=True):
                ours, theirs = cache[d], self.pools.host[h, piece]
                if direction == "out":
                    theirs.copy_(ours)
                else:
                    ours.copy_(theirs)


class CopyBatch(SwapStrategy):
    """All pieces in one driver call, which avoids the cost of one call per piece (CUDA 12.8 and later)."""

    name: ClassVar[str] = "copy-batch"

    @classmethod
    def lacks(cls, device: torch.device) -> str | None:
        if device.type != "cuda":
            return "batched copies need a CUDA GPU"
        missing = _lacks_driver()
        if missing is None and not driver().has_batched:
            return f"batched copies need a driver of CUDA 12.8 or later, this one is of {driver().version()}"
        return missing

    def move(self, direction: Direction, blocks: Blocks, pieces: slice) -> None:
        assert self.stream is not None, "there is no CPU path; see lacks"
        targets, sources = _addresses(self.pools, direction, blocks, pieces)
        driver().copy_batch(targets, sources, self.pools.piece_bytes, self.stream.cuda_stream)


def _addresses(
    pools: Pools, direction: Direction, blocks: Blocks, pieces: slice
) -> tuple[Addresses, Addresses]:
    """Return targets and sources of the copies, ``[pieces × N]`` each, piece by piece."""
    bases = np.array([cache.data_ptr() for cache in pools.caches[pieces]], np.int64)
    places = np.arange(pools.pieces)[pieces] * pools.piece_bytes + pools.host.data_ptr()
    ours = (bases[:, None] + blocks.device * pools.piece_bytes).ravel().view(np.uint64)
    theirs = (places[:, None] + blocks.host * pools.block_bytes).ravel().view(np.uint64)
    return (theirs, ours) if direction == "out" else (ours, theirs)


def _lacks_driver() -> str | None:
    try:
        driver()
    except Unavailable as missing:
        return str(missing)
    return None
