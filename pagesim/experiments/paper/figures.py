"""The paper's figures, in its order: the systems and loads of each, what is measured, and how it is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pagesim.experiments.paper.figure import (
    Found,
    Line,
    PaperFigure,
    around,
    at_knee,
    curve_figure,
    evenly,
    line,
    quotient,
)
from pagesim.experiments.paper.jobs import Outcome
from pagesim.experiments.paper.numbers import Key, Number, Values
from pagesim.experiments.paper.setting import (
    LLAMA_13B,
    OPT_13B,
    OPT_66B,
    OPT_175B,
    RATES,
    SERVERS,
    SYSTEMS,
    Deployment,
    PaperSetting,
)
from pagesim.hardware import gpu
from pagesim.models import model
from pagesim.sizing import capacity
from pagesim.workloads import make_trace
from pagesim.workloads.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {"sharegpt": "ShareGPT", "alpaca": "Alpaca"}
ORCAS_AND_VLLM = ("orca-max", "orca-pow2", "orca-oracle", "vllm-sosp")
LATE: dict[str, Any] = {"seconds": 900, "window": (300, 900), "until": 900}


def _bars(panel: str, y: str, x: str, _: PaperSetting, __: Found, numbers: Sequence[Number]) -> Figure:
    """Draw what the paper prints, two bars a number, a panel for each of its ``series`` or ``x``."""
    from pagesim.experiments.paper.drawing import pairs

    return pairs([number for number in numbers if number.certainty == "B"], panel, y, x)


PARTS = {
    "token states": "token_states",
    "reservation": "reservation",
    "internal fragmentation": "internal",
    "external fragmentation & others": "external",
}


def _fig2_draw(_: PaperSetting, __: Found, numbers: Sequence[Number]) -> Figure:
    from pagesim.experiments.paper.drawing import stacks

    return stacks(numbers, PARTS)


FIG2 = PaperFigure(
    "fig2",
    "Where the KV cache goes",
    "OPT-13B, ShareGPT, 4 requests/s, 900 s; percent of the cache, mean over the iterations scheduled from "
    "300 to 900 s",
    "memory",
    lambda setting: {
        (SYSTEMS[policy], ""): setting.load(OPT_13B, policy, "sharegpt", rate=4.0, **LATE)
        for policy in ORCAS_AND_VLLM
    },
    lambda key, found: {
        (key[0], name): found["memory"]["paper"]["per_iteration"][part] for name, part in PARTS.items()
    },
    draw=_fig2_draw,
)


def _table1(_: PaperSetting, __: Values) -> Values:
    values: dict[Key, float | None] = {}
    for server in SERVERS:
        spec = model(server.model)
        fits = capacity(spec, gpu(server.gpu), tp=server.tp)
        values[server.title, "weights, GB"] = spec.weight_bytes / 1e9
        values[server.title, "KV slots"] = fits.slots
        values[server.title, "blocks of 16"] = fits.num_blocks
        values[server.title, "KV bytes a token"] = spec.kv_bytes_per_token("fp16", server.tp) * server.tp
    return values


TABLE1 = PaperFigure(
    "table1",
    "Servers, weights and KV slots",
    "weights are parameters × 2 bytes; the cache is what the artifact's sizing rule leaves of the memory "
    "that the driver reports",
    "memory",
    derive=_table1,
    draw=partial(_bars, "x", "", ""),
)

LONGEST = 2048
"""The paper's means are those of requests of at most so many tokens; its generator leaves these out too."""

DRAWN = 80_000
"""Requests that are drawn from a fitted model: about as many as the paper's lengths are."""


def _lengths(setting: PaperSetting, workload: str) -> Trace:
    """Return requests whose lengths are counted."""
    if setting.real(workload):
        trace = make_trace(setting.trace(workload), arrivals="all-at-once")
    else:
        trace = make_trace(setting.trace(workload), num_requests=DRAWN // (20 if setting.quick else 1))
    return trace.take(np.flatnonzero(trace.prompt_tokens + trace.output_tokens <= LONGEST))


def _fig11(setting: PaperSetting, _: Values) -> Values:
    values: dict[Key, float | None] = {}
    for workload, title in TITLES.items():
        trace = _lengths(setting, workload)
        values[title, "input"] = float(trace.prompt_tokens.mean())
        values[title, "output"] = float(trace.output_tokens.mean())
    return values


def _fig11_draw(setting: PaperSetting, _: Found, numbers: Sequence[Number]) -> Figure:
    from pagesim.experiments.paper.drawing import histograms

    traces = {title: _lengths(setting, workload) for workload, title in TITLES.items()}
    return histograms(traces, (LONGEST, 400), numbers)


FIG11 = PaperFigure(
    "fig11",
    "Lengths of prompts and outputs",
    "mean tokens over all requests of at most 2048 tokens in all",
    "lengths",
    derive=_fig11,
    draw=_fig11_draw,
)

ORDER = ("vllm-sosp", "orca-oracle", "orca-pow2", "orca-max")


def _systems(server: Deployment, workload: str, batch: int, *rates: tuple[float, ...]) -> list[Line]:
    """Return a panel of Fig. 12; rates to begin with are the artifact's in `ORDER`, and FasterTransformer's.

    The paper's traces are an hour, its artifact's scripts run 600 to 900 s. Alpaca's rates are fifteen times
    ShareGPT's, and so is what an hour of it takes to replay.
    """
    panel = f"{server.title}, {TITLES[workload]}"
    of = partial(line, panel, server, seconds=900.0 if workload == "alpaca" else None)
    systems = [of(policy, workload, own) for policy, own in zip(ORDER, rates, strict=False)]
    return [*systems, of("static", workload, rates[-1], max_batch=batch)]


FIG12_LINES = [
    *_systems(
        *(OPT_13B, "sharegpt", 5),
        *(evenly(1.0, 2.0), evenly(0.5, 1.5), evenly(0.25, 0.9), evenly(0.2, 0.75), evenly(0.01, 0.35)),
    ),
    *_systems(
        *(OPT_66B, "sharegpt", 2),
        *(evenly(0.4, 1.0), evenly(0.2, 0.5), evenly(0.1, 0.35), evenly(0.1, 0.3), around(0.1)),
    ),
    *_systems(
        *(OPT_175B, "sharegpt", 24),
        *(evenly(1.5, 3.0), evenly(0.8, 1.8), evenly(0.5, 1.5), evenly(0.25, 1.25), around(0.5)),
    ),
    *_systems(
        *(OPT_13B, "alpaca", 14),
        *(evenly(20.0, 31.5), evenly(15.0, 24.0), evenly(7.5, 18.0), evenly(2.0, 5.0), around(5.0)),
    ),
    *_systems(
        *(OPT_66B, "alpaca", 8),
        *(evenly(11.0, 20.0), evenly(6.0, 12.0), evenly(3.0, 7.0), evenly(0.05, 0.25), around(3.0)),
    ),
    *_systems(
        *(OPT_175B, "alpaca", 80),
        *(evenly(15.0, 22.0), evenly(15.0, 22.0), evenly(10.0, 19.0), evenly(1.25, 7.0), around(4.0)),
    ),
]


def _lead(knees: Values) -> Values:
    """Return how vLLM's lead shrinks where computing is the bound."""
    panels = [at_knee(f"{model}, Alpaca") for model in ("OPT-175B", "OPT-13B")]
    leads = [quotient(knees["vLLM", panel], knees["Orca (Oracle)", panel]) for panel in panels]
    return {("vLLM / Orca (Oracle)", "lead on Alpaca, OPT-175B over OPT-13B"): quotient(*leads)}


FIG12 = curve_figure(
    "fig12",
    "Latency over request rates",
    "mean over requests of (finish − arrival) / output tokens, all drained; arrivals for an hour "
    "(15 min for Alpaca and OPT-175B); a knee is the rate at 1 s/token on a straight line between two rates "
    "at most 4 % apart",
    "step times",
    FIG12_LINES,
    [
        (f"{server.title}, ShareGPT", "vLLM", under)
        for server in SERVERS
        for under in ("Orca (Oracle)", "Orca (Max)", "FasterTransformer")
    ],
    columns=3,
    more=_lead,
)

FIG13_PANELS = {"sharegpt": "ShareGPT, 2 req/s", "alpaca": "Alpaca, 30 req/s"}


def _mean_batch(key: Key, found: Outcome) -> Values:
    return {key: found["batch"]["mean"]}


def _fig13_more(_: PaperSetting, batches: Values) -> Values:
    panel = FIG13_PANELS["sharegpt"]
    ratios = {
        (f"vLLM / {orca}", panel): quotient(batches["vLLM", panel], batches[orca, panel])
        for orca in ("Orca (Oracle)", "Orca (Max)")
    }
    return {**batches, **ratios}


FIG13 = PaperFigure(
    "fig13",
    "How many requests run together",
    "OPT-13B; mean over the iterations scheduled from 600 to 3600 s of an hour",
    "step times (the Orca bars hardly)",
    lambda setting: {
        (SYSTEMS[policy], panel): setting.load(
            OPT_13B, policy, workload, rate=RATES[workload], window=(600, 3600)
        )
        for workload, panel in FIG13_PANELS.items()
        for policy in ORCAS_AND_VLLM
    },
    _mean_batch,
    _fig13_more,
    partial(_bars, "x", "batched requests, mean", ""),
)

WIDTHS = (2, 4, 6)
SHARES = {"vllm-sosp": 30.0, "orca-oracle": 20.0, "orca-pow2": 13.0, "orca-max": 7.0}
"""Requests/s around which to look, over the number of outputs."""

KINDS = {"samples": ("n", 600.0), "beams": ("beam_width", 300.0)}
"""Of Fig. 14: option, and seconds of arrivals: beams fork often, and take long to replay."""


def _wide(name: str, width: int) -> list[Line]:
    kind, seconds = KINDS[name]
    options: dict[str, Any] = {"seconds": seconds, kind: width}
    return [
        line(f"{width} {name}", OPT_13B, policy, "alpaca", around(SHARES[policy] / width), **options)
        for policy in ORDER
    ]


FIG14 = curve_figure(
    "fig14",
    "Latency with parallel samples and beams",
    "OPT-13B, Alpaca, arrivals for 10 min (samples) and 5 min (beams); latency "
    "and knees as in Fig. 12, each sample of a request counted",
    "step times",
    [each for name in KINDS for width in WIDTHS for each in _wide(name, width)],
    [
        ("one output", "vLLM", "Orca (Oracle)"),
        *((f"{width} {name}", "vLLM", "Orca (Oracle)") for name in KINDS for width in WIDTHS),
    ],
    columns=3,
    # The same loads as in Fig. 12, so that they are replayed once.
    beside=[("one output", name, load) for _, name, load in FIG12_LINES[15:17]],
)

SHARING = {"parallel": "n", "beam": "beam_width"}
SHARING_RATES = {"alpaca": 20.0, "sharegpt": 0.5}
"""Of ShareGPT the paper gives none; at this one the cache of OPT-13B holds six outputs a request."""


def _saving(key: Key, found: Outcome) -> Values:
    saving = found["sharing"]["saving"]
    return {key: None if saving is None else 100 * saving}


FIG15 = PaperFigure(
    "fig15",
    "Memory saved by sharing",
    "OPT-13B, 20 requests/s of Alpaca, 900 s; 1 − 1/r, r the mean over the iterations from 300 to 900 s of "
    "logical over physical blocks. The beam model is fitted to Alpaca's; ShareGPT's (0.5 requests/s, chosen "
    "by us) are predictions, and each width is held against the range that the text gives for all of them",
    "memory",
    lambda setting: {
        (f"{name}, {TITLES[workload]}", str(width)): setting.load(
            OPT_13B, "vllm-sosp", workload, **{"rate": rate, option: width, **LATE}
        )
        for workload, rate in SHARING_RATES.items()
        for name, option in SHARING.items()
        for width in WIDTHS
    },
    _saving,
    draw=partial(_bars, "series", "memory saved (%)", "outputs a request"),
)

SENTENCES = "lognormal:30,0.6,45,0.6"
"""Tokens of an English sentence and of its German translation: assumed, the paper does not print them."""

SHOTS = {"one example, 80 tokens": "80", "five examples, 341 tokens": "341"}

SHARED = "vLLM, prefix shared"

LIMITS: dict[str, Any] = {
    "sizing": "paper",
    "async_scheduling": False,
    "max_num_batched_tokens": 2560,
    "max_num_seqs": 2048,
}
"""Of the paper's vLLM, as options of vllm-v1, which alone of our schedulers finds a prefix that it kept."""

WHOLE_PROMPTS: dict[str, Any] = {**LIMITS, "enable_chunked_prefill": False}


def _shots(panel: str, prefix: str) -> list[Line]:
    of = partial(line, panel, LLAMA_13B, workload=SENTENCES, seconds=300.0, shared_prefix=prefix)
    cached = {**WHOLE_PROMPTS, "enable_prefix_caching": True}
    return [
        of(policy="vllm-v1", rates=around(40.0), label=SHARED, **cached),
        of(policy="orca-oracle", rates=around(10.0)),
    ]


FIG16 = curve_figure(
    "fig16",
    "A prefix that all prompts share",
    "LLaMA-13B, translation; lengths of the sentences are assumed (lognormal, means 30 and 45 tokens); "
    "arrivals for 5 min, knees as in Fig. 12; our vLLM is vllm-v1 with prefix caching and the paper's limits",
    "step times and assumed lengths",
    [each for panel, prefix in SHOTS.items() for each in _shots(panel, prefix)],
    [(panel, SHARED, "Orca (Oracle)") for panel in SHOTS],
    columns=2,
)

CHAT, WHOLE = "chatbot, last 1024 tokens", "chatbot, conversations of at most 1024 tokens"
"""The second is a question of ours and not of the paper's."""

FORGET, KEEP = "vllm-v1, nothing kept", "vllm-v1, KV kept between turns"


def _chat(panel: str, policy: str, rate: float, **options: Any) -> Line:
    options |= {"seconds": 1800.0, "conversations": True}
    return line(panel, OPT_13B, policy, "sharegpt", around(rate), **options)


FIG17 = curve_figure(
    "fig17",
    "A chatbot",
    "OPT-13B; conversations of six turns, assumed, made of ShareGPT's lengths; prompts cut to their last "
    "1024 tokens, outputs of at most 1024; arrivals for half an hour, knees as in Fig. 12. Beside it: "
    "conversations that begin anew instead of being cut, with and without KV kept between turns",
    "step times and assumed conversations",
    [
        *(_chat(CHAT, policy, 0.8 if policy == "vllm-sosp" else 0.4) for policy in ORDER),
        *(
            _chat(WHOLE, "vllm-v1", 1.2, label=label, enable_prefix_caching=keep, **WHOLE_PROMPTS)
            for label, keep in ((FORGET, False), (KEEP, True))
        ),
    ],
    [*((CHAT, "vLLM", SYSTEMS[orca]) for orca in ORDER[1:]), (WHOLE, KEEP, FORGET)],
    columns=2,
)

FIGURES = (FIG2, TABLE1, FIG11, FIG12, FIG13, FIG14, FIG15, FIG16, FIG17)
