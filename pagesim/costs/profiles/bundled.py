"""The profiles that come with pagesim, and how a profile is found by its name or path."""

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
"""Names of profiles that are offered in place of one that there is not."""


def bundled_names() -> tuple[str, ...]:
    """Return the names of profiles that rest on measurements."""
    return tuple(sorted(file.stem for file in DATA.glob("*.json")))


def analytic_names() -> tuple[str, ...]:
    """Return the names of profiles that are made from datasheets, for any model."""
    return tuple(ANALYTIC + each.name for each in gpus())


@cache
def bundled_profile(name: str) -> Profile:
    """Return a profile that comes with pagesim and rests on measurements.

    Args:
        name: one of ``bundled_names``.
    """
    return load_profile(DATA / f"{name}.json")


def find_profile(
    name: str, *, model: ModelSpec, tp: int = 1, kv_dtype: str = "fp16", block_size: int = 16
) -> Profile:
    """Return a profile.

    Args:
        name: of one that comes with pagesim, or the path of a JSON file.
        model: that an analytic one is made for.
        tp: as ``model``.
        kv_dtype: as ``model``.
        block_size: as ``model``.

    Raises:
        PagesimError: there is none, or the file is no profile.
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
