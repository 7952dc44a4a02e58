"""Recurrences: shapes of a hybrid model's layers that keep a state instead of keys and values.

Weight shapes are those of transformers' modeling code; states are laid out as in vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pagesim.models.layers import StateLayer
from pagesim.models.parameters import ALL, REST, Tensor, vector


@dataclass(frozen=True, slots=True)
class Mamba1:
    """Mamba (arXiv 2312.00752).

    Attributes:
        inner: number of channels.
        state: state elements per channel.
        conv: width of the convolution, in tokens.
        dt_rank: rank of the time step's projection.
        conv_bias: whether the convolution has a bias.
        proj_bias: whether the input and output projections have biases.
        norms: whether the time step and both selective vectors are normalized (Jamba).
    """

    inner: int
    state: int
    conv: int
    dt_rank: int
    conv_bias: bool = True
    proj_bias: bool = False
    norms: bool = True

    def layer(self, state_dtype: str = "bf16") -> StateLayer:
        """Return the state that a layer keeps."""
        return StateLayer((self.conv - 1, self.inner), (self.inner, self.state), state_dtype=state_dtype)

    def tensors(self, hidden: int, at: Sequence[int]) -> list[Tensor]:
        """Return the tensors of the layers ``at``, in a model with a residual stream of width ``hidden``."""
        selective = self.dt_rank + 2 * self.state
        return [
            Tensor("recurrent", "in_proj", 2 * self.inner, hidden, at, ALL, scales=2),
            Tensor("recurrent", "x_proj", selective, self.inner, at, ALL, by_columns=True),
            Tensor("recurrent", "dt_proj", self.inner, self.dt_rank, at, ALL),
            Tensor("recurrent", "out_proj", hidden, self.inner, at, ALL, by_columns=True),
            Tensor(REST, "A", self.inner, self.state, at, ALL, wide=True),
            vector("conv1d", self.inner * (self.conv + self.conv_bias), at, shards=ALL),
            vector("dt_bias, D", 2 * self.inner, at, shards=ALL),
            vector("in_bias", 2 * self.inner if self.proj_bias else 0, at, shards=ALL),
            vector("out_bias", hidden if self.proj_bias else 0, at),
            vector("norms", selective if self.norms else 0, at),
        ]


@dataclass(frozen=True, slots=True)
class Mamba2:
    """Mamba-2 (arXiv 2405.21060).

    Attributes:
        heads, head_dim: heads of the state and their width; their product is its channels.
        groups: groups of heads that share their selective vectors.
        state: width of a selective vector.
        conv: width of the convolution, in tokens.
        conv_bias: whether the convolution has a bias.
        in_bias, out_bias: whether the input and the output projection have a bias.
        norm: whether the state's output is normalized.
        chunk: tokens that a kernel computes at once.
    """

    heads: int
    head_dim: int
    groups: int
    state: int
    conv: int
    conv_bias: bool = True
    in_bias: bool = False
    out_bias: bool = False
    norm: bool = True
    chunk: int = 256

    @property
    def inner(self) -> int:
        """Channels of the state."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Channels of the convolution: those of the state and both selective vectors of every group."""
        return self.inner + 2 * self.groups * self.state

    def layer(self, state_dtype: str = "bf16") -> StateLayer:
        """Return the state that a layer keeps."""
        return StateLayer(
            (self.conv - 1, self.channels),
            (self.heads, self.head_dim, self.state),
            state_dtype=state_dtype,
            checkpoint=1,
            always=True,
            whole=2 * self.state if self.groups == 1 else 0,
            kernel_chunk=self.chunk,
        )

    def tensors(self, hidden: int, at: Sequence[int]) -> list[Tensor]:
        """Return the tensors of the layers ``at``, in a model with a residual stream of width ``hidden``."""
        # Every GPU with a head of a group holds that group's selective vectors.
        vectors, own = 2 * self.groups * self.state, 2 * self.inner + self.heads
        return [
            Tensor("recurrent", "in_proj", own, hidden, at, ALL, scales=3),
            Tensor("recurrent", "in_proj", vectors, hidden, at, self.groups, scales=2),
            Tensor("recurrent", "out_proj", hidden, self.inner, at, ALL, by_columns=True),
            vector("A", self.heads, at, shards=ALL, wide=True),
            vector("dt_bias, D", 2 * self.heads, at, shards=ALL),
            vector("conv1d", self.inner * (self.conv + self.conv_bias), at, shards=ALL),
            vector("conv1d", vectors * (self.conv + self.conv_bias), at, shards=self.groups),
            vector("in_bias", own if self.in_bias else 0, at, shards=ALL),
            vector("in_bias", vectors if self.in_bias else 0, at, shards=self.groups),
            vector("out_bias", hidden if self.out_bias else 0, at),
            vector("norm", self.inner if self.norm else 0, at, shards=ALL),
        ]


@dataclass(frozen=True, slots=True)
class GatedDeltaNet:
    """Gated DeltaNet (arXiv 2412.06464), as in Qwen3-Next and Qwen3.5.

    Attributes:
        key_heads, key_dim: heads of queries and of keys, and their width.
        value_heads, value_dim: heads of values and their width.
        conv: width of the convolution, in tokens.
    """

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    conv: int

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def layer(self, state_dtype: str = "bf16") -> StateLayer:
        """Return the state that a layer keeps; FlashInfer's kernels can save it every 64 tokens."""
        return StateLayer(
            (self.conv - 1, self.channels),
            (self.value_heads, self.value_dim, self.key_dim),
            state_dtype=state_dtype,
            checkpoint=64,
        )

    def tensors(self, hidden: int, at: Sequence[int]) -> list[Tensor]:
        """Return the tensors of the layers ``at``, in a model with a residual stream of width ``hidden``."""
        values = self.value_heads * self.value_dim
        return [
            Tensor("recurrent", "in_proj", self.channels + values, hidden, at, ALL, scales=4),
            Tensor("recurrent", "in_proj_ba", 2 * self.value_heads, hidden, at, ALL, scales=2),
            Tensor("recurrent", "out_proj", hidden, values, at, ALL, by_columns=True),
            vector("A", self.value_heads, at, shards=ALL, wide=True),
            vector("dt_bias", self.value_heads, at, shards=ALL),
            vector("conv1d", self.channels * self.conv, at, shards=ALL),
            vector("norm", self.value_dim, at),
        ]


@dataclass(frozen=True, slots=True)
class KimiDelta:
    """Kimi Delta Attention (arXiv 2510.26692), as in Kimi-Linear, Kimi K3, Ling 3 and GLM-5.3-Flash.

    Attributes:
        heads, head_dim: heads of queries, keys and values alike, and their width.
        conv: width of the convolutions, in tokens.
        full_gate: whether the output gate is one matrix rather than one down to ``head_dim`` and one up.
        full_decay: likewise for the decay.
        bounded: whether the decay has a lower bound, which FlashKDA's kernels require.
    """

    heads: int
    head_dim: int
    conv: int
    full_gate: bool = False
    full_decay: bool = False
    bounded: bool = False

    @property
    def inner(self) -> int:
        """Channels of queries, of keys and of values."""
        return self.heads * self.head_dim

    def layer(self, state_dtype: str = "fp32") -> StateLayer:
        """Return the state that a layer keeps; FlashKDA's kernels can save it every 16 tokens."""
        return StateLayer(
            (self.conv - 1, 3 * self.inner),
            (self.heads, self.head_dim, self.head_dim),
            state_dtype=state_dtype,
            checkpoint=16 if self.bounded else None,
            always=self.bounded,
        )

    def tensors(self, hidden: int, at: Sequence[int]) -> list[Tensor]:
        """Return the tensors of the layers ``at``, in a model with a residual stream of width ``hidden``."""
        gate, up = ("g_proj", hidden) if self.full_gate else ("g_b_proj", self.head_dim)
        decay, down = ("f_proj", hidden) if self.full_decay else ("f_b_proj", self.head_dim)
        step = 16 if self.full_gate and not self.full_decay else 1
        return [
            Tensor("recurrent", "in_proj", 3 * self.inner, hidden, at, ALL, scales=3),
            # With a full gate but no full decay (Kimi K3), its rows on each GPU are a multiple of 16.
            Tensor("recurrent", "b_proj", self.heads, hidden, at, ALL, own_step=step),
            Tensor("recurrent", "f_a_proj", 0 if self.full_decay else self.head_dim, hidden, at),
            Tensor("recurrent", decay, self.inner, down, at, ALL),
            Tensor("recurrent", "g_a_proj", 0 if self.full_gate else self.head_dim, hidden, at),
            Tensor("recurrent", gate, self.inner, up, at, ALL),
            Tensor("recurrent", "o_proj", hidden, self.inner, at, ALL, by_columns=True),
            vector("A", self.heads, at, shards=ALL, wide=True),
            vector("dt_bias", self.inner, at, shards=ALL, wide=True),
            vector("conv1d", 3 * self.inner * self.conv, at, shards=ALL, wide=True),
            vector("norm", self.head_dim, at),
        ]


@dataclass(frozen=True, slots=True)
class ShortConv:
    """A gated convolution over the last tokens (LFM2); its state is just the convolution's.

    Attributes:
        channels: channels of the convolution.
        conv: width of the convolution, in tokens.
        bias: whether the convolution and the projections have biases.
    """

    channels: int
    conv: int
    bias: bool = False

    def layer(self, state_dtype: str = "bf16") -> StateLayer:
        """Return the state that a layer keeps."""
        return StateLayer((0, 0), (self.channels, self.conv - 1), state_dtype=state_dtype)

    def tensors(self, hidden: int, at: Sequence[int]) -> list[Tensor]:
        """Return the tensors of the layers ``at``, in a model with a residual stream of width ``hidden``."""
        return [
            Tensor("recurrent", "in_proj", 3 * self.channels, hidden, at, ALL, scales=3),
            Tensor("recurrent", "out_proj", hidden, self.channels, at, ALL, by_columns=True),
            vector("conv", self.channels * self.conv, at, shards=ALL),
            vector("conv_bias", 4 * self.channels if self.bias else 0, at, shards=ALL),
            vector("out_bias", hidden if self.bias else 0, at),
        ]


@dataclass(frozen=True, slots=True)
class LightningAttention:
    """Linear attention with one decay per head (arXiv 2401.04658), without a convolution, as in Ling 2.5.

    Attributes:
        conv: width of the convolution: 0, as there is none.
        heads, head_dim: heads of queries, keys and values alike, and their width.
        qk_norm: whether queries and keys are normalized.
    """

    conv: ClassVar[int] = 0
    heads: int
    head_dim: int
    qk_norm: bool = False

    def layer(self, state_dtype: str = "bf16") -> StateLayer:
        """Return the state that a layer keeps."""
        return StateLayer((0, 0), (self.heads, self.head_dim, self.head_dim), state_dtype=state_dtype)

    def tensors(self, hidden: int, at: Sequence[int]) -> list[Tensor]:
        """Return the tensors of the layers ``at``, in a model with a residual stream of width ``hidden``."""
        inner = self.heads * self.head_dim
        return [
            Tensor("recurrent", "query_key_value", 3 * inner, hidden, at, ALL, scales=3),
            Tensor("recurrent", "g_proj", inner, hidden, at, ALL),
            Tensor("recurrent", "dense", hidden, inner, at, ALL, by_columns=True),
            vector("qk_norm", 2 * self.head_dim if self.qk_norm else 0, at),
            vector("g_norm", inner, at, shards=ALL),
        ]


Recurrence = Mamba1 | Mamba2 | GatedDeltaNet | KimiDelta | ShortConv | LightningAttention
