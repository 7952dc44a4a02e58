"""``vllm serve …``: the options that a line sets, and the flags that have no effect here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pagesim.errors import PagesimError, brief
from pagesim.models import model
from pagesim.models.layers import KV_SCALE_BYTES
from pagesim.setup.block_plans import STATE_DTYPES
from pagesim.setup.serve_flags import flags_of
from pagesim.setup.serve_parts import object_of
from pagesim.setup.serve_table import QUANTIZED, FlagTable
from pagesim.setup.serve_vllm_ranks import ranks
from pagesim.setup.serve_vllm_transfer import transfers
from pagesim.setup.serve_vllm_values import (
    adapters,
    kernel_block,
    length,
    limits,
    offloaded,
    own_length,
    processor,
    retention,
)
from pagesim.setup.serve_words import FlagRefused, Reader, choice, number
from pagesim.setup.sizes import readable

RELEASE = "0.33.0"
"""Release whose flags are read."""

FIXED = {"policy": "vllm-v1", "vllm_version": RELEASE}
"""Options that every line sets."""

MODULE = "vllm.entrypoints.openai.api_server"
"""The module that ``python -m`` runs."""


def read(variables: list[str], words: list[str]) -> tuple[dict[str, Any], tuple[str, ...], bool]:
    """Return the options that a line sets, and notes on flags that have no effect here.

    The last value tells whether CUDA graphs cover whole iterations.

    Args:
        variables: variable assignments in front of the command.
        words: words that follow the command.

    Raises:
        PagesimError: a flag is unknown or not modelled, or a value is invalid; the message names it.
    """
    options, flags, notes = TABLE.options(variables, words)
    options |= _speculation(flags)
    options |= _graphs(flags)
    options |= kernel_block(flags, options)
    options |= transfers(flags, options)
    options |= adapters(flags)
    _check_state_block(flags, options)
    return {**FIXED, **options}, notes, _graph_mode(flags) not in ("none", "piecewise")


def _graph_mode(flags: Mapping[str, list[str]]) -> str:
    """Return the CUDA graph mode: none, piecewise, or a mode that covers whole iterations.

    Source: ``OPTIMIZATION_LEVEL_TO_CONFIG`` (config/vllm.py), ``CUDAGraphMode`` (config/compilation.py).
    """
    if flags.get("enforce-eager", ["false"]) != ["false"]:
        return "none"
    level = flags.get("optimization-level", ["2"])[-1]
    mode = flags.get("compilation-config.cudagraph_mode", [level if level in ("0", "1") else "full"])[-1]
    return {"0": "none", "1": "piecewise"}.get(mode, mode.lower())


def _speculation(flags: Mapping[str, list[str]]) -> dict[str, str]:
    """Return ``speculative_config``, merged with the keys that have their own flags; empty without any.

    Raises:
        FlagRefused: it is not a JSON object.
        PagesimError: it has a key that is also given as a flag.
    """
    name, keys = "speculative-config", {"spec-method": "method", "spec-model": "model"}
    short: dict[str, Any] = {key: flags[flag][-1] for flag, key in keys.items() if flag in flags}
    if "spec-tokens" in flags:
        short |= number("num_speculative_tokens", int)("spec-tokens", flags["spec-tokens"][-1])
    given: dict[str, Any] = {}
    if name in flags:
        given = object_of(flags[name][-1])
        if not given:
            raise FlagRefused(
                name, f"--{name} is {brief(flags[name][-1], 80)}; it must be a JSON object with a method"
            )
    if twice := sorted(short.keys() & given.keys()):
        raise PagesimError(f"--serve: --{name} has {twice[0]}, which is a flag, too: give it once")
    return {"speculative_config": json.dumps({**given, **short})} if given or short else {}


def _graphs(flags: Mapping[str, list[str]]) -> dict[str, int]:
    """Return the tokens of the largest CUDA graph if the line specifies them; 0 for no graphs."""
    option, config = "max_cudagraph_capture_size", "compilation-config."
    if _graph_mode(flags) == "none":
        return {option: 0}
    read = number(option, int)
    said: dict[str, int] = {}
    for name in ("cudagraph-capture-sizes", f"{config}cudagraph_capture_sizes"):
        if name in flags:
            sizes = flags[name] if "." not in name else json.loads(flags[name][-1])
            said[name] = max(read(name, str(size))[option] for size in sizes)
    for name in ("max-cudagraph-capture-size", f"{config}{option}"):
        if name in flags:
            said[name] = read(name, flags[name][-1])[option]
    if len(set(said.values())) > 1:
        (first, largest), *_, (name, other) = said.items()
        raise FlagRefused(
            name,
            f"--{name} is {other}, and the largest of --{first} is {largest}; vLLM does not start so: leave "
            "one of them out",
        )
    return {option: next(iter(said.values()))} if said else {}


def _check_state_block(flags: Mapping[str, list[str]], options: Mapping[str, Any]) -> None:
    """Refuse a ``--mamba-block-size`` with which the server does not start (config/vllm.py).

    With prefix caching any value is accepted, and overwritten for models with states.
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


_READERS: dict[str, Reader] = {
    "max-model-len": length,
    "cpu-offload-gb": offloaded,
    "limit-mm-per-prompt": limits,
    "mm-processor-kwargs": processor,
    "prefix-cache-retention-interval": number("prefix_cache_retention_interval", retention),
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

CHECKPOINTS: dict[str, tuple[str, ...]] = {
    **QUANTIZED,
    "auto_awq": QUANTIZED["awq"],
    "auto_gptq": QUANTIZED["gptq"],
    "moe_wna16": ("int4", "int8"),
    **dict.fromkeys(("fbgemm_fp8", "deepseek_v4_fp8"), ("fp8", "fp8_block")),
    **dict.fromkeys(("modelopt_mxfp8", "mxfp8"), ("mxfp8",)),
    "gpt_oss_mxfp4": ("mxfp4", "mxfp4_mxfp8"),
    "quark": ("fp8", "mxfp4", "int8"),
}
"""Quantization methods of 0.33.0 (model_executor/layers/quantization), with the weight dtypes as there."""

TABLE = FlagTable(
    server=f"vllm serve {RELEASE}",
    engine="vLLM",
    command="vllm serve",
    flags=flags_of("vllm"),
    relaxed=True,
    prefixes=("VLLM_",),
    skips_unknown=True,
    size=readable,
    readers=_READERS,
    model="model",
    length="max-model-len",
    own_length=own_length,
    kernels=("moe-backend", "kernel-config.moe_backend"),
    settle=ranks,
    checkpoints=CHECKPOINTS,
    online={"fp8": "fp8", "fp8_per_tensor": "fp8", "fp8_per_block": "fp8_block"},
)
