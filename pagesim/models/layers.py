"""Layers: what each layer of a model keeps of the tokens before, as far as the memory for it goes."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from math import prod
from typing import ClassVar

from pagesim.errors import PagesimError, brief

MOST = 1 << 31
"""A larger size than this is taken for a mistake."""

DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
"""Bytes of one element by its type."""

KV_SCALE_BYTES = {"int8_per_token_head": 4, "fp8_per_token_head": 4}
"""KV dtypes of which every key and every value of a head has a scale of its own, and the bytes of that: vLLM
0.33.0 keeps a float32 behind each of them (``TritonAttentionBackend.customize_spec``)."""

NVFP4 = "nvfp4"
"""The KV dtype of 4 bits an element, of which 16 have a scale of 8."""

KV_DTYPE_BYTES = {
    **{name: DTYPE_BYTES[name] for name in ("fp16", "bf16", "fp8")},
    **dict.fromkeys(KV_SCALE_BYTES, 1),
    NVFP4: 1,
}
"""Bytes of one cached element by KV dtype, rounded up; `kv_vector_bytes` has those of a key or value."""


def kv_element_bytes(kv_dtype: str) -> int:
    """Return the bytes of one cached element.

    Raises:
        PagesimError: an unknown ``kv_dtype``.
    """
    if kv_dtype not in KV_DTYPE_BYTES:
        raise PagesimError(f"kv_dtype is {kv_dtype!r}; it must be one of {', '.join(KV_DTYPE_BYTES)}")
    return KV_DTYPE_BYTES[kv_dtype]


def kv_vector_bytes(kv_dtype: str, width: int) -> int:
    """Return the bytes of one key or value of a head of this width, its scale included where it has one.

    Raises:
        PagesimError: an unknown ``kv_dtype``.
    """
    if kv_dtype == NVFP4:
        return width // 2 + width // 16
    return width * kv_element_bytes(kv_dtype) + KV_SCALE_BYTES.get(kv_dtype, 0)


def kv_heads_per_gpu(kv_heads: int, tp: int, whose: str = "a layer") -> int:
    """Return the key and value heads on each of ``tp`` GPUs; fewer heads than GPUs are replicated.

    Raises:
        PagesimError: the heads cannot be dealt out evenly over ``tp`` GPUs.
    """
    if tp < 1 or (kv_heads % tp and tp % kv_heads):
        raise PagesimError(
            f"tp is {tp}; {whose} has {kv_heads} kv_heads: it must divide them or be a multiple"
        )
    return max(1, kv_heads // tp)


@dataclass(frozen=True, slots=True)
class FullLayer:
    """Attention over all tokens before: keys and values of every token are kept.

    Attributes:
        kv_heads: key and value heads on all GPUs together.
        head_dim: width of one head.

    Raises:
        PagesimError: of this and any other kind of layer, a size is no positive whole number.
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
    """Attention over the last ``window`` tokens, the token itself included.

    Attributes:
        token_bytes: bytes of a token where a layout of its own fixes them, whatever the heads; else 0.
        block_size: tokens of a block where the layer's kernel fixes them; else 0.
        alignment: bytes of which a page is made a multiple.
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
    """Multi-head latent attention over all tokens before: one vector a token, whole on every GPU.

    Attributes:
        width: elements of the vector, its rotary part included.
        token_bytes: bytes of it where a layout of its own fixes them, whatever the type of the cache; else 0.
        fp8_bytes: bytes of it where a layout of its own fixes them in fp8 alone; else 0.
        tokens_per_state: tokens of which one vector is kept (DeepSeek V4 makes one of 4 or of 128).
        alignment: bytes of which a page is made a multiple.
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
            PagesimError: an unknown ``kv_dtype``, or one that scales parts of a vector: in vLLM 0.33.0 no
                kernel for latent vectors takes it.
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
    """The indexer of sparse attention: a key of ``token_bytes`` bytes, by which it picks what is read.

    Attributes:
        token_bytes: bytes of a key, its scale included.
        tokens_per_state: tokens of which one key is kept.
        alignment: bytes of which a page is made a multiple.
    """

    kind: ClassVar[str] = "indexer"
    token_bytes: int
    tokens_per_state: int = 1
    alignment: int = 1

    def __post_init__(self) -> None:
        _check_sizes(self)

    def bytes_per_token(self, kv_dtype: str = "fp16", tp: int = 1) -> int:
        """Return the bytes of a key on each GPU, whatever the type of the cache."""
        return self.token_bytes


@dataclass(frozen=True, slots=True)
class RingLayer:
    """The last ``block_size`` tokens in one block a request, which no other request shares.

    They are those that an indexer has not made one key of yet (GLM-5.3-Flash).
    """

    kind: ClassVar[str] = "ring"
    block_size: int
    token_bytes: int

    def __post_init__(self) -> None:
        _check_sizes(self)

    def bytes_per_token(self, kv_dtype: str = "fp16", tp: int = 1) -> int:
        """Return the bytes of a token on each GPU, whatever the type of the cache."""
        return self.token_bytes


@dataclass(frozen=True, slots=True)
class StateLayer:
    """A recurrent layer: a state of one size, however many tokens came before.

    GPUs share the channels of ``conv`` and the heads of ``state``.

    Attributes:
        conv: shape of the convolution's state, [tokens, channels].
        state: shape of the recurrent state, [heads or channels, …].
        conv_dtype, state_dtype: types of their elements.
        checkpoint: where the kernels can leave a state behind within a prompt: at every multiple of so many
            tokens; None where they cannot.
        always: whether they can even beside layers that cannot (Mamba-2 in vLLM).
        whole: of the channels of ``conv``, those that every GPU keeps: of Mamba-2 with a single group, its
            2 · state channels, which the heads of all GPUs read.
        kernel_chunk: tokens that a kernel of SGLang's computes at once, at multiples of which it can leave a
            state behind; layers that differ in it alone keep the same.
        named_dtype: type of ``state`` that SGLang takes, the config's ``mamba_ssm_dtype``; empty without one.
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
        """Return the layer where so many drafts are verified: a row more of the convolution for each.

        Mamba-1's code keeps none of them (vLLM 0.33.0, ``MambaStateShapeCalculator``).
        """
        tokens, channels = self.conv
        if channels:
            return replace(self, conv=(tokens + drafts, channels)) if len(self.state) == 3 else self
        # Of a convolution alone the state has its rows.
        return self if len(self.state) == 3 else replace(self, state=(self.state[0], self.state[1] + drafts))

    def state_bytes(self, tp: int = 1) -> int:
        """Return the bytes of both on each of ``tp`` GPUs.

        Raises:
            PagesimError: the channels or the heads cannot be dealt out evenly over ``tp`` GPUs.
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
"""A layer that keeps something of every token, or of the last ones."""

Layer = AttentionLayer | StateLayer


def kept_per_token(layer: AttentionLayer, kv_dtype: str = "fp16", tp: int = 1) -> int:
    """Return the bytes that a layer keeps of a token on each of ``tp`` GPUs, on average, rounded up.

    Raises:
        PagesimError: as for the layer's ``bytes_per_token``.
    """
    tokens = layer.tokens_per_state if isinstance(layer, LatentLayer | IndexerLayer) else 1
    return -(-layer.bytes_per_token(kv_dtype, tp) // tokens)


def page_bytes(layer: AttentionLayer, tokens: int, kv_dtype: str = "fp16", tp: int = 1) -> int:
    """Return the bytes that a layer fills of a block of so many tokens on each of ``tp`` GPUs.

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
    """Refuse a size that is no whole number from 1, or from 0 where that says that there is none."""
    for f in fields(layer):
        if f.type == "int":
            _check_size(layer, f.name, getattr(layer, f.name), 0 if f.default == 0 else 1)


def _check_size(layer: Layer, name: str, size: object, least: int = 1) -> None:
    if not isinstance(size, int) or isinstance(size, bool) or not least <= size <= MOST:
        raise PagesimError(
            f"{layer.kind} layer: {name} is {brief(size)}; it must be a whole number from {least} to {MOST}"
        )
