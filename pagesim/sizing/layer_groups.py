"""Layer groups: which layers of a model share block tables, as vLLM 0.33.0 groups them.

Source: ``get_kv_cache_groups`` and what it calls (v1/core/kv_cache_planning.py), for caches that store
each layer's pages together, as under FlashAttention and FlashInfer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pagesim.errors import PagesimError
from pagesim.models.layers import ChunkLayer, FullLayer, Layer, RingLayer, StateLayer, WindowLayer

ALMOST_ALIKE = 1.5
"""Ratio of the most frequent kind's layers to the rarest's. Below it a group has as many layers as the most
frequent kind, because a few layers of padding cost less than another group."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page: what one layer keeps in a block.

    Attributes:
        rule: layer whose rule decides how long a page is kept; full attention instead of the layer itself if
            the hybrid manager is off.
        block_size: tokens per block.
        bytes: bytes of the page, including padding.
        real: bytes of the page that the layer fills.
    """

    rule: Layer
    block_size: int
    bytes: int
    real: int


Group = tuple[tuple[int, Page], ...]
"""The layers of a group: each layer's index in the model, in order, with its page."""


def grouped(pages: Sequence[Page], *, hybrid: bool, packed: bool = False) -> tuple[Group, ...]:
    """Return the KV cache groups of a model's layers, ordered by the first layer of each kind.

    Args:
        pages: page of each layer, in order.
        hybrid: whether the hybrid manager is on, so that windows and chunks get their own groups.
        packed: whether pages of different sizes lie side by side in a block.

    Raises:
        PagesimError: vLLM does not start with such layers.
    """
    if not hybrid:
        full = _as_full(pages)
        if full is None:
            raise PagesimError(
                f"layers of {_kinds(pages)} cannot be kept alike, and vLLM does not start with them where "
                "the hybrid KV cache manager is off: choose policy vllm-v1, without "
                "disable_hybrid_kv_cache_manager"
            )
        return (tuple(enumerate(full)),)
    if _one_kind(pages):
        return (tuple(enumerate(pages)),)
    if packed:
        return _packed(pages)
    unified = _of_one_size(pages)
    if unified is not None:
        return _dealt(unified)
    full = _as_full(pages)
    if full is None or any(isinstance(page.rule, ChunkLayer) for page in pages):
        raise PagesimError(
            f"blocks of {_kinds(pages)} layers differ in size, and vLLM pads neither latent vectors nor "
            "indexers: choose layers of which the largest block is a multiple of theirs"
        )
    return (tuple(enumerate(full)),)


def keeping(layer: Layer) -> tuple[object, ...]:
    """Return the rule by which a layer keeps tokens: its kind, and the window or chunk size if it has one."""
    match layer:
        case WindowLayer(window=window):
            return ("window", window)
        case ChunkLayer(chunk=chunk):
            return ("chunk", chunk)
        case StateLayer() | RingLayer():
            return (layer.kind,)
        case _:
            return ("full",)


def _rule(page: Page) -> tuple[object, ...]:
    """Return a key that is equal for pages that can always be allocated and freed together."""
    if isinstance(page.rule, StateLayer):
        return ("states", f"of {page.bytes} bytes", page.rule.always, page.rule.checkpoint)
    return keeping(page.rule)


def _one_kind(pages: Sequence[Page]) -> bool:
    return len({(page.block_size, _rule(page)) for page in pages}) == 1


def _kinds(pages: Sequence[Page]) -> str:
    return ", ".join(dict.fromkeys(" ".join(map(str, _rule(page)[:2])) for page in pages))


def _as_full(pages: Sequence[Page]) -> list[Page] | None:
    """Return the pages with windows and chunks treated as full attention.

    None if they are still not all of one kind.
    """
    if _one_kind(pages):
        return list(pages)
    if all(_rule(page) != ("full",) for page in pages):
        return None
    if len({page.rule.window for page in pages if isinstance(page.rule, WindowLayer)}) > 1:
        return None
    kept = [
        replace(page, rule=FullLayer(page.rule.kv_heads, page.rule.head_dim))
        if isinstance(page.rule, WindowLayer | ChunkLayer)
        else page
        for page in pages
    ]
    return kept if _one_kind(kept) else None


def _of_one_size(pages: Sequence[Page]) -> list[Page] | None:
    """Return the pages enlarged to the largest page's bytes, by holding more tokens or by padding.

    None if a page allows neither: latent vectors and indexers are not padded.
    """
    most = max(page.bytes for page in pages)
    sized = []
    for page in pages:
        times, rest = divmod(most, page.bytes)
        if isinstance(page.rule, StateLayer) or (rest and isinstance(page.rule, FullLayer)):
            sized.append(replace(page, bytes=most))
        elif not rest:
            sized.append(Page(page.rule, page.block_size * times, most, page.real * times))
        else:
            return None
    return sized


def _dealt(pages: Sequence[Page]) -> tuple[Group, ...]:
    """Return groups of about as many layers as the rarest kind has, dealing layers out in turn."""
    kinds: dict[Page, list[int]] = {}
    for place, page in enumerate(pages):
        kinds.setdefault(page, []).append(place)
    fewest, most = (bound(len(places) for places in kinds.values()) for bound in (min, max))
    size = most if most < ALMOST_ALIKE * fewest else fewest
    groups: list[Group] = []
    for page, places in kinds.items():
        number = -(-len(places) // size)
        groups += [tuple((place, page) for place in places[first::number]) for first in range(number)]
    return tuple(groups)


def _packed(pages: Sequence[Page]) -> tuple[Group, ...]:
    """Return groups of layers of one kind each, whose pages of different sizes lie side by side.

    A kind with equally many layers of each page size is a repeating pattern. Among patterns of several sizes,
    the highest repeat count is the least number of repeats per group. States are dealt out to fit the block
    that the other kinds need (``_get_packed_kv_cache_groups``).
    """
    kinds: dict[object, dict[int, list[int]]] = {}
    for place, page in enumerate(pages):
        kinds.setdefault((page.block_size, _rule(page)), {}).setdefault(page.bytes, []).append(place)

    def repeats(sizes: dict[int, list[int]]) -> int:
        """Return how often a kind's pattern repeats; 0 if the kind is no pattern."""
        first, *others = {len(places) for places in sizes.values()}
        return 0 if others else first

    def wide(sizes: dict[int, list[int]], groups: int) -> int:
        return sum(-(-len(places) // groups) * size for size, places in sizes.items())

    least = max((repeats(sizes) for sizes in kinds.values() if len(sizes) > 1), default=0)
    each = _least_padding([repeats(sizes) for sizes in kinds.values() if repeats(sizes)], least)

    def is_state(sizes: dict[int, list[int]]) -> bool:
        rule = pages[next(iter(sizes.values()))[0]].rule
        return isinstance(rule, StateLayer | RingLayer) or (not each and isinstance(rule, WindowLayer))

    numbers = [-(-repeats(sizes) // each) if each and repeats(sizes) else 1 for sizes in kinds.values()]
    block = max(
        wide(sizes, len(next(iter(sizes.values()))) if is_state(sizes) else number)
        for sizes, number in zip(kinds.values(), numbers, strict=True)
    )
    groups: list[Group] = []
    for sizes, number in zip(kinds.values(), numbers, strict=True):
        if is_state(sizes):
            states = [place for places in sizes.values() for place in places]
            number = max(number, -(-len(states) // max(block // pages[states[0]].bytes, 1)))
        if number == 1:
            pattern = [sorted(place for places in sizes.values() for place in places)]
        else:
            pattern = [list(repeat) for repeat in zip(*sizes.values(), strict=True)]
            pattern = [[place for repeat in pattern[i::number] for place in repeat] for i in range(number)]
        groups += [tuple((place, pages[place]) for place in places) for places in pattern]
    return tuple(groups)


def _least_padding(counts: Sequence[int], least: int) -> int:
    """Return the group size, from ``least`` to the largest count, that needs the least padding; or 0.

    Padding rounds each count up to a multiple; of equal sizes the largest wins (``_approximate_gcd``).
    """
    if not least:
        return 0
    return min(
        range(least, max(counts) + 1), key=lambda size: (sum(-count % size for count in counts), -size)
    )
