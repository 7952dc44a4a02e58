"""Errors: of predicted iterations against measured ones, and of a simulated run against a live one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pagesim.costs import CostModel, IterationShape
from pagesim.results.result import Result
from pagesim.scheduling.batch import Batch
from pagesim.scheduling.observer import Observer
from pagesim.sim.clock import TICKS_PER_SECOND
from pagesim.sim.executor import shape_of

KINDS = ("prefill", "decode", "mixed", "with swap")
"""Kinds of iterations; one that swaps is of the last kind, whatever it computes."""

LATENCIES = ("normalized_latency", "ttft", "tpot")
STATISTICS = ("mean", "p50", "p95", "p99")

METRICS = (
    "total_s",
    "requests_per_s",
    "tokens_per_s",
    "mean_batch",
    *(f"{name}.{statistic}" for name in LATENCIES for statistic in STATISTICS),
)
"""What is compared end to end; ``docs/reference/metrics.md`` defines it, but for ``total_s``: from the first
arrival to the last token."""

Errors = dict[str, float]


def kind_of(shape: IterationShape) -> str:
    """Return the kind of an iteration of this shape, one of ``KINDS``."""
    if shape.blocks_out or shape.blocks_in:
        return "with swap"
    if not shape.decoding:
        return "prefill"
    return "decode" if shape.tokens == shape.decoding else "mixed"


@dataclass
class Iterations(Observer):
    """Observes a run's iterations, and predicts each from its own shape: the same schedule, another clock.

    Args:
        cost: what predicts.

    Attributes:
        kinds: of each iteration, ``[I]``.
        measured_s: what each took, ``[I]``.
        predicted_s: what it would have taken by ``cost``, ``[I]``.
    """

    cost: CostModel
    kinds: list[str] = field(default_factory=list)
    measured_s: list[float] = field(default_factory=list)
    predicted_s: list[float] = field(default_factory=list)

    def planned(self, batch: Batch, now: int, start: int, ticks: int) -> None:
        shape = shape_of(batch)
        if not (shape.tokens or shape.blocks_out or shape.blocks_in or shape.blocks_copied):
            return  # nothing was done: nothing was measured
        self.kinds.append(kind_of(shape))
        self.measured_s.append(ticks / TICKS_PER_SECOND)
        self.predicted_s.append(self.cost.iteration(shape) / TICKS_PER_SECOND)

    def next_look(self) -> int:
        return 0  # every iteration


def by_kind(iterations: Iterations) -> dict[str, Errors]:
    """Return the errors of each kind of iteration that there was, and of ``all``.

    ``iterations``: how many; ``mean_s``: what they took; ``signed`` and ``absolute``: mean relative error of
    one, with its sign and without; ``total``: relative error of all their time together.
    """
    kinds = np.array(iterations.kinds, dtype=object)
    measured, predicted = np.array(iterations.measured_s), np.array(iterations.predicted_s)
    return {
        kind: _errors(measured[chosen], predicted[chosen])
        for kind in (*KINDS, "all")
        if (chosen := np.full(len(kinds), True) if kind == "all" else kinds == kind).any()
    }


def _errors(measured: npt.NDArray[np.float64], predicted: npt.NDArray[np.float64]) -> Errors:
    relative = predicted / measured - 1
    return {
        "iterations": len(measured),
        "mean_s": float(measured.mean()),
        "signed": float(relative.mean()),
        "absolute": float(np.abs(relative).mean()),
        "total": float(predicted.sum() / measured.sum() - 1),
    }


def metric_errors(live: Result, simulated: Result) -> dict[str, Errors]:
    """Return, by metric, ``live``, ``simulated`` and the relative ``error``; a missing one is left out."""
    ours, theirs = dict(_metrics(simulated)), dict(_metrics(live))
    return {
        name: {"live": theirs[name], "simulated": ours[name], "error": ours[name] / theirs[name] - 1}
        for name in METRICS
        if name in ours and theirs.get(name)
    }


def _metrics(result: Result) -> Iterator[tuple[str, float]]:
    summary: Mapping[str, Any] = result.summary
    columns = result.request_columns
    done = columns["status"] == "finished"
    if done.any():
        yield "total_s", float(columns["finish_s"][done].max() - np.nanmin(columns["arrival_s"]))
    found = {
        **summary["throughput"],
        "mean_batch": summary["batch"]["mean"],
        **{f"{name}.{each}": summary[name][each] for name in LATENCIES for each in STATISTICS},
    }
    yield from ((name, value) for name, value in found.items() if value is not None)
