"""Bundled profiles, and lookup of a profile by name or path."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from pathlib import Path

from pagesim.costs.profiles.analytic import analytic_profile
from pagesim.costs.profiles.profile import Profile, load_profile
from pagesim.errors import PagesimError
from pagesim.hardware import gpu, gpus
from pagesim.models import ModelSpec

DATA = Path(__file__).resolve().parent / "data"

ANALYTIC = "analytic-"

MOST_NEAR = 5
"""Maximum number of names suggested for an unknown profile."""


def bundled_names() -> tuple[str, ...]:
    """Return the names of the bundled profiles that are based on measurements."""
    return tuple(sorted(file.stem for file in DATA.glob("*.json")))


def analytic_names() -> tuple[str, ...]:
    """Return the names of the profiles that are made from datasheets, for any model."""
    return tuple(ANALYTIC + each.name for each in gpus())


@cache
def bundled_profile(name: str) -> Profile:
    """Return a bundled profile that is based on measurements.

    Args:
        name: one of ``bundled_names``.
    """
    return load_profile(DATA / f"{name}.json")


def find_profile(
    name: str, *, model: ModelSpec, tp: int = 1, kv_dtype: str = "fp16", block_size: int = 16
) -> Profile:
    """Return a profile by its name or path.

    Args:
        name: name of a bundled or analytic profile, or path of a JSON file.
        model: model of an analytic profile; ignored for others.
        tp: GPUs over which the model is divided; likewise.
        kv_dtype: data type of the KV cache; likewise.
        block_size: tokens per block; likewise.

    Raises:
        PagesimError: there is no such profile, or the file is not a profile.
    """
    if name in bundled_names():
        return bundled_profile(name)
    if name.startswith(ANALYTIC):
        return analytic_profile(
            gpu(name.removeprefix(ANALYTIC)), model, tp=tp, kv_dtype=kv_dtype, block_sizes=(block_size,)
        )
    file = Path(name)
    if file.suffix == ".json" or file.is_file():
        return load_profile(file)
    near = get_close_matches(name, bundled_names(), MOST_NEAR, 0.5)
    such_as = f" (such as {', '.join(near)})" if near else ""
    raise PagesimError(
        f"there is no profile {name!r}; it must be one that `pagesim list profiles` names"
        f"{such_as}, one of {', '.join(analytic_names())}, or the "
        "path of a JSON file"
    )
