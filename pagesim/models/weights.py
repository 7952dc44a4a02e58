"""Weight dtypes: what a weight takes with its scale, in what it is multiplied, and which layers have which.

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
"""What both factors of a product are in: the weights' type alone does not decide."""

REST_BYTES = 2
"""Of a weight that no checkpoint quantizes: token table, norms, biases, routers."""


class Beside(NamedTuple):
    """Bytes beside the numbers of a tensor and the scales of groups of them.

    Attributes:
        matrix, expert: scales of a whole matrix, and of one of an expert: of the weights and of what goes in.
        module, expert_module: what a linear layer of the engine's has once, such as the shape of its weights.
    """

    matrix: int = 0
    expert: int = 0
    module: int = 0
    expert_module: int = 0


NOTHING = Beside()

OF_WEIGHTS = Beside(4, 4)
"""A scale in 32 bits of the weights."""

OF_TENSORS = Beside(8, 8)
"""A scale in 32 bits of the weights, and one of what goes in."""


@dataclass(frozen=True, slots=True)
class WeightDtype:
    """The type of a linear layer's weights.

    Attributes:
        name: bf16, fp16, fp8, fp8_block, int8, int4, nvfp4, mxfp4 or mxfp4_mxfp8.
        bits: of a weight, with its share of the scale and the zero point of its group. Scales of a whole
            tensor or of a channel are left out: less than 0.1 % of a layer.
        compute: in what its products are computed on a GPU that has units for it; else in fp16. It is fp16
            where activations are not quantized.
        block: rows and columns of which numbers of 8 bits have one scale, rounded up at a matrix' edge; or 0.
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
        """Whether it is other than 16 bit."""
        return self.name not in ("bf16", "fp16")

    def bytes(self, tensor: Tensor, tp: int) -> float:
        """Return the bytes of a layer's tensor on each of ``tp`` GPUs."""
        rows, columns = tensor.shape(tp)
        bits, beside, is_expert = self.bits * rows * columns, self.beside, tensor.copies > 1
        if all(self.block):
            high, wide = self.block
            inner = columns if tensor.by_columns else rows
            if is_expert and (inner % high or inner % wide):  # vLLM then makes blocks that fit
                high = wide = gcd(high, wide, inner)
            bits = 8 * rows * columns + self.scale * -(-rows // high) * -(-columns // wide)
        if self.name == "nvfp4":  # vLLM makes no scale for what is left over behind the last group of 16
            bits -= 8 * rows * (columns % 16 / 16)
        of_matrix, of_module = beside.expert if is_expert else beside.matrix, beside.module
        of_module = beside.expert_module if is_expert else of_module
        return tensor.copies * (bits / 8 + of_matrix * tensor.scales + of_module * tensor.modules)


def with_scales(bits: int, group: int, scale: int, zero: int = 0) -> float:
    """Return the bits of a weight of so many, of which a group has a scale, and a zero point if any."""
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
"""Weight dtypes as most checkpoints have them, by name: activations are quantized as they run in fp8,
fp8_block and nvfp4, and in 16 bit otherwise; int4 has groups of 128 and no zero point. mxfp4_mxfp8 is an
mxfp4 checkpoint whose activations the engine quantizes to mxfp8, as vLLM can on a B200."""


class Part(NamedTuple):
    """The dtype of tensors of one name in some layers of a group that is ``mixed``."""

    group: str
    name: str
    layers: frozenset[int]
    dtype: WeightDtype


@dataclass(frozen=True, slots=True)
class Weights:
    """The dtypes of a model's linear layers. All else, the token table among it, has two bytes a weight.

    Attributes:
        attention: projections of attention.
        recurrent: projections of recurrent layers.
        mlp: plain MLPs.
        shared: experts that every token visits.
        experts: the others.
        head: the LM head, where it is not the token table.
        mixed: those of these groups in which some layers have another dtype: bits are then their mean.
        passed_over: the config says that weights are quantized, in a way that the engine does not look at.
        parts: the dtypes in such groups; a tensor that is not named there is in 16 bits.
        cache_scales: bytes of each attention layer's scales of what it caches and computes with.
        unlisted: layers have several dtypes, and which have which was not given: that experts alone have four
            bits is then an estimate.
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
        """Return the dtype of a group of layers, None of what is never quantized."""
        return getattr(self, group) if group in GROUPS else None

    def bytes(self, tensor: Tensor, tp: int = 1) -> float:
        """Return the bytes of a tensor, in all its layers, on each of ``tp`` GPUs."""
        dtype = self.of(tensor.group)
        if dtype is None:
            rows, columns = tensor.shape(tp)
            return rows * columns * tensor.copies * len(tensor.layers) * (4 if tensor.wide else REST_BYTES)
        if tensor.group not in self.mixed:
            return dtype.bytes(tensor, tp) * len(tensor.layers)
        return sum(each.bytes(tensor, tp) * number for number, each in self._parts(tensor))

    def _parts(self, tensor: Tensor) -> Iterator[tuple[int, WeightDtype]]:
        """Yield in how many of its layers a tensor has which dtype."""
        left = len(tensor.layers)
        for part in self.parts:
            if (part.group, part.name) == (tensor.group, tensor.name):
                number = sum(layer in part.layers for layer in tensor.layers)
                left -= number
                yield number, part.dtype
        yield left, BF16

    def notes(self, name: str) -> tuple[str, ...]:
        """Return what a user of a model of that name should know of them, a sentence each."""
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
        PagesimError: there is none.
    """
    if name not in DTYPES:
        raise PagesimError(f"weight_dtype is {brief(name, 80)}; it must be one of {', '.join(DTYPES)}")
    return DTYPES[name]


def usual_weights(name: str, groups: Collection[str]) -> Weights:
    """Return the dtypes of a checkpoint in that weight dtype, as such are usually released.

    All linear layers have it but the LM head. Where there are experts, mxfp4 is of those alone, and in nvfp4
    attention and recurrent layers stay in 16 bits, as in NVIDIA's releases of DeepSeek-V3.1 (but for the
    output projection), GLM-5, Kimi-K2.5, MiniMax-M2.5 and Qwen3.5; not so in that of Qwen3-235B-A22B.

    Args:
        name: of the weight dtype.
        groups: of linear layers that the model has.

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
