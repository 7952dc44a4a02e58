"""The roofline cost model: bytes over bandwidth or operations over peak, whichever takes longer."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pagesim.costs.base import NOWHERE, UNBOUNDED, DecodeRun, IterationShape
from pagesim.costs.specs import ALL_REDUCES_PER_LAYER, GpuSpec, ModelSpec, all_reduce_bytes_per_token
from pagesim.errors import PagesimError
from pagesim.sim.clock import TICKS_PER_SECOND, to_ticks


@dataclass(frozen=True, slots=True)
class Efficiency:
    """What share of the datasheet's numbers is reached, and the time outside kernels.

    The defaults are rules of thumb and not measurements: large matrix products and streaming reads reach
    about 80 % of peak; the attention kernels of 2023 read the cache at about 65 % of peak bandwidth; an
    engine whose loop is Python spends about 3 ms an iteration outside its kernels.

    Attributes:
        flops: share of peak operations a second, in matrix products.
        hbm: share of peak memory bandwidth, for weights and activations.
        kv: share of peak memory bandwidth, for reading the cache in attention.
        link: share of the host link's and of the GPUs' link's bandwidth.
        overhead_s: seconds an iteration that computes anything takes beside its kernels.
    """

    flops: float = 0.80
    hbm: float = 0.80
    kv: float = 0.65
    link: float = 1.0
    overhead_s: float = 0.003

    def __post_init__(self) -> None:
        for name in ("flops", "hbm", "kv", "link"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise PagesimError(f"cost roofline: {name} is {value}; it must be above 0 and at most 1")
        if not (math.isfinite(self.overhead_s) and 0 <= self.overhead_s <= 10):
            raise PagesimError(f"cost roofline: overhead_s is {self.overhead_s}; it must be from 0 to 10 s")


class Roofline:
    """Seconds an iteration = overhead + linear layers + attention + all-reduces + swaps + copies.

    Linear layers take the longer of reading the weights and activations and of computing the tokens.
    Attention in decoding takes the longer of reading the context's KV and of computing with it; in a prompt
    it is bound by operations. Under tensor parallelism each GPU does its share, and two all-reduces a layer
    are added. Swapped blocks cross each GPU's own host link.

    Args:
        model, gpu: what runs where.
        tp: tensor parallel degree.
        block_size: tokens a block.
        kv_dtype: fp16, bf16 or fp8.
        efficiency: see there.
    """

    beyond = NOWHERE

    def __init__(
        self,
        model: ModelSpec,
        gpu: GpuSpec,
        *,
        tp: int = 1,
        block_size: int = 16,
        kv_dtype: str = "fp16",
        efficiency: Efficiency | None = None,
    ) -> None:
        efficiency = efficiency or Efficiency()
        hbm = gpu.hbm_bytes_per_s * efficiency.hbm
        flops = gpu.fp16_flops * efficiency.flops
        kv_bytes = model.kv_bytes_per_token(kv_dtype, tp)
        self._overhead = to_ticks(efficiency.overhead_s)
        self._weights_s = model.weight_bytes_per_gpu(tp) / hbm
        # A token's residual stream is read and written around each of the two halves of a layer.
        self._activations_s = 8 * model.layers * model.hidden * 2 / tp / hbm
        self._linear_s = model.linear_flops_per_token / tp / flops
        self._pair_s = model.prefill_attention_flops_per_pair / tp / flops
        context_s = max(
            kv_bytes / (gpu.hbm_bytes_per_s * efficiency.kv), model.attention_flops_per_pair / tp / flops
        )
        # Whole ticks a token of context: then a run of decode steps adds up exactly.
        self._context = max(1, to_ticks(context_s))
        reduces = ALL_REDUCES_PER_LAYER * model.layers if tp > 1 else 0
        self._reduce_latency_s = reduces * gpu.peer.latency_s
        self._reduce_s = (
            reduces * all_reduce_bytes_per_token(model, tp) / (gpu.peer.bytes_per_s * efficiency.link)
        )
        self._swap_latency_s = gpu.host.latency_s
        self._swap_s = kv_bytes * block_size / (gpu.host.bytes_per_s * efficiency.link)
        self._copy_s = 2 * kv_bytes * block_size / hbm

    def iteration(self, shape: IterationShape) -> int:
        seconds = 0.0
        swapped = shape.blocks_out + shape.blocks_in
        if swapped:
            seconds += self._swap_latency_s + self._swap_s * swapped
        if shape.blocks_copied:
            seconds += self._copy_s * shape.blocks_copied
        if shape.query_key_pairs:
            seconds += self._pair_s * shape.query_key_pairs
        extra = round(seconds * TICKS_PER_SECOND)
        if not (shape.tokens or shape.launches):
            return extra
        return self._linear(shape.tokens) + self._context * shape.decode_context + extra

    def parts(self, shape: IterationShape) -> dict[str, int]:
        swapped = shape.blocks_out + shape.blocks_in
        computes = bool(shape.tokens or shape.launches)
        layers = max(self._weights_s + self._activations_s * shape.tokens, self._linear_s * shape.tokens)
        reduces = self._reduce_latency_s + self._reduce_s * shape.tokens
        return {
            "overhead": self._overhead * computes,
            "linear layers": to_ticks(layers) * computes,
            "all-reduces": to_ticks(reduces) * computes,
            "prompt attention": to_ticks(self._pair_s * shape.query_key_pairs),
            "decode attention": self._context * shape.decode_context * computes,
            "swaps": to_ticks(self._swap_latency_s + self._swap_s * swapped) if swapped else 0,
            "copies": to_ticks(self._copy_s * shape.blocks_copied),
        }

    def decode(self, sequences: int, context: int) -> DecodeRun:
        first = self._linear(sequences) + self._context * context
        return first, self._context * sequences, UNBOUNDED

    def _linear(self, tokens: int) -> int:
        """Ticks of everything that depends on the number of tokens alone."""
        memory = self._weights_s + self._activations_s * tokens
        seconds = max(memory, self._linear_s * tokens) + self._reduce_latency_s + self._reduce_s * tokens
        return self._overhead + round(seconds * TICKS_PER_SECOND)
