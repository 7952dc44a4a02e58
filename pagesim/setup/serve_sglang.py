"""``sglang serve …``: the options that a line decides, and what of it has no effect here."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from pagesim.errors import PagesimError, brief
from pagesim.models import model
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
    RETRACTIONS,
    SWITCHES,
    TAKEN,
    TOKEN_WISE,
)
from pagesim.setup.serve_words import FlagTable, Reader, choice, number

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


def read(
    variables: list[str], words: list[str], *, first_is_model: bool
) -> tuple[dict[str, Any], tuple[str, ...], Refuses]:
    """Return the options that a line decides, the notes of what has no effect here, and what it refuses.

    Args:
        variables: that are set in front of the command, by name.
        words: that follow the command.
        first_is_model: whether the first of them may be the model, as behind ``sglang serve``.

    Raises:
        PagesimError: a flag is unknown or not modelled, or a value is off; the sentence names it.
    """
    options, flags, notes = _TABLE.options(variables, _with_flag(words) if first_is_model else words)
    if "attention-backend" in flags:
        options["block_size"] = _page(flags["attention-backend"][-1], options.get("block_size"))
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


_READERS: dict[str, Reader] = {
    "context-length": number("max_model_len", int),
    "tp-size": number("tensor_parallel_size", int),
    "mem-fraction-static": number("mem_fraction_static", float),
    "max-running-requests": number("max_running_requests", int),
    "max-total-tokens": number("max_total_tokens", readable),
    "chunked-prefill-size": number("chunked_prefill_size", int),
    "max-prefill-tokens": number("max_prefill_tokens", readable),
    "prefill-max-requests": number("prefill_max_requests", int),
    "schedule-conservativeness": number("schedule_conservativeness", float),
    "scheduler-recv-interval": number("scheduler_recv_interval", int),
    "prefill-delayer-max-delay-passes": number("prefill_delayer_max_delay_passes", int),
    "prefill-delayer-max-delay-ms": number("prefill_delayer_max_delay_ms", float),
    "prefill-delayer-queue-min-ratio": number("prefill_delayer_queue_min_ratio", float),
    "prefill-delayer-token-usage-low-watermark": number("prefill_delayer_token_usage_low_watermark", float),
    "priority-scheduling-preemption-threshold": number("priority_scheduling_preemption_threshold", int),
    "max-queued-requests": number("max_queued_requests", int),
    "min-free-slots-delay": number("min_free_slots_delay", int),
    "prefill-decode-interval": number("prefill_decode_interval", int),
    "prefill-decode-interval-min-bs": number("prefill_decode_interval_min_bs", int),
    "page-size": number("block_size", int),
    "cuda-graph-max-bs-decode": number("cuda_graph_max_bs_decode", int),
    "cuda-graph-max-bs-prefill": number("cuda_graph_max_bs_prefill", int),
    "schedule-policy": choice("schedule_policy", {name: name for name in ORDERS}),
    "retraction-policy": choice("retraction_policy", {name: name for name in RETRACTIONS}),
    "radix-eviction-policy": choice("radix_eviction_policy", {name: name for name in EVICTIONS}),
    "kv-cache-dtype": choice(
        "kv_cache_dtype",
        {
            "auto": "",  # the model's own, of two bytes
            **dict.fromkeys(("bf16", "bfloat16"), "bf16"),
            **dict.fromkeys(("fp8_e4m3", "fp8_e5m2"), "fp8"),
        },
    ),
    "attention-backend": choice("", dict.fromkeys((*TOKEN_WISE, *PAGES), "")),  # `_page` says what it does
}


def _experts(given: Mapping[str, list[str]], options: dict[str, Any]) -> tuple[Collection[str], list[str]]:
    """Refuse whole experts on GPUs that cannot be dealt out evenly; else they change no decision.

    Each GPU then holds as many bytes of experts as when every expert is cut.
    """
    asked = int(given.get("ep-size", ["1"])[-1])
    if asked == 1:
        return (), []
    name, gpus = options["model"], options.get("tensor_parallel_size", 1)
    moe = model(name).moe
    if moe is None:
        return (), [f"SGLang has no use for --ep-size here: {brief(name, 80)} has no experts"]
    if asked < 1 or gpus % asked or moe.experts % asked:
        raise PagesimError(
            f"--serve: --ep-size would deal the {moe.experts} experts of {brief(name, 80)} unevenly over "
            f"{asked} of {gpus} GPUs, and is not modelled; leave it out"
        )
    return (), []


_TABLE = FlagTable(
    server=f"SGLang {RELEASE}",
    engine="SGLang",
    command="sglang serve",
    taken=TAKEN,
    noted=NOTED,
    layered=LAYERED,
    refused=REFUSED,
    harmless=HARMLESS,
    spellings=dict(_spelled()),
    aliases={alias: name for alias, name in ALIASES.items() if alias.startswith("-")},
    older={},
    relaxed=False,
    prefixes=("SGLANG_", "SGL_"),
    harmless_variables=HARMLESS_VARIABLES,
    readers=_READERS,
    model="model-path",
    length="context-length",
    kernels=("moe-runner-backend",),
    settle=_experts,
    checkpoints=QUANTIZATIONS,
)


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
