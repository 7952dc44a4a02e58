"""Figures of how a GPU's memory is divided, for memory plans and for models served at full load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from matplotlib.figure import Figure

from pagesim.accounting.ledger import HYBRID_ENTRIES
from pagesim.hardware.gpus import GIB
from pagesim.results.drawing import SMALL, bare, below, empty, head, stacks
from pagesim.results.style import PARTS

NARROWEST_LABEL = 0.055
"""Minimum width, as a fraction of a bar's length, of a part that is labelled with its number."""


def gpu_memory_bar(parts: Mapping[str, float], title: str, load: str = "") -> Figure:
    """Draw the parts of a GPU's memory as one bar.

    Args:
        parts: GiB by name, from left to right; only the first, which the engine may not use, is drawn last.
        title: title of the figure.
        load: the model and the GPU, for the line below the title.
    """
    figure = empty(7.5, 2.2)
    axes = figure.add_subplot()
    last, *others = parts
    drawn = stacks(axes, {name: [parts[name]] for name in (*others, last)})
    axes.set(xlim=(0, sum(parts.values())), xlabel="GiB", yticks=())
    bare(axes, but=("bottom",))
    gib = {PARTS[name].label: f"{PARTS[name].label} {width:.2f}" for name, width in parts.items()}
    below(figure, {gib[label]: bar for label, bar in drawn.items()}, 3)
    return head(figure, title, load)


def plan_bars(
    plans: Sequence[tuple[str, Mapping[str, float] | None, str]], title: str, load: str = ""
) -> Figure:
    """Draw one bar per memory plan, each followed by the number of requests that run at once.

    Args:
        plans: from top to bottom: label, GiB by part (None if the model does not fit), and the text after the
            bar. The first part is what the engine may not use.
        title: title of the figure, which says what the labels are.
        load: what all plans share, for the line below the title.
    """
    figure = empty(8.0, 1.5 + 0.36 * len(plans))
    axes = figure.add_subplot()
    whole = max((sum(parts.values()) for _, parts, _ in plans if parts), default=1.0)
    table = {name: [(parts or {}).get(name, 0.0) for _, parts, _ in plans] for name in IN_A_PLAN}
    drawn = stacks(axes, table, numbers_from=NARROWEST_LABEL * whole)
    for place, (_, parts, behind) in enumerate(plans):
        axes.text(1.02 * whole if parts else 0.01 * whole, place, behind, va="center", fontsize=SMALL)
    axes.text(1.02 * whole, -0.75, "at once", fontsize=SMALL, va="center")
    axes.set(xlim=(0, 1.1 * whole), ylim=(len(plans) - 0.4, -1.1), xlabel="GiB of each GPU")
    axes.set_yticks(range(len(plans)), [label for label, _, _ in plans])
    axes.tick_params(axis="y", length=0)
    bare(axes, but=("bottom",))
    below(figure, drawn)
    return head(figure, title, load)


IN_A_PLAN = (
    "weights",
    "weights and all else",
    "drafter",
    "activations",
    "CUDA graphs",
    "other",
    "KV cache",
    "not requested",
)
"""Parts of a plan's bar, from left to right."""

STACKED: dict[str, tuple[str, ...]] = {
    "weights": ("weights",),
    "all else": ("activations", "CUDA graphs", "other"),
    **{entry: (entry,) for entry in HYBRID_ENTRIES},
    "not requested": ("not requested",),
}
"""Parts of a bar in `gallery_bars`, from left to right, with the parts of `FullMemory.bytes` they sum."""


@dataclass(frozen=True, slots=True)
class FullMemory:
    """A GPU's memory while the KV cache is full.

    Args:
        model: name of the model.
        gpu: name of the GPU.
        tensor_parallel_size: GPUs that share the model; blocks and bytes are those of each GPU.
        load: workload that fills the cache.
        clients: clients that wait for answers.
        max_num_seqs: limit of the server; fewer requests run at once.
        running: running requests, mean over iterations.
        waiting: waiting requests, mean over iterations.
        num_blocks: blocks of the cache, including the null block.
        bytes: bytes by part, summing to the GPU's memory; means over iterations for parts of the cache.
    """

    model: str
    gpu: str
    tensor_parallel_size: int
    load: str
    clients: int
    max_num_seqs: int
    running: float
    waiting: float
    num_blocks: int
    bytes: dict[str, int]

    def row(self) -> dict[str, str | int | float]:
        """Return the values as a row of a table."""
        whole = asdict(self)
        parts = whole.pop("bytes")
        whole |= {name: round(whole[name], 2) for name in ("running", "waiting")}
        return whole | {f"{name.lower().replace(' ', '_')}_bytes": count for name, count in parts.items()}


SATURATING = "lengths of ShareGPT, from twice as many clients as the cache holds requests"
"""Description of the load that fills the caches of `gallery_bars`."""


def gallery_bars(memories: Sequence[FullMemory], gpu: str) -> Figure:
    """Draw how each GPU's memory is divided, with one bar per model and one panel per workload.

    Args:
        memories: memory of each model and workload; bars follow their order from top to bottom.
        gpu: name of the GPU.
    """
    loads = list(dict.fromkeys(memory.load for memory in memories))
    models = list(dict.fromkeys((memory.model, memory.tensor_parallel_size) for memory in memories))
    figure = empty(9.6, 1.6 + 0.36 * len(models))
    panels = figure.subplots(1, len(loads), sharey=True, squeeze=False)[0]
    drawn: dict[str, Any] = {}
    whole = max(sum(memory.bytes.values()) for memory in memories) / GIB
    for axes, load in zip(panels, loads, strict=True):
        own = {
            (memory.model, memory.tensor_parallel_size): memory for memory in memories if memory.load == load
        }
        table = {
            part: [
                sum(own[each].bytes.get(name, 0) for name in names) / GIB if each in own else 0.0
                for each in models
            ]
            for part, names in STACKED.items()
        }
        drawn |= stacks(axes, table, numbers_from=NARROWEST_LABEL * whole)
        for each, memory in own.items():
            axes.text(1.02 * whole, models.index(each), f"{memory.running:,.0f}", va="center", fontsize=SMALL)
        axes.set(xlim=(0, 1.13 * whole), ylim=(len(models) - 0.4, -0.85), xlabel="GiB of each GPU")
        axes.set_title(load, fontsize=10, loc="left")
        axes.text(1.02 * whole, -0.6, "running", fontsize=SMALL, va="center")
        axes.tick_params(axis="y", length=0)
    bare(*panels, but=("bottom",))
    names = [name if gpus == 1 else f"{name}\n1 of {gpus} GPUs" for name, gpus in models]
    panels[0].set_yticks(range(len(models)), names)
    labels = [PARTS[part].label for part in STACKED if PARTS[part].label in drawn]
    below(figure, {label: drawn[label] for label in labels})
    return head(figure, f"Where the memory of a full {gpu} goes", SATURATING)
