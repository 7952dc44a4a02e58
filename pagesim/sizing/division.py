"""How vLLM divides a GPU's memory into weights, activations, CUDA graphs and the KV cache.

vLLM measures all but the weights at startup; here they are estimated. docs/reference/plan.md compares the
estimate with start-up logs that users posted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from pagesim.errors import PagesimError
from pagesim.hardware.gpus import GIB, GpuSpec
from pagesim.models.model_spec import ModelSpec
from pagesim.models.parallel import balancer_bytes, stage_weight_bytes
from pagesim.sizing.activations import (
    LOGIT_BYTES,
    MASKED_LOGIT_BYTES,
    SORTED_LOGIT_BYTES,
    USUAL,
    Images,
    peak,
    sampler_buffers,
)
from pagesim.sizing.adapters import NO_ADAPTERS, Adapters, adapter_bytes
from pagesim.sizing.block_pages import at_least_one
from pagesim.sizing.kernel_blocks import HOPPER, OTHER_VENDOR

BATCHED_TOKENS = 2048
SEQUENCES = 256

GRAPHS, FEW_GRAPHS = int(0.55 * GIB), int(0.15 * GIB)
"""Bytes of CUDA graphs with ``max_num_seqs`` of at least 256, and with fewer: medians of logs of models up to
30 billion parameters. They do not grow with the GPU."""

OTHER_BYTES = int(0.3 * GIB)
"""Bytes of all but weights, activations and graphs: growth of the CUDA context, cuBLAS, kernel modules.
Fitted, to a twentieth of a GiB, to one half of the posted logs."""

LINKED_BYTES = int(0.9 * GIB)
"""Additional bytes if Hopper or Blackwell GPUs share a model over NVLink: NCCL, symmetric memory, custom
all-reduce. Logs show 0.95 and 1.38 GiB, and nothing on Ampere."""


POSTED = {False: (21, 0.06, 0.79), True: (5, 1.36, 0.24)}
"""Posted startup logs compared with the estimate, without and with a vision tower: how many, the median error
in GiB, and the largest error without a named cause (docs/make_plan.py)."""


@dataclass(frozen=True, slots=True)
class Division:
    """How each GPU's memory is divided, in bytes.

    Args:
        memory: device memory.
        requested: part of it that the engine may use.
        weights: weights on the fullest GPU; exact.
        activations: peak of the activations in the largest iteration; estimated.
        graphs: CUDA graphs; estimated, 0 if none are captured or the engine does not count them.
        other: everything else; estimated.
        adapters: memory reserved for adapters (LoRA).
        drafter: additional weights of the drafter; estimated.
    """

    memory: int
    requested: int
    weights: int
    activations: int
    graphs: int
    other: int
    adapters: int = 0
    drafter: int = 0

    @property
    def cache(self) -> int:
        """Bytes left for the cache; negative if everything else exceeds ``requested``."""
        used = self.weights + self.drafter + self.adapters + self.activations + self.graphs + self.other
        return self.requested - used


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """The options of a vLLM server that decide how it divides a GPU's memory.

    Args:
        gpu_memory_utilization: fraction of memory that may be used, in (0, 1].
        max_num_batched_tokens: tokens of the largest iteration; `BATCHED_TOKENS` if left out.
        max_num_seqs: sequences of the largest iteration; `SEQUENCES` if left out.
        cuda_graphs: whether graphs are captured and counted (vLLM counts them since 0.21).
        flashinfer_sampler: whether FlashInfer samples; otherwise PyTorch sorts, at 26 bytes per logit.
        sampler_buffers: whether the sampler keeps buffers and masks a copy of the logits, as in 0.33.0.
        images: how images are treated by a model with a vision tower.
        adapters: adapters for which memory is reserved.
        offloaded: bytes of weights that each GPU reads from host memory.
        drafter_bytes: bytes of the drafter's weights on each GPU of the last stage.

    Raises:
        PagesimError: an option is out of bounds.
    """

    gpu_memory_utilization: float = 0.9
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    cuda_graphs: bool = True
    flashinfer_sampler: bool = True
    sampler_buffers: bool = False
    images: Images = USUAL
    adapters: Adapters = NO_ADAPTERS
    offloaded: int = 0
    drafter_bytes: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.gpu_memory_utilization <= 1:
            raise PagesimError(
                f"gpu_memory_utilization is {self.gpu_memory_utilization}; it must be above 0 and at most 1"
            )
        at_least_one(max_num_batched_tokens=self.max_num_batched_tokens, max_num_seqs=self.max_num_seqs)


USUAL_OPTIONS = MemoryOptions()
"""The defaults of a server."""


def divide(
    model: ModelSpec,
    gpu: GpuSpec,
    options: MemoryOptions = USUAL_OPTIONS,
    *,
    tp: int = 1,
    layers: range | None = None,
) -> Division:
    """Divide the memory of each of ``tp`` GPUs as vLLM does.

    Activations are the peak of its profile run (`activations.peak`).

    Args:
        model: the model.
        gpu: the GPU.
        options: server options.
        tp: GPUs over which weights are divided.
        layers: layers of the GPUs' pipeline stage; all layers if left out.
    """
    layers = range(model.layers) if layers is None else layers
    is_first, is_last = layers.start == 0, layers.stop == model.layers
    batched, sequences = options.max_num_batched_tokens or BATCHED_TOKENS, options.max_num_seqs or SEQUENCES
    if not options.images.tower:
        model = replace(model, tower=0, tower_whole=0, encoder=None)
    logit_bytes = MASKED_LOGIT_BYTES if options.sampler_buffers else LOGIT_BYTES
    logit_bytes = logit_bytes if options.flashinfer_sampler else SORTED_LOGIT_BYTES
    other = OTHER_BYTES + (sampler_buffers(model, sequences) if options.sampler_buffers and is_last else 0)
    if tp > 1 and (gpu.capability or 0) >= 90 and gpu.peer.bytes_per_s > gpu.host.bytes_per_s:
        other += LINKED_BYTES
    beside = expert_padding(model, gpu, tp, layers) + balancer_bytes(model, tp, layers)
    graphs = GRAPHS if sequences >= SEQUENCES else FEW_GRAPHS
    return Division(
        memory=gpu.memory_bytes,
        requested=requested_bytes(gpu, options.gpu_memory_utilization),
        weights=max(0, stage_weight_bytes(model, tp, layers) + beside - options.offloaded),
        activations=peak(
            *(model, tp, batched, sequences, logit_bytes, options.images), is_first=is_first, is_last=is_last
        ),
        graphs=graphs if options.cuda_graphs else 0,
        other=other,
        adapters=adapter_bytes(model, options.adapters, tp, layers),
        drafter=options.drafter_bytes if is_last else 0,
    )


def expert_padding(model: ModelSpec, gpu: GpuSpec, tp: int, stage: range) -> int:
    """Return the bytes per GPU by which vLLM 0.33.0 pads experts and routers for the GPU's kernels.

    In MXFP4, Marlin's and TensorRT-LLM's kernels round the hidden width up to a multiple of 256 and a GPU's
    share of the inner width to one of 128. Triton's round only the latter, to one of 64; ROCm's round both
    to multiples of 256 (``layers/fused_moe/oracle/mxfp4.py``). In 16 bits, TensorRT-LLM's kernels on server
    Blackwell GPUs round the inner width to a multiple of 128 (``oracle/unquantized.py``). Nemotron's routers
    have 32 bits where no kernel computes exactly from 16 bits (``router/gate_linear.py``).
    """
    moe = model.moe
    if moe is None:
        return 0
    family, dtype = (gpu.capability or 0) // 10, model.weights.experts
    # Such kernels support neither biases nor Gemma 4's activation.
    sides = (1, 128 if family == 10 and not moe.beside and not moe.biases else 1)
    if dtype.name.startswith("mxfp4"):
        sides = (256, 256) if gpu.capability == OTHER_VENDOR else (256, 128)
        # Of the models with MXFP4 experts, only gpt-oss has biases.
        if moe.biases and gpu.capability == HOPPER:
            sides = (1, 64)
    elif dtype.quantized:
        sides = (1, 1)
    shards, experts = model.expert_shares(tp)
    takes, inner = moe.latent or model.hidden, -(-moe.expert_ffn // shards)
    hidden, width = (-(-size // side) * side for size, side in zip((takes, inner), sides, strict=True))
    matrices = 3 if model.gated else 2
    one = matrices * (hidden * width - takes * inner) * dtype.bits / 8
    if moe.biases:
        one += 2 * ((matrices - 1) * (width - inner) + hidden - takes)
    if moe.exact_router and gpu.capability and gpu.capability != HOPPER and family != 10:
        one += 2 * model.hidden
    sparse = model.sparse or range(model.mlp_layers or model.layers)[moe.dense_layers :]
    return ceil(sum(layer in stage for layer in sparse) * experts * one)


def requested_bytes(gpu: GpuSpec, gpu_memory_utilization: float) -> int:
    """Return the bytes of a GPU's memory that the engine may use."""
    return ceil(gpu_memory_utilization * gpu.memory_bytes)


def layer_bytes(model: ModelSpec, tp: int, batched: int) -> int:
    """Return the peak bytes of a layer's largest tensors on a GPU, in half precision.

    This is twice (for a product's input and output) the sum of the layer's wider tensor and the residual
    stream.
    """
    # Every GPU projects keys and values for its own heads; a gated MLP computes gate and up side by side.
    qkv = model.heads // tp + 2 * model.kv_heads_per_gpu(tp)
    mlp = model.ffn * (2 if model.gated else 1)
    wide = max(batched * qkv * model.head_dim, batched * mlp // tp)
    return 2 * 2 * (wide + batched * model.hidden)
