"""Profiles: files of iteration costs based on measurements."""

from __future__ import annotations

from pagesim.costs.held_out import TermError
from pagesim.costs.profiles.analytic import analytic_profile
from pagesim.costs.profiles.bundled import analytic_names, bundled_names, bundled_profile, find_profile
from pagesim.costs.profiles.fitting import (
    FittedTerms,
    fit_terms,
    predict,
    range_of,
    relative_error,
    table_of,
)
from pagesim.costs.profiles.llmservingsim import import_llmservingsim
from pagesim.costs.profiles.profile import (
    ANY_BLOCK,
    Decode,
    Launching,
    Prefill,
    Profile,
    Range,
    Reached,
    Shape,
    States,
    Terms,
    check_attends_to_all,
    load_profile,
)
from pagesim.costs.profiles.rescale import LAUNCH_S, rescale
from pagesim.costs.profiles.samples import BLOCK_CURVES, CURVES, EVERYWHERE, TERMS, Sample
from pagesim.costs.profiles.vidur import import_vidur

__all__ = [
    "ANY_BLOCK",
    "BLOCK_CURVES",
    "CURVES",
    "EVERYWHERE",
    "LAUNCH_S",
    "TERMS",
    "Decode",
    "FittedTerms",
    "Launching",
    "Prefill",
    "Profile",
    "Range",
    "Reached",
    "Sample",
    "Shape",
    "States",
    "TermError",
    "Terms",
    "analytic_names",
    "analytic_profile",
    "bundled_names",
    "bundled_profile",
    "check_attends_to_all",
    "find_profile",
    "fit_terms",
    "import_llmservingsim",
    "import_vidur",
    "load_profile",
    "predict",
    "range_of",
    "relative_error",
    "rescale",
    "table_of",
]
