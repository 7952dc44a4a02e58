"""Replays for the figures: systems under loads, with results stored until the code changes."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from pagesim.api import run, trace_of
from pagesim.costs.profiles import Profile
from pagesim.experiments.paper.conversations import as_conversations
from pagesim.experiments.paper.swaps import blocks_profile, copy_by_copy
from pagesim.experiments.sweeps.keys import recipe_key, run_key
from pagesim.experiments.sweeps.run_store import RunRecord, RunStore
from pagesim.experiments.sweeps.runs import run_and_store
from pagesim.experiments.sweeps.workers import Workers
from pagesim.setup.scenario import Scenario

K = TypeVar("K")

ProgressCallback = Callable[[int, int, str], None]

Outcome = dict[str, Any]
"""A load's result, as in summary.json, so that it can be stored in a file."""

BEARABLE = 1.0
"""Normalized latency (s/token) at which the paper cuts its curves; a curve reaches it at its knee."""

FURTHER = 1.25
"""Factor by which the range of rates is extended, up or down, until it contains the knee."""

MOST_FURTHER = 14

NARROW = 1.04
"""A knee is known once the rates on either side of it differ by no more than this factor."""


@dataclass(frozen=True)
class Load:
    """A system under a load, fully described by its fields.

    Attributes:
        scenario: scenario to replay, without a rate if there are ``rates``.
        rates: rates of a curve, in requests/s, ascending.
        conversations: whether to turn the trace's requests into turns of conversations.
        copies: whether swaps cost as much as the paper's (`copy_by_copy`).
    """

    scenario: Scenario
    rates: tuple[float, ...] = ()
    conversations: bool = False
    copies: bool = False

    def run(self) -> Outcome:
        """Return a replay's summary; for a curve, its ``points``: lists of rate, s/token and mean batch.

        All rates of a curve are replayed, and further ones until they enclose the knee. Then the interval
        around the knee is bisected until it is narrow.
        """
        if not self.rates:
            return self._replay()
        points = {rate: self._at(rate) for rate in self.rates}
        for _ in range(MOST_FURTHER):
            if min(point[0] for point in points.values()) > BEARABLE:
                rate = min(points) / FURTHER
            elif max(point[0] for point in points.values()) <= BEARABLE:
                rate = max(points) * FURTHER
            else:
                break
            points[rate] = self._at(rate)
        while (gap := around_knee([(rate, *point) for rate, point in points.items()])) is not None:
            (below, *_), (above, *_) = gap
            if above <= NARROW * below:
                break
            rate = float(f"{(below * above) ** 0.5:.4g}")  # few digits are stored exactly
            points[rate] = self._at(rate)
        return {"points": [[rate, *points[rate]] for rate in sorted(points)]}

    def _at(self, rate: float) -> tuple[float, float]:
        at = replace(self, scenario=self.scenario.model_copy(update={"rate": rate}), rates=())
        summary = at.run()
        return summary["normalized_latency"]["mean"] or 0.0, summary["batch"]["mean"] or 0.0

    def _replay(self) -> Outcome:
        system = self.scenario
        with tempfile.TemporaryDirectory() as folder:
            if self.copies:
                self.profile().save(Path(folder) / "profile.json")
                system = system.model_copy(update={"cost": f"profile:{folder}/profile.json"})
            trace = trace_of(system)
            if self.conversations:
                trace = as_conversations(trace, system)
            summary = run(system, trace, steps="none").summary
        return {name: value for name, value in summary.items() if name != "sim"}

    def profile(self) -> Profile:
        """Return the profile in which swaps cost as much as the paper's.

        Raises:
            PagesimError: the cost does not depend on block sizes.
        """
        of = self.scenario
        return copy_by_copy(blocks_profile(of.cost, of.model, of.gpu, of.tensor_parallel_size))

    @property
    def key(self) -> str:
        """Hash of the load, the files that it reads, and pagesim's code."""
        own = [self.rates, self.conversations, self.copies]
        whole = [own, run_key(self.scenario, recipe_key(self.scenario))]
        return hashlib.sha256(json.dumps(whole).encode()).hexdigest()[:32]


Point = Sequence[float]


def around_knee(points: Sequence[Point]) -> tuple[Point, Point] | None:
    """Return the first two neighbouring points between which latency rises above `BEARABLE`, or None."""
    ordered = sorted(points, key=lambda point: point[0])
    for below, above in pairwise(ordered):
        if below[1] <= BEARABLE < above[1]:
            return below, above
    return None


def knee(points: Sequence[Point]) -> float | None:
    """Return the rate at which latency reaches `BEARABLE`, by linear interpolation; None if it never does.

    Args:
        points: points of a curve: rate, s/token and any further values.
    """
    gap = around_knee(points)
    if gap is None:
        return None
    below, above = gap
    return below[0] + (above[0] - below[0]) * (BEARABLE - below[1]) / (above[1] - below[1])


def carry_out(
    loads: Mapping[K, Load], store: RunStore, workers: Workers, *, progress: ProgressCallback | None = None
) -> dict[K, Outcome]:
    """Return each load's result, from the store if it is there.

    Args:
        loads: loads by name; equal ones are replayed once.
        store: store of results.
        workers: processes that run the replays.
        progress: called after each replay with the number finished, the total, and what is counted.

    Raises:
        PagesimError: for instance, a trace cannot be read or the folder cannot be written.
    """
    keys = {name: load.key for name, load in loads.items()}
    different = {keys[name]: load for name, load in loads.items()}
    records = {key: record for key in different if (record := store.run(key)) is not None}
    todo = [(key, load) for key, load in different.items() if key not in records]
    scenarios = {key: load.scenario for key, load in todo}
    for over, (key, record) in enumerate(run_and_store(_run, todo, scenarios, store, workers), 1):
        records[key] = record
        if progress is not None:
            progress(over, len(todo), "replays")
    return {name: records[key].summary or {} for name, key in keys.items()}


def _run(key: str, load: Load) -> tuple[str, RunRecord]:
    return key, RunRecord("done", None, load.run())
