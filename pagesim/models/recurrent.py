"""Recurrences: what the layers of a hybrid model hold that keep a state and no keys and values.

Shapes are those of transformers' modeling code, states as vLLM lays them out.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagesim.models.layers import StateLayer
from pagesim.models.parameters import Shares


@dataclass(frozen=True, slots=True)
class Mamba1:
    """Mamba (arXiv 2312.00752).

    Attributes:
        inner: channels.
        state: numbers kept per channel.
        conv: width of the convolution, in tokens.
        dt_rank: rank of the time step's projection.
        conv_bias: the convolution has a bias.
        proj_bias: the projections in and out have one.
        norms: time step and both selective vectors are normed (Jamba).
    """

    inner: int
    state: int
    conv: int
    dt_rank: int
    conv_bias: bool = True
    proj_bias: bool = False
    norms: bool = True

    def layer(self, state_dtype: str = "bf16") -> StateLayer:
        """Return what a layer keeps."""
        return StateLayer((self.conv - 1, self.inner), (self.inner, self.state), state_dtype=state_dtype)

    def weights(self, hidden: int) -> tuple[Shares, int]:
        """Return a layer's matrices, and the parameters beside them."""
        split = 3 * hidden * self.inner  # in, for the gate too, and out
        split += self.inner * (self.dt_rank + 2 * self.state) + self.dt_rank * self.inner
        split += self.inner * (self.conv + self.state)
        whole = self.inner * (2 + self.conv_bias)  # of the time step, the skip, the convolution
        whole += (2 * self.inner + hidden) if self.proj_bias else 0
        whole += (self.dt_rank + 2 * self.state) if self.norms else 0
        return Shares(split), whole


@dataclass(frozen=True, slots=True)
class Mamba2:
    """Mamba-2 (arXiv 2405.21060).

    Attributes:
        heads, head_dim: of the state; together its channels.
        groups: of heads that share their selective vectors.
        state: width of a selective vector.
        conv: width of the convolution, in tokens.
        conv_bias: the convolution has a bias.
        in_bias, out_bias: the projections in and out have one.
        norm: what leaves the state is normed.
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

    @property
    def inner(self) -> int:
        """Channels of the state."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Channels of the convolution: those of the state and both selective vectors of every group."""
        return self.inner + 2 * self.groups * self.state

    def layer(self, state_dtype: str = "bf16") -> StateLayer:
        """Return what a layer keeps."""
        return StateLayer(
            (self.conv - 1, self.channels),
            (self.heads, self.head_dim, self.state),
            state_dtype=state_dtype,
            checkpoint=1,
            always=True,
            whole=2 * self.state if self.groups == 1 else 0,
        )

    def weights(self, hidden: int) -> tuple[Shares, int]:
        """Return a layer's matrices, and the parameters beside them."""
        into = self.inner + self.channels + self.heads
        split = hidden * into + self.inner * hidden + self.channels * self.conv
        whole = 3 * self.heads + self.channels * self.conv_bias  # decay, time step, skip
        whole += into * self.in_bias + hidden * self.out_bias + self.inner * self.norm
        # Selective vectors of one group are those of every GPU's heads.
        alike = 2 * self.state * (hidden + self.conv) if self.groups == 1 else 0
        return Shares(split - alike, 0, alike), whole


@dataclass(frozen=True, slots=True)
class GatedDeltaNet:
    """Gated DeltaNet (arXiv 2412.06464), as in Qwen3-Next and Qwen3.5.

    Attributes:
        key_heads, key_dim: of queries and of keys.
        value_heads, value_dim: of values.
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
        """Return what a layer keeps; FlashInfer's kernels leave a state behind every 64 tokens."""
        return StateLayer(
            (self.conv - 1, self.channels),
            (self.value_heads, self.value_dim, self.key_dim),
            state_dtype=state_dtype,
            checkpoint=64,
        )

    def weights(self, hidden: int) -> tuple[Shares, int]:
        """Return a layer's matrices, and the parameters beside them."""
        values = self.value_heads * self.value_dim
        into = self.channels + values + 2 * self.value_heads  # with the output's gate, decay and step size
        split = hidden * into + values * hidden + self.channels * self.conv
        return Shares(split), 2 * self.value_heads + self.value_dim


@dataclass(frozen=True, slots=True)
class KimiDelta:
    """Kimi Delta Attention (arXiv 2510.26692), as in Kimi-Linear, Kimi K3 and GLM-5.3-Flash.

    Attributes:
        heads, head_dim: of queries, keys and values alike.
        conv: width of the convolutions, in tokens.
        full_gate: the output's gate is one matrix rather than one down to ``head_dim`` and one up.
        bounded: the decay has a bound below, as FlashKDA's kernels need it.
    """

    heads: int
    head_dim: int
    conv: int
    full_gate: bool = False
    bounded: bool = False

    @property
    def inner(self) -> int:
        """Channels of queries, of keys and of values."""
        return self.heads * self.head_dim

    def layer(self, state_dtype: str = "fp32") -> StateLayer:
        """Return what a layer keeps; FlashKDA's kernels leave a state behind every 16 tokens."""
        return StateLayer(
            (self.conv - 1, 3 * self.inner),
            (self.heads, self.head_dim, self.head_dim),
            state_dtype=state_dtype,
            checkpoint=16 if self.bounded else None,
            always=self.bounded,
        )

    def weights(self, hidden: int) -> tuple[Shares, int]:
        """Return a layer's matrices, and the parameters beside them."""
        split = 4 * hidden * self.inner + 3 * self.inner * self.conv + hidden * self.heads
        split += self.inner * (hidden if self.full_gate else self.head_dim)
        split += self.inner * self.head_dim  # the decay, up from its rank
        down = hidden * self.head_dim * (1 if self.full_gate else 2)
        return Shares(split, 0, down), self.heads + self.inner + self.head_dim


Recurrence = Mamba1 | Mamba2 | GatedDeltaNet | KimiDelta
