"""The figures of where a GPU's memory goes: of a plan, and of models that serve as much as they can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pagesim.accounting.ledger import HYBRID_ENTRIES
from pagesim.costs.specs.gpus import GIB
from pagesim.results.style import PARTS, ink


def gpu_memory_bar(parts: Mapping[str, float], title: str) -> Figure:
    """Draw the parts of a GPU's memory as one bar.

    Args:
        parts: GiB by name, in the order in which they lie side by side; the first is what the engine may not
            use.
        title: above the bar.
    """
    figure = Figure(figsize=(7.5, 2.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    left = 0.0
    for name in (*list(parts)[1:], next(iter(parts))):
        width = parts[name]
        axes.barh(0, width, left=left, label=f"{name} {width:.2f}", **_look(name))
        left += width
    axes.set(xlim=(0, left), xlabel="GiB", yticks=())
    axes.set_title(title, fontsize=9, loc="left")
    axes.spines[["top", "left", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def plan_bars(plans: Sequence[tuple[str, Mapping[str, float] | None, str]], title: str) -> Figure:
    """Draw plans side by side, a bar each, with the requests that run at once behind it.

    Args:
        plans: from top to bottom the label, GiB by part, or None where the model does not fit, and what
            stands behind the bar. The first part is what the engine may not use.
        title: what the labels are values of.
    """
    figure = Figure(figsize=(8.0, 1.5 + 0.36 * len(plans)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    whole = max((sum(parts.values()) for _, parts, _ in plans if parts), default=1.0)
    names = [
        name for name in ("weights", "weights and all else") if any(name in (p or ()) for _, p, _ in plans)
    ]
    names += ["activations", "CUDA graphs", "other", "KV cache", "not requested"]
    drawn: dict[str, Any] = {}
    for place, (_, parts, behind) in enumerate(plans):
        left = 0.0
        for name in names:
            width = (parts or {}).get(name, 0.0)
            if width:
                drawn[name] = axes.barh(place, width, 0.74, left=left, **_look(name))
                if width > NARROWEST_LABEL * whole:
                    axes.text(
                        left + width / 2, place, f"{width:.1f}", ha="center", va="center", fontsize=8,
                        color=ink(PARTS[name].colour),
                    )  # fmt: skip
            left += width
        axes.text(1.02 * whole if parts else 0.01 * whole, place, behind, va="center", fontsize=8)
    axes.text(1.02 * whole, -0.75, "at once", fontsize=8, va="center")
    axes.set(xlim=(0, 1.1 * whole), ylim=(len(plans) - 0.4, -1.1), xlabel="GiB of each GPU")
    axes.set_yticks(range(len(plans)), [label for label, _, _ in plans])
    axes.set_title(title, fontsize=9, loc="left")
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "left", "right"]].set_visible(False)
    order = [name for name in names if name in drawn]
    figure.legend(
        [drawn[name] for name in order], order,
        loc="outside lower center", ncols=5, frameon=False, fontsize=8,
    )  # fmt: skip
    return figure


STACKED: dict[str, tuple[str, ...]] = {
    "weights": ("weights",),
    "all else": ("activations", "CUDA graphs", "other"),
    **{entry: (entry,) for entry in HYBRID_ENTRIES},
    "not requested": ("not requested",),
}
"""The parts of a bar, from left to right, and of what they are made."""

NARROWEST_LABEL = 0.055
"""Of a bar's length; a narrower part gets no number."""


class FullMemory(Protocol):
    """A GPU's memory while its cache is full: `pagesim.experiments.gallery.Full`."""

    @property
    def model(self) -> str:
        """Its name."""

    @property
    def tensor_parallel_size(self) -> int:
        """GPUs that share the model."""

    @property
    def load(self) -> str:
        """What fills the cache."""

    @property
    def running(self) -> float:
        """Requests, mean over iterations."""

    @property
    def bytes(self) -> Mapping[str, int]:
        """By part."""


def gallery_bars(memories: Sequence[FullMemory], gpu: str) -> Figure:
    """Draw where each GPU's memory goes, a bar a model and a panel a load.

    Args:
        memories: in the order of the bars, from top to bottom.
        gpu: whose memory it is.
    """
    loads = list(dict.fromkeys(memory.load for memory in memories))
    models = list(dict.fromkeys((memory.model, memory.tensor_parallel_size) for memory in memories))
    figure = Figure(figsize=(9.6, 1.6 + 0.36 * len(models)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(loads), sharey=True, squeeze=False)[0]
    drawn: dict[str, Any] = {}
    whole = max(sum(memory.bytes.values()) for memory in memories) / GIB
    for axes, load in zip(panels, loads, strict=True):
        for memory in memories:
            if memory.load == load:
                place = models.index((memory.model, memory.tensor_parallel_size))
                drawn |= _bar(axes, place, memory, whole)
        axes.set(xlim=(0, 1.13 * whole), ylim=(len(models) - 0.4, -0.85), xlabel="GiB of each GPU")
        axes.set_title(load, fontsize=10, loc="left")
        axes.text(1.02 * whole, -0.6, "running", fontsize=8, va="center")
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "left", "right"]].set_visible(False)
    names = [name if gpus == 1 else f"{name}\n1 of {gpus} GPUs" for name, gpus in models]
    panels[0].set_yticks(range(len(models)), names)
    order = [part for part in STACKED if part in drawn]
    labels = [PARTS[part].label for part in order]
    figure.legend(
        [drawn[part] for part in order],
        labels,
        loc="outside lower center",
        ncols=5,
        frameon=False,
        fontsize=8,
    )
    figure.suptitle(f"Where the memory of a full {gpu} goes", fontsize=11)
    return figure


def _look(part: str) -> dict[str, Any]:
    """Return the looks of a part; a whole cache looks as its used slots."""
    edge = "#9A9A9A" if part == "not requested" else "white"
    return {"color": PARTS[part].colour, "edgecolor": edge, "linewidth": 0.5}


def _bar(axes: Axes, place: int, memory: FullMemory, whole: float) -> dict[str, Any]:
    """Draw a bar with its numbers; return the parts that were drawn."""
    drawn: dict[str, Any] = {}
    left = 0.0
    for part, names in STACKED.items():
        width = sum(memory.bytes.get(name, 0) for name in names) / GIB
        if not width:
            continue
        drawn[part] = axes.barh(place, width, 0.74, left=left, **_look(part))
        if width > NARROWEST_LABEL * whole:
            axes.text(
                left + width / 2, place, f"{width:.1f}", ha="center", va="center", fontsize=8,
                color=ink(PARTS[part].colour),
            )  # fmt: skip
        left += width
    axes.text(1.02 * whole, place, f"{memory.running:,.0f}", va="center", fontsize=8)
    return drawn
