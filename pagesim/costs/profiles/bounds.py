"""Bounds: what each term takes at the datasheet's rates, so that machines and models can be compared."""

from __future__ import annotations

from pagesim.hardware import GpuSpec
from pagesim.models import ALL_REDUCES_PER_LAYER, ModelSpec, all_reduce_bytes_per_token
from pagesim.models.parallel import weights_read


class Bounds:
    """Seconds at which bytes or operations bound each term, whichever take longer, on each GPU.

    Args:
        model, gpu: what runs where.
        tp: GPUs over which the model is divided.
        kv_dtype: of the cache.
    """

    def __init__(self, model: ModelSpec, gpu: GpuSpec, *, tp: int = 1, kv_dtype: str = "fp16") -> None:
        head = model.lm_head_flops_per_token
        self._linear_s = sum(
            flops / tp / gpu.flops(compute) for compute, flops in model.flops_by_compute.items()
        )
        self._head_s = head / tp / gpu.flops(model.lm_head_compute)
        self._moe = model.moe
        # The experts of a GPU compute the tokens of all data-parallel ranks, which are taken to be alike.
        self._ranks = 1 if model.expert_division is None else model.expert_division.ranks
        read, head_read = weights_read(model, tp)
        self._weights_s = read / gpu.hbm_bytes_per_s
        self._experts_s = model.expert_bytes_per_gpu(1) / tp / gpu.hbm_bytes_per_s
        compute = model.weights.experts.compute
        self._experts_flops_s = model.expert_flops_per_token / tp / gpu.flops(compute)
        self._head_weights_s = head_read / gpu.hbm_bytes_per_s
        # A token's residual stream is read and written around each of the two halves of a layer.
        self._activations_s = 8 * model.layers * model.hidden * 2 / tp / gpu.hbm_bytes_per_s
        kv = model.kv_bytes_per_token(kv_dtype, tp)
        self.token_s = kv / gpu.hbm_bytes_per_s
        """Reading the keys and values of one token of context."""
        self.context_s = max(self.token_s, model.attention_flops_per_pair / tp / gpu.fp16_flops)
        """Attending to one token of context in decoding."""
        self.pair_s = model.prefill_attention_flops_per_pair / tp / gpu.fp16_flops
        """A query and a key in a prompt."""
        self._link_s = kv / gpu.host.bytes_per_s
        self._link_latency_s = gpu.host.latency_s
        self._reduces = ALL_REDUCES_PER_LAYER * model.layers if tp > 1 else 0
        self._reduce_s = all_reduce_bytes_per_token(model, tp) / gpu.peer.bytes_per_s
        self._reduce_latency_s = gpu.peer.latency_s

    def linear(self, tokens: int) -> float:
        """Everything before the LM head, for so many tokens; experts as `MixtureOfExperts.touched` says."""
        memory = self._weights_s + self._activations_s * tokens
        if self._moe is not None:
            memory += self._experts_s * self._moe.touched(tokens * self._ranks)
        return max(memory, self._linear_s * tokens)

    def experts(self, tokens: int) -> float:
        """The experts alone, for so many tokens; nothing without them."""
        touched = 0.0 if self._moe is None else self._moe.touched(tokens)
        return max(self._experts_s * touched, self._experts_flops_s * tokens)

    def head(self, sequences: int) -> float:
        """The LM head for so many sequences."""
        return max(self._head_weights_s, self._head_s * sequences)

    def write(self, tokens: int) -> float:
        """Writing the keys and values of so many tokens, read once."""
        return 2 * self.token_s * tokens

    def copy(self, tokens: int) -> float:
        """Copying blocks of so many tokens within the device."""
        return 2 * self.token_s * tokens

    def swap(self, tokens: int) -> float:
        """Moving blocks of so many tokens over the link to the host."""
        return self._link_latency_s + self._link_s * tokens

    def all_reduce(self, tokens: int) -> float:
        """All of an iteration's all-reduces, for so many tokens."""
        return self._reduces * (self._reduce_latency_s + self._reduce_s * tokens)
