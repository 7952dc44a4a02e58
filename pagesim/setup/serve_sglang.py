"""``sglang serve …``: the options that a line decides, and what of it has no effect here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pagesim.errors import PagesimError, brief
from pagesim.scheduling.sglang.defaults import PAGE, PAGED_GPUS
from pagesim.setup.serve_sglang_flags import (
    ALIASES,
    EVICTIONS,
    FLAGS,
    HARMLESS,
    HARMLESS_VARIABLES,
    LAYERED,
    NOTED,
    ORDERS,
    PAGES,
    QUANTIZATIONS,
    REFUSED,
    SWITCHES,
    TAKEN,
    TOKEN_WISE,
)
from pagesim.setup.serve_vllm import quantized
from pagesim.setup.serve_words import (
    FlagTable,
    check_length,
    check_one,
    check_variables,
    known_model,
    number_of,
)

RELEASE = "0.5.23"
"""Whose flags a line is read with."""

FIXED = {"policy": "sglang"}
"""What every line says."""

MODULE = "sglang.launch_server"
"""The module that ``python -m`` runs."""

Refuses = Callable[[Mapping[str, Any]], str | None]

_READABLE = re.compile(r"(\d+)(?:Ki|Mi|Gi|Ti)|(\d+(?:\.\d+)?)[kMGT]")


def _spelled() -> Iterator[tuple[str, tuple[str, bool]]]:
    """Yield the spellings of flags, and which each stands for and whether it turns it on."""
    for name in FLAGS:
        yield name, (name, True)
        if name in SWITCHES:
            yield f"no-{name}", (name, False)
    for alias, name in ALIASES.items():
        if not alias.startswith("-"):
            yield alias, (name, True)


_TABLE = FlagTable(
    server=f"SGLang {RELEASE}",
    taken=TAKEN,
    noted=NOTED,
    refused=REFUSED,
    harmless=HARMLESS,
    layered=LAYERED,
    spellings=dict(_spelled()),
    aliases={alias: name for alias, name in ALIASES.items() if alias.startswith("-")},
    relaxed=False,
)


def read(
    variables: list[str], words: list[str], *, first_is_model: bool
) -> tuple[dict[str, Any], tuple[str, ...], Refuses]:
    """Return the options that a line decides, the notes of what has no effect here, and what it refuses.

    Args:
        variables: that are set in front of the command, by name.
        words: that follow the command.
        first_is_model: whether the first of them may be the model, as behind ``sglang serve``.

    Raises:
        PagesimError: see `read_serve`.
    """
    check_variables(variables, ("SGLANG_", "SGL_"), HARMLESS_VARIABLES)
    if first_is_model:
        words = _with_flag(words)
    flags: dict[str, list[str]] = {}
    for name, values in _TABLE.read(words):
        if not name:
            raise PagesimError(f"--serve: {brief(values[0], 80)} belongs to no flag; take it out")
        flags[name] = values
    models = flags.pop("model-path", [])
    check_one(models, "sglang serve MODEL")
    for name in flags:
        _TABLE.check(name, flags[name])
    known = known_model(models[0])
    options = {"model": known, **_options(flags)}
    if "quantization" in flags:
        options |= quantized(known, flags["quantization"][-1], QUANTIZATIONS)
    check_length(options, "context-length", "SGLang")
    _TABLE.check_layers(known, flags)
    without = [*variables, *(f"--{name}" for name in flags if name not in TAKEN)]
    notes = (f"of SGLang's line without an effect here: {', '.join(without)}",) if without else ()
    return {**FIXED, **options}, notes, _refuses(options, "attention-backend" in flags)


def readable(text: str) -> int:
    """Return a whole number as SGLang reads counts of tokens: 32k is 32,000 and 32Ki is 32,768.

    Raises:
        ValueError: it is none.
    """
    found = _READABLE.fullmatch(text.strip())
    if found is None:
        return int(text)
    powers = "kMGT" if found[1] is None else "KMGT"
    suffix = text.strip().lstrip("0123456789.")
    if found[1] is None:
        return int(round(float(found[2]) * 1000 ** (powers.index(suffix) + 1), 6))
    return int(found[1]) * int(1024 ** (powers.index(suffix[0]) + 1))


def _with_flag(words: list[str]) -> list[str]:
    """Return the words behind ``sglang serve`` with the model as a flag, and its kind left out."""
    kept, at = [], 0
    while at < len(words):
        flag, sign, value = words[at].partition("=")
        at += 1
        if flag != "--model-type":
            kept.append(words[at - 1])
            continue
        if not sign:
            value, at = " ".join(words[at : at + 1]), at + 1
        if value not in ("auto", "llm"):
            raise PagesimError(f"--serve: --model-type is {brief(value, 80)}; it may be auto or llm")
    return ["--model-path", *kept] if kept and not kept[0].startswith("-") else kept


_KINDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "context-length": ("max_model_len", int),
    "tp-size": ("tensor_parallel_size", int),
    "mem-fraction-static": ("mem_fraction_static", float),
    "max-running-requests": ("max_running_requests", int),
    "max-total-tokens": ("max_total_tokens", readable),
    "chunked-prefill-size": ("chunked_prefill_size", int),
    "max-prefill-tokens": ("max_prefill_tokens", readable),
    "prefill-max-requests": ("prefill_max_requests", int),
    "schedule-conservativeness": ("schedule_conservativeness", float),
    "page-size": ("block_size", int),
    "cuda-graph-max-bs-decode": ("cuda_graph_max_bs_decode", int),
    "cuda-graph-max-bs-prefill": ("cuda_graph_max_bs_prefill", int),
}
_CHOICES: dict[str, tuple[str, Mapping[str, str]]] = {
    "schedule-policy": ("schedule_policy", {name: name for name in ORDERS}),
    "radix-eviction-policy": ("radix_eviction_policy", {name: name for name in EVICTIONS}),
    "kv-cache-dtype": (
        "kv_cache_dtype",
        {
            "auto": "",  # the model's own, of two bytes
            **dict.fromkeys(("bf16", "bfloat16"), "bf16"),
            **dict.fromkeys(("fp8_e4m3", "fp8_e5m2"), "fp8"),
        },
    ),
    "attention-backend": ("", dict.fromkeys((*TOKEN_WISE, *PAGES), "")),
}


def _options(flags: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return the options that flags stand for."""
    options: dict[str, Any] = {}
    for name, values in flags.items():
        if name not in TAKEN or name == "quantization":  # what that does depends on the model
            continue
        if TAKEN[name] == "none":
            options[name.replace("-", "_")] = True
        elif name in _CHOICES:
            option, known = _CHOICES[name]
            if values[-1] not in known:
                raise PagesimError(
                    f"--serve: --{name} {brief(values[-1], 80)} is not modelled; it may be {', '.join(known)}"
                )
            if known[values[-1]]:
                options[option] = known[values[-1]]
        else:
            option, read = _KINDS[name]
            options[option] = number_of(read, name, values[-1])
    if "attention-backend" in flags:
        options["block_size"] = _page(flags["attention-backend"][-1], options.get("block_size"))
    return options


def _page(backend: str, asked: int | None) -> int:
    """Return the tokens of a page under some kernels: what was asked for, where they take it."""
    if backend in TOKEN_WISE:
        return 1 if asked is None else asked
    return asked if asked in PAGES[backend] else PAGE


def _refuses(options: Mapping[str, Any], names_kernels: bool) -> Refuses:
    """Return what says whether the GPU's own kernels take the line's page."""
    page = options.get("block_size")

    def refuses(given: Mapping[str, Any]) -> str | None:
        gpu = str(given["gpu"]).lower()
        allowed = PAGES["trtllm_mha"]
        if page is None or names_kernels or gpu not in PAGED_GPUS or page in allowed:
            return None
        return (
            f"--page-size is {page}; SGLang's own kernels on {gpu} take {', '.join(map(str, allowed))}, and "
            f"it would run with {PAGE}: leave it out, or name other kernels by --attention-backend"
        )

    return refuses
