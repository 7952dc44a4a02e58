"""Peak memory in vLLM's profile run apart from the weights: the encoder's, the layers' and the sampler's.

Terms: v1/worker/gpu/model_runner.py, v1/worker/gpu/sample, multimodal/encoder_budget.py of vLLM 0.33.0. The
factors `OF_LAYERS` and `OF_ENCODER` are fitted; docs/make_plan.py compares the estimate with start-up logs.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagesim.models.encoder import Encoder
from pagesim.models.model_spec import ModelSpec

LOGIT_BYTES = 2 + 4 + 4
"""Bytes per logit if FlashInfer samples: the logit, its fp32 copy, and another copy for top-k and top-p."""

SORTED_LOGIT_BYTES = LOGIT_BYTES + 8 + 4 + 4
"""Bytes per logit if PyTorch sorts to sample by top-k and top-p: additionally 64-bit indices, probabilities
and their cumulative sums."""

MASKED_LOGIT_BYTES = LOGIT_BYTES + 4
"""Bytes per logit in releases whose sampler masks its own copy, including 0.33.0 (sample/sampler.py)."""

OF_LAYERS = 1.13
"""Fitted ratio of the profile run's peak to the counted tensors of a layer: residuals, unfreed memory."""

OF_ENCODER = 1.15
"""The same ratio for the encoder's tensors."""


@dataclass(frozen=True, slots=True)
class Images:
    """How a server treats images.

    Attributes:
        tower: whether the vision tower is loaded; not with ``--language-model-only``.
        tried: whether the profile run encodes images; not with ``--skip-mm-profiling``.
        max_pixels: pixels of the largest image (``--mm-processor-kwargs``); None for the preprocessor's own.
    """

    tower: bool = True
    tried: bool = True
    max_pixels: int | None = None


USUAL = Images()
"""A server's default treatment of images."""


def peak(
    model: ModelSpec,
    tp: int,
    batched: int,
    sequences: int,
    logit_bytes: int,
    images: Images,
    *,
    is_first: bool = True,
    is_last: bool = True,
) -> int:
    """Return the peak bytes alive on a GPU in the profile run.

    Encoder, layers and sampler run one after another; the encoder's output stays alive until the end.

    Args:
        model: the model.
        tp: tensor-parallel size.
        batched: tokens of the largest iteration.
        sequences: sequences of the largest iteration.
        logit_bytes: bytes per logit during sampling.
        images: how images are treated.
        is_first: whether the GPU is in the pipeline's first stage, which encodes images.
        is_last: whether the GPU is in the last stage, which samples.
    """
    given, encoding = 0, 0
    if is_first and model.encoder and images.tower and images.tried:
        tokens = _image_tokens(model.encoder, batched, images.max_pixels)
        encoding = int(OF_ENCODER * _encoder_bytes(model.encoder, tokens, tp))
        given = 2 * tokens * model.hidden
    logits = logit_bytes * min(batched, sequences) * model.vocab if is_last else 0
    return max(encoding, given + int(OF_LAYERS * _layer_bytes(model, tp, batched)), given + logits)


def sampler_buffers(model: ModelSpec, sequences: int) -> int:
    """Return the bytes vLLM 0.33.0's sampler keeps: a count and a bit per vocabulary entry and sequence."""
    return sequences * model.vocab * 4 + sequences * model.vocab // 8


def _image_tokens(encoder: Encoder, batched: int, max_pixels: int | None) -> int:
    """Return the tokens of the images that the profile run encodes together."""
    item = encoder.item_tokens if max_pixels is None else encoder.tokens_of(max_pixels)
    return max(1, max(batched, item) // item) * item


def _encoder_bytes(encoder: Encoder, tokens: int, tp: int) -> int:
    """Return bytes of the pixels in fp32 and bf16, the residual and its norm, and the wider tensor pair."""
    wide = max(encoder.hidden * 3 // tp + encoder.hidden, 2 * encoder.ffn // tp)
    return tokens * encoder.merged * (6 * encoder.patch + 2 * (2 * encoder.hidden + wide))


def _layer_bytes(model: ModelSpec, tp: int, batched: int) -> int:
    """Return bytes of a layer's 16-bit tensors: the larger of attention's and the MLP's or experts'."""
    qkv = (model.heads // tp + 2 * model.kv_heads_per_gpu(tp)) * model.head_dim
    gated = 3 if model.gated else 2
    numbers = batched * (gated * model.ffn // tp + 2 * model.hidden)
    if moe := model.moe:
        takes, inner = moe.latent or model.hidden, -(-moe.expert_ffn // tp)
        each = max(2 * inner, takes) + max(inner, takes)
        numbers = batched * (moe.experts_per_token * each + model.hidden + 2 * moe.experts)
    return 2 * max(numbers, batched * 2 * (qkv + model.hidden))
