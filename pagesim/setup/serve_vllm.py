"""``vllm serve …``: the options that a line decides, and what of it has no effect here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pagesim.models import model
from pagesim.models.layers import KV_SCALE_BYTES
from pagesim.setup.block_plans import STATE_DTYPES
from pagesim.setup.reading import parse_json
from pagesim.setup.serve_flags import flags_of
from pagesim.setup.serve_words import QUANTIZED, FlagRefused, FlagTable, Reader, choice, number
from pagesim.setup.sizes import readable

RELEASE = "0.33.0"
"""Whose flags a line is read with."""

FIXED = {"policy": "vllm-v1", "vllm_version": RELEASE}
"""What every line says."""

MODULE = "vllm.entrypoints.openai.api_server"
"""The module that ``python -m`` runs."""

_GRAPH_MODE = re.compile(r"cudagraph_mode\W{1,8}(\w+)")


def read(variables: list[str], words: list[str]) -> tuple[dict[str, Any], tuple[str, ...], bool]:
    """Return the options that a line decides, the notes of what has no effect here, and `_full_graphs`.

    Args:
        variables: assignments in front of the command.
        words: that follow the command.

    Raises:
        PagesimError: a flag is unknown or not modelled, or a value is off; the sentence names it.
    """
    options, flags, notes = TABLE.options(variables, words)
    options |= _graphs(flags)
    _check_state_block(flags, options)
    return {**FIXED, **options}, notes, _full_graphs(words, flags)


def _full_graphs(words: list[str], flags: dict[str, list[str]]) -> bool:
    """Return whether CUDA graphs hold whole iterations: OPTIMIZATION_LEVEL_TO_CONFIG (config/vllm.py)."""
    if _is_eager(flags):
        return False
    modes = _GRAPH_MODE.findall(" ".join(words))
    level = flags.get("optimization-level", ["2"])[-1]
    return modes[-1].lower() not in ("none", "piecewise", "0", "1") if modes else level not in ("0", "1")


def _is_eager(flags: Mapping[str, list[str]]) -> bool:
    return flags.get("enforce-eager", ["false"]) != ["false"]


def _graphs(flags: Mapping[str, list[str]]) -> dict[str, int]:
    """Return the tokens of the largest CUDA graph where flags besides its own say them: 0 for none."""
    if _is_eager(flags):
        return {"max_cudagraph_capture_size": 0}
    name, largest = "cudagraph-capture-sizes", "max-cudagraph-capture-size"
    read = number("max_cudagraph_capture_size", int)
    sizes = [read(name, size)["max_cudagraph_capture_size"] for size in flags.get(name, ())]
    if not sizes:
        return {}
    said = read(largest, flags[largest][-1])["max_cudagraph_capture_size"] if largest in flags else max(sizes)
    if said != max(sizes):
        raise FlagRefused(
            largest,
            f"--{largest} is {said}, and the largest of --{name} is {max(sizes)}; vLLM does not start so: "
            "leave one of them out",
        )
    return {"max_cudagraph_capture_size": max(sizes)}


def _check_state_block(flags: Mapping[str, list[str]], options: Mapping[str, Any]) -> None:
    """Refuse a ``--mamba-block-size`` that the server does not start with (config/vllm.py).

    With prefix caching any is taken, and those of models with states are overwritten.
    """
    name = "mamba-block-size"
    if name not in flags or options.get("enable_prefix_caching", True):
        return
    asked = number("mamba_block_size", int)(name, flags[name][-1])["mamba_block_size"]
    given = options.get("max_model_len")
    longest = given if isinstance(given, int) else model(options["model"]).max_model_len
    if asked != longest:
        raise FlagRefused(
            name,
            f"--{name} is {asked}; without prefix caching it must be the {longest} tokens of max_model_len, "
            "or vLLM does not start: leave it out",
        )


def _retention(text: str) -> int:
    """Return a retention interval: what vLLM calls None is -1 here."""
    if text in ("", "None"):
        return -1
    interval = int(text)
    if interval < 0:
        raise ValueError(f"{interval} is negative")
    return interval


def _length(name: str, text: str) -> dict[str, Any]:
    if text.strip().lower() in ("auto", "-1"):
        return {"max_model_len": "auto"}
    return number("max_model_len", readable)(name, text)


def _limits(name: str, text: str) -> dict[str, Any]:
    """Return that no tower is loaded where neither an image nor a video may be given."""
    limits = _object(text)
    return {"language_model_only": True} if limits.get("image") == limits.get("video") == 0 else {}


def _processor(name: str, text: str) -> dict[str, Any]:
    """Return the pixels of the largest image, where they are given."""
    given = _object(text)
    size = given.get("size")
    pixels = given.get("max_pixels", size.get("longest_edge") if isinstance(size, dict) else None)
    return {"max_pixels": pixels} if isinstance(pixels, int) and pixels > 0 else {}


def _object(text: str) -> dict[str, Any]:
    try:
        found = parse_json(text)
    except ValueError:
        return {}  # a part that is named behind a dot, say, which alone turns nothing off
    return found if isinstance(found, dict) else {}


_READERS: dict[str, Reader] = {
    "max-model-len": _length,
    "limit-mm-per-prompt": _limits,
    "mm-processor-kwargs": _processor,
    "prefix-cache-retention-interval": number("prefix_cache_retention_interval", _retention),
    "mamba-ssm-cache-dtype": choice(
        "mamba_ssm_cache_dtype", {"auto": "", **{name: name for name in STATE_DTYPES}}
    ),
    "kv-cache-dtype": choice(
        "kv_cache_dtype",
        {
            "auto": "",  # the model's own, of two bytes
            "float16": "fp16",
            "bfloat16": "bf16",
            **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2"), "fp8"),
            "nvfp4": "nvfp4",
            **{name: name for name in KV_SCALE_BYTES},
        },
    ),
}

TABLE = FlagTable(
    server=f"vllm serve {RELEASE}",
    engine="vLLM",
    command="vllm serve",
    flags=flags_of("vllm"),
    relaxed=True,
    prefixes=("VLLM_",),
    size=readable,
    readers=_READERS,
    model="model",
    length="max-model-len",
    kernels=("moe-backend", "kernel-config"),
    experts="enable-expert-parallel",
    checkpoints={**QUANTIZED, "fbgemm_fp8": ("fp8",)},
)
