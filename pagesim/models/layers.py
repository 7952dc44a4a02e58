"""Layers: what each layer of a model keeps in memory for previous tokens."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from math import prod
from typing import ClassVar

from pagesim.errors import PagesimError, brief

MOST = 1 << 31
"""A larger size than this is taken for a mistake."""

DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
"""Bytes per element by dtype."""

KV_SCALE_BYTES = {"int8_per_token_head": 4, "fp8_per_token_head": 4}
"""KV dtypes with a scale per key and per value of each head, and that scale's bytes: vLLM 0.33.0 appends a
float32 to each of them (``TritonAttentionBackend.customize_spec``)."""

NVFP4 = "nvfp4"
"""The KV dtype with 4 bits per element and an 8-bit scale per 16 elements."""

KV_DTYPE_BYTES = {
    **{name: DTYPE_BYTES[name] for name in ("fp16", "bf16", "fp8")},
    **dict.fromkeys(KV_SCALE_BYTES, 1),
    NVFP4: 1,
}
"""Bytes of one cached element by KV dtype, rounded up; see `kv_vector_bytes` for a whole key or value."""


def kv_element_bytes(kv_dtype: str) -> int:
    """Return the bytes of one cached element.

    Raises:
        PagesimError: an unknown ``kv_dtype``.
    """
    if kv_dtype not in KV_DTYPE_BYTES:
        raise PagesimError(f"kv_dtype is {kv_dtype!r}; it must be one of {', '.join(KV_DTYPE_BYTES)}")
    return KV_DTYPE_BYTES[kv_dtype]


def kv_vector_bytes(kv_dtype: str, width: int) -> int:
    """Return the bytes of one head's key or value of this width, including its scale if it has one.

    Raises:
        PagesimError: an unknown ``kv_dtype``.
    """
    if kv_dtype == NVFP4:
        return width // 2 + width // 16
    return width * kv_element_bytes(kv_dtype) + KV_SCALE_BYTES.get(kv_dtype, 0)


def kv_heads_per_gpu(kv_heads: int, tp: int, whose: str = "a layer") -> int:
    """Return the key and value heads on each of ``tp`` GPUs; fewer heads than GPUs are replicated.

    Raises:
        PagesimError: the heads cannot be divided evenly over ``tp`` GPUs.
    """
    if tp < 1 or (kv_heads % tp and tp % kv_heads):
        raise PagesimError(
            f"tp is {tp}; {whose} has {kv_heads} kv_heads: it must divide them or be a multiple"
        )
    return max(1, kv_heads // tp)


@dataclass(frozen=True, slots=True)
class FullLayer:
    """Attention over all previous tokens: the keys and values of every token are kept.

    Attributes:
        kv_heads: key and value heads, over all GPUs.
        head_dim: width of one head.

    Raises:
        PagesimError: a size is not a positive whole number; likewise for every other kind of layer.
    """

    kind: ClassVar[str] = "full"
    kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        _check_sizes(self)

    def bytes_per_token(self, kv_dtype: str = "fp16", tp: int = 1) -> int:
        """Return the bytes of a token's keys and values on each of ``tp`` GPUs.

        Raises:
            PagesimError: an unknown ``kv_dtype``, or a ``tp`` that the heads do not allow.
        """
        return 2 * kv_heads_per_gpu(self.kv_heads, tp) * kv_vector_bytes(kv_dtype, self.head_dim)


@dataclass(frozen=True, slots=True)
class WindowLayer(FullLayer):
    """Attention over the last ``window`` tokens, including the token itself.

    Attributes:
        token_bytes: bytes per token if a special layout fixes them regardless of heads; else 0.
        block_size: tokens per block if the layer's kernel fixes them; else 0.
        alignment: bytes to a multiple of which a page is padded.
    """

    kind: ClassVar[str] = "window"
    window: int
    token_bytes: int = 0
    block_size: int = 0
    alignment: int = 1

    def bytes_per_token(self, kv_dtype: str = "fp16", tp: int = 1) -> int:
        """Return the bytes of a token on each of ``tp`` GPUs.

        Raises:
            PagesimError: an unknown ``kv_dtype``, or a ``tp`` that the heads do not allow.
        """
        return self.token_bytes or FullLayer.bytes_per_token(self, kv_dtype, tp)


@dataclass(frozen=True, slots=True)
class ChunkLayer(FullLayer):
    """Attention within chunks: over the tokens since the last multiple of ``chunk`` (Llama 4)."""

    kind: ClassVar[str] = "chunk"
    chunk: int


@dataclass(frozen=True, slots=True)
class LatentLayer:
    """Multi-head latent attention over all previous tokens: one vector per token, whole on every GPU.

    Attributes:
        width: elements of the vector, including its rotary part.
        token_bytes: bytes per vector if a special layout fixes them regardless of the KV dtype; else 0.
        fp8_bytes: bytes per vector if a special layout fixes them for fp8 only; else 0.
        tokens_per_state: tokens that share one vector (4 or 128 in DeepSeek V4).
        alignment: bytes to a multiple of which a page is padded.
    """

    kind: ClassVar[str] = "latent"
    width: int
    token_bytes: int = 0
    fp8_bytes: int = 0
    tokens_per_state: int = 1
    alignment: int = 1

    def __post_init__(self) -> None:
        _check_sizes(self)

    def bytes_per_token(self, kv_dtype: str = "fp16", tp: int = 1) -> int:
        """Return the bytes of a vector on each GPU.

        Raises:
            PagesimError: an unknown ``kv_dtype``, or one with scales for parts of a vector, which no kernel
                for latent vectors supports in vLLM 0.33.0.
        """
        if kv_dtype in KV_SCALE_BYTES or kv_dtype == NVFP4:
            raise PagesimError(
                f"kv_dtype is {kv_dtype}, and no kernel of vLLM keeps latent vectors (MLA) so: choose fp16, "
                "bf16 or fp8"
            )
        of_fp8 = self.fp8_bytes if kv_dtype == "fp8" else 0
        return self.token_bytes or of_fp8 or self.width * kv_element_bytes(kv_dtype)


@dataclass(frozen=True, slots=True)
class IndexerLayer:
    """The indexer of sparse attention: keys by which it selects the tokens that attention reads.

    Attributes:
        token_bytes: bytes per key, including its scale.
        tokens_per_state: tokens that share one key.
        alignment: bytes to a multiple of which a page is padded.
    """

    kind: ClassVar[str] = "indexer"
    token_bytes: int
    tokens_per_state: int = 1
    alignment: int = 1

    def __post_init__(self) -> None:
        _check_sizes(self)

    def bytes_per_token(self, kv_dtype: str = "fp16", tp: int = 1) -> int:
        """Return the bytes of a key on each GPU, regardless of the KV dtype."""
        return self.token_bytes


@dataclass(frozen=True, slots=True)
class RingLayer:
    """A ring buffer of the last ``block_size`` tokens: one block per request, never shared.

    It holds the tokens that an indexer has not yet combined into one key (GLM-5.3-Flash).
    """

    kind: ClassVar[str] = "ring"
    block_size: int
    token_bytes: int

    def __post_init__(self) -> None:
        _check_sizes(self)

    def bytes_per_token(self, kv_dtype: str = "fp16", tp: int = 1) -> int:
        """Return the bytes of a token on each GPU, regardless of the KV dtype."""
        return self.token_bytes


@dataclass(frozen=True, slots=True)
class StateLayer:
    """A recurrent layer: a state of fixed size, however many tokens came before.

    The channels of ``conv`` and the heads of ``state`` are divided over GPUs.

    Attributes:
        conv: shape of the convolution's state, [tokens, channels].
        state: shape of the recurrent state, [heads or channels, …].
        conv_dtype, state_dtype: dtypes of their elements.
        checkpoint: tokens at whose multiples the kernels can save a state within a prompt; None if they
            cannot.
        always: whether they can do so even in a model with layers that cannot (Mamba-2 in vLLM).
        whole: channels of ``conv`` that every GPU keeps: the 2 · state channels of Mamba-2 with a single
            group, which the heads of all GPUs read.
        kernel_chunk: tokens that SGLang's kernel computes at once, at whose multiples it can save a state;
            layers that differ only in this are equal.
        named_dtype: dtype of ``state`` in SGLang, the config's ``mamba_ssm_dtype``; empty if not given.
    """

    kind: ClassVar[str] = "state"
    conv: tuple[int, int]
    state: tuple[int, ...]
    conv_dtype: str = "bf16"
    state_dtype: str = "bf16"
    checkpoint: int | None = None
    always: bool = False
    whole: int = 0
    kernel_chunk: int = field(default=64, compare=False)
    named_dtype: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        _check_sizes(self)
        _check_size(self, "kernel_chunk", self.kernel_chunk)
        if self.checkpoint is not None:
            _check_size(self, "checkpoint", self.checkpoint)
        for name, least in (("conv", 0), ("state", 1)):
            shape = getattr(self, name)
            if not isinstance(shape, tuple) or not shape or (name == "conv" and len(shape) != 2):
                wanted = "[tokens, channels]" if name == "conv" else "[heads or channels, …]"
                raise PagesimError(f"state layer: {name} is {brief(shape)}; it must be {wanted}")
            for size in shape:
                _check_size(self, name, size, least)
        for name in ("conv_dtype", "state_dtype", *(["named_dtype"] if self.named_dtype else [])):
            if getattr(self, name) not in DTYPE_BYTES:
                raise PagesimError(
                    f"state layer: {name} is {brief(getattr(self, name))}; it must be one of "
                    f"{', '.join(DTYPE_BYTES)}"
                )
        if self.whole > self.conv[1]:
            raise PagesimError(
                f"state layer: whole is {self.whole}; it must be at most the {self.conv[1]} channels of conv"
            )

    def speculating(self, drafts: int) -> StateLayer:
        """Return the layer for verifying ``drafts`` draft tokens: one more row of ``conv`` for each.

        Mamba-1's code adds no rows (vLLM 0.33.0, ``MambaStateShapeCalculator``).
        """
        tokens, channels = self.conv
        if channels:
            return replace(self, conv=(tokens + drafts, channels)) if len(self.state) == 3 else self
        # Without a separate conv state, the rows are in ``state``.
        return self if len(self.state) == 3 else replace(self, state=(self.state[0], self.state[1] + drafts))

    def state_bytes(self, tp: int = 1) -> int:
        """Return the bytes of both states on each of ``tp`` GPUs.

        Raises:
            PagesimError: the channels or the heads cannot be divided evenly over ``tp`` GPUs.
        """
        tokens, channels = self.conv
        heads, *each = self.state
        if tp < 1 or (channels - self.whole) % tp or heads % tp:
            raise PagesimError(
                f"tp is {tp}; a layer's state has {channels - self.whole} channels and {heads} heads to "
                "share: it must divide both"
            )
        conv = tokens * ((channels - self.whole) // tp + self.whole) * DTYPE_BYTES[self.conv_dtype]
        return conv + prod((heads // tp, *each)) * DTYPE_BYTES[self.state_dtype]


AttentionLayer = FullLayer | WindowLayer | ChunkLayer | LatentLayer | IndexerLayer | RingLayer
"""A layer that keeps data for every token, or for the last ones."""

Layer = AttentionLayer | StateLayer


def kept_per_token(layer: AttentionLayer, kv_dtype: str = "fp16", tp: int = 1) -> int:
    """Return the mean bytes per token that a layer keeps on each of ``tp`` GPUs, rounded up.

    Raises:
        PagesimError: as for the layer's ``bytes_per_token``.
    """
    tokens = layer.tokens_per_state if isinstance(layer, LatentLayer | IndexerLayer) else 1
    return -(-layer.bytes_per_token(kv_dtype, tp) // tokens)


def page_bytes(layer: AttentionLayer, tokens: int, kv_dtype: str = "fp16", tp: int = 1) -> int:
    """Return the bytes that a block of ``tokens`` tokens needs for a layer on each of ``tp`` GPUs.

    Raises:
        PagesimError: as for the layer's ``bytes_per_token``.
    """
    states, alignment = tokens, 1
    if isinstance(layer, LatentLayer | IndexerLayer):
        states, alignment = tokens // layer.tokens_per_state, layer.alignment
    elif isinstance(layer, WindowLayer):
        alignment = layer.alignment
    return -(-states * layer.bytes_per_token(kv_dtype, tp) // alignment) * alignment


def _check_sizes(layer: Layer) -> None:
    """Refuse a size that is not a whole number of at least 1, or 0 where that is the default."""
    for f in fields(layer):
        if f.type == "int":
            _check_size(layer, f.name, getattr(layer, f.name), 0 if f.default == 0 else 1)


def _check_size(layer: Layer, name: str, size: object, least: int = 1) -> None:
    if not isinstance(size, int) or isinstance(size, bool) or not least <= size <= MOST:
        raise PagesimError(
            f"{layer.kind} layer: {name} is {brief(size)}; it must be a whole number from {least} to {MOST}"
        )
