"""Weight dtypes: bytes per weight including scales, compute types, and which layers have which dtype.

Sources: the checkpoints that vLLM reads (compressed-tensors, GPTQ, AWQ, ModelOpt, FP8 with
``weight_block_size``), and OCP Microscaling Formats (MXFP4).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from math import gcd
from typing import Any, Literal, NamedTuple

from pagesim.errors import PagesimError, brief
from pagesim.models.parameters import Tensor

Compute = Literal["fp16", "fp8", "fp4"]
"""Type of both factors of a matrix product, which the weights' dtype alone does not determine."""

REST_BYTES = 2
"""Bytes of a weight that no checkpoint quantizes: token table, norms, biases, routers."""


class Beside(NamedTuple):
    """Bytes in addition to a tensor's elements and the scales of their groups.

    Attributes:
        matrix, expert: bytes of per-matrix scales, of weights and activations; for experts, the latter.
        module, expert_module: bytes that a linear layer of the engine has once, such as its weights' shape.
    """

    matrix: int = 0
    expert: int = 0
    module: int = 0
    expert_module: int = 0


NOTHING = Beside()

OF_WEIGHTS = Beside(4, 4)
"""A 32-bit scale for the weights."""

OF_TENSORS = Beside(8, 8)
"""A 32-bit scale for the weights and one for the input activations."""


@dataclass(frozen=True, slots=True)
class WeightDtype:
    """The type of a linear layer's weights.

    Attributes:
        name: bf16, fp16, fp8, fp8_block, int8, int4, nvfp4, mxfp4 or mxfp4_mxfp8.
        bits: bits per weight, with its share of its group's scale and zero point. Scales of a whole tensor or
            of a channel are left out: less than 0.1 % of a layer.
        compute: type in which its products are computed on GPUs that support it; others use fp16. It is fp16
            if activations are not quantized.
        block: rows and columns of 8-bit weights that share a scale, rounded up at a matrix's edge; or 0.
        scale: bits of such a scale.
        beside: bytes that ``bits`` does not count.
    """

    name: str
    bits: float = 16
    compute: Compute = "fp16"
    block: tuple[int, int] = (0, 0)
    scale: int = 32
    beside: Beside = NOTHING

    def __post_init__(self) -> None:
        if not 0 < self.bits <= 64:
            raise PagesimError(f"bits of weights in {self.name} are {self.bits}; they must be in (0, 64]")

    @property
    def quantized(self) -> bool:
        """Whether weights have other than 16 bits."""
        return self.name not in ("bf16", "fp16")

    def bytes(self, tensor: Tensor, tp: int) -> float:
        """Return the bytes of a layer's tensor on each of ``tp`` GPUs."""
        rows, columns = tensor.shape(tp)
        bits, beside, is_expert = self.bits * rows * columns, self.beside, tensor.copies > 1
        if all(self.block):
            high, wide = self.block
            inner = columns if tensor.by_columns else rows
            if is_expert and (inner % high or inner % wide):  # vLLM then uses blocks that fit
                high = wide = gcd(high, wide, inner)
            bits = 8 * rows * columns + self.scale * -(-rows // high) * -(-columns // wide)
        if self.name == "nvfp4":  # vLLM stores no scale for a remainder after the last group of 16
            bits -= 8 * rows * (columns % 16 / 16)
        of_matrix, of_module = beside.expert if is_expert else beside.matrix, beside.module
        of_module = beside.expert_module if is_expert else of_module
        return tensor.copies * (bits / 8 + of_matrix * tensor.scales + of_module * tensor.modules)


def with_scales(bits: int, group: int, scale: int, zero: int = 0) -> float:
    """Return the bits per weight including its share of its group's scale and zero point (if any)."""
    return bits + (scale + zero) / group


BF16 = WeightDtype("bf16")

DTYPES = {
    each.name: each
    for each in (
        BF16,
        WeightDtype("fp16"),
        WeightDtype("fp8", 8, "fp8"),
        WeightDtype("fp8_block", with_scales(8, 128 * 128, 32), "fp8", (128, 128)),
        WeightDtype("int8", 8),
        WeightDtype("int4", with_scales(4, 128, 16)),
        WeightDtype("nvfp4", with_scales(4, 16, 8), "fp4"),
        WeightDtype("mxfp4", with_scales(4, 32, 8)),
        WeightDtype("mxfp4_mxfp8", with_scales(4, 32, 8), "fp8"),
    )
}
"""Weight dtypes as in most checkpoints, by name. Activations are quantized on the fly in fp8, fp8_block and
nvfp4, and have 16 bits otherwise; int4 has groups of 128 and no zero point. mxfp4_mxfp8 is an mxfp4
checkpoint whose activations the engine quantizes to mxfp8, as vLLM can on a B200."""


class Part(NamedTuple):
    """The dtype of the tensors of one name in some layers of a ``mixed`` group."""

    group: str
    name: str
    layers: frozenset[int]
    dtype: WeightDtype


@dataclass(frozen=True, slots=True)
class Weights:
    """The dtypes of a model's linear layers; all else, such as the token table, has 2 bytes per weight.

    Attributes:
        attention: dtype of attention's projections.
        recurrent: dtype of recurrent layers' projections.
        mlp: dtype of plain MLPs.
        shared: dtype of shared experts.
        experts: dtype of routed experts.
        head: dtype of the LM head, if it is not the token table.
        mixed: groups whose layers differ in dtype; the group's ``bits`` are then the mean.
        passed_over: whether the config declares quantization in a form that the engine ignores.
        parts: the dtypes in mixed groups; tensors not named there have 16 bits.
        cache_scales: bytes of each attention layer's scales, for the KV cache and for computing.
        unlisted: whether layers differ in dtype, but the config does not list how. 4 bits for experts alone
            are then an estimate.
    """

    attention: WeightDtype = BF16
    recurrent: WeightDtype = BF16
    mlp: WeightDtype = BF16
    shared: WeightDtype = BF16
    experts: WeightDtype = BF16
    head: WeightDtype = BF16
    mixed: tuple[str, ...] = ()
    passed_over: bool = False
    parts: tuple[Part, ...] = ()
    cache_scales: int = 0
    unlisted: bool = False

    def of(self, group: str) -> WeightDtype | None:
        """Return the dtype of a group of layers; None if it is never quantized."""
        return getattr(self, group) if group in GROUPS else None

    def bytes(self, tensor: Tensor, tp: int = 1) -> float:
        """Return the bytes of a tensor, summed over its layers, on each of ``tp`` GPUs."""
        dtype = self.of(tensor.group)
        if dtype is None:
            rows, columns = tensor.shape(tp)
            return rows * columns * tensor.copies * len(tensor.layers) * (4 if tensor.wide else REST_BYTES)
        if tensor.group not in self.mixed:
            return dtype.bytes(tensor, tp) * len(tensor.layers)
        return sum(each.bytes(tensor, tp) * number for number, each in self._parts(tensor))

    def _parts(self, tensor: Tensor) -> Iterator[tuple[int, WeightDtype]]:
        """Yield each dtype of a tensor, preceded by the number of layers that have it."""
        left = len(tensor.layers)
        for part in self.parts:
            if (part.group, part.name) == (tensor.group, tensor.name):
                number = sum(layer in part.layers for layer in tensor.layers)
                left -= number
                yield number, part.dtype
        yield left, BF16

    def notes(self, name: str) -> tuple[str, ...]:
        """Return caveats about the weights for users of the model, one sentence each."""
        found = []
        if self.passed_over:
            found.append(
                f"quantization_config of {name} has no quant_method, so vLLM passes it over: its weights are "
                "counted in bf16"
            )
        if self.unlisted:
            found.append(
                f"quantization_config of {name} says MIXED_PRECISION and has no quantized_layers: put "
                "hf_quant_config.json, which has them, beside its config.json; until then its weights are an "
                "estimate, with experts in nvfp4 and all else in 16 bits"
            )
        if self.mixed:
            found.append(
                f"layers of {name} differ in weight dtype ({', '.join(self.mixed)}): each such group is "
                "counted in the mean of its bits"
            )
        return tuple(found)


ALL_BF16 = Weights()

GROUPS = tuple(f.name for f in fields(Weights) if f.type == "WeightDtype")
"""Groups of layers that may have a dtype of their own."""


def weight_dtype(name: str) -> WeightDtype:
    """Return the weight dtype of that name.

    Raises:
        PagesimError: there is no such weight dtype.
    """
    if name not in DTYPES:
        raise PagesimError(f"weight_dtype is {brief(name, 80)}; it must be one of {', '.join(DTYPES)}")
    return DTYPES[name]


def usual_weights(name: str, groups: Collection[str]) -> Weights:
    """Return the dtypes that checkpoints released in a weight dtype usually have.

    All linear layers except the LM head have it. In models with experts, mxfp4 is used for those alone, and
    nvfp4 leaves attention and recurrent layers in 16 bits. NVIDIA's releases of DeepSeek-V3.1 (except for
    the output projection), GLM-5, Kimi-K2.5, MiniMax-M2.5 and Qwen3.5 do so; Qwen3-235B-A22B's does not.

    Args:
        name: name of the weight dtype.
        groups: groups of linear layers that the model has.

    Raises:
        PagesimError: there is no such weight dtype.
    """
    dtype = weight_dtype(name)
    chosen = [group for group in GROUPS if group in groups and not (dtype.quantized and group == "head")]
    if "experts" in groups and name in ("mxfp4", "mxfp4_mxfp8"):
        chosen = ["experts"]
    elif "experts" in groups and name == "nvfp4":
        chosen = [group for group in chosen if group not in ("attention", "recurrent")]
    of_groups: dict[str, Any] = dict.fromkeys(chosen, dtype)
    return Weights(**of_groups)
