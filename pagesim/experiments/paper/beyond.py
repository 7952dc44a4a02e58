"""Questions that the paper's readers ask and no figure of it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pagesim.costs import PreemptionPrices, Roofline
from pagesim.experiments.paper.block_sizes import lines_over_sizes
from pagesim.experiments.paper.figure import Found, Line, PaperFigure, curve_figure, evenly, line
from pagesim.experiments.paper.figures import LIMITS, TITLES
from pagesim.experiments.paper.jobs import Outcome
from pagesim.experiments.paper.numbers import Key, Number, Values
from pagesim.experiments.paper.setting import OPT_13B, Deployment, PaperSetting
from pagesim.experiments.paper.swaps import SIZES
from pagesim.hardware import Link, gpu
from pagesim.models import model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WHOLE, CHUNKED, CACHED = "vllm-v1, whole prompts", "vllm-v1, chunked prefill", "vllm-v1, chunked and cached"
PLAIN, SYSTEM = "OPT-13B, ShareGPT", "OPT-13B, ShareGPT, system prompt of 512"


def _schedulers(panel: str, **options: Any) -> list[Line]:
    of = partial(line, panel, OPT_13B, workload="sharegpt", rates=evenly(1.0, 2.5), seconds=1800.0, **options)
    kinds = {WHOLE: (False, False), CHUNKED: (True, False), CACHED: (True, True)}
    return [
        of(policy="vllm-sosp"),
        *(
            of(
                policy="vllm-v1",
                label=label,
                enable_chunked_prefill=chunked,
                enable_prefix_caching=cached,
                **LIMITS,
            )
            for label, (chunked, cached) in kinds.items()
        ),
    ]


CHUNKS = curve_figure(
    "beyond-chunked",
    "What chunked prefill and prefix caching change in Fig. 12",
    "OPT-13B, ShareGPT, arrivals for half an hour, the paper's limits on a batch; first turns of "
    "conversations begin with nothing in common, so a second panel puts a system prompt of 512 tokens "
    "before each",
    "step times",
    [*_schedulers(PLAIN), *_schedulers(SYSTEM, shared_prefix="512")],
    [
        (panel, over, under)
        for panel in (PLAIN, SYSTEM)
        for over, under in ((WHOLE, "vLLM"), (CHUNKED, "vLLM"), (CACHED, CHUNKED))
    ],
    columns=2,
)

MODELS = {"opt-13b": 1, "opt-66b": 4, "llama-3-8b": 1, "llama-3-70b": 4}
"""Tensor parallel degree of each."""

CONTEXTS = (128, 512, 2048, 8192)

LINKS = {
    "PCIe 4": gpu("a100-80gb").host,
    "PCIe 5": gpu("h100").host,
    "NVLink-C2C": Link(450e9, 5e-6, "Grace Hopper: 900 GB/s both ways together, peak; latency typical"),
}

BESIDE, EACH = 32, 512
"""Sequences that run meanwhile, and tokens that each of them holds."""


def ratio(name: str, tokens: int, link: str) -> float:
    """Return what swapping a context takes over what recomputing it takes; below 1 swapping is cheaper."""
    machine = replace(gpu("h100"), host=LINKS[link])
    cost = Roofline(model(name), machine, tp=MODELS[name])
    swap, again = PreemptionPrices(cost)(tokens, -(-tokens // 16), BESIDE, BESIDE * EACH)
    return swap / again


def _ratios(_: PaperSetting, __: Values) -> Values:
    return {
        (f"swap / recompute, {link}", f"{name}, {tokens} tokens"): ratio(name, tokens, link)
        for link in LINKS
        for name in MODELS
        for tokens in CONTEXTS
    }


def _map(_: PaperSetting, __: Found, numbers: Sequence[Number]) -> Figure:
    from pagesim.experiments.paper.drawing import maps

    tables = {
        series: np.array([n.ours for n in numbers if n.series == series], float).reshape(len(MODELS), -1)
        for series in dict.fromkeys(n.series for n in numbers)
    }
    return maps(tables, [f"{name}, tp {tp}" for name, tp in MODELS.items()], list(map(str, CONTEXTS)))


SWAP_MAP = PaperFigure(
    "beyond-swap-map",
    "Swap or recompute, over models, contexts and links",
    f"the time by which iterations get longer, swapped over recomputed, by the price model of `--preemption "
    f"auto`; {BESIDE} sequences of {EACH} tokens run meanwhile; an H100 by its datasheet, with other links",
    "analytic step times and datasheets of links, whatever `--cost` is",
    derive=_ratios,
    draw=_map,
)

HELD, MIB = "% of what is held", "MiB a request"

SERVERS = {
    "OPT-13B, fp16": (Deployment("opt-13b", "a100-80gb", 1, ""), "fp16"),
    "Llama-3-8B, fp8 KV": (Deployment("llama-3-8b", "h100", 1, ""), "fp8"),
    "Llama-3-70B, fp8 KV": (Deployment("llama-3-70b", "h100", 4, ""), "fp8"),
}


def _loads(setting: PaperSetting) -> dict[Key, Any]:
    """Return a load that all servers keep up with: what a sequence holds does not depend on it."""
    seconds = 600.0
    return {
        (f"{title}, {of}", f"block {size}"): setting.load(
            server,
            "vllm-sosp",
            workload,
            seconds=seconds,
            rate=2.0,
            kv_cache_dtype=kv_dtype,
            block_size=size,
            cost="roofline",
            window=(seconds / 3, seconds),
        )
        for title, (server, kv_dtype) in SERVERS.items()
        for workload, of in TITLES.items()
        for size in SIZES
    }


def _empty(key: Key, found: Outcome) -> Values:
    """Return the share of held slots that hold no token, and how many MiB that is a request."""
    series, x = key
    server, kv_dtype = next(each for title, each in SERVERS.items() if series.startswith(title))
    token_bytes = model(server.model).kv_bytes_per_token(kv_dtype, server.tp) * server.tp
    memory = found["memory"]
    parts = memory["strict"]["per_iteration"]
    empty = parts["rounding"] + parts["reserved"]
    slots = memory["num_blocks"] * int(x.removeprefix("block "))
    mib = empty / 100 * slots / found["batch"]["mean"] * token_bytes / (1 << 20)
    return {(series, f"{x}, {HELD}"): 100 * empty / (empty + parts["used"]), (series, f"{x}, {MIB}"): mib}


FRAGMENTATION = PaperFigure(
    "beyond-fragmentation",
    "What fragmentation remains with few KV heads and fp8",
    "2 requests/s for 600 s; slots that are held and hold no token, of all that are held and in MiB of all "
    "GPUs a running request; mean over the iterations from 200 to 600 s",
    "memory",
    _loads,
    _empty,
    draw=partial(lines_over_sizes, "allocated and empty", "unit"),
)
