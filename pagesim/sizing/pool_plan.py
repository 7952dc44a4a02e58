"""Pool plan: two pools of token slots, one for layers that attend to all tokens, one for those with a window.

Source: SGLang 0.5.23, ``srt/configs/model_config.py`` (which models),
``srt/model_executor/pool_configurator.py`` (their sizes), ``get_attention_sliding_window_size`` of its models
(the window).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pagesim.errors import CapacityError, PagesimError
from pagesim.models.layers import ChunkLayer, FullLayer, WindowLayer
from pagesim.models.model_spec import ModelSpec

TWO_POOLS = ("gpt-oss", "llama-4", "llama4", "gemma-4", "gemma4")
"""What the names of models with two pools have; of others all layers keep all tokens, Gemma 3's too."""


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """The two pools of a model.

    Attributes:
        window: tokens before a token that a layer with a window attends to.
        full_bytes, window_bytes: of a token in all layers of each pool, on each GPU.
        ratio: tokens of the second pool, as a share of those of the first.
        block_size: tokens of a page, of both pools.
        num_blocks: pages of the first pool.
    """

    window: int
    full_bytes: int
    window_bytes: int
    ratio: float
    block_size: int
    num_blocks: int = 0

    @property
    def bytes_per_block(self) -> int:
        """Bytes of a page and of its share of the second pool on each GPU, rounded up."""
        return -int(-self._token_bytes * self.block_size // 1)

    @property
    def window_blocks(self) -> int:
        """Pages of the second pool."""
        return int(self.num_blocks * self.block_size * self.ratio) // self.block_size

    @property
    def _token_bytes(self) -> float:
        return self.full_bytes + self.ratio * self.window_bytes

    def blocks_in(self, cache_bytes: int) -> int:
        """Return the pages of the first pool where both pools have so many bytes on each GPU."""
        return int(cache_bytes // self._token_bytes) // self.block_size

    def holding(self, num_blocks: int) -> PoolPlan:
        """Return the plan with so many pages in the first pool."""
        return replace(self, num_blocks=num_blocks)

    def check_start(self) -> None:
        """Refuse a second pool in which no request ever fits, as SGLang does at its start.

        Raises:
            CapacityError: it is too small.
        """
        slots, least = self.window_blocks * self.block_size, self.window + self.block_size
        if slots <= least:
            raise CapacityError(
                f"swa_full_tokens_ratio is {self.ratio}, which leaves the pool of layers with a window "
                f"{slots} tokens; it needs more than {least}, the window and a page: increase it, or "
                "num_blocks"
            )


def plan_pools(
    model: ModelSpec, *, block_size: int, ratio: float, kv_dtype: str = "fp16", tp: int = 1
) -> PoolPlan | None:
    """Plan the two pools of a model.

    Args:
        model: its layers say what each pool keeps of a token.
        block_size: tokens of a page.
        ratio: tokens of the second pool, as a share of those of the first.
        kv_dtype: of the cache.
        tp: GPUs over which KV heads are divided.

    Returns:
        None where all layers keep all tokens in one pool.

    Raises:
        PagesimError: its layers are not of these two kinds.
    """
    layers = model.cache_layers
    reaches = {_reach(layer) for layer in layers if isinstance(layer, WindowLayer | ChunkLayer)}
    has_two = any(name in model.name.lower() for name in TWO_POOLS)
    if not reaches or (model.has_weights and not has_two):
        return None
    full = [layer for layer in layers if type(layer) is FullLayer]
    windowed = [layer for layer in layers if isinstance(layer, WindowLayer | ChunkLayer)]
    if len(reaches) > 1 or not full or len(full) + len(windowed) < len(layers):
        raise PagesimError(
            f"layers of {model.name} are {model.layers_in_words}; SGLang's two pools are simulated for "
            "layers of full attention beside those of one window: choose another model, or "
            "disable_hybrid_swa_memory"
        )
    return PoolPlan(
        window=reaches.pop(),
        full_bytes=sum(layer.bytes_per_token(kv_dtype, tp) for layer in full),
        window_bytes=sum(layer.bytes_per_token(kv_dtype, tp) for layer in windowed),
        ratio=ratio,
        block_size=block_size,
    )


def _reach(layer: WindowLayer | ChunkLayer) -> int:
    # SGLang leaves the token itself out of a window; a chunk (Llama 4) it takes for a window as long.
    return layer.window - 1 if isinstance(layer, WindowLayer) else layer.chunk
