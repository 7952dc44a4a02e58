"""Shares of memory over time in the pools of disaggregated serving."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pagesim.accounting.metrics import VIEWS
from pagesim.experiments.clusters.cluster import ClusterResult


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
