"""How vLLM divides the memory of a GPU: weights, activations, CUDA graphs, and what is left for the cache.

vLLM measures all but the weights when it starts; here they are estimated. docs/plan.md holds the estimate
against start-up logs that users posted.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from pagesim.hardware.gpus import GIB, GpuSpec
from pagesim.models.model_spec import ModelSpec

BATCHED_TOKENS = 2048
SEQUENCES = 256

GRAPHS_SHARE = 0.01
"""CUDA graphs, of a GPU's memory. vLLM prints by what share of it they lower the utilization: 0.7 % on an
RTX 3090 (noonghunna/club-3090#127), 1.1 % on an L40S (samilazrak/vllm-optimization-lab)."""

LOGIT_BYTES = 2 + 4
"""Of a logit where FlashInfer samples: as computed, and the copy in fp32."""

SORTED_LOGIT_BYTES = LOGIT_BYTES + 4 + 8 + 4 + 4
"""Of a logit where PyTorch sorts to sample by top-k and top-p: besides, what is sorted, its places in 64
bits, probabilities, and their sums."""

OTHER_BYTES = int(0.4 * GIB)
"""What is neither weights nor activations nor graphs: growth of the CUDA context, NCCL, the sampler's
buffers. The one number that was chosen to fit the posted logs: the median, to a tenth of a GiB, of what the
rest of the estimate lacks there."""


HOPPER = ("h100", "h200", "h20")
"""The GPUs here on which vLLM's experts of gpt-oss in MXFP4 run in Triton's kernel."""


@dataclass(frozen=True, slots=True)
class Division:
    """What each GPU's memory is for, in bytes.

    Args:
        memory: device memory.
        requested: the part of it that the engine may use.
        weights: on the fullest GPU; exact.
        activations: the most alive at once in the largest iteration; estimated.
        graphs: CUDA graphs; estimated, 0 where none are captured or the engine does not count them.
        other: all else; estimated.
    """

    memory: int
    requested: int
    weights: int
    activations: int
    graphs: int
    other: int

    @property
    def cache(self) -> int:
        """What is left for the cache; negative where the rest alone is too much."""
        return self.requested - self.weights - self.activations - self.graphs - self.other


def divide(
    model: ModelSpec,
    gpu: GpuSpec,
    *,
    tp: int = 1,
    gpu_memory_utilization: float = 0.9,
    max_num_batched_tokens: int = BATCHED_TOKENS,
    max_num_seqs: int = SEQUENCES,
    cuda_graphs: bool = True,
    flashinfer_sampler: bool = True,
) -> Division:
    """Divide the memory of each of ``tp`` GPUs as vLLM does.

    Activations are the wide tensors of a layer in half precision (`layer_bytes`), or the logits if they are
    more: of the tokens to sample from, at most one a sequence, with the copy in fp32 that is sampled from.

    Args:
        model: the model.
        gpu: the GPU.
        tp: GPUs over which weights are divided.
        gpu_memory_utilization: the share of memory that may be used.
        max_num_batched_tokens: tokens of the largest iteration.
        max_num_seqs: sequences of the largest iteration.
        cuda_graphs: whether graphs are captured and count (vLLM counts them since 0.21).
        flashinfer_sampler: whether FlashInfer samples; else PyTorch sorts, which takes 26 bytes a logit.
    """
    logit_bytes = LOGIT_BYTES if flashinfer_sampler else SORTED_LOGIT_BYTES
    logits = logit_bytes * max_num_seqs * model.vocab
    return Division(
        memory=gpu.memory_bytes,
        requested=requested_bytes(gpu, gpu_memory_utilization),
        weights=model.weight_bytes_per_gpu(tp) + expert_padding(model, gpu, tp),
        activations=max(layer_bytes(model, tp, max_num_batched_tokens), logits),
        graphs=int(GRAPHS_SHARE * gpu.memory_bytes) if cuda_graphs else 0,
        other=OTHER_BYTES,
    )


def expert_padding(model: ModelSpec, gpu: GpuSpec, tp: int) -> int:
    """Bytes on each GPU by which vLLM makes experts and routers larger for the kernels of a GPU (0.33.0).

    In MXFP4 the hidden width and a GPU's share of the inner one become multiples of 256 and 128 for Marlin's
    and TensorRT-LLM's kernels, the latter alone one of 64 for Triton's, and both of 256 under ROCm
    (``layers/fused_moe/oracle/mxfp4.py``); in 16 bits the inner one a multiple of 128 for TensorRT-LLM's, on
    Blackwell for servers (``oracle/unquantized.py``). Nemotron's routers have 32 bits where no kernel
    computes so with 16 (``router/gate_linear.py``).
    """
    moe = model.moe
    if moe is None:
        return 0
    family, dtype = (gpu.capability or 0) // 10, model.weights.experts
    # No such kernel is for biases or for the activation of Gemma 4.
    sides = (1, 128 if family == 10 and not moe.beside and not moe.biases else 1)
    if dtype.name.startswith("mxfp4"):
        sides = (256, 256) if gpu.name.startswith("mi") else (256, 128)
        # Of models with experts in MXFP4, gpt-oss alone has biases.
        if moe.biases and gpu.name in HOPPER:
            sides = (1, 64)
    elif dtype.quantized:
        sides = (1, 1)
    takes, inner = moe.latent or model.hidden, -(-moe.expert_ffn // tp)
    hidden, width = (-(-size // side) * side for size, side in zip((takes, inner), sides, strict=True))
    matrices = 3 if model.gated else 2
    one = matrices * (hidden * width - takes * inner) * dtype.bits / 8
    if moe.biases:
        one += 2 * ((matrices - 1) * (width - inner) + hidden - takes)
    if moe.exact_router and gpu.capability and gpu.capability != 90 and family != 10:
        one += 2 * model.hidden
    layers = (model.mlp_layers or model.layers) - moe.dense_layers
    return ceil(layers * moe.experts * one)


def requested_bytes(gpu: GpuSpec, gpu_memory_utilization: float) -> int:
    """Bytes of a GPU's memory that the engine may use."""
    return ceil(gpu_memory_utilization * gpu.memory_bytes)


def layer_bytes(model: ModelSpec, tp: int, batched: int) -> int:
    """Bytes of a layer's largest tensors alive at once on a GPU, in half precision.

    Twice (a product's input and output) the wider of the two wide tensors of a layer, and the residual
    stream.
    """
    # Every GPU projects keys and values for the heads it holds; a gated MLP has gate and up side by side.
    qkv = model.heads // tp + 2 * model.kv_heads_per_gpu(tp)
    mlp = model.ffn * (2 if model.gated else 1)
    wide = max(batched * qkv * model.head_dim, batched * mlp // tp)
    return 2 * 2 * (wide + batched * model.hidden)
