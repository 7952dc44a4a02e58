"""Read a checkpoint's weight dtypes from the ``quantization_config`` of its Hugging Face config.

Sources: configs as written by compressed-tensors, AutoGPTQ, AutoAWQ, ModelOpt and transformers, and as read
by vLLM (vllm/model_executor/layers/quantization).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pagesim.errors import PagesimError, brief
from pagesim.models.hf_config import HfConfig
from pagesim.models.hf_modules import Module
from pagesim.models.hf_patterns import find
from pagesim.models.hf_quant_file import lacks_layers
from pagesim.models.weights import (
    BF16,
    DTYPES,
    GROUPS,
    NOTHING,
    OF_TENSORS,
    OF_WEIGHTS,
    Beside,
    Compute,
    Part,
    WeightDtype,
    Weights,
    with_scales,
)

DtypeOf = Callable[[Module], WeightDtype]
"""Returns the dtype of a module that is not ignored."""

Reader = Callable[[HfConfig, Mapping[str, Any], Sequence[Module]], DtypeOf]
"""Reads a ``quantization_config``, given the model's config and linear layers."""

FILED = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "MIXED_PRECISION")
"""Algorithms in such a file that vLLM 0.33.0 supports."""

_IGNORED = ("ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules")

_FP8 = WeightDtype("fp8", 8, "fp8", beside=OF_TENSORS)
_FP8_ROWS = WeightDtype("fp8", 8, "fp8", (1, 1 << 31))  # one scale per row
_NVFP4 = WeightDtype("nvfp4", DTYPES["nvfp4"].bits, "fp4", beside=OF_TENSORS)
_MXFP8 = WeightDtype("mxfp8", with_scales(8, 32, 8), "fp8")

MODELOPT: dict[str, WeightDtype] = {
    "FP8": _FP8,
    "FP8_PER_CHANNEL_PER_TOKEN": _FP8_ROWS,
    "FP8_PB_WO": DTYPES["fp8_block"],
    "MXFP8": _MXFP8,
    "NVFP4": _NVFP4,
    "W4A16_NVFP4": WeightDtype("nvfp4", _NVFP4.bits, beside=Beside(6, 8)),
}
"""ModelOpt's weight dtypes by ``quant_algo``."""


def weights(config: HfConfig, modules: Iterable[Module]) -> Weights:
    """Return the weight dtypes of a checkpoint according to its config.

    A group whose modules differ gets the mean of their bits, and is ``mixed``.

    Args:
        config: the model's config.
        modules: its linear layers.

    Raises:
        PagesimError: the kind of quantization is not supported; the message names it.
    """
    section = _section(config)
    if not section:
        return Weights()
    if "quant_method" not in section:
        return Weights(passed_over=True)
    linear = tuple(modules)
    dtype_of = _reader(config, section)(config, section, linear)
    ignored: dict[Module, bool] = {}
    of_fp8 = METHODS[section["quant_method"]] is _fp8
    for key in ("ignored_layers", "modules_to_not_convert") if of_fp8 else _IGNORED:
        names = _texts(config, section, key)
        if METHODS[section["quant_method"]] is _modelopt:  # where a name is also a prefix
            names = [*names, *(f"{name}*" for name in names if not name.endswith("*"))]
        ignored |= find(linear, [(name, True) for name in names], _error(config, key))
    by_group: dict[str, dict[WeightDtype, int]] = {}
    layers: dict[tuple[str, str, WeightDtype], set[int]] = {}
    for module in linear:
        sizes = by_group.setdefault(module.group, {})
        dtype = BF16 if module in ignored else dtype_of(module)
        sizes[dtype] = sizes.get(dtype, 0) + module.parameters
        layers.setdefault((module.group, module.name, dtype), set()).add(module.layer)
    found: dict[str, Any] = {group: _joined(sizes) for group, sizes in by_group.items()}
    mixed = tuple(group for group in GROUPS if len(by_group.get(group, ())) > 1)
    parts = [
        Part(group, name, frozenset(at), dtype)
        for (group, name, dtype), at in layers.items()
        if group in mixed and dtype != BF16
    ]
    return Weights(
        **found,
        mixed=mixed,
        parts=tuple(parts),
        cache_scales=_cache_scales(config, section),
        unlisted=lacks_layers(section),
    )


def _joined(sizes: Mapping[WeightDtype, int]) -> WeightDtype:
    """Return one dtype for modules in several: that of most parameters, with the mean bits of all."""
    most = max(sizes, key=lambda dtype: sizes[dtype])
    if len(sizes) == 1:
        return most
    bits = sum(dtype.bits * size for dtype, size in sizes.items()) / sum(sizes.values())
    return WeightDtype(most.name, bits, most.compute)


def _cache_scales(config: HfConfig, section: Mapping[str, Any]) -> int:
    """Return the bytes of an attention layer's scales, which quantized checkpoints have.

    They are four 16-bit numbers; in compressed-tensors, three 32-bit ones, each with a 16-bit zero point.
    """
    latent = config.get("kv_lora_rank") is not None
    match section.get("quant_method"):
        case "fp8":
            return 0 if latent or config.family == "deepseek_v4" else 4 * 2
        case "compressed-tensors":
            return 0 if latent else 3 * (4 + 2)
        case "modelopt" | "modelopt_fp4" if section.get("quant_algo") != "MIXED_PRECISION":
            return 0 if config.family == "glm5_next" else 4 * 2
    return 4 * 2 if cache_dtype(config) else 0


def cache_dtype(config: HfConfig) -> str:
    """Return the KV cache dtype that a checkpoint specifies: fp8, nvfp4, or '' for that of the model.

    vLLM resolves ``--kv-cache-dtype auto`` like this (vllm/utils/torch_utils.py and attention.py of 0.33.0).
    ModelOpt checkpoints may specify it, and compressed-tensors ones, except for latent attention.
    """
    section = _section(config)
    method = section.get("quant_method")
    scheme = section.get("kv_cache_scheme")
    if not isinstance(method, str):
        return ""
    if method.startswith("modelopt"):
        asked = scheme or section.get("kv_cache_quant_algo")
        if isinstance(asked, Mapping):
            of_8 = "fp8" if asked.get("dynamic") is False else ""
            bits = asked.get("num_bits") if asked.get("type") == "float" else None
            asked = "nvfp4" if bits == 4 else of_8 if bits == 8 else ""
        known = asked.lower() if isinstance(asked, str) else ""
        return known if known in ("fp8", "nvfp4") else ""
    if method == "compressed-tensors" and scheme is not None and config.get("kv_lora_rank") is None:
        if not isinstance(scheme, Mapping) or (scheme.get("type"), scheme.get("num_bits")) != ("float", 8):
            raise config.error("quantization_config.kv_cache_scheme", scheme, "null, or a float of 8 bits")
        return "fp8"
    return ""


def is_of_modelopt(config: HfConfig) -> bool:
    """Return whether ModelOpt quantized the checkpoint."""
    return str(_section(config).get("quant_method")).startswith("modelopt")


def _section(config: HfConfig) -> dict[str, Any]:
    """Return the ``quantization_config`` with its ``quant_method``, which older ModelOpt files leave out.

    Raises:
        PagesimError: it is not an object, or such a file names an algorithm that vLLM does not support.
    """
    section = config.get("quantization_config")
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        raise config.error("quantization_config", section, "an object")
    nested, producer = section.get("quantization"), section.get("producer")
    found = {**section, **nested} if isinstance(nested, Mapping) else dict(section)
    if isinstance(nested, Mapping) and isinstance(producer, Mapping) and producer.get("name") == "modelopt":
        algorithm = nested.get("quant_algo")
        if algorithm is not None:
            if str(algorithm).upper() not in FILED:
                raise config.error("quant_algo", algorithm, f"one of {', '.join(FILED)}")
            found["quant_method"] = "modelopt"
    method = found.get("quant_method")
    if isinstance(method, str):
        found["quant_method"] = method.lower().replace("compressed_tensors", "compressed-tensors")
    return found


def _reader(config: HfConfig, section: Mapping[str, Any]) -> Reader:
    method = section.get("quant_method")
    if not isinstance(method, str) or method not in METHODS:
        raise PagesimError(
            f"{config.where}: quant_method is {brief(method)}; the bytes of such weights are not known here, "
            f"only those of {', '.join(METHODS)}: take quantization_config out and give weight_dtype"
        )
    return METHODS[method]


def _texts(config: HfConfig, section: Mapping[str, Any], key: str) -> list[str]:
    value = section.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise config.error(f"quantization_config.{key}", value, "a list of names")
    return value


def _error(config: HfConfig, key: str) -> Callable[[str, str], PagesimError]:
    return lambda pattern, wanted: config.error(f"quantization_config.{key}", pattern, wanted)


def _number(config: HfConfig, section: Mapping[str, Any], keys: tuple[str, ...], default: int) -> int:
    """Return the value of the first of these keys that is present, else the default."""
    for key in keys:
        value = section.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value <= 1 << 20 or not value:
            raise config.error(f"quantization_config.{key}", value, "a whole number from 1, or -1")
        return value
    return default


def _integers(bits: int, group: int, *, zero_points: bool, beside: Beside = NOTHING) -> WeightDtype:
    """Return the dtype of integers in groups with one 16-bit scale each; a group of -1 is a channel."""
    grouped = with_scales(bits, group, 16, bits if zero_points else 0) if group > 0 else bits
    return WeightDtype(f"int{bits}", grouped, beside=beside)


def _but_head(dtype: WeightDtype) -> DtypeOf:
    return lambda module: BF16 if module.group == "head" else dtype


def _fp8(config: HfConfig, section: Mapping[str, Any], modules: Sequence[Module]) -> DtypeOf:
    of_experts = section.get("moe_quant_algo")
    compressed = config.family == "deepseek_v4" and of_experts in (None, "NVFP4")
    if not compressed and (section.get("quant_algo") is not None or of_experts is not None):
        algorithm = section.get("quant_algo") or section.get("moe_quant_algo")
        raise config.error("quantization_config.quant_algo", algorithm, "left out where quant_method is fp8")
    block = section.get("weight_block_size")
    if block is None:
        static = section.get("activation_scheme") == "static"
        return _but_head(replace(_FP8, beside=Beside(8, 4, 0, 4) if static else OF_WEIGHTS))
    dtype = _of_blocks(config, block, "quantization_config.weight_block_size")
    if config.family != "deepseek_v4":
        return _but_head(dtype)
    # DeepSeek V4 has 8-bit scales (powers of 2), and experts in NVFP4, MXFP4 or the same fp8.
    dtype = replace(dtype, bits=with_scales(8, dtype.block[0] * dtype.block[1], 8), scale=8)
    experts = _NVFP4 if of_experts else DTYPES["mxfp4"] if config.get("expert_dtype") == "fp4" else dtype
    return lambda module: experts if module.group == "experts" else _but_head(dtype)(module)


def _of_blocks(config: HfConfig, block: object, where: str, compute: Compute = "fp8") -> WeightDtype:
    """Return the dtype of fp8 with an fp32 scale per block of these rows and columns."""
    sides = block if isinstance(block, list) and len(block) == 2 else ()
    if not sides or not all(isinstance(side, int) and side > 0 for side in sides):
        raise config.error(where, block, "two whole numbers")
    return WeightDtype("fp8_block", with_scales(8, sides[0] * sides[1], 32), compute, (sides[0], sides[1]))


def _gptq(config: HfConfig, section: Mapping[str, Any], modules: Sequence[Module]) -> DtypeOf:
    if section.get("dynamic"):
        raise config.error("quantization_config.dynamic", section["dynamic"], "empty: it is not read here")
    return _grouped(config, section)


def _grouped(config: HfConfig, section: Mapping[str, Any], *_: object) -> DtypeOf:
    """Return the dtype of AutoAWQ's and AutoGPTQ's integers, with zero points unless the config says no."""
    bits = _number(config, section, ("bits", "w_bit"), 4)
    group = _number(config, section, ("group_size", "q_group_size"), 128)
    dtype = _integers(bits, group, zero_points=section.get("zero_point") is not False)
    return (lambda _: dtype) if section.get("lm_head") else _but_head(dtype)


def _mxfp4(config: HfConfig, section: Mapping[str, Any], modules: Sequence[Module]) -> DtypeOf:
    """Return MXFP4 for experts alone, regardless of ``modules_to_not_convert``."""
    return lambda module: DTYPES["mxfp4"] if module.group == "experts" else BF16


def _modelopt(config: HfConfig, section: Mapping[str, Any], modules: Sequence[Module]) -> DtypeOf:
    algorithm = section.get("quant_algo")
    if algorithm == "MIXED_PRECISION":
        layers = section.get("quantized_layers")
        if layers is None and "producer" not in section:
            return lambda module: _NVFP4 if module.group == "experts" else BF16
        if not isinstance(layers, Mapping):
            raise config.error("quantization_config.quantized_layers", layers, "an object")
        named = {
            name: _of_modelopt(config, entry.get("quant_algo") if isinstance(entry, Mapping) else entry)
            for name, entry in layers.items()
        }
        found = find(modules, named.items(), _error(config, "quantized_layers"))
        return lambda module: found.get(module, BF16)
    dtype = _of_modelopt(config, algorithm)
    return _but_head(dtype)


def _of_modelopt(config: HfConfig, algorithm: object) -> WeightDtype:
    known = MODELOPT.get(algorithm.upper()) if isinstance(algorithm, str) else None
    if known is None:
        raise config.error(
            "quantization_config.quant_algo", algorithm, f"one of {', '.join(MODELOPT)}, MIXED_PRECISION"
        )
    return known


def _compressed(config: HfConfig, section: Mapping[str, Any], modules: Sequence[Module]) -> DtypeOf:
    groups = section.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise config.error("quantization_config.config_groups", groups, "an object of groups")
    named: list[tuple[str, WeightDtype]] = []
    everywhere: WeightDtype = BF16
    for name, group in groups.items():
        where = f"quantization_config.config_groups.{name}"
        if not isinstance(group, Mapping):
            raise config.error(where, group, "an object")
        dtype = _of_group(config, group, where)
        for target in _texts(config, group, "targets"):
            if target == "Linear":
                everywhere = dtype
            else:
                named.append((target, dtype))
    found = find(modules, named, _error(config, "targets"))
    return lambda module: found.get(module, everywhere)


def _of_group(config: HfConfig, group: Mapping[str, Any], where: str) -> WeightDtype:
    """Return the dtype of a ``config_groups`` entry of compressed-tensors."""
    stored = group.get("weights")
    if stored is None:
        return BF16
    if not isinstance(stored, Mapping):
        raise config.error(f"{where}.weights", stored, "an object")
    bits = _number(config, stored, ("num_bits",), 8)
    size = _number(config, stored, ("group_size",), -1)
    kind, strategy = stored.get("type", "int"), stored.get("strategy")
    inputs = group.get("input_activations")
    of_inputs = (inputs.get("type"), inputs.get("num_bits")) if isinstance(inputs, Mapping) else None
    if kind == "int" and 2 <= bits <= 8:
        zero_points = stored.get("symmetric") is False
        if of_inputs == ("int", 8) and bits == 8:
            return WeightDtype("int8", 8, block=_FP8_ROWS.block)
        return _integers(bits, size, zero_points=zero_points, beside=Beside(module=16, expert_module=4))
    if (kind, bits) == ("float", 8):
        compute: Compute = "fp8" if of_inputs == ("float", 8) else "fp16"
        if strategy == "block":
            return _of_blocks(
                config,
                stored.get("block_structure") or [128, 128],
                f"{where}.weights.block_structure",
                compute,
            )
        if size == 32:
            return WeightDtype("mxfp8", _MXFP8.bits, compute)
        if strategy == "channel":
            return replace(_FP8_ROWS, compute=compute)
        static = isinstance(inputs, Mapping) and inputs.get("dynamic") is False
        return WeightDtype("fp8", 8, compute, beside=OF_TENSORS if static else OF_WEIGHTS)
    if (kind, bits, size) == ("float", 4, 16):
        return replace(_NVFP4, compute="fp4" if of_inputs == ("float", 4) else "fp16")
    if (kind, bits, size) == ("float", 4, 32):
        return DTYPES["mxfp4"]
    raise config.error(
        f"{where}.weights",
        dict(stored),
        "integers of 2 to 8 bits, or floats of 8, or of 4 in groups of 16 or 32",
    )


METHODS: dict[str, Reader] = {
    "awq": _grouped,
    "compressed-tensors": _compressed,
    "fbgemm_fp8": _fp8,
    "fp8": _fp8,
    "gptq": _gptq,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "modelopt_mixed": _modelopt,
    "modelopt_mxfp8": _modelopt,
    "mxfp4": _mxfp4,
}
"""Readers of ``quantization_config`` by ``quant_method``."""
