"""Pools: KV blocks of all layers on the device, and their swap space in host memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pagesim.allocators import Copy
from pagesim.kernels import BlockPool, Cache, copy_blocks
from pagesim.kernels.swap import Pools, SwapStrategy, make_strategy
from pagesim.models import ModelSpec


class KvPools:
    """Blocks of the cache in layout NHD, which can be swapped and copied.

    Args:
        spec: model whose layers, KV heads and head size are used.
        num_blocks: KV blocks on the device.
        host_blocks: blocks in host memory, pinned if the device is a GPU; 0 for no swap space.
        block_size: token slots per block.
        dtype: data type of keys and values.
        device: device that holds the blocks.
        strategy: swap strategy, a name of ``pagesim.kernels.swap.STRATEGIES``.
        poisoned: whether unwritten slots hold NaN, so that reads of them are detected.

    Attributes:
        caches: cache of each layer, in blocks of ``[block_size, kv_heads, D]``.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        num_blocks: int,
        host_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        strategy: str = "gather",
        poisoned: bool = False,
    ) -> None:
        shape = (num_blocks, block_size, spec.kv_heads, spec.head_dim)

        def cache() -> Tensor:
            made = torch.empty(shape, dtype=dtype, device=device)
            return made.fill_(float("nan")) if poisoned else made

        self.block_size = block_size
        self.num_blocks = num_blocks
        self.host_blocks = host_blocks
        self.device = device
        self.caches = [Cache(cache(), cache()) for _ in range(spec.layers)]
        flat = [each for layer in self.caches for each in (layer.key_cache, layer.value_cache)]
        self._blocks = BlockPool(flat)
        self._swaps: SwapStrategy | None = None
        if host_blocks:
            self._swaps = make_strategy(strategy, Pools.beside(flat, host_blocks))

    def swap_out(self, copies: Sequence[Copy]) -> None:
        """Move blocks to the host, as (device block, host block); later launches wait for it."""
        assert self._swaps is not None, "there is no swap space"
        self._swaps.swap_out(copies).join()

    def swap_in(self, copies: Sequence[Copy]) -> None:
        """Move blocks back, as (host block, device block); later launches wait for it."""
        assert self._swaps is not None, "there is no swap space"
        self._swaps.swap_in(copies).join()

    def copy(self, copies: Sequence[Copy]) -> None:
        """Copy blocks on the device in every layer, as (from, to)."""
        copy_blocks(self._blocks, torch.tensor(copies, dtype=torch.int64).to(self.device))
