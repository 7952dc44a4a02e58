"""Zero copy: a kernel reads and writes pinned host memory itself."""

from __future__ import annotations

from typing import ClassVar

import torch

from pagesim.errors import PagesimError
from pagesim.kernels.swap.base import Blocks, Direction, Pools, SwapStrategy
from pagesim.kernels.swap.kernel import check_pieces, lacks_triton


class ZeroCopy(SwapStrategy):
    """A kernel reads or writes pinned host memory itself; nothing is staged and no copy engine is used.

    It is meant for small pieces, where a copy's fixed cost is most of it. It takes multiprocessors from
    whatever runs beside it: ``programs`` bounds how many.

    Args:
        pools: what to copy between.
        programs: thread blocks of the kernel; 32 keep 512 KiB in flight, some times what PCIe 5.0 x16 needs.

    Raises:
        PagesimError: pieces are not a multiple of 16 bytes, or there is no program.
        Unavailable: triton is not installed, on a GPU.
    """

    name: ClassVar[str] = "zero-copy"
    sentence: ClassVar[str] = "a kernel reads and writes pinned host memory directly"

    def __init__(self, pools: Pools, programs: int = 32) -> None:
        super().__init__(pools)
        check_pieces(self.name, pools)
        if programs < 1:
            raise PagesimError(f"programs is {programs}; it must be at least 1")
        self._programs = programs
        # Under unified addressing the GPU reaches pinned memory by the host's own addresses.
        first, size = pools.host.data_ptr(), pools.piece_bytes
        self._caches = torch.tensor([cache.data_ptr() for cache in pools.caches], device=pools.device)
        self._host = torch.tensor(
            [first + place * size for place in range(pools.pieces)], device=pools.device
        )

    @classmethod
    def lacks(cls, device: torch.device) -> str | None:
        return lacks_triton(device)

    def move(self, direction: Direction, blocks: Blocks, pieces: slice) -> None:
        pools = self.pools
        on_device, on_host = blocks.on(pools.device)
        if self.stream is None:
            for place, cache in list(enumerate(pools.rows()))[pieces]:
                if direction == "out":
                    pools.host[on_host, place] = cache[on_device]
                else:
                    cache[on_device] = pools.host[on_host, place]
            return
        from pagesim.kernels.swap.pieces import copy_pieces

        ours = (self._caches[pieces], on_device, pools.piece_bytes)
        theirs = (self._host[pieces], on_host, pools.block_bytes)
        source, target = (ours, theirs) if direction == "out" else (theirs, ours)
        copy_pieces(source, target, pools.piece_bytes, self._programs).run(on_device)
