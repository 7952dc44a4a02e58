"""Values of figures: taken from results of runs, derived from them, or computed without a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from pagesim.costs import PreemptionPrices, Roofline
from pagesim.experiments.ablations import best, undo
from pagesim.experiments.paper.figure import FigureRun, PaperFigure, at_knee
from pagesim.experiments.paper.jobs import Outcome, knee
from pagesim.experiments.paper.numbers import Key, Values, published
from pagesim.experiments.paper.setting import OPT_13B, SERVERS, TITLES, PaperSetting
from pagesim.experiments.paper.swaps import SIZES, TOKENS, blocks_profile, copy_by_copy
from pagesim.hardware import Link, gpu
from pagesim.models import model
from pagesim.sizing import capacity
from pagesim.workloads import make_trace
from pagesim.workloads.trace import Trace


def values_of(figure: PaperFigure, setting: PaperSetting, found: Mapping[Key, Outcome]) -> Values:
    """Return all values of a figure, in the order of its table.

    Args:
        figure: figure of the paper.
        setting: setting with which it is made.
        found: results of its runs.

    Raises:
        PagesimError: the cost does not fit the figure.
    """
    measured = {
        key: value
        for run in figure.runs
        for key, value in MEASURES[figure.measure](run, found[run.key]).items()
    }
    if figure.name in DERIVED:
        measured = {**DERIVED[figure.name](setting, measured)}
    ratios = {key: quotient(measured[over], measured[under]) for key, (over, under) in figure.ratios.items()}
    if figure.name == "fig12":
        ratios |= _lead(measured)
    beside = {run.key for run in figure.runs if run.beside}
    return {**ratios, **{key: value for key, value in measured.items() if key not in beside}}


def quotient(over: float | None, under: float | None) -> float | None:
    """Return a ratio; None if one of its parts is missing."""
    return None if over is None or not under else over / under


# From a run's result

PARTS = {
    "token states": "token_states",
    "reservation": "reservation",
    "internal fragmentation": "internal",
    "external fragmentation & others": "external",
}
"""Parts in Fig. 2: the paper's names, and those in a summary."""


def _parts(run: FigureRun, found: Outcome) -> Values:
    shares = found["memory"]["paper"]["per_iteration"]
    return {(run.series, name): shares[part] for name, part in PARTS.items()}


def _saving(run: FigureRun, found: Outcome) -> Values:
    saving = found["sharing"]["saving"]
    return {run.key: None if saving is None else 100 * saving}


def _empty(run: FigureRun, found: Outcome) -> Values:
    """Return the share of allocated slots without a token, in %, and the same in MiB per request."""
    spec, tp, size = model(run.server.model), run.server.tp, run.options["block_size"]
    token_bytes = spec.kv_bytes_per_token(run.options["kv_cache_dtype"], tp) * tp
    memory = found["memory"]
    parts = memory["strict"]["per_iteration"]
    empty = parts["rounding"] + parts["reserved"]
    mib = empty / 100 * memory["num_blocks"] * size / found["batch"]["mean"] * token_bytes / (1 << 20)
    return {
        (run.series, f"{run.x}, % of what is held"): 100 * empty / (empty + parts["used"]),
        (run.series, f"{run.x}, MiB a request"): mib,
    }


MEASURES: dict[str, Callable[[FigureRun, Outcome], Values]] = {
    "batch": lambda run, found: {run.key: found["batch"]["mean"]},
    "latency": lambda run, found: {run.key: found["normalized_latency"]["mean"]},
    "knee": lambda run, found: {run.key: knee(found["points"])},
    "parts": _parts,
    "saving": _saving,
    "empty": _empty,
}

# Derived from measured values, or computed without a run


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


LONGEST = 2048
"""Longest requests, in tokens, in the paper's means; its generator also leaves out longer ones."""

DRAWN = 80_000
"""Requests drawn from a fitted length model: about as many as the paper has lengths."""


def lengths(setting: PaperSetting) -> dict[str, Trace]:
    """Return the requests whose lengths are averaged, by the workload's title."""
    found = {}
    for workload, title in TITLES.items():
        if setting.real(workload):
            trace = make_trace(setting.trace(workload), arrivals="all-at-once")
        else:
            trace = make_trace(setting.trace(workload), num_requests=DRAWN // (20 if setting.quick else 1))
        found[title] = trace.take(np.flatnonzero(trace.prompt_tokens + trace.output_tokens <= LONGEST))
    return found


def _mean_lengths(setting: PaperSetting, _: Values) -> Values:
    return {
        (title, name): float(column.mean())
        for title, trace in lengths(setting).items()
        for name, column in (("input", trace.prompt_tokens), ("output", trace.output_tokens))
    }


def _lead(knees: Values) -> Values:
    """Return how much vLLM's lead shrinks when the load is compute-bound."""
    panels = [at_knee(f"{model}, Alpaca") for model in ("OPT-175B", "OPT-13B")]
    leads = [quotient(knees["vLLM", panel], knees["Orca (Oracle)", panel]) for panel in panels]
    return {("vLLM / Orca (Oracle)", "lead on Alpaca, OPT-175B over OPT-13B"): quotient(*leads)}


def _batches(_: PaperSetting, batches: Values) -> Values:
    panel = "ShareGPT, 2 req/s"
    ratios = {
        (f"vLLM / {orca}", panel): quotient(batches["vLLM", panel], batches[orca, panel])
        for orca in ("Orca (Oracle)", "Orca (Max)")
    }
    return {**batches, **ratios}


def _best_sizes(_: PaperSetting, latencies: Values) -> Values:
    values: dict[Key, float | None] = {}
    for title in TITLES.values():
        line = {size: latencies[title, f"block {size}, s/token"] or 0.0 for size in SIZES}
        least, alike = best(line)
        values[title, "best block size"] = least
        values[title, "largest within 5 % of the best"] = max(alike)
        values |= {(title, f"block {size}, s/token"): latency for size, latency in line.items()}
    return values


SWAP, COPIES = "swap out and in", "swap, copy by copy"


def _undone(setting: PaperSetting, _: Values) -> Values:
    """Return the time to undo a preemption, by method and block size, without the engine's own time.

    Raises:
        PagesimError: the cost does not depend on block sizes.
    """
    cost = setting.cost_on(OPT_13B, "vllm-sosp", block_sizes=True)
    profile = blocks_profile(cost, OPT_13B.model, OPT_13B.gpu, OPT_13B.tp).with_overhead(0.0)
    sizes, spec = [size for size in SIZES if size in profile.block_sizes], model(OPT_13B.model)
    ours, copies = (undo(each, spec, sizes, TOKENS) for each in (profile, copy_by_copy(profile)))
    lines = {
        SWAP: [each.swap_s for each in ours],
        "recompute": [each.recompute_s for each in ours],
        COPIES: [each.swap_s for each in copies],
    }
    return {
        ("recompute", "largest over least"): max(lines["recompute"]) / min(lines["recompute"]),
        (SWAP, "block 1 over block 256"): lines[SWAP][0] / lines[SWAP][-1],
        **{
            (way, f"block {size}, ms"): 1e3 * seconds
            for way, line in lines.items()
            for size, seconds in zip(sizes, line, strict=True)
        },
    }


def _against_swapping(_: PaperSetting, latencies: Values) -> Values:
    ratios: dict[Key, float | None] = {}
    for size in SIZES:
        at = f"block {size}, s/token"
        for way in ("swap", COPIES):
            over = quotient(latencies["recompute", at], latencies[way, at])
            ratios[f"recompute / {way}", f"block {size}"] = over
    return {**ratios, **latencies}


MODELS = {"opt-13b": 1, "opt-66b": 4, "llama-3-8b": 1, "llama-3-70b": 4}
"""Tensor-parallel degree of each model."""

CONTEXTS = (128, 512, 2048, 8192)

LINKS = {
    "PCIe 4": gpu("a100-80gb").host,
    "PCIe 5": gpu("h100").host,
    "NVLink-C2C": Link(450e9, 5e-6, "Grace Hopper: 900 GB/s both ways together, peak; latency typical"),
}

BESIDE, EACH = 32, 512
"""Sequences that run at the same time, and tokens that each of them holds."""


def swap_over_recompute(name: str, tokens: int, link: str) -> float:
    """Return the time to swap a context over the time to recompute it; below 1, swapping is cheaper."""
    machine = replace(gpu("h100"), host=LINKS[link])
    cost = Roofline(model(name), machine, tp=MODELS[name])
    swap, again = PreemptionPrices(cost)(tokens, -(-tokens // 16), BESIDE, BESIDE * EACH)
    return swap / again


def _swap_map(_: PaperSetting, __: Values) -> Values:
    return {
        (f"swap / recompute, {link}", f"{name}, {tokens} tokens"): swap_over_recompute(name, tokens, link)
        for link in LINKS
        for name in MODELS
        for tokens in CONTEXTS
    }


DERIVED: dict[str, Callable[[PaperSetting, Values], Values]] = {
    "table1": _table1,
    "fig11": _mean_lengths,
    "fig13": _batches,
    "fig18a": lambda _, __: dict.fromkeys(published("fig18a")),
    "fig18b": _best_sizes,
    "fig19a": _undone,
    "fig19b": _against_swapping,
    "beyond-swap-map": _swap_map,
}
"""Functions that return all values of a figure in order, given the measured ones."""
