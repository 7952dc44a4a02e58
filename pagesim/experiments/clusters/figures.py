"""Figures of disaggregated serving: how the memory of each pool is used over time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from pagesim.accounting.metrics import VIEWS
from pagesim.experiments.clusters.cluster import ClusterResult
from pagesim.results.drawing import areas, empty, head, load_of

POINTS = 1000
"""Number of instants at which a figure samples the memory."""


def pools_over_time(result: ClusterResult) -> Figure:
    """Draw the ledger of each pool over time, averaged over its replicas.

    Args:
        result: of a run on two pools, with ``steps``.

    Raises:
        ValueError: the result holds no steps.
    """
    if result.steps is None or result.steps.empty:
        raise ValueError("the result holds no steps; replay two pools with steps=True")
    figure = empty(8.0, 6.2)
    clock = np.linspace(0.0, float((result.steps["start"] + result.steps["step_s"]).max()), POINTS)
    panels = figure.subplots(2, 1, sharex=True)
    for axes, pool in zip(panels, ("prefill", "decode"), strict=True):
        shares = pool_shares(result, pool, clock)
        shown = [entry for entry in VIEWS["strict"] if entry in shares and shares[entry].any()]
        areas(axes, clock, {entry: shares[entry] for entry in shown})
        axes.set_ylabel(f"{pool}: KV cache (%)")
    panels[1].set_xlabel("time (s)")
    return head(figure, "Where the KV cache of each pool goes over time", load_of(result.scenario))


def pool_shares(
    result: ClusterResult, pool: str, clock: npt.NDArray[np.float64]
) -> dict[str, npt.NDArray[np.float64]]:
    """Return each ledger entry of a pool, averaged over its replicas, in percent of the capacity.

    Args:
        result: of a run on two pools, with ``steps``.
        pool: ``prefill`` or ``decode``.
        clock: instants, in seconds, ``[T]``.

    Returns:
        Columns ``[T]`` by entry. A replica counts as free before its first and after its last iteration.
    """
    assert result.steps is not None
    steps = result.steps[result.steps["pool"] == pool]
    entries = [name for name in VIEWS["strict"] if name in steps and steps[name].notna().all()]
    count = int((result.replicas["pool"] == pool).sum())
    sums = {name: np.zeros(len(clock)) for name in entries}
    for _, rows in steps.groupby("replica"):
        start = rows["start"].to_numpy()
        end = start[-1] + rows["step_s"].iloc[-1] * max(1, int(rows["iterations"].iloc[-1]))
        place = np.searchsorted(start, clock, "right") - 1
        inside = (place >= 0) & (clock < end)
        capacity = rows[entries].iloc[0].sum()
        for name in entries:
            sums[name] += np.where(inside, rows[name].to_numpy()[np.maximum(place, 0)] / capacity, 0.0)
    shares = {name: 100 * column / count for name, column in sums.items()}
    shares["free"] = 100.0 - np.sum([column for name, column in shares.items() if name != "free"], axis=0)
    return shares
