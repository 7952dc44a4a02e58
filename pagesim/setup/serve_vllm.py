"""``vllm serve …``: the options that a line decides, and what of it has no effect here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pagesim.errors import PagesimError, brief
from pagesim.models import model
from pagesim.models.layers import KV_SCALE_BYTES
from pagesim.setup.block_plans import STATE_DTYPES
from pagesim.setup.reading import parse_json
from pagesim.setup.serve_vllm_flags import (
    ALIASES,
    BATCHED_EXPERTS,
    EXPERTS,
    FLAGS,
    HARMLESS,
    HARMLESS_VARIABLES,
    LAYERED,
    NOTED,
    OF_RANKS,
    OLDER,
    QUANTIZATIONS,
    REFUSED,
    TAKEN,
    TWO_BATCHES,
    WITHIN_A_REPLICA,
)
from pagesim.setup.serve_words import FlagTable, Reader, choice, number
from pagesim.setup.sizes import readable

RELEASE = "0.33.0"
"""Whose flags a line is read with."""

FIXED = {"policy": "vllm-v1", "vllm_version": RELEASE}
"""What every line says."""

MODULE = "vllm.entrypoints.openai.api_server"
"""The module that ``python -m`` runs."""

_GRAPH_MODE = re.compile(r"cudagraph_mode\W{1,8}(\w+)")


def _spelled(name: str, on: bool = True) -> Iterator[tuple[str, bool]]:
    """Yield the spellings of a flag, and whether each turns it on."""
    yield name, on
    if FLAGS[name] == "none":
        yield f"no-{name}", not on
        for one, other in (("enable-", "disable-"), ("disable-", "enable-")):
            if name.startswith(one):
                yield other + name.removeprefix(one), not on


def read(variables: list[str], words: list[str]) -> tuple[dict[str, Any], tuple[str, ...], bool]:
    """Return the options that a line decides, the notes of what has no effect here, and `_full_graphs`.

    Args:
        variables: that are set in front of the command, by name.
        words: that follow the command.

    Raises:
        PagesimError: a flag is unknown or not modelled, or a value is off; the sentence names it.
    """
    options, flags, notes = _TABLE.options(variables, words)
    options |= _speculation(flags)
    options |= _graphs(flags, options.pop("enforce_eager", False))
    _check_state_block(flags, options)
    return {**FIXED, **options}, notes, _full_graphs(words, flags)


def _full_graphs(words: list[str], flags: dict[str, list[str]]) -> bool:
    """Return whether CUDA graphs hold whole iterations: OPTIMIZATION_LEVEL_TO_CONFIG (config/vllm.py)."""
    if flags.get("enforce-eager", ["false"]) != ["false"]:
        return False
    modes = _GRAPH_MODE.findall(" ".join(words))
    level = flags.get("optimization-level", ["2"])[-1]
    return modes[-1].lower() not in ("none", "piecewise", "0", "1") if modes else level not in ("0", "1")


def _speculation(flags: Mapping[str, list[str]]) -> dict[str, str]:
    """Return ``speculative_config`` with the keys that have flags of their own; nothing without any.

    Raises:
        PagesimError: it is no JSON object, or has a key that is a flag, too.
    """
    name, keys = "speculative-config", {"spec-method": "method", "spec-model": "model"}
    short: dict[str, Any] = {key: flags[flag][-1] for flag, key in keys.items() if flag in flags}
    if "spec-tokens" in flags:
        short |= number("num_speculative_tokens", int)("spec-tokens", flags["spec-tokens"][-1])
    given: dict[str, Any] = {}
    if name in flags:
        given = _object(flags[name][-1])
        if not given:
            raise PagesimError(
                f"--serve: --{name} is {brief(flags[name][-1], 80)}; it must be a JSON object with a method"
            )
    if twice := sorted(short.keys() & given.keys()):
        raise PagesimError(f"--serve: --{name} has {twice[0]}, which is a flag, too: give it once")
    return {"speculative_config": json.dumps({**given, **short})} if given or short else {}


def _graphs(flags: Mapping[str, list[str]], eager: bool) -> dict[str, int]:
    """Return the tokens of the largest CUDA graph where flags besides its own say them: 0 for none."""
    if eager:
        return {"max_cudagraph_capture_size": 0}
    name, largest = "cudagraph-capture-sizes", "max-cudagraph-capture-size"
    read = number("max_cudagraph_capture_size", int)
    sizes = [read(name, size)["max_cudagraph_capture_size"] for size in flags.get(name, ())]
    if not sizes:
        return {}
    said = read(largest, flags[largest][-1])["max_cudagraph_capture_size"] if largest in flags else max(sizes)
    if said != max(sizes):
        raise PagesimError(
            f"--serve: --{largest} is {said}, and the largest of --{name} is {max(sizes)}; vLLM does not "
            "start so: leave one of them out"
        )
    return {"max_cudagraph_capture_size": max(sizes)}


def _ranks(given: Mapping[str, list[str]], options: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Put what a line says of several engines and of experts into options, as `FlagTable.settle`.

    Raises:
        PagesimError: it is not modelled, or vLLM does not start so.
    """
    idle, notes = [], []
    moe, size = model(options["model"]).moe, options.get("data_parallel_size", 1)
    if options.get("enable_expert_parallel"):
        if moe is None:
            notes.append(f"vLLM has no use for --{EXPERTS} here: {options['model']} has no experts")
        if moe is None or (size == 1 and moe.experts % options.get("tensor_parallel_size", 1) == 0):
            del options["enable_expert_parallel"]
            idle.append(EXPERTS)
    hybrid, external = (options.pop(f"data_parallel_{name}_lb", False) for name in ("hybrid", "external"))
    if hybrid and external:
        raise PagesimError(
            "--serve: --data-parallel-hybrid-lb and --data-parallel-external-lb; vLLM does not start so: "
            "leave one of them out"
        )
    if size == 1:
        for name in OF_RANKS:
            if given.get(name, ["false"]) not in (["false"], ["1"]):
                raise PagesimError(
                    f"--serve: --{' '.join((name, *given[name]))} affects scheduling and is not modelled; it "
                    "goes with --data-parallel-size"
                )
        for name in (*OF_RANKS, "data-parallel-size", "api-server-count"):
            options.pop(name.replace("-", "_"), None)
            idle.append(name)
        return idle, notes
    if hybrid or external:
        options["data_parallel_lb"] = "hybrid" if hybrid else "external"
    for name in TWO_BATCHES:
        if given.get(name, ["false"]) != ["false"]:
            raise PagesimError(
                f"--serve: --{name} beside --data-parallel-size affects scheduling and is not modelled; "
                "leave it out"
            )
    backend = given.get("all2all-backend", [""])[-1]
    if options.get("enable_expert_parallel") and backend in BATCHED_EXPERTS:
        options.setdefault("max_num_batched_tokens", 256)
    return idle, notes


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
        raise PagesimError(
            f"--serve: --{name} is {asked}; without prefix caching it must be the {longest} tokens of "
            "max_model_len, or vLLM does not start: leave it out"
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
    "tensor-parallel-size": number("tensor_parallel_size", int),
    "pipeline-parallel-size": number("pipeline_parallel_size", int),
    "decode-context-parallel-size": number("decode_context_parallel_size", int),
    "data-parallel-size": number("data_parallel_size", int),
    "data-parallel-size-local": number("data_parallel_size_local", int),
    "api-server-count": number("api_server_count", int),
    "dp-sync-interval": number("dp_sync_interval", int),
    "gpu-memory-utilization": number("gpu_memory_utilization", float),
    "block-size": number("block_size", int),
    "kv-cache-memory-bytes": number("kv_cache_memory_bytes", readable),
    "num-gpu-blocks-override": number("num_blocks", int),
    "max-num-batched-tokens": number("max_num_batched_tokens", readable),
    "max-num-seqs": number("max_num_seqs", int),
    "max-cudagraph-capture-size": number("max_cudagraph_capture_size", int),
    "limit-mm-per-prompt": _limits,
    "mm-processor-kwargs": _processor,
    "kv-offloading-size": number("kv_offloading_size", float),
    "long-prefill-token-threshold": number("long_prefill_token_threshold", int),
    "watermark": number("watermark", float),
    "prefill-schedule-interval": number("prefill_schedule_interval", int),
    "scheduling-policy": number("scheduling_policy", str),
    "prefix-cache-retention-interval": number("prefix_cache_retention_interval", _retention),
    "prefix-match-unit": number("prefix_match_unit", int),
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

_TABLE = FlagTable(
    server=f"vllm serve {RELEASE}",
    engine="vLLM",
    command="vllm serve",
    taken=TAKEN,
    noted={**NOTED, **WITHIN_A_REPLICA},
    layered=LAYERED,
    refused=REFUSED,
    harmless=HARMLESS,
    spellings={spelling: (name, on) for name in FLAGS for spelling, on in _spelled(name)},
    aliases=ALIASES,
    older=OLDER,
    relaxed=True,
    prefixes=("VLLM_",),
    harmless_variables=HARMLESS_VARIABLES,
    readers=_READERS,
    model="model",
    length="max-model-len",
    kernels=("moe-backend", "kernel-config"),
    settle=_ranks,
    checkpoints=QUANTIZATIONS,
)
