"""Type plan: pages per layer type, each of which holds some tokens, or a state, of all layers of the type.

In a block plan all groups' blocks have the same size; here a page has only the bytes that its layers need.
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
"""How types share memory: all allocate large pages, each the least common multiple of their page sizes; or
each has its own pool, sized by what a longest request needs."""

PAGE_TOKENS = 16


@dataclass(frozen=True, slots=True)
class LayerType:
    """Layers that keep equally many bytes per token, or equally large states, by the same rule.

    Attributes:
        rule: one of the layers, whose rule decides what is kept.
        places: indices of the layers in the model, from 0.
        block_size: tokens per page.
        page_bytes: bytes per page on each GPU, in all layers of the type.
        most_pages: most pages that one request of ``max_model_len`` tokens can hold.
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
        types: layer types, in the order of their first layers in the model.
        layout: how types share memory: see `Layout`.
        num_blocks: number of blocks of ``bytes_per_block`` each.
        max_model_len: tokens of the longest request.
        in_flight_tokens: most tokens that are scheduled but not yet computed.
    """

    types: tuple[LayerType, ...]
    layout: Layout
    num_blocks: int
    max_model_len: int
    in_flight_tokens: int

    @property
    def block_size(self) -> int:
        """Tokens of the smallest page of any type."""
        return min(each.block_size for each in self.types)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of a large page or, if types have pools, of one page of each type together."""
        pages = [each.page_bytes for each in self.types]
        return lcm(*pages) if self.layout == "large-pages" else sum(pages)

    @property
    def pools(self) -> tuple[int, ...]:
        """Pages of each type's pool if memory is divided in proportion to one longest request's needs."""
        return self._divided([each.most_pages for each in self.types])

    @property
    def longest(self) -> int:
        """Tokens of the longest request that fits, up to ``max_model_len``; 0 if none fits."""
        return bisect_right(range(1, self.max_model_len + 1), 0, key=self._lacking)

    def holding(self, num_blocks: int) -> TypePlan:
        """Return the plan with this many blocks."""
        return replace(self, num_blocks=num_blocks)

    def check_start(self) -> None:
        """Refuse a cache that cannot hold one request of ``max_model_len`` tokens.

        Raises:
            CapacityError: the request does not fit; the message names the longest that does.
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
        """Return the shortage of blocks, or of a pool's pages, for a longest request of this many tokens."""
        flying = self.in_flight_tokens
        pages = [most_blocks(each.rule, each.block_size, tokens, flying, "none") for each in self.types]
        if self.layout == "pools":
            return max(0, *[most - own for most, own in zip(pages, self._divided(pages), strict=True)])
        large = self.bytes_per_block
        blocks = [-(-most * each.page_bytes // large) for most, each in zip(pages, self.types, strict=True)]
        return max(0, sum(blocks) - self.num_blocks)

    def _divided(self, pages: Sequence[int]) -> tuple[int, ...]:
        """Return the pages of each type's pool, dividing memory in proportion to these pages' bytes."""
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
    """Group layers by type and size the pages of each type, for a cache without blocks yet.

    Source: Jenga (arXiv 2503.18292v1), section 4.1: a page covers all layers of its type; a state is a page.

    Args:
        layers: what each layer keeps, in order (`ModelSpec.cache_layers`).
        layout: how types share memory.
        max_model_len: tokens of the longest request.
        in_flight_tokens: most tokens that are scheduled but not yet computed.
        kv_dtype: type of keys, values and latent vectors: one of `KV_DTYPE_BYTES`. States have their own.
        tp: GPUs over which heads and states are divided.
        block_size: tokens per page; 16 if left out.

    Raises:
        PagesimError: an argument is less than 1.
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
    """Return the bytes that a layer keeps per token, or for its state, on each GPU."""
    return layer.state_bytes(tp) if isinstance(layer, StateLayer) else layer.bytes_per_token(kv_dtype, tp)
