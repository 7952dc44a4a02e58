"""What fragmentation remains at block sizes 1 to 256, for models with few KV heads and an fp8 cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagesim.costs.specs import model
from pagesim.experiments.paper.figures.base import Outcomes, PaperFigure
from pagesim.experiments.paper.jobs import Job, Replay
from pagesim.experiments.paper.numbers import Number
from pagesim.experiments.paper.setting import Deployment, Setting
from pagesim.experiments.paper.swaps import SIZES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "beyond-fragmentation"

MIB = 1 << 20

SERVERS = {
    "OPT-13B, fp16": (Deployment("opt-13b", "a100-80gb", 1, ""), "fp16"),
    "Llama-3-8B, fp8 KV": (Deployment("llama-3-8b", "h100", 1, ""), "fp8"),
    "Llama-3-70B, fp8 KV": (Deployment("llama-3-70b", "h100", 4, ""), "fp8"),
}
WORKLOADS = {"sharegpt": "ShareGPT", "alpaca": "Alpaca"}
RATE, SECONDS = 2.0, 600.0
"""A load that all of them keep up with: what a sequence holds does not depend on it."""


def jobs(setting: Setting) -> dict[str, Job]:
    """Return a replay for each model, workload and block size."""
    return {
        f"{title} {workload} {size}": Replay(
            setting.scenario(
                server,
                "vllm-sosp",
                workload,
                seconds=SECONDS,
                rate=RATE,
                kv_cache_dtype=kv_dtype,
                block_size=size,
                cost="roofline",
                window=setting.window(SECONDS / 3, SECONDS),
            )
        )
        for title, (server, kv_dtype) in SERVERS.items()
        for workload in WORKLOADS
        for size in SIZES
    }


def numbers(_: Setting, found: Outcomes) -> list[Number]:
    """Return the share of held slots that hold no token, and how many MiB that is a request."""
    rows = []
    for title, (server, kv_dtype) in SERVERS.items():
        spec = model(server.model)
        token_bytes = spec.kv_bytes_per_token(kv_dtype, server.tp) * server.tp
        for workload, of in WORKLOADS.items():
            for size in SIZES:
                outcome = found[f"{title} {workload} {size}"]
                entries = outcome["memory"]["strict"]["per_iteration"]
                empty = entries["rounding"] + entries["reserved"]
                slots = outcome["memory"]["num_blocks"] * size
                mib = empty / 100 * slots / outcome["batch"]["mean"] * token_bytes / MIB
                share = 100 * empty / (empty + entries["used"])
                rows.append(
                    Number(NAME, f"{title}, {of}", f"block {size}, % of what is held", None, "", share)
                )
                rows.append(Number(NAME, f"{title}, {of}", f"block {size}, MiB a request", None, "", mib))
    return rows


def draw(_: Setting, __: Outcomes, numbers: Sequence[Number]) -> Figure:
    """Draw both, over block sizes."""
    from pagesim.experiments.paper.drawing import legend
    from pagesim.results.drawing import over_sizes, panels
    from pagesim.results.style import BLUE, GREEN, VERMILION

    figure, axes = panels(1, 2)
    colours = dict(zip(SERVERS, (VERMILION, BLUE, GREEN), strict=True))
    for each, what in zip(axes, ("% of what is held", "MiB a request"), strict=True):
        for title, colour in colours.items():
            for workload, style in zip(WORKLOADS.values(), ("o-", "s--"), strict=True):
                series = f"{title}, {workload}"
                line = [n.ours or 0.0 for n in numbers if n.series == series and n.x.endswith(what)]
                each.plot(SIZES, line, style, color=colour, markersize=3, label=series)
        over_sizes(each, SIZES, f"allocated and empty ({what})")
    legend(axes[0])
    return figure


def answer(numbers: Sequence[Number]) -> str:
    """Return what small and large blocks leave empty."""
    found = {(n.series, n.x): n.ours or 0.0 for n in numbers}

    def of(title: str, size: int, what: str) -> float:
        return found[f"{title}, ShareGPT", f"block {size}, {what}"]

    old, new = "OPT-13B, fp16", "Llama-3-8B, fp8 KV"
    share, mib = "% of what is held", "MiB a request"
    return (
        f"The share depends on lengths alone: on ShareGPT {of(old, 16, share):.1f} % at block 16 and "
        f"{of(old, 256, share):.0f} % at 256 for {old}, {of(new, 16, share):.1f} and "
        f"{of(new, 256, share):.0f} % for "
        f"{new}. In bytes a token is {of(old, 16, mib) / of(new, 16, mib):.0f} times "
        "smaller there: a request "
        f"leaves {of(new, 256, mib):.0f} MiB empty at block 256, about what it is for {old} at block 16 "
        f"({of(old, 16, mib):.0f} MiB)."
    )


FIGURE = PaperFigure(
    NAME,
    "What fragmentation remains with few KV heads and fp8",
    "2 requests/s for 600 s; slots that are held and hold no token, of all that are held and in MiB of all "
    "GPUs a running request; mean over the iterations from 200 to 600 s",
    "memory",
    jobs,
    numbers,
    draw,
    answer=answer,
)
