"""Block pages: what each layer keeps in a block, and the most blocks that a request can hold.

Sources: ``_align_hybrid_block_size`` (platforms/interface.py) and ``max_memory_usage_bytes`` of each kind of
layer (v1/kv_cache_interface.py) of vLLM 0.33.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm
from typing import Literal

from pagesim.errors import PagesimError
from pagesim.models.layers import (
    AttentionLayer,
    ChunkLayer,
    IndexerLayer,
    LatentLayer,
    Layer,
    RingLayer,
    StateLayer,
    WindowLayer,
    kv_element_bytes,
    page_bytes,
)
from pagesim.sizing.kernel_blocks import KERNEL_BLOCK
from pagesim.sizing.layer_groups import Page

LATENT_HYBRID_BLOCK = 128
"""Block size granularity, in tokens, of latent vectors in models that also have states."""

StateMode = Literal["none", "align"]


def block_pages(
    layers: Sequence[Layer], block_size: int, kv_dtype: str, tp: int, mode: StateMode, max_model_len: int
) -> list[Page]:
    """Return each layer's page: attention pages cover a block, and state pages are padded to that size."""
    states = [layer for layer in layers if isinstance(layer, StateLayer)]
    attention = [layer for layer in layers if not isinstance(layer, StateLayer)]
    state_page = 0
    if states:
        of_heads = [layer for layer in attention if not isinstance(layer, IndexerLayer | RingLayer)]
        widths = sorted({_width(layer, kv_dtype, tp) for layer in of_heads})
        if len(widths) != 1:
            kept = " and ".join(map(str, widths)) if widths else "no"
            raise PagesimError(
                f"beside layers with a state the others keep {kept} bytes a token, and no log shows what "
                "blocks vLLM makes of them: choose layers that keep one number of bytes a token"
            )
        latent = any(isinstance(layer, LatentLayer) for layer in attention)
        block_size = _beside_states(states, block_size, widths[0], tp, mode, latent=latent)
        state_page = block_size * widths[0]
    state_block = block_size if mode == "align" else max_model_len
    pages = []
    for layer in layers:
        if isinstance(layer, StateLayer):
            pages.append(Page(layer, state_block, state_page, layer.state_bytes(tp)))
        else:
            own = layer.block_size if isinstance(layer, WindowLayer | RingLayer) else 0
            size = page_bytes(layer, own or block_size, kv_dtype, tp)
            pages.append(Page(layer, own or block_size, size, size))
    return pages


def _width(layer: AttentionLayer, kv_dtype: str, tp: int) -> int:
    """Return the bytes per token by which blocks are sized to hold a state, before a kernel's own layout."""
    if isinstance(layer, LatentLayer):
        return layer.width * kv_element_bytes(kv_dtype)
    return layer.bytes_per_token(kv_dtype, tp)


def _beside_states(
    states: Sequence[StateLayer], block_size: int, token_bytes: int, tp: int, mode: StateMode, *, latent: bool
) -> int:
    """Return the tokens of a block whose page holds the largest state, at least ``block_size``."""
    step = max(KERNEL_BLOCK, block_size, LATENT_HYBRID_BLOCK if latent else 0)
    checkpoints = [state.checkpoint for state in states if state.checkpoint is not None]
    if mode == "align" and len(checkpoints) == len(states):
        step = lcm(step, *checkpoints)
    largest = max(state.state_bytes(tp) for state in states)
    tokens = step * -(-largest // (step * token_bytes))
    return max(block_size, KERNEL_BLOCK * -(-tokens // KERNEL_BLOCK))


def most_blocks(
    rule: Layer,
    block_size: int,
    tokens: int,
    in_flight: int,
    mode: StateMode,
    *,
    drafts: int = 0,
    retained: int = 0,
) -> int:
    """Return the most blocks that a request can hold, not counting checkpoints.

    Args:
        rule: layer whose rule decides which blocks are kept.
        block_size: tokens per block.
        tokens: length of the request.
        in_flight: most tokens that are scheduled but not yet computed.
        mode: which states are kept.
        drafts: additional states, one after each draft token.
        retained: tokens kept before a window.
    """
    match rule:
        case WindowLayer(window=window):
            return -(-min(window - 1 + retained + in_flight, tokens) // block_size) + 1
        case ChunkLayer(chunk=chunk):
            return -(-min(chunk + in_flight, tokens) // block_size)
        case StateLayer():
            return (2 if mode == "align" else 1) + drafts
        case RingLayer():
            return 1
        case _:
            return -(-tokens // block_size)


def at_least_one(**counts: int | None) -> None:
    """Refuse numbers less than 1.

    Raises:
        PagesimError: a number is less than 1; the message names it.
    """
    for name, value in counts.items():
        if value is not None and value < 1:
            raise PagesimError(f"{name} is {value}; it must be at least 1")
