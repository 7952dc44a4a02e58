"""``vllm serve …``: the options that a line decides, and what of it has no effect here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pagesim.costs.specs import model
from pagesim.costs.specs.layers import KV_SCALE_BYTES
from pagesim.costs.specs.weights import GROUPS
from pagesim.errors import PagesimError, brief, escaped
from pagesim.setup.serve_vllm_flags import (
    ALIASES,
    FLAGS,
    HARMLESS,
    HARMLESS_VARIABLES,
    LAYERED,
    NOTED,
    QUANTIZATIONS,
    REFUSED,
    TAKEN,
)
from pagesim.setup.serve_words import (
    FlagTable,
    check_length,
    check_one,
    check_variables,
    known_model,
    number_of,
)

RELEASE = "0.33.0"
"""Whose flags a line is read with."""

FIXED = {"policy": "vllm-v1", "vllm_version": RELEASE}
"""What every line says."""

MODULE = "vllm.entrypoints.openai.api_server"
"""The module that ``python -m`` runs."""

_READABLE = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_SUFFIXES = "kmgt"


def _spelled(name: str, on: bool = True) -> Iterator[tuple[str, bool]]:
    """Yield the spellings of a flag, and whether each turns it on."""
    yield name, on
    if FLAGS[name] == "none":
        yield f"no-{name}", not on
        for one, other in (("enable-", "disable-"), ("disable-", "enable-")):
            if name.startswith(one):
                yield other + name.removeprefix(one), not on


_TABLE = FlagTable(
    server=f"vllm serve {RELEASE}",
    taken=TAKEN,
    noted=NOTED,
    refused=REFUSED,
    harmless=HARMLESS,
    layered=LAYERED,
    spellings={spelling: (name, on) for name in FLAGS for spelling, on in _spelled(name)},
    aliases=ALIASES,
    relaxed=True,
)


def read(variables: list[str], words: list[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the options that a line decides, and the notes of what has no effect here.

    Args:
        variables: that are set in front of the command, by name.
        words: that follow the command.

    Raises:
        PagesimError: see `read_serve`.
    """
    check_variables(variables, ("VLLM_",), HARMLESS_VARIABLES)
    models, flags = [], {}
    for name, values in _TABLE.read(words):
        if name:
            flags[name] = values
        else:
            models += values
    if "model" in flags:
        models += flags.pop("model")
    check_one(models, "vllm serve MODEL")
    for name in flags:
        _TABLE.check(name, flags[name])
    options = {"model": known_model(models[0]), **_options(flags)}
    if "quantization" in flags:
        options |= quantized(options["model"], flags["quantization"][-1], QUANTIZATIONS)
    check_length(options, "max-model-len", "vLLM")
    _TABLE.check_layers(options["model"], flags)
    without = [*variables, *(f"--{name}" for name in flags if name not in TAKEN)]
    notes = (f"of the vllm serve line without an effect here: {', '.join(without)}",) if without else ()
    return {**FIXED, **options}, notes


def readable(text: str) -> int:
    """Return a whole number as vLLM reads it: 32k is 32,000 and 32K is 32,768.

    Raises:
        ValueError: it is none.
    """
    found = _READABLE.fullmatch(text.strip())
    if found is None:
        return int(text)
    number, suffix = found.groups()
    power = _SUFFIXES.index(suffix.lower()) + 1
    return int(number) * 1024**power if suffix.isupper() else int(float(number) * 1000**power)


def _retention(text: str) -> int:
    """Return a retention interval: what vLLM calls None is -1 here."""
    if text in ("", "None"):
        return -1
    interval = int(text)
    if interval < 0:
        raise ValueError(f"{interval} is negative")
    return interval


_KINDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "max-model-len": ("max_model_len", readable),
    "tensor-parallel-size": ("tensor_parallel_size", int),
    "gpu-memory-utilization": ("gpu_memory_utilization", float),
    "block-size": ("block_size", int),
    "num-gpu-blocks-override": ("num_blocks", int),
    "max-num-batched-tokens": ("max_num_batched_tokens", readable),
    "max-num-seqs": ("max_num_seqs", int),
    "long-prefill-token-threshold": ("long_prefill_token_threshold", int),
    "watermark": ("watermark", float),
    "scheduling-policy": ("scheduling_policy", str),
    "prefix-cache-retention-interval": ("prefix_cache_retention_interval", _retention),
}
_ELEMENTS = {
    "float16": "fp16",
    "bfloat16": "bf16",
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2"), "fp8"),
    **{name: name for name in KV_SCALE_BYTES},
}


def _options(flags: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return the options that flags stand for."""
    options: dict[str, Any] = {}
    for name, values in flags.items():
        if name not in TAKEN or name == "quantization":  # what that does depends on the model
            continue
        if TAKEN[name] == "none":
            options[name.replace("-", "_")] = values != ["false"]
        elif name == "kv-cache-dtype":
            options |= _element(values[-1])
        elif name == "max-model-len" and values[-1].strip().lower() in ("auto", "-1"):
            raise PagesimError("--serve: --max-model-len auto is not modelled; give the tokens")
        else:
            option, read = _KINDS[name]
            options[option] = number_of(read, name, values[-1])
    return options


def _element(text: str) -> dict[str, str]:
    if text == "auto":  # the model's own, of two bytes
        return {}
    if text not in _ELEMENTS:
        known = ", ".join(("auto", *_ELEMENTS))
        raise PagesimError(f"--serve: --kv-cache-dtype {brief(text, 80)} is not modelled; it may be {known}")
    return {"kv_cache_dtype": _ELEMENTS[text]}


def quantized(name: str, method: str, checkpoints: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return the weight dtype that a method of quantization gives a model, if it is not the model's own.

    Args:
        name: of the model, or its path.
        method: of quantization.
        checkpoints: by method, the weight dtypes of checkpoints for which it says nothing new.

    Raises:
        PagesimError: the method is not modelled for this model.
    """
    spec = model(name)
    own = {dtype.name for group in GROUPS if (dtype := spec.weights.of(group)) and dtype.quantized}
    if method.lower() == "none" or own & set(checkpoints.get(method, ())):
        return {}
    if method == "fp8" and not own:
        return {"weight_dtype": "fp8"}
    remedy = "leave it out" if own else "it may be none or fp8, or name a quantized config.json as the model"
    raise PagesimError(
        f"--serve: --quantization {escaped(method)[:80]} would change what is decided, and is not modelled "
        f"for {brief(name, 80)}, whose weights are {spec.weights_in_words}; {remedy}"
    )
