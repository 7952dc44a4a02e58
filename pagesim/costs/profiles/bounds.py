"""Bounds: seconds of each term at the datasheet's rates, to compare machines and models."""

from __future__ import annotations

from pagesim.hardware import GpuSpec
from pagesim.models import ALL_REDUCES_PER_LAYER, ModelSpec, all_reduce_bytes_per_token
from pagesim.models.parallel import weights_read


class Bounds:
    """Seconds of each term on each GPU, bound by bytes or by operations, whichever take longer.

    Args:
        model, gpu: model and the GPU it runs on.
        tp: GPUs over which the model is divided.
        kv_dtype: data type of the KV cache.
    """

    def __init__(self, model: ModelSpec, gpu: GpuSpec, *, tp: int = 1, kv_dtype: str = "fp16") -> None:
        head = model.lm_head_flops_per_token
        self._linear_s = sum(
            flops / tp / gpu.flops(compute) for compute, flops in model.flops_by_compute.items()
        )
        self._head_s = head / tp / gpu.flops(model.lm_head_compute)
        self._moe = model.moe
        # A GPU's experts compute the tokens of all data-parallel ranks, assumed to be equally loaded.
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
        """Seconds to read the keys and values of one token of context."""
        self.context_s = max(self.token_s, model.attention_flops_per_pair / tp / gpu.fp16_flops)
        """Seconds to attend to one token of context in decoding."""
        self.pair_s = model.prefill_attention_flops_per_pair / tp / gpu.fp16_flops
        """Seconds per query-key pair in a prompt."""
        self._link_s = kv / gpu.host.bytes_per_s
        self._link_latency_s = gpu.host.latency_s
        self._reduces = ALL_REDUCES_PER_LAYER * model.layers if tp > 1 else 0
        self._reduce_s = all_reduce_bytes_per_token(model, tp) / gpu.peer.bytes_per_s
        self._reduce_latency_s = gpu.peer.latency_s

    def linear(self, tokens: int) -> float:
        """Return the seconds of all layers before the LM head; experts by `MixtureOfExperts.touched`."""
        memory = self._weights_s + self._activations_s * tokens
        if self._moe is not None:
            memory += self._experts_s * self._moe.touched(tokens * self._ranks)
        return max(memory, self._linear_s * tokens)

    def experts(self, tokens: int) -> float:
        """Return the seconds of the experts alone; 0 without experts."""
        touched = 0.0 if self._moe is None else self._moe.touched(tokens)
        return max(self._experts_s * touched, self._experts_flops_s * tokens)

    def head(self, sequences: int) -> float:
        """Return the seconds of the LM head for a number of sequences."""
        return max(self._head_weights_s, self._head_s * sequences)

    def write(self, tokens: int) -> float:
        """Return the seconds to write tokens' keys and values to the cache, having read them once."""
        return 2 * self.token_s * tokens

    def copy(self, tokens: int) -> float:
        """Return the seconds to copy blocks of ``tokens`` tokens within the device."""
        return 2 * self.token_s * tokens

    def swap(self, tokens: int) -> float:
        """Return the seconds to move blocks of ``tokens`` tokens over the host link."""
        return self._link_latency_s + self._link_s * tokens

    def all_reduce(self, tokens: int) -> float:
        """Return the seconds of all all-reduces of an iteration with ``tokens`` tokens."""
        return self._reduces * (self._reduce_latency_s + self._reduce_s * tokens)
