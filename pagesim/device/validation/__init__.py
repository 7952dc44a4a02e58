"""Validation: one trace both ways, really carried out and simulated, and by how much the two differ."""

from __future__ import annotations

from pagesim.device.validation.errors import KINDS, METRICS, Iterations, by_kind, kind_of, metric_errors
from pagesim.device.validation.validating import Case, validate

__all__ = [
    "KINDS",
    "METRICS",
    "Case",
    "Iterations",
    "by_kind",
    "kind_of",
    "metric_errors",
    "validate",
]
