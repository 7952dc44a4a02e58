"""What a person sees of a validation: how wrong iterations are, and how wrong a whole run is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pagesim.cli import show
from pagesim.cli.printing import put_side_by_side, put_table
from pagesim.cli.show_live import verdict
from pagesim.cli.show_truth import errors


def tables(cases: Sequence[Any]) -> None:
    """Print both comparisons of every case of `pagesim.device.validation`."""
    reports = {case.name: case.report() for case in cases}
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
            for name, report in reports.items()
            for kind, each in report["same_schedule"].items()
        ],
    )
    errors("End to end: simulated against live", [(case.name, case.residuals) for case in cases])
    counted = {"iterations": _iterations, "recomputed, swapped": _preemptions}
    rows = [
        (label, [" / ".join(counts(report)) for report in reports.values()])
        for label, counts in counted.items()
    ]
    put_side_by_side("Simulated / live", list(reports), rows)
    for name, report in reports.items():
        if report["check"] is not None:
            show.say(f"{name}: {verdict(report['check'])}")


def _iterations(report: Mapping[str, Any]) -> Sequence[str]:
    return [f"{report['iterations'][way]:,}" for way in ("simulated", "live")]


def _preemptions(report: Mapping[str, Any]) -> Sequence[str]:
    both = report["preemptions"]
    return [f"{both[way]['recompute']}, {both[way]['swap']}" for way in ("simulated", "live")]
