"""Profiles: what iterations cost, from measurements, in a file."""

from __future__ import annotations

from pagesim.profiles.analytic import analytic_profile
from pagesim.profiles.attention import DecodeAttention, PrefillAttention
from pagesim.profiles.box import analytic_names, boxed, boxed_names, find_profile
from pagesim.profiles.curves import Curve
from pagesim.profiles.fit import Fit, fit_terms, predict, relative_error
from pagesim.profiles.profile import Profile, Range, Shape, TermError, Terms, load_profile
from pagesim.profiles.rescale import rescale
from pagesim.profiles.samples import BLOCK_CURVES, CURVES, TERMS, Sample
from pagesim.profiles.vidur import import_vidur

__all__ = [
    "BLOCK_CURVES",
    "CURVES",
    "TERMS",
    "Curve",
    "DecodeAttention",
    "Fit",
    "PrefillAttention",
    "Profile",
    "Range",
    "Sample",
    "Shape",
    "TermError",
    "Terms",
    "analytic_names",
    "analytic_profile",
    "boxed",
    "boxed_names",
    "find_profile",
    "fit_terms",
    "import_vidur",
    "load_profile",
    "predict",
    "relative_error",
    "rescale",
]
