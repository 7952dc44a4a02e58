"""What has to be replayed for a figure: systems under loads, each kept in a store until the code changes."""

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
"""What a load gave: as in a summary.json, so that it can be kept in a file."""

BEARABLE = 1.0
"""Seconds a token beyond which the paper cuts its curves; where a curve gets there is its knee."""

FURTHER = 1.25
"""A rate beyond, or below, those that were given, while these do not show the knee."""

MOST_FURTHER = 14

NARROW = 1.04
"""A knee is known when two rates on either side of it differ by no more than this factor."""


@dataclass(frozen=True)
class Load:
    """A system under a load; it depends on nothing but its own fields.

    Attributes:
        scenario: what is replayed, its rate left out where there are ``rates``.
        rates: of a curve, in requests/s, ascending.
        conversations: whether the trace's requests become turns of conversations.
        copies: whether swaps cost what the paper's own did (`copy_by_copy`).
    """

    scenario: Scenario
    rates: tuple[float, ...] = ()
    conversations: bool = False
    copies: bool = False

    def run(self) -> Outcome:
        """Return a replay's summary; of a curve its ``points``: lists of rate, s/token and mean batch.

        A curve's rates are all replayed. While they do not show the knee, further ones are; then the gap
        around the knee is halved until it is narrow.
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
            rate = float(f"{(below * above) ** 0.5:.4g}")  # a text of few digits is exact in a file
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
        """Return the profile by which swaps cost what the paper's own did.

        Raises:
            PagesimError: the cost knows no block sizes.
        """
        of = self.scenario
        return copy_by_copy(blocks_profile(of.cost, of.model, of.gpu, of.tensor_parallel_size))

    @property
    def key(self) -> str:
        """A hash of the load, of the files that it reads, and of pagesim's code."""
        own = [self.rates, self.conversations, self.copies]
        whole = [own, run_key(self.scenario, recipe_key(self.scenario))]
        return hashlib.sha256(json.dumps(whole).encode()).hexdigest()[:32]


Point = Sequence[float]


def around_knee(points: Sequence[Point]) -> tuple[Point, Point] | None:
    """Return the first two neighbouring points between which latency passes what is bearable, or None."""
    ordered = sorted(points, key=lambda point: point[0])
    for below, above in pairwise(ordered):
        if below[1] <= BEARABLE < above[1]:
            return below, above
    return None


def knee(points: Sequence[Point]) -> float | None:
    """Return the rate at which latency is `BEARABLE`, on a straight line between neighbours; None if nowhere.

    Args:
        points: of a curve: rate, s/token and whatever else.
    """
    gap = around_knee(points)
    if gap is None:
        return None
    below, above = gap
    return below[0] + (above[0] - below[0]) * (BEARABLE - below[1]) / (above[1] - below[1])


def carry_out(
    loads: Mapping[K, Load], store: RunStore, workers: Workers, *, progress: ProgressCallback | None = None
) -> dict[K, Outcome]:
    """Return what each load gave, from the store where it is there.

    Args:
        loads: by name; those that are alike are replayed once.
        store: of outcomes.
        workers: that replay.
        progress: called after each load with how many are over, of how many, and a word.

    Raises:
        PagesimError: a trace cannot be read, say; or the folder cannot be written.
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
