"""How a paged KV cache lies in memory: three layouts behind one small description, and conversion.

| layout | key cache | value cache |
|---|---|---|
| ``NHD`` | ``[blocks, block_size, kv_heads, D]`` | the same |
| ``HND`` | ``[blocks, kv_heads, block_size, D]`` | the same |
| ``VLLM`` | ``[blocks, kv_heads, D/x, block_size, x]`` | ``[blocks, kv_heads, D, block_size]`` |

The first two are named as FlashInfer names them; the third is that of vLLM's first kernels.
D is the head size in elements and x the number of elements in 16 bytes. The block is always the first axis,
so that copies and swaps move whole blocks and need not know the layout.

Nothing here imports torch: tensors are only asked for their shapes and strides, and permuted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pagesim.errors import PagesimError

if TYPE_CHECKING:
    import torch

PIECE_BYTES = 16
"""What one thread loads at once; the last axis of vLLM's key cache holds as much."""


class Sizes(NamedTuple):
    """What a cache holds: blocks of ``block_size`` token slots, with a vector of D elements a KV head."""

    num_blocks: int
    block_size: int
    kv_heads: int
    head_dim: int


class Strides(NamedTuple):
    """Where element d of a token's vector is, in elements from the start of the cache.

    ``block·b + head·h + token·t + chunk·(d // lanes) + d % lanes``: a vector is cut into chunks of ``lanes``
    neighbouring elements. Where it is in one piece, ``lanes`` is D and ``chunk`` is 0.
    """

    block: int
    head: int
    token: int
    chunk: int
    lanes: int


@dataclass(frozen=True, slots=True)
class Storage:
    """The axes of one cache, outermost first.

    Args:
        axes: names among ``block``, ``head``, ``token``, ``chunk`` and ``lane``.
        chunk_bytes: bytes of a chunk; None if a vector is one chunk, 0 if each element is.
    """

    axes: tuple[str, ...]
    chunk_bytes: int | None = None

    def lanes(self, head_dim: int, itemsize: int) -> int:
        """Return how many neighbouring elements of a vector lie side by side.

        Raises:
            PagesimError: a vector is not whole chunks.
        """
        if self.chunk_bytes is None:
            return head_dim
        lanes = max(1, self.chunk_bytes // itemsize)
        if head_dim % lanes:
            raise PagesimError(
                f"head_dim is {head_dim}; layout VLLM has keys in chunks of {lanes} elements of "
                f"{itemsize} bytes: a multiple of {lanes}, or layout NHD or HND is needed"
            )
        return lanes

    def shape(self, sizes: Sizes, itemsize: int) -> tuple[int, ...]:
        """Return the shape of a cache of these sizes whose elements take ``itemsize`` bytes."""
        lanes = self.lanes(sizes.head_dim, itemsize)
        extent = {
            "block": sizes.num_blocks,
            "head": sizes.kv_heads,
            "token": sizes.block_size,
            "chunk": sizes.head_dim // lanes,
            "lane": lanes,
        }
        return tuple(extent[axis] for axis in self.axes)

    def sizes(self, cache: torch.Tensor) -> Sizes:
        """Return what a cache that has as many axes as this storage holds."""
        extent = dict(zip(self.axes, cache.shape, strict=True))
        head_dim = extent.get("chunk", 1) * extent.get("lane", 1)
        return Sizes(extent["block"], extent["token"], extent["head"], head_dim)

    def strides(self, cache: torch.Tensor) -> Strides:
        """Return where a cache's elements are."""
        stride = dict(zip(self.axes, cache.stride(), strict=True))
        lanes = self.lanes(self.sizes(cache).head_dim, cache.element_size())
        return Strides(stride["block"], stride["head"], stride["token"], stride.get("chunk", 0), lanes)

    def to_plain(self, cache: torch.Tensor) -> torch.Tensor:
        """Return a cache, or some of its blocks, as ``[blocks, block_size, kv_heads, D]``."""
        vector = [axis for axis in ("chunk", "lane") if axis in self.axes]
        order = [self.axes.index(axis) for axis in ("block", "token", "head", *vector)]
        return cache.permute(order).reshape(
            *(cache.shape[axis] for axis in order[:3]), self.sizes(cache).head_dim
        )

    def from_plain(self, plain: torch.Tensor) -> torch.Tensor:
        """Return ``[blocks, block_size, kv_heads, D]`` as a new contiguous cache of this storage."""
        blocks, block_size, kv_heads, head_dim = plain.shape
        lanes = self.lanes(head_dim, plain.element_size())
        cut = plain.reshape(*plain.shape[:-1], head_dim // lanes, lanes)
        given = ("block", "token", "head", "chunk", "lane")
        order = [given.index(axis) for axis in self.axes]
        order += [axis for axis in range(5) if axis not in order]  # those left out hold one element
        sizes = Sizes(blocks, block_size, kv_heads, head_dim)
        cache = plain.new_empty(self.shape(sizes, plain.element_size()))
        return cache.copy_(cut.permute(order).reshape(cache.shape))


@dataclass(frozen=True, slots=True)
class Layout:
    """How the key cache and the value cache lie in memory."""

    name: str
    key: Storage
    value: Storage

    def sizes(self, key_cache: torch.Tensor) -> Sizes:
        """Return what a pair of caches holds, from its key cache."""
        return self.key.sizes(key_cache)

    def shapes(self, sizes: Sizes, itemsize: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of the key cache and the value cache."""
        return self.key.shape(sizes, itemsize), self.value.shape(sizes, itemsize)


_NHD = Storage(("block", "token", "head", "lane"))
_HND = Storage(("block", "head", "token", "lane"))

NHD = Layout("NHD", _NHD, _NHD)
HND = Layout("HND", _HND, _HND)
VLLM = Layout(
    "VLLM",
    Storage(("block", "head", "chunk", "token", "lane"), chunk_bytes=PIECE_BYTES),
    Storage(("block", "head", "chunk", "token"), chunk_bytes=0),
)

LAYOUTS = {layout.name: layout for layout in (NHD, HND, VLLM)}
"""The layouts by name."""


def find_layout(layout: str | Layout) -> Layout:
    """Return a layout by its name, or a layout itself.

    Raises:
        PagesimError: there is none of that name.
    """
    if isinstance(layout, Layout):
        return layout
    if layout not in LAYOUTS:
        raise PagesimError(f"layout is {layout!r}; it must be one of {', '.join(LAYOUTS)}")
    return LAYOUTS[layout]


def convert_layout(
    key_cache: torch.Tensor, value_cache: torch.Tensor, source: str | Layout, target: str | Layout
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return copies of a key cache and a value cache in another layout, contiguous.

    Args:
        key_cache: in the layout ``source``.
        value_cache: in the layout ``source``.
        source: the layout that they have.
        target: the layout that is wanted.

    Raises:
        PagesimError: no such layout, or a cache has not as many axes as ``source``.
    """
    old, new = find_layout(source), find_layout(target)
    for name, cache, storage in (("key_cache", key_cache, old.key), ("value_cache", value_cache, old.value)):
        if cache.dim() != len(storage.axes):
            raise PagesimError(
                f"{name} has {cache.dim()} axes; layout {old.name} has [{', '.join(storage.axes)}]"
            )
    keys = new.key.from_plain(old.key.to_plain(key_cache))
    return keys, new.value.from_plain(old.value.to_plain(value_cache))
