"""ModelSpec: a decoder-only transformer's shape, and the bytes and operations that follow from it."""

from __future__ import annotations

from dataclasses import dataclass, fields

from pagesim.costs.specs.parameters import Shares, count
from pagesim.errors import PagesimError, brief

MOST = 1 << 31
"""A larger size than this is taken for a mistake."""

MOST_PARTS = 65_536
"""Likewise more layers, heads or experts than this."""

KV_DTYPE_BYTES = {"fp16": 2, "bf16": 2, "fp8": 1}
"""Bytes of one cached element by KV dtype."""


_MAY_BE_0 = ("position_rows", "embedding", "q_lora_rank", "shared_experts", "dense_layers")
_PARTS = ("layers", "heads", "kv_heads", "experts", "experts_per_token", "shared_experts")


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (MLA): keys and values are cached as one latent vector a token and layer.

    ``q_lora_rank`` is 0 where queries are not compressed. Source: DeepSeek-V2 (arXiv 2405.04434).
    """

    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    q_lora_rank: int = 0


@dataclass(frozen=True, slots=True)
class MixtureOfExperts:
    """MLP layers made of experts, of which a token visits ``experts_per_token`` and every shared one.

    The first ``dense_layers`` layers have one plain MLP of the model's ``ffn`` instead.
    """

    experts: int
    experts_per_token: int
    expert_ffn: int
    shared_experts: int = 0
    dense_layers: int = 0
    correction_bias: bool = False


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only transformer.

    Args:
        name: what users call it.
        layers: transformer layers.
        hidden: width of the residual stream.
        ffn: inner width of the (dense) MLP.
        heads: query heads.
        kv_heads: key and value heads; under MLA this is the number of heads.
        head_dim: width of one head; under MLA that of one value head.
        vocab: rows of the token table, padding rows included.
        max_model_len: the longest sequence it was made for, in tokens.
        source: where these numbers stand, in one line.
        gated: the MLP has a gate (SwiGLU: three matrices) rather than two matrices.
        layer_norm: norms have weight and bias (LayerNorm) rather than a weight alone (RMSNorm).
        norms_per_layer: norms of width ``hidden`` in a layer.
        final_norm: a norm follows the last layer.
        qkv_bias: biases on the query, key and value projections.
        out_bias: a bias on attention's output projection.
        mlp_bias: biases in the MLP.
        qk_norm: a norm of width ``head_dim`` on queries and one on keys.
        position_rows: rows of a learned position table, 0 without one.
        embedding: width of the token table, 0 when it is ``hidden``; otherwise projected in and out.
        tied: the token table serves as the LM head too.
        weight_dtype_bytes: bytes of one weight as served.
        mla: latent attention, or None.
        moe: mixture of experts, or None.

    Raises:
        PagesimError: a size is not a positive whole number, or heads are not a multiple of kv_heads.
    """

    name: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_model_len: int
    source: str
    gated: bool = True
    layer_norm: bool = False
    norms_per_layer: int = 2
    final_norm: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    position_rows: int = 0
    embedding: int = 0
    tied: bool = False
    weight_dtype_bytes: int = 2
    mla: LatentAttention | None = None
    moe: MixtureOfExperts | None = None

    def __post_init__(self) -> None:
        self._check(self)
        if self.mla:
            self._check(self.mla)
        if self.moe:
            self._check(self.moe)
            if self.moe.experts_per_token > self.moe.experts:
                raise PagesimError(
                    f"model {self.name}: experts_per_token is {self.moe.experts_per_token}; it must be at "
                    f"most the {self.moe.experts} experts"
                )
        if self.heads % self.kv_heads:
            raise PagesimError(
                f"model {self.name}: {self.heads} heads cannot share {self.kv_heads} kv_heads evenly"
            )

    def _check(self, part: ModelSpec | LatentAttention | MixtureOfExperts) -> None:
        for f in fields(part):
            if f.type != "int":
                continue
            value = getattr(part, f.name)
            least = 0 if f.name in _MAY_BE_0 else 1
            most = MOST_PARTS if f.name in _PARTS else MOST
            if not least <= value <= most:
                raise PagesimError(
                    f"model {self.name}: {f.name} is {brief(value)}; it must be a positive number, at most "
                    f"{most}"
                )

    @property
    def attention(self) -> str:
        """The kind of attention: MHA, GQA, MQA or MLA."""
        if self.mla:
            return "MLA"
        if self.kv_heads == self.heads:
            return "MHA"
        return "MQA" if self.kv_heads == 1 else "GQA"

    @property
    def parameters(self) -> int:
        """Parameters, exactly, a tied LM head counted once (formula: ``pagesim.costs.specs.parameters``)."""
        return sum(count(self))

    @property
    def active_parameters(self) -> int:
        """Parameters of which one token makes use: only the experts that it visits."""
        return sum(count(self, active=True))

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights, once."""
        return self.parameters * self.weight_dtype_bytes

    def weight_bytes_per_gpu(self, tp: int) -> int:
        """Bytes of weights on the fullest GPU of ``tp`` (see ``parameters.Shares`` for what is divided)."""
        shares: Shares = count(self)
        kv = shares.kv // self.kv_heads * self.kv_heads_per_gpu(tp)
        return (-(-shares.split // tp) + kv + shares.whole) * self.weight_dtype_bytes

    def kv_heads_per_gpu(self, tp: int) -> int:
        """Key and value heads on each of ``tp`` GPUs; fewer heads than GPUs are replicated, as in vLLM.

        Raises:
            PagesimError: the heads cannot be dealt out evenly over ``tp`` GPUs.
        """
        if tp < 1 or self.heads % tp:
            allowed = ", ".join(str(d) for d in range(1, self.heads + 1) if self.heads % d == 0)
            raise PagesimError(
                f"tp is {tp}; {self.name} has {self.heads} heads, so it must be one of {allowed}"
            )
        if self.kv_heads % tp and tp % self.kv_heads:
            raise PagesimError(
                f"tp is {tp}; {self.name} has {self.kv_heads} kv_heads: it must divide them or be a multiple"
            )
        return max(1, self.kv_heads // tp)

    def kv_bytes_per_token(self, kv_dtype: str = "fp16", tp: int = 1) -> int:
        """Bytes of cache that one token takes on each of ``tp`` GPUs, all layers, keys and values.

        MLA keeps one latent vector of kv_lora_rank + qk_rope_head_dim for all heads; every GPU has it whole.

        Raises:
            PagesimError: an unknown ``kv_dtype``, or a ``tp`` that the heads do not allow.
        """
        if kv_dtype not in KV_DTYPE_BYTES:
            raise PagesimError(f"kv_dtype is {kv_dtype!r}; it must be one of {', '.join(KV_DTYPE_BYTES)}")
        heads = self.kv_heads_per_gpu(tp)
        width = self.mla.kv_lora_rank + self.mla.qk_rope_head_dim if self.mla else 2 * heads * self.head_dim
        return self.layers * width * KV_DTYPE_BYTES[kv_dtype]

    @property
    def linear_flops_per_token(self) -> int:
        """Operations of all matrix products with weights for one token, the LM head's included.

        Two per active parameter; the tables that are looked up rather than multiplied do not count.
        """
        table = 0 if self.tied else self.vocab * (self.embedding or self.hidden)
        return 2 * (self.active_parameters - table - self.position_rows * self.hidden)

    @property
    def lm_head_flops_per_token(self) -> int:
        """The LM head's part of ``linear_flops_per_token``, which only tokens that are sampled from need."""
        return 2 * self.vocab * (self.embedding or self.hidden)

    @property
    def attention_flops_per_pair(self) -> int:
        """Operations for one query token against one key token in decoding: QK and PV, all layers and heads.

        MLA decodes in its absorbed form: the latent vector is key (with its rotary part) and value at once.
        """
        if self.mla:
            return 2 * self.layers * self.heads * (2 * self.mla.kv_lora_rank + self.mla.qk_rope_head_dim)
        return 4 * self.layers * self.heads * self.head_dim

    @property
    def prefill_attention_flops_per_pair(self) -> int:
        """The same in a prefill; it differs under MLA alone, which expands keys and values there."""
        if self.mla:
            widths = self.mla.qk_nope_head_dim + self.mla.qk_rope_head_dim + self.mla.v_head_dim
            return 2 * self.layers * self.heads * widths
        return self.attention_flops_per_pair
