"""Workloads: traces read from files, arrival processes, and models of request lengths."""

from pagesim.workloads.arrivals import KINDS, ArrivalKind, arrival_rate, arrive, gap_cv
from pagesim.workloads.bundled import workload, workloads
from pagesim.workloads.describe import describe, plot_trace
from pagesim.workloads.files import NO_ARRIVALS, has_recorded_arrivals, load, save
from pagesim.workloads.formats import FORMATS
from pagesim.workloads.lengths import (
    SPECS,
    Fixed,
    Lengths,
    Lognormal,
    Uniform,
    parse_lengths,
)
from pagesim.workloads.make import DEFAULT_REQUESTS, make_trace
from pagesim.workloads.model import LengthModel, Provenance, fit
from pagesim.workloads.reuse import ideal_reuse, reuse_distances, session_reuse
from pagesim.workloads.sharing import decode_as, parse_shared_prefix, share_prefix
from pagesim.workloads.thinking import parse_think, think

__all__ = [
    "DEFAULT_REQUESTS",
    "FORMATS",
    "KINDS",
    "NO_ARRIVALS",
    "SPECS",
    "ArrivalKind",
    "Fixed",
    "LengthModel",
    "Lengths",
    "Lognormal",
    "Provenance",
    "Uniform",
    "arrival_rate",
    "arrive",
    "decode_as",
    "describe",
    "fit",
    "gap_cv",
    "has_recorded_arrivals",
    "ideal_reuse",
    "load",
    "make_trace",
    "parse_lengths",
    "parse_shared_prefix",
    "parse_think",
    "plot_trace",
    "reuse_distances",
    "save",
    "session_reuse",
    "share_prefix",
    "think",
    "workload",
    "workloads",
]
