"""Rank: what one GPU of a system computes and stores, and whether it can be timed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from pagesim.errors import PagesimError
from pagesim.kernels.bench.rows import STRATEGIES
from pagesim.models import ModelSpec
from pagesim.models.layers import FullLayer, LatentLayer, WindowLayer, kv_heads_per_gpu
from pagesim.setup.engine_config import EngineConfig

KV_DTYPES = ("fp16", "bf16", "fp8")
"""Cache data types that pagesim's kernels support on a GPU."""

ROPE_DIM = 64
"""Rotary elements stored with each latent vector in the benchmark."""


class AttentionShape(NamedTuple):
    """The attention heads of some layers on one GPU.

    Attributes:
        span: tokens of the attention window; 0 for full attention.
        kv_heads, head_size: KV heads and their size in the cache; for latent attention, those used to
            compute prompts.
        latent: elements of a latent vector without its rotary part; 0 without latent attention.
    """

    span: int
    kv_heads: int
    head_size: int
    latent: int = 0

    @property
    def head_columns(self) -> dict[str, Any]:
        """The columns of the benchmark that describe its keys and values."""
        return {"kv_heads": self.kv_heads, "head_size": self.head_size, "layout": "NHD"}

    @property
    def latent_columns(self) -> dict[str, Any]:
        """The columns of the benchmark that describe its latents; none for the usual size."""
        return {} if self.latent == 512 else {"latent": self.latent}


@dataclass(frozen=True)
class TensorParallelRank:
    """What one GPU of a tensor parallel group computes and stores.

    Args:
        whole: the whole model.
        tp: GPUs over which it is divided.
        dtype: data type of weights and activations, by its name in the benchmark.
        cache: data type of keys and values, by its name in the benchmark.
        queries: queries per sequence that verifies drafts, its token plus its drafts; 1 without drafts.
        swap: swap strategy, a name of ``pagesim.kernels.swap.STRATEGIES``.
        cuda_graphs: whether decode-only iterations run as CUDA graphs.
    """

    whole: ModelSpec
    tp: int
    dtype: str
    cache: str
    queries: int
    swap: str
    cuda_graphs: bool

    @cached_property
    def spec(self) -> ModelSpec:
        """The model with one GPU's share of heads, MLP and vocabulary, and full attention in all layers."""
        whole, tp = self.whole, self.tp
        return replace(
            whole,
            heads=self.heads,
            kv_heads=whole.kv_heads_per_gpu(tp),
            ffn=-(-whole.ffn // tp),
            vocab=-(-whole.vocab // tp),
            cached=(),
        )

    @property
    def heads(self) -> int:
        """Query heads on one GPU."""
        return self.whole.heads // self.tp

    @cached_property
    def attention(self) -> Counter[AttentionShape]:
        """Number of layers by the shape of their attention heads.

        Raises:
            PagesimError: pagesim has no kernel for some layers.
        """
        return Counter(self._shape(layer) for layer in self.whole.cache_layers)

    def _shape(self, layer: object) -> AttentionShape:
        whole = self.whole
        if type(layer) is FullLayer or type(layer) is WindowLayer:
            heads = kv_heads_per_gpu(layer.kv_heads, self.tp)
            return AttentionShape(getattr(layer, "window", 0), heads, layer.head_dim)
        mla = whole.mla
        if isinstance(layer, LatentLayer) and mla and not mla.index_heads:
            if mla.qk_rope_head_dim != ROPE_DIM:
                raise PagesimError(
                    f"model {whole.name} keeps {mla.qk_rope_head_dim} numbers beside its latents; calibrate "
                    f"times {ROPE_DIM}"
                )
            # vLLM computes prompts with one key and value per head, the value as wide as the key.
            return AttentionShape(0, self.heads, mla.qk_nope_head_dim + ROPE_DIM, mla.kv_lora_rank)
        raise PagesimError(
            f"the layers of {whole.name} are {whole.layers_in_words}; calibrate has kernels of full, window "
            "and latent attention only"
        )

    @property
    def is_built(self) -> bool:
        """Whether the model of live runs has such layers: dense, with uniform heads, no latent attention."""
        whole = self.whole
        alike = {(each.kv_heads, each.head_size) for each in self.attention}
        return (
            whole.moe is None
            and whole.mla is None
            and not (whole.extras or whole.ffns or whole.output_gate)
            and sum(self.attention.values()) == whole.layers
            and alike == {(self.spec.kv_heads, whole.head_dim)}
        )

    @property
    def runs_live(self) -> bool:
        """Whether a live run can carry out its whole iterations."""
        return self.is_built and self.whole.is_plain and self.tp == 1 and self.cache != "fp8"

    def pieces(self, block_size: int) -> tuple[int, int]:
        """Return a block's number of pieces (keys or values of one layer), and the bytes per piece."""
        item = 1 if self.cache == "fp8" else 4 if self.cache == "fp32" else 2
        counts = {each: count * (1 if each.latent else 2) for each, count in self.attention.items()}
        numbers = sum(
            count * (each.latent + ROPE_DIM if each.latent else each.kv_heads * each.head_size)
            for each, count in counts.items()
        )
        pieces = sum(counts.values())
        size = numbers * block_size * item // pieces
        return pieces, max(16, -(-size // 16) * 16)

    def splits(self, batch: int, span: int) -> int | None:
        """Return the splits of decode attention in a CUDA graph, which must suit contexts of any length.

        Args:
            batch: sequences, with one query each.
            span: tokens of the attention window; 0 for none.

        Returns:
            The number of splits; None to let the op choose.
        """
        if not self.cuda_graphs:
            return None
        import torch

        from pagesim.kernels.attention import choose_splits

        heads, longest = self.spec.kv_heads, self.whole.max_model_len
        programs = max(batch, -(-batch * self.heads // heads // 64)) * heads
        return choose_splits(programs, min(longest, span + 1) if span else longest, torch.device("cuda"))


def rank_of(config: EngineConfig, *, device: str, cuda_graphs: bool, swap: str) -> TensorParallelRank:
    """Return what one GPU of a system computes and stores.

    Args:
        config: configuration of the system.
        device: ``cpu``, which computes in fp32, or ``cuda``.
        cuda_graphs: whether decode-only iterations run as CUDA graphs.
        swap: swap strategy.

    Raises:
        PagesimError: pagesim lacks a kernel, or an option is invalid.
    """
    spec, tp, kv_dtype = config.model, config.system.tensor_parallel_size, config.kv_dtype
    if kv_dtype not in KV_DTYPES:
        raise PagesimError(f"kv_cache_dtype is {kv_dtype}; calibrate times caches in {', '.join(KV_DTYPES)}")
    if swap not in STRATEGIES:
        raise PagesimError(f"swap is {swap!r}; it must be one of {', '.join(STRATEGIES)}")
    if cuda_graphs and device != "cuda":
        raise PagesimError("cuda_graphs needs device cuda: on a CPU there is nothing to capture")
    if (stages := config.system.option("pipeline_parallel_size") or 1) > 1:
        raise PagesimError(f"pipeline_parallel_size is {stages}; calibrate times one stage, so it must be 1")
    if spec.heads % tp:
        raise PagesimError(
            f"tensor_parallel_size is {tp}; it must divide the {spec.heads} heads of {spec.name}"
        )
    weights = spec.weights
    timed = {each.name: each.bits for each in (weights.attention, weights.mlp, weights.shared, weights.head)}
    if not spec.has_weights or any(bits != 16 for bits in timed.values()):
        raise PagesimError(
            f"model {spec.name} has weights in {spec.weights_in_words}; calibrate times products of 16 bits: "
            "give --weight-dtype bf16"
        )
    speculation = getattr(config.given_options, "speculation", None)
    drafts = 0 if speculation is None else speculation.tokens
    dtype = "fp32" if device == "cpu" else "fp16" if kv_dtype == "fp8" else kv_dtype
    cache = "fp8" if kv_dtype == "fp8" else dtype
    rank = TensorParallelRank(spec, tp, dtype, cache, drafts + 1, swap, cuda_graphs)
    latent = any(each.latent for each in rank.attention)
    if latent and cache == "fp8":
        raise PagesimError(
            f"kv_cache_dtype is fp8; pagesim's kernel of latent attention ({spec.name}) has none"
        )
    if drafts and (latent or any(each.span for each in rank.attention)):
        raise PagesimError(
            f"speculative_tokens is {drafts}; calibrate times several queries of full attention only, "
            f"and the layers of {spec.name} are {spec.layers_in_words}"
        )
    return rank
