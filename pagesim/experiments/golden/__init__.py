"""Golden logs: a real engine's decisions, iteration by iteration, to compare with pagesim's."""

from __future__ import annotations

from pagesim.experiments.golden.compare import CLOCK_TOLERANCE_S, Difference, first_difference
from pagesim.experiments.golden.manifest import GoldenLog, read_manifest, read_manifests
from pagesim.experiments.golden.replay import LogComparison, compare_log

__all__ = [
    "CLOCK_TOLERANCE_S",
    "Difference",
    "GoldenLog",
    "LogComparison",
    "compare_log",
    "first_difference",
    "read_manifest",
    "read_manifests",
]
