"""From figures and a setting to numbers: every job once, over all cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pagesim.experiments.paper.figures.base import Outcomes, PaperFigure
from pagesim.experiments.paper.jobs import Job, ProgressCallback, carry_out
from pagesim.experiments.paper.numbers import Number
from pagesim.experiments.paper.setting import Setting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REPLAYS = "replays"
"""The folder in which outcomes are kept."""


@dataclass(frozen=True)
class Reproduced:
    """A figure with its numbers.

    Attributes:
        figure: of the paper.
        setting: with which it was made.
        outcomes: of its jobs, by name.
        numbers: the paper's beside ours.
    """

    figure: PaperFigure
    setting: Setting
    outcomes: Outcomes
    numbers: list[Number]

    def draw(self) -> Figure | None:
        """Return the drawn figure; None where it is not drawn."""
        if self.figure.draw is None:
            return None
        return self.figure.draw(self.setting, self.outcomes, self.numbers)


def jobs_of(figures: Sequence[PaperFigure], setting: Setting) -> dict[str, dict[str, Job]]:
    """Return the jobs of each figure, by its name."""
    return {figure.name: figure.jobs(setting) for figure in figures}


def reproduce(
    figures: Sequence[PaperFigure],
    setting: Setting,
    out: Path,
    *,
    cores: int = -1,
    progress: ProgressCallback | None = None,
) -> list[Reproduced]:
    """Replay what figures need and return their numbers.

    Args:
        figures: which.
        setting: with what.
        out: folder in which outcomes are kept, so that the same command goes on where it was stopped.
        cores: at once; -1 for all.
        progress: called after each job, see `carry_out`.

    Raises:
        PagesimError: a trace cannot be read, or the cost does not fit a figure.
    """
    jobs = {
        f"{name} {job}": each for name, of in jobs_of(figures, setting).items() for job, each in of.items()
    }
    found = carry_out(jobs, folder=out / REPLAYS, cores=cores, progress=progress)
    made = []
    for figure in figures:
        prefix = f"{figure.name} "
        outcomes = {
            name.removeprefix(prefix): each for name, each in found.items() if name.startswith(prefix)
        }
        made.append(Reproduced(figure, setting, outcomes, figure.numbers(setting, outcomes)))
    return made
