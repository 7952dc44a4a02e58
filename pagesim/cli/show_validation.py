"""What a person sees of a validation: how wrong iterations are, and how wrong a whole run is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pagesim.cli import show
from pagesim.cli.printing import put_side_by_side, put_table
from pagesim.cli.show_live import verdict

Report = Mapping[str, Any]


def tables(cases: Mapping[str, Report]) -> None:
    """Print both comparisons of every case, by its name."""
    put_table(
        "Same schedule: each live iteration, predicted from its own shape",
        ("", "iterations", "ms, mean", "error, mean", "without sign", "of all time"),
        [
            (
                f"{name}: {kind}",
                f"{each['iterations']:,}",
                f"{1e3 * each['mean_s']:,.3f}",
                f"{100 * each['signed']:+.1f} %",
                f"{100 * each['absolute']:.1f} %",
                f"{100 * each['total']:+.1f} %",
            )
            for name, case in cases.items()
            for kind, each in case["same_schedule"].items()
        ],
    )
    names = list(cases)
    rows: list[tuple[str, list[str]]] = []
    for metric in dict.fromkeys(metric for case in cases.values() for metric in case["end_to_end"]):
        found = [cases[name]["end_to_end"].get(metric) for name in names]
        rows.append((metric, [f"{100 * each['error']:+.1f} %" if each else "–" for each in found]))
    for label, counts in (("iterations", _iterations), ("recomputed, swapped", _preemptions)):
        rows.append((label, [" / ".join(counts(cases[name])) for name in names]))
    put_side_by_side("End to end: simulated against live, relative errors", names, rows)
    for name, case in cases.items():
        if case["check"] is not None:
            show.say(f"{name}: {verdict(case['check'])}")


def _iterations(case: Report) -> Sequence[str]:
    return [f"{case['iterations'][way]:,}" for way in ("simulated", "live")]


def _preemptions(case: Report) -> Sequence[str]:
    both = case["preemptions"]
    return [f"{both[way]['recompute']}, {both[way]['swap']}" for way in ("simulated", "live")]
