"""Type plan: pages for layer types, in each of which the layers of one type keep some tokens, or a state.

In a block plan the blocks of all groups have the same bytes; here a page has the bytes that its layers need.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import Literal

from pagesim.errors import CapacityError
from pagesim.models.layers import Layer, StateLayer
from pagesim.sizing.block_pages import at_least_one, most_blocks
from pagesim.sizing.layer_groups import keeping

Layout = Literal["large-pages", "pools"]
"""How types share memory: all take large pages, as large as the least common multiple of their pages; or each
has a pool of its own, by what a longest request takes of it."""

PAGE_TOKENS = 16


@dataclass(frozen=True, slots=True)
class LayerType:
    """Layers that keep the same bytes of a token, or a state of the same bytes, by the same rule.

    Attributes:
        rule: one of its layers.
        places: of them in the model, from 0.
        block_size: tokens of a page.
        page_bytes: of a page on each GPU, in all layers of the type.
        most_pages: that one request of ``max_model_len`` tokens takes at most.
    """

    rule: Layer
    places: tuple[int, ...]
    block_size: int
    page_bytes: int
    most_pages: int


@dataclass(frozen=True, slots=True)
class TypePlan:
    """The layer types of a model, and how they share memory.

    Attributes:
        types: in the order in which the model has the first layer of each.
        layout: see `Layout`.
        num_blocks: of ``bytes_per_block`` each.
        max_model_len: tokens of the longest request.
        in_flight_tokens: tokens that are scheduled and not yet computed at most.
    """

    types: tuple[LayerType, ...]
    layout: Layout
    num_blocks: int
    max_model_len: int
    in_flight_tokens: int

    @property
    def block_size(self) -> int:
        """Tokens of the smallest page of a type."""
        return min(each.block_size for each in self.types)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of a large page; where types have pools, of a page of each type together."""
        pages = [each.page_bytes for each in self.types]
        return lcm(*pages) if self.layout == "large-pages" else sum(pages)

    @property
    def pools(self) -> tuple[int, ...]:
        """Pages of each type's pool, where memory is divided as one longest request takes it."""
        return self._divided([each.most_pages for each in self.types])

    @property
    def longest(self) -> int:
        """Tokens of the longest request that fits, at most ``max_model_len``; or 0."""
        return bisect_right(range(1, self.max_model_len + 1), 0, key=self._lacking)

    def holding(self, num_blocks: int) -> TypePlan:
        """Return the plan of a cache of so many blocks."""
        return replace(self, num_blocks=num_blocks)

    def check_start(self) -> None:
        """Refuse a cache that does not hold one longest request.

        Raises:
            CapacityError: it does not; the sentence names the longest that it holds.
        """
        longest = self.longest
        if longest == self.max_model_len:
            return
        remedy = f"lower max_model_len to at most {longest}, or give" if longest else "give"
        raise CapacityError(
            f"max_model_len is {self.max_model_len} tokens, and one such request takes more pages of a "
            f"layer type than the {self.num_blocks * self.bytes_per_block} bytes of the cache have for it: "
            f"{remedy} the cache more memory"
        )

    def _lacking(self, tokens: int) -> int:
        """Return how many blocks, or pages of a pool, too few there are if no request is longer than this."""
        flying = self.in_flight_tokens
        pages = [most_blocks(each.rule, each.block_size, tokens, flying, "none") for each in self.types]
        if self.layout == "pools":
            return max(0, *[most - own for most, own in zip(pages, self._divided(pages), strict=True)])
        large = self.bytes_per_block
        blocks = [-(-most * each.page_bytes // large) for most, each in zip(pages, self.types, strict=True)]
        return max(0, sum(blocks) - self.num_blocks)

    def _divided(self, pages: Sequence[int]) -> tuple[int, ...]:
        """Return the pages of each type's pool, where memory is divided as these numbers of pages take it."""
        needs = [each.page_bytes * own for each, own in zip(self.types, pages, strict=True)]
        memory = self.num_blocks * self.bytes_per_block
        of_each = [memory * need // sum(needs) for need in needs]
        return tuple([own // each.page_bytes for own, each in zip(of_each, self.types, strict=True)])


def plan_types(
    layers: Sequence[Layer],
    layout: Layout,
    *,
    max_model_len: int,
    in_flight_tokens: int,
    kv_dtype: str = "bf16",
    tp: int = 1,
    block_size: int | None = None,
) -> TypePlan:
    """Sort layers by type, and say how large the pages of each type are; of a cache that is empty yet.

    Source: Jenga (arXiv 2503.18292v1), section 4.1: a page of a type has all its layers; a state is a page.

    Args:
        layers: what each layer keeps, in order (`ModelSpec.cache_layers`).
        layout: how types share memory.
        max_model_len: tokens of the longest request.
        in_flight_tokens: tokens that are scheduled and not yet computed at most.
        kv_dtype: of keys, values and latent vectors: one of `KV_DTYPE_BYTES`. States have types of their own.
        tp: GPUs over which heads and states are divided.
        block_size: tokens of a page; 16 when left out.

    Raises:
        PagesimError: an argument is off.
    """
    block_size = PAGE_TOKENS if block_size is None else block_size
    at_least_one(block_size=block_size, max_model_len=max_model_len, in_flight_tokens=in_flight_tokens)
    alike: dict[tuple[object, ...], list[int]] = {}
    for place, layer in enumerate(layers):
        alike.setdefault((keeping(layer), _kept(layer, kv_dtype, tp)), []).append(place)
    types = []
    for places in alike.values():
        layer = layers[places[0]]
        kept = _kept(layer, kv_dtype, tp)
        size = max_model_len if isinstance(layer, StateLayer) else block_size
        page = len(places) * (kept if isinstance(layer, StateLayer) else kept * size)
        most = most_blocks(layer, size, max_model_len, in_flight_tokens, "none")
        types.append(LayerType(layer, tuple(places), size, page, most))
    return TypePlan(tuple(types), layout, 0, max_model_len, in_flight_tokens)


def _kept(layer: Layer, kv_dtype: str, tp: int) -> int:
    """Return the bytes that a layer keeps of a token, or as its state, on each GPU."""
    return layer.state_bytes(tp) if isinstance(layer, StateLayer) else layer.bytes_per_token(kv_dtype, tp)
