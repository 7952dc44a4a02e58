"""What a person sees of operator tables in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from pagesim.cli.printing import put_table
from pagesim.cli.show import say
from pagesim.costs.operators import Score
from pagesim.costs.operators.bundle import Entry


def scores(system: str, found: Sequence[Score]) -> None:
    """Print how wrong each term of a system is on points that were held out."""
    rows = []
    for score in found:
        bar = "–" if score.bar is None else f"{100 * score.bar:.0f} {'met' if score.passes else 'missed'}"
        floor = "–" if score.floor is None else _percent(score.floor)
        errors = (_percent(score.mean), _percent(score.far), _percent(score.worst))
        rows.append((f"{score.term}, {score.dtype}", f"{score.points:,}", *errors, floor, bar))
    heads = ("term", "points", "mean", ">20\u00a0%", "worst", "floor", "bar")
    put_table(f"{system}: relative errors of held-out points, %", heads, rows, texts=(0, 6))
    versions = sorted({score.version for score in found})
    say(f"tables of {', '.join(versions)}")


def bundled(entries: Sequence[Entry]) -> None:
    """Print over how many GPUs there is a profile of each model, and why there is none over others."""
    of: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        name = entry.model if entry.weights is None else f"{entry.model}, {entry.weights}"
        of.setdefault((name, entry.gpu), []).append(entry)
    rows = []
    for (model, gpu), each in of.items():
        there = ", ".join(str(entry.tp) for entry in each if entry.profile is not None)
        reasons: dict[str, list[str]] = {}
        for entry in each:
            if entry.profile is None:
                reasons.setdefault(entry.why, []).append(str(entry.tp))
        why = "; ".join(f"{', '.join(degrees)}: {reason}" for reason, degrees in reasons.items())
        rows.append((model, gpu, there or "–", why))
    put_table("Profiles of operators", ("model", "GPU", "tp", "none over"), rows, texts=(0, 1, 2, 3))


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
