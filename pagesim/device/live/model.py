"""Model: random weights of a model's shapes, and the forward pass of one iteration.

Attention is passed in, so that the same weights run over a paged cache or, to check it, over contiguous
sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor
from torch.nn.functional import embedding, layer_norm, linear, relu, rms_norm, silu

from pagesim.errors import PagesimError
from pagesim.models import ModelSpec

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Called with a layer's index, and queries ``[T, heads, D]``, keys and values ``[T, kv_heads, D]`` of the new
tokens. Stores the keys and values, and returns the attention output, ``[T, heads, D]``."""

_ROTARY_BASE = 10_000.0


@dataclass(frozen=True, slots=True)
class Norm:
    """Weight and, for a LayerNorm, bias; ``[width]`` each."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class Linear:
    """Weight ``[outputs, inputs]`` and bias ``[outputs]`` or None."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Layer:
    """One transformer layer; in a gated MLP, ``up`` holds the gate and up projections together."""

    norms: tuple[Norm, ...]
    head_norms: tuple[Norm, ...]
    qkv: Linear
    out: Linear
    up: Linear
    down: Linear


class Model:
    """A decoder-only transformer with a spec's shapes and random weights.

    Weights are scaled so that activations stay of the order of one. OPT-350M has pre-norms here instead of
    its post-norms, which costs the same.

    Args:
        spec: dense model with one key and value per KV head.
        dtype: data type of weights and activations.
        device: device that holds them.
        longest: tokens of the longest sequence.
        seed: seed of the weights.

    Raises:
        PagesimError: the model has unsupported parts, or too few positions for ``longest`` tokens.
    """

    def __init__(
        self, spec: ModelSpec, *, dtype: torch.dtype, device: torch.device, longest: int, seed: int
    ) -> None:
        check_model(spec, longest)
        self.spec = spec
        self.dtype = dtype
        self.device = device
        self._random = torch.Generator(device).manual_seed(seed)
        hidden, width = spec.hidden, spec.embedding or spec.hidden
        qkv = (spec.heads + 2 * spec.kv_heads) * spec.head_dim
        self.parameters = 0
        self.table = self._draw((spec.vocab, width), 1.0)
        self.head = self.table if spec.tied else self._draw((spec.vocab, width), 1 / sqrt(width))
        self.positions = self._draw((spec.position_rows, hidden), 1.0) if spec.position_rows else None
        # The first rows of OPT's position table are never looked up.
        self._first_position = max(0, spec.position_rows - spec.max_model_len)
        self.widen = self._linear(hidden, width, bias=False) if width != hidden else None
        self.narrow = self._linear(width, hidden, bias=False) if width != hidden else None
        self.layers = [
            Layer(
                norms=tuple(self._norm(hidden, spec.layer_norm) for _ in range(spec.norms_per_layer)),
                head_norms=tuple(self._norm(spec.head_dim, False) for _ in range(2 if spec.qk_norm else 0)),
                qkv=self._linear(qkv, hidden, bias=spec.qkv_bias),
                out=self._linear(hidden, spec.heads * spec.head_dim, bias=spec.out_bias),
                up=self._linear(spec.ffn * (2 if spec.gated else 1), hidden, bias=spec.mlp_bias),
                down=self._linear(hidden, spec.ffn, bias=spec.mlp_bias),
            )
            for _ in range(spec.layers)
        ]
        self.final_norm = self._norm(hidden, spec.layer_norm) if spec.final_norm else None
        self._rotary = None if spec.position_rows else self._angles(longest)

    @torch.inference_mode()
    def forward(
        self, tokens: Tensor, positions: Tensor, last: Tensor, attend: Attend, out: Tensor | None = None
    ) -> Tensor:
        """Compute the new tokens of an iteration.

        Args:
            tokens: token ids, int64 ``[T]``.
            positions: position of each token, int64 ``[T]``.
            last: rows to sample from, int64 ``[S]``.
            attend: stores keys and values, and computes attention.
            out: tensor to write the logits to; by default a new one.

        Returns:
            Logits, ``[S, vocab]``.
        """
        return self.logits(self.hidden(tokens, positions, attend), last, out)

    @torch.inference_mode()
    def hidden(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Run the layers over new tokens, with arguments as in ``forward``; return ``[T, hidden]``."""
        x = embedding(tokens, self.table)
        if self.widen is not None:
            x = self.widen(x)
        if self.positions is not None:
            x = x + embedding(positions + self._first_position, self.positions)
        for number, layer in enumerate(self.layers):
            first = self._normed(x, layer.norms[0])
            attention = layer.out(self._attention(number, layer, first, positions, attend))
            if len(layer.norms) == 1:  # attention and MLP in parallel
                x = x + attention + self._mlp(layer, first)
            else:
                x = x + attention
                x = x + self._mlp(layer, self._normed(x, layer.norms[1]))
        return x

    @torch.inference_mode()
    def logits(self, x: Tensor, last: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the logits ``[S, vocab]`` of rows ``last`` ``[S]`` of the layers' output ``[T, hidden]``."""
        x = x[last]
        if self.final_norm is not None:
            x = self._normed(x, self.final_norm)
        if self.narrow is not None:
            x = self.narrow(x)
        return linear(x, self.head) if out is None else torch.mm(x, self.head.t(), out=out)

    def _attention(self, number: int, layer: Layer, x: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        spec = self.spec
        qkv = layer.qkv(x).view(len(x), spec.heads + 2 * spec.kv_heads, spec.head_dim)
        queries, keys, values = torch.split(qkv, [spec.heads, spec.kv_heads, spec.kv_heads], dim=1)
        if layer.head_norms:
            queries, keys = (
                self._normed(part, norm) for part, norm in zip((queries, keys), layer.head_norms, strict=True)
            )
        if self._rotary is not None:
            cos, sin = self._rotary[:, positions, None]  # [T, 1, D/2] each
            queries, keys = _turned(queries, cos, sin), _turned(keys, cos, sin)
        return attend(number, queries, keys, values).flatten(1)

    def _mlp(self, layer: Layer, x: Tensor) -> Tensor:
        wide = layer.up(x)
        if not self.spec.gated:
            return layer.down(relu(wide))
        gate, up = wide.chunk(2, dim=-1)
        return layer.down(silu(gate) * up)

    def _normed(self, x: Tensor, norm: Norm) -> Tensor:
        if norm.bias is None:
            return rms_norm(x, (x.shape[-1],), norm.weight, 1e-6)
        return layer_norm(x, (x.shape[-1],), norm.weight, norm.bias)

    def _draw(self, shape: tuple[int, ...], scale: float) -> Tensor:
        made = torch.empty(shape, dtype=self.dtype, device=self.device)
        self.parameters += made.numel()
        return made.normal_(0.0, scale, generator=self._random)

    def _linear(self, outputs: int, inputs: int, *, bias: bool) -> Linear:
        weight = self._draw((outputs, inputs), 1 / sqrt(inputs))
        return Linear(weight, self._draw((outputs,), 0.1) if bias else None)

    def _norm(self, width: int, biased: bool) -> Norm:
        self.parameters += width * (2 if biased else 1)
        weight = torch.ones(width, dtype=self.dtype, device=self.device)
        return Norm(weight, torch.zeros_like(weight) if biased else None)

    def _angles(self, longest: int) -> Tensor:
        """Return cosines and sines of rotary positions, ``[2, longest, D/2]``."""
        half = self.spec.head_dim // 2
        speeds = _ROTARY_BASE ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.arange(longest, dtype=torch.float64)[:, None] * speeds
        return torch.stack([angles.cos(), angles.sin()]).to(self.device, self.dtype)


def check_model(spec: ModelSpec, longest: int) -> None:
    """Reject a model that live runs do not support.

    Raises:
        PagesimError: the model has experts, latent attention, layers that do not keep every token, or
            positions for fewer than ``longest`` tokens.
    """
    if spec.moe is not None:
        raise PagesimError(f"model {spec.name} is a mixture of experts; a live run runs dense models only")
    if spec.mla is not None:
        raise PagesimError(
            f"model {spec.name} has latent attention (MLA); a live run runs models with a key and a value "
            "a head only"
        )
    if spec.cached:
        raise PagesimError(
            f"model {spec.name} has layers of other kinds ({spec.layers_in_words}); a live run runs "
            "models of full attention only"
        )
    rows = spec.position_rows - max(0, spec.position_rows - spec.max_model_len)
    if spec.position_rows and longest > rows:
        raise PagesimError(
            f"max_model_len lets a sequence have {longest} tokens; model {spec.name} has positions for {rows}"
        )


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary embedding to ``[T, heads, D]``, pairing the two halves of each head."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
