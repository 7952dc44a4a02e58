"""Pool plans: a pool of token slots for layers that attend to all tokens, and a second pool next to it.

The second pool has token slots for layers with a window, or slots for states.

Source: SGLang 0.5.23, ``srt/configs/model_config.py`` (which models have a pool for windows),
``srt/model_executor/pool_configurator.py`` (their sizes), ``get_attention_sliding_window_size`` of its models
(the window), ``srt/mem_cache/kv_cache_configurator.py`` (states).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pagesim.errors import CapacityError, PagesimError
from pagesim.models.layers import ChunkLayer, FullLayer, LatentLayer, StateLayer, WindowLayer
from pagesim.models.model_spec import ModelSpec

TWO_POOLS = ("gpt-oss", "llama-4", "llama4", "gemma-4", "gemma4")
"""Parts of the names of models with two pools; in all others, Gemma 3 included, layers keep all tokens."""


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """The two pools of a model.

    Attributes:
        window: preceding tokens that a token attends to in a layer with a window.
        full_bytes, window_bytes: bytes per token in all layers of each pool, on each GPU.
        ratio: tokens of the second pool, as a fraction of those of the first.
        block_size: tokens per page of both pools.
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
        """Bytes per page on each GPU, including its share of the second pool, rounded up."""
        return -int(-self._token_bytes * self.block_size // 1)

    @property
    def window_blocks(self) -> int:
        """Pages of the second pool."""
        return int(self.num_blocks * self.block_size * self.ratio) // self.block_size

    @property
    def _token_bytes(self) -> float:
        return self.full_bytes + self.ratio * self.window_bytes

    def within(self, cache_bytes: int) -> PoolPlan:
        """Return the plan whose two pools share this many bytes on each GPU."""
        return self.holding(int(cache_bytes // self._token_bytes) // self.block_size)

    def holding(self, num_blocks: int) -> PoolPlan:
        """Return the plan with this many pages in the first pool."""
        return replace(self, num_blocks=num_blocks)

    def check_start(self) -> None:
        """Refuse a second pool in which no request ever fits, as SGLang does at startup.

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


@dataclass(frozen=True, slots=True)
class StatePlan:
    """A token pool and a state pool, for a model whose layers keep either tokens or a state.

    Attributes:
        token_bytes: bytes per token in all attention layers, on each GPU.
        state_bytes: bytes per state in all layers that keep one, on each GPU.
        block_size: tokens per page.
        of_a_request: state slots counted per running request, including those that the radix tree holds.
        chunk: tokens that the kernels of state layers compute at once.
        ratio: memory for states, as a fraction of that for tokens.
        verified: tokens that a step verifies per request; each has a state of its own until it is accepted.
        running: most requests that may run, however many states there are; needed with ``verified``.
        states: slots of the state pool; 0 if not known yet.
        num_blocks: pages of the token pool.
    """

    token_bytes: int
    state_bytes: int
    block_size: int
    of_a_request: int
    chunk: int = 64
    ratio: float = 0.9
    verified: int = 0
    running: int = 0
    states: int = 0
    num_blocks: int = 0

    @property
    def bytes_per_block(self) -> int:
        """Bytes per page on each GPU."""
        return self.token_bytes * self.block_size

    @property
    def most_running(self) -> int:
        """Most requests that can run at once."""
        return self.states // self.of_a_request

    @property
    def verified_states(self) -> int:
        """States of tokens being verified, those of a padding request included; 0 without drafts."""
        return self.verified * (min(self.running, self.most_running) + 1)

    @property
    def bytes_of_states(self) -> int:
        """Bytes of all states on each GPU, including a padding state."""
        return (self.states + 1 + self.verified_states) * self.state_bytes

    def within(self, cache_bytes: int) -> StatePlan:
        """Return the plan whose two pools share this many bytes on each GPU."""
        share = cache_bytes * self.ratio / (1 + self.ratio) - self.state_bytes * (1 + self.verified)
        each = self.state_bytes * (1 + self.verified / self.of_a_request)
        plan = replace(self, states=self.states or max(0, int(share // each)))
        rest = max(0, cache_bytes - plan.bytes_of_states)
        return replace(plan, num_blocks=rest // self.token_bytes // self.block_size)

    def holding(self, num_blocks: int) -> StatePlan:
        """Return the plan with this many pages in the first pool."""
        return replace(self, num_blocks=num_blocks)

    def check_start(self) -> None:
        """Refuse a state pool in which no request ever fits, or whose size is not known.

        Raises:
            CapacityError: it is too small.
            PagesimError: the number of pages was given, but that of states depends on memory.
        """
        if not self.states:
            raise PagesimError(
                "num_blocks is given, and how many states there is room for beside them is not known: leave "
                "it out, or give max_mamba_cache_size"
            )
        if not self.most_running:
            raise CapacityError(
                f"the cache has room for {self.states} states; a request needs {self.of_a_request}: give "
                "it more memory, or raise max_mamba_cache_size where it is given"
            )


def plan_states(
    model: ModelSpec,
    *,
    block_size: int,
    of_a_request: int,
    states: int = 0,
    ratio: float = 0.9,
    state_dtype: str | None = None,
    kv_dtype: str = "fp16",
    tp: int = 1,
    draft_layers: int = 0,
    verified: int = 0,
    running: int = 0,
) -> StatePlan:
    """Plan the pools of a model in which some layers keep a state.

    Convolution states have 16 bits, as in SGLang, regardless of vLLM.

    Args:
        model: model whose layers determine what each pool keeps.
        block_size: tokens per page.
        of_a_request: state slots counted per running request.
        states: slots of the state pool; 0 if they depend on memory.
        ratio: memory for states, as a fraction of that for tokens.
        state_dtype: data type of recurrent states; if left out, that of the model's config, or fp32.
        kv_dtype: data type of the cache.
        tp: GPUs over which heads are divided.
        draft_layers: drafter layers, each of which keeps as much as an average attention layer.
        verified: tokens that a step verifies per request; 0 without drafts.
        running: most requests that may run; needed with ``verified``.

    Raises:
        PagesimError: some of its other layers do not keep all tokens.
    """
    layers = model.cache_layers
    keep = [layer for layer in layers if isinstance(layer, StateLayer)]
    attend = [layer for layer in layers if type(layer) is FullLayer or isinstance(layer, LatentLayer)]
    if not attend or len(attend) + len(keep) < len(layers):
        raise PagesimError(
            f"layers of {model.name} are {model.layers_in_words}; beside states SGLang is simulated for "
            "layers that attend to all tokens: choose another model, or policy vllm-v1"
        )
    dtypes = [state_dtype or each.named_dtype or "fp32" if each.conv[1] else "bf16" for each in keep]
    wide = [
        replace(each, conv_dtype="bf16", state_dtype=dtype) for each, dtype in zip(keep, dtypes, strict=True)
    ]
    token_bytes = sum(layer.bytes_per_token(kv_dtype, tp) for layer in attend)
    return StatePlan(
        token_bytes=token_bytes + token_bytes * draft_layers // len(attend),
        state_bytes=sum(layer.state_bytes(tp) for layer in wide),
        block_size=block_size,
        of_a_request=of_a_request,
        chunk=max(layer.kernel_chunk for layer in keep),
        ratio=ratio,
        verified=verified,
        running=running,
        states=states,
    )


def plan_pools(
    model: ModelSpec,
    *,
    block_size: int,
    ratio: float,
    kv_dtype: str = "fp16",
    tp: int = 1,
    draft_layers: int = 0,
) -> PoolPlan | None:
    """Plan the two pools of a model.

    Args:
        model: model whose layers determine what each pool keeps per token.
        block_size: tokens per page.
        ratio: tokens of the second pool, as a fraction of those of the first.
        kv_dtype: data type of the cache.
        tp: GPUs over which KV heads are divided.
        draft_layers: drafter layers, each of which keeps as much as an average layer of the first pool.

    Returns:
        The plan, or None if all layers keep all tokens in one pool.

    Raises:
        PagesimError: the layers are not of these two kinds.
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
    full_bytes = sum(layer.bytes_per_token(kv_dtype, tp) for layer in full)
    return PoolPlan(
        window=reaches.pop(),
        full_bytes=full_bytes + full_bytes * draft_layers // len(full),
        window_bytes=sum(layer.bytes_per_token(kv_dtype, tp) for layer in windowed),
        ratio=ratio,
        block_size=block_size,
    )


def _reach(layer: WindowLayer | ChunkLayer) -> int:
    # SGLang does not count the token itself in a window; it treats a chunk (Llama 4) as a window as long.
    return layer.window - 1 if isinstance(layer, WindowLayer) else layer.chunk
