"""The roofline cost model: bytes over bandwidth or operations over peak rate, plus kernel launch times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist
from typing import NamedTuple

from pagesim.costs.assumptions import of_experts, of_layers, of_roofline, of_weights
from pagesim.costs.attended import attended, layers_with_experts, states
from pagesim.costs.base import (
    NOWHERE,
    UNBOUNDED,
    AttentionSpan,
    DecodeRun,
    IterationShape,
    SpanAhead,
    step_shape,
)
from pagesim.costs.engines import UNKNOWN, EngineTime
from pagesim.costs.mixed import MixedLayers
from pagesim.costs.operators.launches import launching
from pagesim.costs.operators.reduces import EAGER_S
from pagesim.costs.profiles.rescale import LAUNCH_S
from pagesim.errors import PagesimError
from pagesim.hardware import GpuSpec
from pagesim.models import ALL_REDUCES_PER_LAYER, ModelSpec
from pagesim.models.parallel import weights_read
from pagesim.sim.clock import TICKS_PER_SECOND, to_ticks

KERNELS = 11
"""Kernels per layer: two norms, four GEMMs, rotary embedding, activation, residual, two for attention."""

EXPERT_KERNELS = 5
"""Further kernels of a layer with experts: router, expert selection, sorting of tokens, two sums."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """The fractions of datasheet rates that are achieved, and a kernel's minimum time.

    The defaults are fitted to one half of published closed-loop runs of vLLM on H100, H200 and B200
    (docs/validation/accuracy.md); their error is measured on the other half.

    Attributes:
        flops: fraction of the peak FLOP/s in GEMMs with weights.
        hbm: fraction of the peak memory bandwidth for weights and activations.
        kv: fraction of the peak memory bandwidth for reading the KV cache in attention.
        link: fraction of the bandwidth of the host link and of the link between GPUs.
        prompts: fraction of the peak FLOP/s in prompt attention.
        experts: fraction of the peak FLOP/s in experts, whose GEMMs are many and small.
        experts_hbm: fraction of the peak memory bandwidth for experts' weights.
        launch_s: minimum seconds of a kernel.
    """

    flops: float = 0.50
    hbm: float = 0.90
    kv: float = 0.88
    link: float = 1.0
    prompts: float = 0.16
    experts: float = 0.19
    experts_hbm: float = 0.78
    launch_s: float = LAUNCH_S

    def __post_init__(self) -> None:
        for name in ("flops", "hbm", "kv", "link", "prompts", "experts", "experts_hbm"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise PagesimError(f"cost roofline: {name} is {value}; it must be above 0 and at most 1")
        if not 0 <= self.launch_s <= 1:
            raise PagesimError(f"cost roofline: launch_s is {self.launch_s}; it must be from 0 to 1 s")


class DraftForwards(NamedTuple):
    """How the drafter of speculative decoding runs in each step.

    Attributes:
        forwards: sequential forward passes. The first computes all tokens of the step, the others one
            token per sequence.
        drafts: draft tokens per sequence that one forward pass computes in parallel.
        layers: layers of one forward pass, assumed like the target's; its LM head is the target's.
        model: a separate draft model, used instead; None for a draft head or modules of the target.
    """

    forwards: int
    drafts: int
    layers: int
    model: ModelSpec | None = None


class Roofline:
    """Roofline: the sum of engine time, linear layers, attention, all-reduces, swaps and copies.

    Linear layers take the longer of reading weights and activations and of computing the tokens. So do
    experts, of which only those that the tokens are expected to visit are read (`MixtureOfExperts.touched`).
    Each kernel adds a launch. Decode attention takes the longer of reading the context's KV and of computing
    with it; prompt attention is compute-bound. For layers without full attention, or with a state, see
    `MixedLayers`. Under tensor parallelism each GPU does its share, and each layer adds two all-reduces.
    Where experts or MLPs are divided over data-parallel ranks, each such layer adds an all-gather and a
    reduce-scatter. If GPUs hold whole experts, the busiest GPU counts. A sequence and its drafts read the
    context once. An iteration with a prompt that no CUDA graph launches takes at least the host's launch
    time. Swapped blocks cross each GPU's own host link.

    Args:
        model, gpu: model and the GPU it runs on.
        tp: tensor parallel degree.
        block_size: tokens per block.
        kv_dtype: data type of the KV cache, one of `KV_DTYPE_BYTES`.
        efficiency: fractions of the datasheet's rates that are achieved.
        engine: the engine's own time; by default, that of an engine without measurements.
        drafter: how the drafter runs; None without drafts, or where no model makes them.

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
        drafter: DraftForwards | None = None,
    ) -> None:
        efficiency = efficiency or Efficiency()
        hbm = gpu.hbm_bytes_per_s * efficiency.hbm
        # Fractions refer to the rate of the tensor cores.
        units = 2 if gpu.half_rate else 1
        products, experts = (min(1.0, units * each) for each in (efficiency.flops, efficiency.experts))
        fp16 = gpu.fp16_flops * products
        kv_bytes = model.kv_bytes_per_token(kv_dtype, tp)
        self._overhead = to_ticks(engine.iteration_s)
        self._sequence = to_ticks(engine.sequence_s)
        # Caches of the ticks that depend on the number of tokens or of sampled positions alone.
        self._by_tokens: dict[int, int] = {}
        self._by_sampled: dict[int, int] = {}
        self._moe = model.moe
        # Layers divided over ranks compute the tokens of all ranks, assumed to be equally loaded.
        division = model.expert_division
        self._ranks = 1 if division is None else division.ranks
        self._whole_on = self._ranks * tp if division is not None and division.whole else 1
        read, head_read = weights_read(model, tp)
        self._weights_s = read / hbm
        self._experts_s = model.expert_bytes_per_gpu(tp) / (gpu.hbm_bytes_per_s * efficiency.experts_hbm)
        # A token's residual stream is read and written around each of the two halves of a layer.
        self._activations_s = 8 * model.layers * model.hidden * 2 / tp / hbm
        of_experts_s = model.expert_flops_per_token / tp / gpu.flops(model.weights.experts.compute)
        of_all_s = sum(flops / tp / gpu.flops(compute) for compute, flops in model.flops_by_compute.items())
        self._linear_s = (of_all_s - of_experts_s) / products
        self._linear_experts_s = of_experts_s / experts
        self._head_weights_s = head_read / hbm
        self._head_s = model.lm_head_flops_per_token / tp / (gpu.flops(model.lm_head_compute) * products)
        with_experts = layers_with_experts(model)
        self._launches_s = efficiency.launch_s * (KERNELS * model.layers + EXPERT_KERNELS * with_experts)
        kv = gpu.hbm_bytes_per_s * efficiency.kv
        prompts = gpu.fp16_flops * min(1.0, units * efficiency.prompts)
        layers = attended(model, kv_dtype, tp)
        whole = layers.pop(None)
        self._pair_s = whole.prompt_flops / tp / prompts
        self._query_s = whole.flops / tp / fp16
        context_s = max(whole.bytes / kv, self._query_s)
        # Whole ticks per token of context, so that a run of decode steps adds up exactly.
        self._context = max(1, to_ticks(context_s)) if context_s else 0
        self._mixed: MixedLayers | None = None
        if layers or model.state_layers:
            limited = {span: each for span, each in layers.items() if span}
            self._mixed = MixedLayers(
                limited, states(model, tp), kv=kv, hbm=hbm, flops=fp16, prompts=prompts, tp=tp
            )
        self.spans: tuple[AttentionSpan, ...] | None = None if self._mixed is None else self._mixed.spans
        self.notes = (
            *of_weights(model, gpu, "roofline"),
            *of_experts(model, "roofline"),
            *of_layers(model, "roofline"),
            of_roofline(model),
        )
        self._gpu, self._tp, self._link = gpu, tp, efficiency.link
        self._reduces = ALL_REDUCES_PER_LAYER * model.layers if tp > 1 else 0
        exchanging = with_experts
        if division is not None and division.mlps:
            exchanging = model.mlp_layers or model.layers
        self._exchanges = exchanging if self._ranks > 1 else 0
        self._reduced_bytes = 2 * model.hidden
        # The host launches iterations with a prompt that are too large for CUDA graphs.
        self._graphed = engine.graphs_to
        self._host = to_ticks(launching(model).prompt_s)
        self._eager = to_ticks(self._reduces * EAGER_S)
        self._swap_latency_s = gpu.host.latency_s
        self._swap_s = kv_bytes * block_size / (gpu.host.bytes_per_s * efficiency.link)
        self._copy_s = 2 * kv_bytes * block_size / hbm
        self._drafter = drafter
        self._drafting, self._share, self._context_share = self, 1.0, 1.0
        if drafter is not None and drafter.model is not None:
            divided = tp if drafter.model.heads % tp == 0 else 1
            self._drafting = Roofline(
                drafter.model,
                gpu,
                tp=divided,
                block_size=block_size,
                kv_dtype=kv_dtype,
                efficiency=efficiency,
            )
        elif drafter is not None:
            self._share = drafter.layers / model.layers
            whole_layers = sum(layer.kind in ("full", "latent") for layer in model.cache_layers)
            self._context_share = drafter.layers / max(1, whole_layers)

    def iteration(self, shape: IterationShape) -> int:
        seconds = 0.0
        swapped = shape.blocks_out + shape.blocks_in
        if swapped:
            seconds += self._swap_latency_s + self._swap_s * swapped
        if shape.blocks_copied:
            seconds += self._copy_s * shape.blocks_copied
        moving = round(seconds * TICKS_PER_SECOND)
        if not (shape.tokens or shape.launches):
            return moving
        device = self._of_tokens(shape.tokens) + self._of_sampled(shape.sampled)
        device += self._of_decoding(shape)
        if self._mixed is not None:
            device += self._mixed.iteration(shape)
        if self._drafter is not None:
            device += self._of_drafter(shape, self._drafter)
        own = self._overhead + self._sequence * shape.sampled
        if not shape.query_key_pairs:
            return moving + device + own
        device += round(self._pair_s * shape.query_key_pairs * TICKS_PER_SECOND)
        if shape.tokens > self._graphed:
            device = max(self._host, device + self._eager)
        return moving + device + own

    def parts(self, shape: IterationShape) -> dict[str, int]:
        swapped = shape.blocks_out + shape.blocks_in
        moving = {
            "swaps": to_ticks(self._swap_latency_s + self._swap_s * swapped) if swapped else 0,
            "copies": to_ticks(self._copy_s * shape.blocks_copied),
        }
        if not (shape.tokens or shape.launches):
            return moving
        mixed = {} if self._mixed is None else self._mixed.parts(shape)
        eager = self._eager if shape.query_key_pairs and shape.tokens > self._graphed else 0
        device = {
            "linear layers": to_ticks(self._matrices_s(shape.tokens) + self._launches_s),
            "LM head": self._of_sampled(shape.sampled),
            "all-reduces": to_ticks(self._reduces_s(shape.tokens)) + eager,
            "prompt attention": to_ticks(self._pair_s * shape.query_key_pairs),
            "decode attention": self._of_decoding(shape),
            **mixed,
        }
        if self._drafter is not None:
            device["drafter"] = self._of_drafter(shape, self._drafter)
        overhead = self._overhead + self._sequence * shape.sampled
        waiting = self.iteration(shape) - sum(moving.values()) - sum(device.values()) - overhead
        return {"overhead": overhead, **device, "waiting for the host": max(0, waiting), **moving}

    def decode(self, sequences: int, context: int) -> DecodeRun:
        first, increment = self._first(sequences, context), self._context * sequences
        if self._mixed is not None:
            further, growth, _ = self._mixed.decode(sequences, context)
            first, increment = first + further, increment + growth
        return first, increment, UNBOUNDED if self._drafter is None else 1

    def decode_reached(self, sequences: int, context: int, reached: Sequence[SpanAhead]) -> DecodeRun:
        first, increment = self._first(sequences, context), self._context * sequences
        if self._mixed is None:
            return first, increment, UNBOUNDED
        further, growth, steps = self._mixed.decode_reached(sequences, reached)
        return first + further, increment + growth, steps

    def _first(self, sequences: int, context: int) -> int:
        """Return the ticks of a decode step, without the layers in `MixedLayers`."""
        device = self._of_tokens(sequences) + self._of_sampled(sequences) + self._context * context
        if self._drafter is not None:
            device += self._of_drafter(step_shape(sequences, context), self._drafter)
        return device + self._overhead + self._sequence * sequences

    def _of_decoding(self, shape: IterationShape) -> int:
        """Return the ticks of full decode attention; a sequence and its drafts read its context once."""
        a_token = self._context
        if shape.drafts and shape.decoding:  # a prompt of one token may have drafts, too
            queries = 1 + shape.drafts / shape.decoding
            a_token = max(a_token, to_ticks(self._query_s * queries))
        return a_token * shape.decode_context

    def _of_drafter(self, shape: IterationShape, drafter: DraftForwards) -> int:
        """Return the ticks of a drafter's forward passes in a step."""
        sequences, at_once = shape.sampled - shape.drafts, drafter.drafts
        tokens = shape.tokens + sequences * (at_once - 1)
        first = self._of_forward(tokens, sequences * at_once, shape.decode_context, shape.query_key_pairs)
        if not sequences:
            return first
        return first + (drafter.forwards - 1) * self._of_forward(sequences, sequences, shape.decode_context)

    def _of_forward(self, tokens: int, sampled: int, context: int, pairs: int = 0) -> int:
        """Return the ticks of one forward pass of the drafter."""
        model = self._drafting
        attention = model._context * context + model._pair_s * pairs * TICKS_PER_SECOND
        layers = self._share * model._of_tokens(tokens) + self._context_share * attention
        return round(layers) + model._of_sampled(sampled)

    def _of_tokens(self, tokens: int) -> int:
        """Return the ticks of all operators that depend on the number of tokens alone."""
        known = self._by_tokens.get(tokens)
        if known is None:
            seconds = self._matrices_s(tokens) + self._launches_s + self._reduces_s(tokens)
            known = self._by_tokens[tokens] = to_ticks(seconds)
        return known

    def _of_sampled(self, sampled: int) -> int:
        """Return the ticks of the LM head."""
        known = self._by_sampled.get(sampled)
        if known is None:
            known = to_ticks(max(self._head_weights_s, self._head_s * sampled)) if sampled else 0
            self._by_sampled[sampled] = known
        return known

    def _matrices_s(self, tokens: int) -> float:
        """Return the seconds of the linear layers, including experts but not the LM head."""
        seconds = max(self._weights_s + self._activations_s * tokens, self._linear_s * tokens)
        if self._moe is None:
            return seconds
        visits = tokens * self._ranks
        read = self._experts_s * self._moe.touched(visits)
        busiest = busiest_share(visits * self._moe.experts_per_token, self._whole_on)
        return seconds + max(read, self._linear_experts_s * busiest * tokens)

    def _reduces_s(self, tokens: int) -> float:
        """Return the seconds of communication between GPUs, launched by CUDA graphs."""
        seconds, size = 0.0, self._reduced_bytes * tokens
        if self._reduces:
            seconds += self._reduces * self._gpu.peer.all_reduce_s(size, self._tp, self._link)
        if self._exchanges:  # every rank gets all tokens, and the sums go back
            size *= self._ranks
            seconds += self._exchanges * self._gpu.peer.all_reduce_s(size, self._ranks, self._link)
        return seconds


def busiest_share(visits: int, gpus: int) -> float:
    """Return the expected load of the busiest GPU over the mean load, for visits to random GPUs.

    A GPU's visits are binomial, approximated as normal; Blom's formula gives the largest of ``gpus`` values.
    """
    if gpus == 1 or not visits:
        return 1.0
    spread = sqrt((gpus - 1) / visits)  # over the mean, visits / gpus
    return min(float(gpus), 1 + spread * NormalDist().inv_cdf((gpus - 0.375) / (gpus + 0.25)))
