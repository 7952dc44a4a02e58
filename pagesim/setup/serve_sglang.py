"""``sglang serve …``: the options that a line sets, and the flags that have no effect here."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pagesim.errors import PagesimError, brief
from pagesim.hardware import gpu
from pagesim.models import model
from pagesim.scheduling.sglang.defaults import PAGE, PAGED_GPUS
from pagesim.setup.block_plans import STATE_DTYPES
from pagesim.setup.data_parallel import fuses_shared_experts
from pagesim.setup.serve_flags import flags_of
from pagesim.setup.serve_parts import object_of
from pagesim.setup.serve_table import QUANTIZED, FlagTable
from pagesim.setup.serve_words import FlagRefused, Reader, choice, machines, number

RELEASE = "0.5.23"
"""Release whose flags are read."""

FIXED = {"policy": "sglang"}
"""Options that every line sets."""

MODULE = "sglang.launch_server"
"""The module that ``python -m`` runs."""

PAGES: dict[str, tuple[int, ...]] = {
    "trtllm_mha": (16, 32, 64, 128),
    **dict.fromkeys(("trtllm_mla", "cutedsl_mla"), (32, 64)),
    "flashmla": (64,),
}
"""Values of ``--attention-backend`` whose kernels support only these page sizes; others become 64 tokens."""

AITER = "aiter"
"""Value of ``--attention-backend`` for AMD's kernels, which support any page size but need extra memory."""

AITER_CONTEXT, AITER_SHARE = 8192, 0.85
"""Request length, in tokens, above which aiter scales ``mem_fraction_static``, and the scaling factor."""

TOKEN_WISE = ("fa3", "flashinfer", "triton", AITER)
"""Values of ``--attention-backend`` whose kernels support any page size; the default is one token."""

ORDERS = ("fcfs", "lof", "lpm", "dfs-weight", "hrrn", "shortest-prefill-first")
"""Values of ``--schedule-policy`` that are modelled."""

EVICTIONS = ("lru", "lfu")
"""Values of ``--radix-eviction-policy`` that are modelled; the flag does not accept fifo, mru or filo."""

RETRACTIONS = ("length", "priority")
"""Values of ``--retraction-policy``."""

STRATEGIES = ("auto", "extra_buffer", "no_buffer")
"""Values of ``--mamba-radix-cache-strategy`` that are modelled."""

WRITES = ("write_through", "write_through_selective", "write_back")
"""Values of ``--hicache-write-policy``."""

ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM")
"""Values of ``--speculative-algorithm`` that are modelled."""

GRAPHS = "cuda_graph_max_bs_decode"

Refuses = Callable[[Mapping[str, Any]], str | None]

_READABLE = re.compile(r"(\d+)(?:Ki|Mi|Gi|Ti)|(\d+(?:\.\d+)?)[kMGT]")


def read(
    variables: list[str], words: list[str], *, first_is_model: bool
) -> tuple[dict[str, Any], tuple[str, ...], Refuses]:
    """Return the options that a line sets, notes on flags without effect, and a check of other options.

    Args:
        variables: variable assignments in front of the command.
        words: words that follow the command.
        first_is_model: whether the first word may be the model, as after ``sglang serve``.

    Raises:
        PagesimError: a flag is unknown or not modelled, or a value is invalid; the message names it.
    """
    options, flags, notes = TABLE.options(variables, _with_flag(words) if first_is_model else words)
    if "attention-backend" in flags:
        options["block_size"] = _page(flags["attention-backend"][-1], options.get("block_size"))
        if flags["attention-backend"][-1] == AITER:
            _leave_room_for_aiter(options)
    return {**FIXED, **options}, notes, _refuses(options, "attention-backend" in flags)


def readable(text: str) -> int:
    """Parse a whole number as SGLang reads token counts: 32k is 32,000 and 32Ki is 32,768.

    Raises:
        ValueError: it is not a whole number.
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
    """Return the words after ``sglang serve``, with the model as a flag and without ``--model-type``."""
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
    "schedule-policy": choice("schedule_policy", ORDERS),
    "retraction-policy": choice("retraction_policy", RETRACTIONS),
    "radix-eviction-policy": choice("radix_eviction_policy", EVICTIONS),
    "mamba-radix-cache-strategy": choice("mamba_radix_cache_strategy", STRATEGIES),
    "hicache-write-policy": choice("hicache_write_policy", WRITES),
    "mamba-ssm-dtype": choice("mamba_ssm_dtype", tuple(STATE_DTYPES)),
    "speculative-algorithm": choice("speculative_algorithm", ALGORITHMS),
    "kv-cache-dtype": choice(
        "kv_cache_dtype",
        {
            "auto": "",  # the model's own, of two bytes
            **dict.fromkeys(("bf16", "bfloat16"), "bf16"),
            **dict.fromkeys(("fp8_e4m3", "fp8_e5m2"), "fp8"),
        },
    ),
    "moe-a2a-backend": choice("moe_a2a_backend", {"none": "", "deepep": "deepep"}),
    "attention-backend": choice("", dict.fromkeys((*TOKEN_WISE, *PAGES), "")),  # handled by `_page`
}


def _settle(given: Mapping[str, list[str]], options: dict[str, Any]) -> tuple[Collection[str], list[str]]:
    """Convert a line's flags about ranks and experts into options, as `FlagTable.settle`.

    Source: ``handle_deprecated_dp_attention`` (arg_groups/parallel_hook.py), ``_a2a_ep_size`` (overrides.py).

    Raises:
        FlagRefused: a flag is not modelled.
    """
    name = options["model"]
    if given.get("enable-multimodal", ["false"]) != ["false"] and model(name).tower:
        raise FlagRefused(
            "enable-multimodal",
            f"--enable-multimodal would decide whether the vision tower of {brief(name, 80)} is loaded, and "
            "is not modelled; leave it out",
        )
    idle, notes = [], []
    if (listed := "cuda-graph-bs-decode") in given:  # the largest outranks its own flag (memory_hook.py 207)
        options[GRAPHS] = max(number(GRAPHS, int)(listed, each)[GRAPHS] for each in given[listed])
    if options.get("moe_a2a_backend", "none") != "none":
        options["ep_size"] = options.get("tensor_parallel_size", 1)
    if options.get("ep_size", 1) > 1:
        notes += _experts(options)
    if "ep-size" in given and "ep_size" not in options:
        idle.append("ep-size")
    attends = "enable-dp-attention" in given and options.get("attn_dp_size", 1) == 1
    if attends and options.get("dp_size", 1) > 1:
        options["attn_dp_size"] = options.pop("dp_size")
    elif "enable-dp-attention" in given:
        idle.append("enable-dp-attention")
    if "enable-two-batch-overlap" in given:
        if options.get("moe_a2a_backend", "none") == "none" and options.get("attn_dp_size", 1) == 1:
            raise FlagRefused(
                "enable-two-batch-overlap",
                "--enable-two-batch-overlap needs --moe-a2a-backend deepep or attention DP; SGLang does not "
                "start so: give one of them, or leave it out",
            )
        notes.append(
            "--enable-two-batch-overlap captures no CUDA graphs of prompts; the time that it saves by "
            "overlapping parts of a batch is not subtracted"
        )
    for size in ("dp_size", "attn_dp_size", "ep_size"):
        if options.get(size) == 1:
            del options[size]
            idle.append(size.replace("_", "-"))
    if machines(given, options.get("tensor_parallel_size", 1) * options.get("pipeline_parallel_size", 1)) > 1:
        for beside in ("dp-size", "enable-hierarchical-cache"):
            if beside.replace("-", "_") in options:
                raise FlagRefused(
                    "nnodes",
                    f"--nnodes beside --{beside} affects scheduling and is not modelled; leave it out",
                )
    if "enable-hierarchical-cache" not in given:
        hosted = ("hicache-ratio", "hicache-size", "hicache-write-policy")
        idle += [name for name in hosted if options.pop(name.replace("-", "_"), None) is not None]
    if "attn_dp_size" not in options and options.pop("enable_dp_lm_head", False):
        idle.append("enable-dp-lm-head")
    return idle, notes


def _experts(options: dict[str, Any]) -> list[str]:
    """Refuse expert parallelism that divides experts unevenly; return notes on it.

    Each GPU holds as many expert bytes as when every expert is split, unless a shared expert is fused with
    the routed ones. Nothing else depends on ``ep_size``, which is dropped if none is fused.
    """
    name, asked, gpus = options["model"], options["ep_size"], options.get("tensor_parallel_size", 1)
    moe = model(name).moe
    if moe is None:
        del options["ep_size"]
        return [f"SGLang has no use for --ep-size here: {brief(name, 80)} has no experts"]
    if gpus % asked or moe.experts % asked:
        raise FlagRefused(
            "ep-size",
            f"--ep-size would deal the {moe.experts} experts of {brief(name, 80)} unevenly over {asked} of "
            f"{gpus} GPUs, and is not modelled; leave it out",
        )
    if not fuses_shared_experts(model(name)):
        del options["ep_size"]
    return []


def _own_length(name: str, given: Mapping[str, list[str]]) -> int:
    """Return the tokens of the longest request that a model accepts.

    Source: ``get_context_length`` (utils/hf_transformers/common.py), ``_derive_context_length``
    (configs/model_config.py).
    """
    tokens: float = model(name).max_model_len
    rope = object_of(given.get("json-model-override-args.rope_scaling", [""])[-1])
    factor = rope.get("factor", 1)
    if "original_max_position_embeddings" not in rope and rope.get("rope_type") != "llama3":
        tokens *= factor if isinstance(factor, int | float) else 1
    longer = given.get("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", ["0"])[-1].lower() in ("1", "true")
    asked = given.get("context-length", ["0"])[-1]
    return max(int(tokens), int(asked)) if longer and asked.isdecimal() else int(tokens)


TABLE = FlagTable(
    server=f"SGLang {RELEASE}",
    engine="SGLang",
    command="sglang serve",
    flags=flags_of("sglang"),
    relaxed=False,
    prefixes=("SGLANG_", "SGL_"),
    skips_unknown=False,
    size=readable,
    readers=_READERS,
    model="model-path",
    length="context-length",
    own_length=_own_length,
    kernels=("moe-runner-backend",),
    settle=_settle,
    online={"fp8": "fp8"},
    online_experts=("modelopt_fp4",),
    checkpoints={**QUANTIZED, "modelopt_fp8": ("fp8", "fp8_block"), "mxfp8": ("mxfp8",)},
)


def _leave_room_for_aiter(options: dict[str, Any]) -> None:
    """Reduce ``mem_fraction_static`` by what AMD's kernels need for long contexts.

    Source: ``handle_attention_backend_compatibility`` (arg_groups/attention_hook.py).
    """
    longest = options.get("max_model_len", model(options["model"]).max_model_len)
    if longest <= AITER_CONTEXT:
        return
    if "mem_fraction_static" not in options:
        raise FlagRefused(
            "attention-backend",
            f"--attention-backend {AITER} runs on AMD's GPUs, and what SGLang takes there for "
            "--mem-fraction-static is not known: give it, too",
        )
    options["mem_fraction_static"] *= AITER_SHARE


def _page(backend: str, asked: int | None) -> int:
    """Return the page size in tokens under some kernels: the requested one if they support it."""
    if backend in TOKEN_WISE:
        return 1 if asked is None else asked
    return asked if asked in PAGES[backend] else PAGE


def _refuses(options: Mapping[str, Any], names_kernels: bool) -> Refuses:
    """Return a check of whether the GPU's default kernels support the line's page size."""
    page = options.get("block_size")

    def refuses(given: Mapping[str, Any]) -> str | None:
        name, allowed = gpu(str(given["gpu"])).name, PAGES["trtllm_mha"]
        if page is None or names_kernels or name not in PAGED_GPUS or page in allowed:
            return None
        return (
            f"--page-size is {page}; SGLang's own kernels on {name} take {', '.join(map(str, allowed))}, and "
            f"it would run with {PAGE}: leave it out, or name other kernels by --attention-backend"
        )

    return refuses
