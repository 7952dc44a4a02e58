"""The workloads that come with pagesim: models that ``pagesim trace fit`` fitted to published traces."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pagesim.errors import PagesimError
from pagesim.workloads.model import LengthModel

DATA = Path(__file__).resolve().parent / "data"
NAMES = ("sharegpt", "alpaca", "azure-conv")


@cache
def workload(name: str) -> LengthModel:
    """Return a bundled model by name.

    Raises:
        PagesimError: there is no bundled workload of this name.
    """
    if name not in NAMES:
        raise PagesimError(f"there is no workload {name!r}; the bundled ones are {', '.join(NAMES)}")
    return LengthModel.load(DATA / f"{name}.json")


def workloads() -> dict[str, str]:
    """Return the name of each bundled workload, and a sentence on it."""
    return {name: workload(name).provenance.description for name in NAMES}
