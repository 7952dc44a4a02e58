"""Paged attention in Triton and the block copies that it needs; every op has a reference without a GPU.

torch and triton are not imported before a name is used, and triton not before a kernel runs.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagesim.kernels.cache import LAYOUTS, BlockPool, Cache, LatentCache, Sizes
    from pagesim.kernels.cache_ops import (
        copy_blocks,
        gather_blocks,
        gather_sequences,
        mla_write,
        reshape_and_cache,
        scatter_blocks,
    )
    from pagesim.kernels.checks import checked_bounds
    from pagesim.kernels.ops import mla_decode_attention, paged_attention

__all__ = [
    "LAYOUTS",
    "BlockPool",
    "Cache",
    "LatentCache",
    "Sizes",
    "checked_bounds",
    "copy_blocks",
    "gather_blocks",
    "gather_sequences",
    "mla_decode_attention",
    "mla_write",
    "paged_attention",
    "reshape_and_cache",
    "scatter_blocks",
]

_HOMES = {
    "cache": {"LAYOUTS", "BlockPool", "Cache", "LatentCache", "Sizes"},
    "checks": {"checked_bounds"},
    "ops": {"mla_decode_attention", "paged_attention"},
}
"""Public names by module; all others are in ``cache_ops``."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'pagesim.kernels' has no attribute {name!r}")
    from importlib import import_module

    from pagesim.errors import PagesimError

    home = next((home for home, names in _HOMES.items() if name in names), "cache_ops")
    try:
        value = getattr(import_module(f"pagesim.kernels.{home}"), name)
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        raise PagesimError(
            "pagesim.kernels needs torch, which is not installed: pip install '.[kernels]' in the checkout"
        ) from missing
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
