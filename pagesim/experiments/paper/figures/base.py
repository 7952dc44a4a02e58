"""What a figure of the paper is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagesim.experiments.paper.jobs import Job, Outcome
from pagesim.experiments.paper.numbers import Number
from pagesim.experiments.paper.setting import Setting

if TYPE_CHECKING:  # matplotlib takes long to import
    from matplotlib.figure import Figure

Outcomes = Mapping[str, Outcome]


@dataclass(frozen=True)
class PaperFigure:
    """A figure or table of the paper.

    Attributes:
        name: as the command takes it.
        title: what it shows.
        how: what is replayed, and what is averaged over what.
        rests_on: what our numbers depend on: ``memory``, ``lengths``, or ``step times``.
        jobs: what has to be replayed, by name.
        numbers: from what these jobs found, the paper's numbers beside ours.
        draw: the figure in the paper's form.
        missing: why it is not drawn, where it is not; then there is nothing else.
        answer: for a question that is no figure of the paper's, what its numbers say.
    """

    name: str
    title: str
    how: str
    rests_on: str
    jobs: Callable[[Setting], dict[str, Job]]
    numbers: Callable[[Setting, Outcomes], list[Number]]
    draw: Callable[[Setting, Outcomes, Sequence[Number]], Figure] | None
    missing: str = ""
    answer: Callable[[Sequence[Number]], str] | None = None


def nothing(_: Setting) -> dict[str, Job]:
    """Return the jobs of a figure that needs no replay."""
    return {}
