"""What has to be replayed for a figure, over all cores, each job kept in a file until the code changes."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from pagesim.api import run, trace_of
from pagesim.costs.parse import split_profile
from pagesim.errors import PagesimError
from pagesim.experiments.ablations import serve
from pagesim.experiments.paper.conversations import as_conversations
from pagesim.experiments.paper.swaps import blocks_profile, copy_by_copy
from pagesim.setup.files import put_text
from pagesim.setup.scenario import Scenario
from pagesim.workloads.trace import Trace

ProgressCallback = Callable[[int, int, str], None]

Outcome = dict[str, Any]
"""What a job found: as in a summary.json, so that it can be kept in a file."""

CHANGES: dict[str, Callable[[Trace, Scenario], Trace]] = {
    "conversations": as_conversations,
    "conversations of 3 turns": partial(as_conversations, turns=3),
    "conversations of 12 turns": partial(as_conversations, turns=12),
}
"""What is made of a trace before it is replayed, by name."""

BEARABLE = 1.0
"""Seconds a token beyond which the paper cuts its curves; where a curve gets there is its knee."""

FURTHER = 1.25
"""A rate beyond, or below, those that were given, while these do not show the knee."""

MOST_FURTHER = 14

NARROW = 1.04
"""A knee is known when two rates on either side of it differ by no more than this factor."""


class Job(Protocol):
    """Something that takes long, depends on nothing but its own fields, and gives numbers."""

    @property
    def scenario(self) -> Scenario:
        """What is replayed."""

    def run(self) -> Outcome:
        """Do it."""


@dataclass(frozen=True)
class Replay:
    """One replay; its outcome is the summary.

    Args:
        scenario: what is replayed.
        change: of the trace, a key of `CHANGES`.
    """

    scenario: Scenario
    change: str | None = None

    def run(self) -> Outcome:
        return _replay(self.scenario, self.change)


@dataclass(frozen=True)
class Ablated:
    """One replay at a block size and with a way to preempt, by what `pagesim ablate` calls.

    Args:
        scenario: what is replayed, at blocks of 16; its cost is a profile that knows the size.
        block_size: tokens a block.
        preemption: as in a scenario.
        copies: whether swaps cost what the paper's own did (`copy_by_copy`).
    """

    scenario: Scenario
    block_size: int
    preemption: str = "default"
    copies: bool = False

    def run(self) -> Outcome:
        system = self.scenario
        with tempfile.TemporaryDirectory() as folder:
            if self.copies:
                profile, _ = blocks_profile(
                    system.cost, system.model, system.gpu, system.tensor_parallel_size
                )
                copy_by_copy(profile).save(Path(folder) / "profile.json")
                system = system.model_copy(update={"cost": f"profile:{folder}/profile.json"})
            found = serve(system, trace_of(system), (self.block_size,), (self.preemption,))
            return _plain(next(found)[2].summary)


@dataclass(frozen=True)
class Curve:
    """Latency over rates, and the knee; its outcome has ``points``: lists of rate, s/token and mean batch.

    The rates that are given are all replayed. While they do not show the knee, further ones are; then the gap
    around the knee is halved until it is narrow.

    Args:
        scenario: what is replayed, its rate left out.
        rates: requests/s, ascending.
        change: of the trace, a key of `CHANGES`.
    """

    scenario: Scenario
    rates: tuple[float, ...]
    change: str | None = None

    def run(self) -> Outcome:
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
        summary = _replay(self.scenario.model_copy(update={"rate": rate}), self.change)
        latency = summary["normalized_latency"]["mean"]
        return (0.0 if latency is None else latency), summary["batch"]["mean"] or 0.0


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
    jobs: Mapping[str, Job], *, folder: Path, cores: int, progress: ProgressCallback | None = None
) -> dict[str, Outcome]:
    """Return what each job found, from its file in a folder where there is one.

    Args:
        jobs: by name; those that are alike are done once.
        folder: for the files; it is made.
        cores: at once; one keeps everything in this process.
        progress: called after each job with how many are over, of how many, and a word.

    Raises:
        PagesimError: a trace cannot be read, say; or the folder cannot be written.
    """
    import joblib

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PagesimError(f"{folder}: cannot be written ({error.strerror})") from None
    different = {key_of(job): job for job in jobs.values()}
    todo = {key: job for key, job in different.items() if _kept(folder / f"{key}.json") is None}
    workers = joblib.Parallel(n_jobs=cores, return_as="generator_unordered")
    tasks = workers(joblib.delayed(_keep)(job, folder / f"{key}.json") for key, job in todo.items())
    for over, _ in enumerate(tasks, 1):
        if progress is not None:
            progress(over, len(todo), "replays")
    found = {}
    for name, job in jobs.items():
        outcome = _kept(folder / f"{key_of(job)}.json")
        if outcome is None:
            raise PagesimError(f"{folder}: what was replayed is gone; run the command again")
        found[name] = outcome
    return found


def key_of(job: Job) -> str:
    """Return a name of a job's outcome: it differs when the job, a file that it reads or the code does."""
    own = {each.name: getattr(job, each.name) for each in fields(job)}  # type: ignore[arg-type]
    own["scenario"] = job.scenario.model_dump(mode="json")
    files = [_digest(Path(text)) for text in (job.scenario.trace, _file_of_cost(job.scenario.cost))]
    text = json.dumps([type(job).__name__, own, files, code()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


@cache
def code() -> str:
    """Return a digest of the code and data that a replay depends on."""
    root = Path(__file__).resolve().parents[2]
    ours = {root / "experiments" / "paper" / f"{name}.py" for name in ("jobs", "conversations", "swaps")}
    files = {file for kind in ("*.py", "*.json") for file in root.rglob(kind)}
    # Not every Python follows the link to this folder.
    files |= {file for kind in ("*.py", "*.json") for file in (root / "workloads").rglob(kind)}
    others = tuple(root / folder for folder in ("cli", "kernels", "device/live", "experiments/paper"))
    digest = hashlib.sha256()
    for file in sorted(files):
        if file in ours or not any(file.is_relative_to(folder) for folder in others):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _file_of_cost(cost: str) -> str:
    kind, _, rest = cost.partition(":")
    return split_profile(rest)[0] if kind == "profile" else ""


@cache
def _digest(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""  # a name and no file


def _keep(job: Job, file: Path) -> None:
    put_text(file, json.dumps(job.run()))


def _kept(file: Path) -> Outcome | None:
    try:
        found: Outcome = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _replay(scenario: Scenario, change: str | None) -> Outcome:
    trace = trace_of(scenario)
    if change is not None:
        trace = CHANGES[change](trace, scenario)
    return _plain(run(scenario, trace, steps="none").summary)


def _plain(summary: dict[str, Any]) -> Outcome:
    return {name: value for name, value in summary.items() if name != "sim"}
