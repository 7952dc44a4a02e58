"""The roofline cost model: bytes over bandwidth or operations over peak, whichever takes longer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagesim.costs.assumptions import of_experts, of_layers, of_weights
from pagesim.costs.attended import attended, states
from pagesim.costs.base import NOWHERE, UNBOUNDED, AttentionSpan, DecodeRun, IterationShape, SpanAhead
from pagesim.costs.engines import UNKNOWN, EngineTime
from pagesim.costs.mixed import MixedLayers
from pagesim.errors import PagesimError
from pagesim.hardware import GpuSpec
from pagesim.models import ALL_REDUCES_PER_LAYER, ModelSpec, all_reduce_bytes_per_token
from pagesim.models.parameters import TOWER
from pagesim.sim.clock import TICKS_PER_SECOND, to_ticks


@dataclass(frozen=True, slots=True)
class Efficiency:
    """What share of the datasheet's numbers is reached.

    The defaults are rules of thumb and not measurements: large matrix products and streaming reads reach
    about 80 % of peak; the attention kernels of 2023 read the cache at about 65 % of peak bandwidth.

    Attributes:
        flops: share of peak operations a second, in matrix products.
        hbm: share of peak memory bandwidth, for weights and activations.
        kv: share of peak memory bandwidth, for reading the cache in attention.
        link: share of the host link's and of the GPUs' link's bandwidth.
    """

    flops: float = 0.80
    hbm: float = 0.80
    kv: float = 0.65
    link: float = 1.0

    def __post_init__(self) -> None:
        for name in ("flops", "hbm", "kv", "link"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise PagesimError(f"cost roofline: {name} is {value}; it must be above 0 and at most 1")


class Roofline:
    """Seconds = the engine's own time + linear layers + attention + all-reduces + swaps + copies.

    Linear layers take the longer of reading the weights and activations and of computing the tokens; of
    experts those are read that the tokens are expected to visit (`MixtureOfExperts.touched`). Attention in
    decoding takes the longer of reading the context's KV and of computing with it; in a prompt it is bound
    by operations. Layers that do not look back on all tokens, or keep a state: see `MixedLayers`. Under
    tensor parallelism each GPU does its share, and two all-reduces a layer are added. Swapped blocks cross
    each GPU's own host link.

    Args:
        model, gpu: what runs where.
        tp: tensor parallel degree.
        block_size: tokens a block.
        kv_dtype: of the cache: one of `KV_DTYPE_BYTES`.
        efficiency: shares of the datasheet's numbers that are reached.
        engine: its own time; that of an engine of which no measurement is known when left out.

    Attributes:
        spans: see `ReadsSpans`.
        notes: see `Assuming`.
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
        engine: EngineTime = UNKNOWN,
    ) -> None:
        efficiency = efficiency or Efficiency()
        hbm = gpu.hbm_bytes_per_s * efficiency.hbm
        flops = gpu.fp16_flops * efficiency.flops
        kv_bytes = model.kv_bytes_per_token(kv_dtype, tp)
        self._overhead = to_ticks(engine.iteration_s)
        self._sequence = to_ticks(engine.sequence_s)
        self._fixed: dict[int, int] = {}
        self._moe = model.moe
        # The experts of a GPU compute the tokens of all data-parallel ranks, which are taken to be alike.
        self._ranks = 1 if model.expert_division is None else model.expert_division.ranks
        experts = model.expert_bytes_per_gpu(tp)
        # A tower for images is not read where there are none.
        tower = model.weight_bytes_by_group(tp).get(TOWER, 0)
        self._weights_s = (model.weight_bytes_per_gpu(tp) - experts - tower) / hbm
        self._experts_s = experts / hbm
        # A token's residual stream is read and written around each of the two halves of a layer.
        self._activations_s = 8 * model.layers * model.hidden * 2 / tp / hbm
        by_compute = [
            *model.flops_by_compute.items(),
            (model.lm_head_compute, model.lm_head_flops_per_token),
        ]
        self._linear_s = sum(
            flops / tp / (gpu.flops(compute) * efficiency.flops) for compute, flops in by_compute
        )
        kv = gpu.hbm_bytes_per_s * efficiency.kv
        layers = attended(model, kv_dtype, tp)
        whole = layers.pop(None)
        self._pair_s = whole.prompt_flops / tp / flops
        context_s = max(whole.bytes / kv, whole.flops / tp / flops)
        # Whole ticks a token of context: then a run of decode steps adds up exactly.
        self._context = max(1, to_ticks(context_s)) if context_s else 0
        self._mixed: MixedLayers | None = None
        if layers or model.state_layers:
            limited = {span: each for span, each in layers.items() if span}
            self._mixed = MixedLayers(limited, states(model, tp), kv=kv, hbm=hbm, flops=flops, tp=tp)
        self.spans: tuple[AttentionSpan, ...] | None = None if self._mixed is None else self._mixed.spans
        self.notes = (
            *of_weights(model, gpu, "roofline"),
            *of_experts(model, "roofline"),
            *of_layers(model, "roofline"),
        )
        self._reduce_latency_s = self._reduce_s = 0.0
        if tp > 1:
            reduces, link = ALL_REDUCES_PER_LAYER * model.layers, gpu.peer.bytes_per_s * efficiency.link
            self._reduce_latency_s = reduces * gpu.peer.latency_s
            self._reduce_s = reduces * all_reduce_bytes_per_token(model, tp) / link
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
        if self._mixed is not None:
            extra += self._mixed.iteration(shape)
        if self._sequence:
            extra += self._sequence * shape.sampled
        return self._linear(shape.tokens) + self._context * shape.decode_context + extra

    def parts(self, shape: IterationShape) -> dict[str, int]:
        swapped = shape.blocks_out + shape.blocks_in
        computes = bool(shape.tokens or shape.launches)
        mixed = {} if self._mixed is None else self._mixed.parts(shape)
        reduces = self._reduce_latency_s + self._reduce_s * shape.tokens
        return {
            "overhead": (self._overhead + self._sequence * shape.sampled) * computes,
            "linear layers": to_ticks(self._matrices_s(shape.tokens)) * computes,
            "all-reduces": to_ticks(reduces) * computes,
            "prompt attention": to_ticks(self._pair_s * shape.query_key_pairs),
            "decode attention": self._context * shape.decode_context * computes,
            **{name: ticks * computes for name, ticks in mixed.items()},
            "swaps": to_ticks(self._swap_latency_s + self._swap_s * swapped) if swapped else 0,
            "copies": to_ticks(self._copy_s * shape.blocks_copied),
        }

    def decode(self, sequences: int, context: int) -> DecodeRun:
        first, increment = self._first(sequences, context), self._context * sequences
        if self._mixed is not None:
            further, growth, _ = self._mixed.decode(sequences, context)
            first, increment = first + further, increment + growth
        return first, increment, UNBOUNDED

    def decode_reached(self, sequences: int, context: int, reached: Sequence[SpanAhead]) -> DecodeRun:
        first, increment = self._first(sequences, context), self._context * sequences
        if self._mixed is None:
            return first, increment, UNBOUNDED
        further, growth, steps = self._mixed.decode_reached(sequences, reached)
        return first + further, increment + growth, steps

    def _first(self, sequences: int, context: int) -> int:
        """Ticks of a step in which so many decode, all but what spans some tokens only."""
        return self._linear(sequences) + self._sequence * sequences + self._context * context

    def _linear(self, tokens: int) -> int:
        """Ticks of everything that depends on the number of tokens alone."""
        known = self._fixed.get(tokens)
        if known is None:
            seconds = self._matrices_s(tokens) + self._reduce_latency_s + self._reduce_s * tokens
            known = self._fixed[tokens] = self._overhead + round(seconds * TICKS_PER_SECOND)
        return known

    def _matrices_s(self, tokens: int) -> float:
        """Seconds of the linear layers, experts included."""
        memory = self._weights_s + self._activations_s * tokens
        if self._moe is not None:
            memory += self._experts_s * self._moe.touched(tokens * self._ranks)
        return max(memory, self._linear_s * tokens)
